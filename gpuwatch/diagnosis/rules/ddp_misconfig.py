"""Distributed settings add avoidable work.

Means:
    nn.DataParallel copies the model to every GPU at each step, from one process. torchrun gives every rank one CPU
    thread unless set otherwise, which is too few for ranks that compute or load on the CPU.
Evidence:
    The library at work below the training lines in the stacks; OMP_NUM_THREADS and torch's threads against the cores
    of a rank.
Fires:
    nn.DataParallel takes part in 5% or more of the training thread's samples; or ranks with one thread and at least
    two cores each compute on the CPU, or load without workers in a thread that is busy all the time.
Clears:
    Neither is seen any more.
Not when:
    The ranks have no cores to spare, or their GPU does the work. Unused parameters and gradients that are accumulated
    without no_sync cannot be seen from here, so nothing is said of them.
Causes:
    nn.DataParallel in place of one process per GPU; or torchrun's default of one thread per rank in a run whose CPU
    has work.
Fix:
    DistributedDataParallel under torchrun; OMP_NUM_THREADS = cores per rank.
Gain:
    A hint.
Verify:
    Samples per second up.
Source:
    torch's notes on DataParallel and DistributedDataParallel, torchrun's warning on OMP_NUM_THREADS.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.lines import watched, with_interval
from gpuwatch.diagnosis.advice.resources import allowed_cores
from gpuwatch.diagnosis.advice.sampled import enough, share_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores
from gpuwatch.timeline.windows import LineShare

LEAST_CORES = 2.0
_DATA_PARALLEL = re.compile(r"nn/parallel/(data_parallel|parallel_apply|replicate|scatter_gather)\.py")
_GATHERING = re.compile(r"nn/parallel/(_functions|comm)\.py")


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the training thread in DataParallel: reported from here on")
    clear_share: float = threshold(0.03, "until it is less", bounded_by="fire_share")
    thread_cores: float = threshold(0.9, "of one core that the main thread uses, at least", most=1.0)
    wait_share: float = threshold(0.10, "of the time spent waiting for data, at least")


@rule("ddp-misconfig", family="multi_gpu", subject="run", level=Level.E1, thresholds=Thresholds)
def ddp_misconfig(case: RunCase, limits: Thresholds) -> Draft | None:
    return _data_parallel(case, limits) or _single_threads(case, limits)


def _data_parallel(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    stacks = enough(rank)
    if stacks is None or (rank.facts.world_size or 1) > 1:
        return None
    lines = [line for line in stacks.lines if _is_data_parallel(line)]
    share = share_of(sum(line.samples for line in lines), stacks.samples)
    if not any(_DATA_PARALLEL.search(line.leaf or "") for line in lines) or share.value < limits.clear_share:
        return None
    chief = max(lines, key=lambda line: line.samples)
    return Draft(
        summary="nn.DataParallel copies the model to every GPU at each step, from one process",
        severity=Severity.HINT,
        level=Level.E1,
        evidence=(
            Measure(
                "data_parallel_share",
                round(share.value, 4),
                f"nn.DataParallel takes {with_interval(share)} of the training thread {watched(stacks)}",
            ),
            Measure("gpus", len(case.gpus), f"{len(case.gpus)} GPUs in one process"),
        ),
        fires=share.value >= limits.fire_share,
        fix=Fix(
            text="Wrap the model in DistributedDataParallel and start one process per GPU",
            code=f"torchrun --nproc_per_node={max(1, len(case.gpus))} {shlex.join(rank.facts.command[1:])}",
            file=chief.file,
            line=chief.line,
            value=max(1, len(case.gpus)),
        ),
        hint="no promise: it depends on the size of the model and on the number of GPUs",
        verify="Samples per second up",
        chart=("run.samples_per_second",),
    )


def _is_data_parallel(line: LineShare) -> bool:
    leaf = line.leaf or ""
    return bool(_DATA_PARALLEL.search(leaf) or _GATHERING.search(leaf))


def _single_threads(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, cores = case.run.critical, allowed_cores(case)
    ranks, process = rank.facts.local_world_size or 1, rank.process
    threads = _threads(case)
    if ranks < 2 or threads != 1 or cores < LEAST_CORES or process is None:
        return None
    main = process.main_thread_cores
    if main is None or main < limits.thread_cores:
        return None
    loads_itself = (
        rank.train_loader is not None
        and rank.train_loader.num_workers == 0
        and (rank.wait_share or 0.0) >= limits.wait_share
    )
    if rank.facts.device != "cpu" and not loads_itself:
        return None
    count = math.floor(cores)
    what = "computes" if rank.facts.device == "cpu" else "loads its batches"
    return Draft(
        summary=f"Each rank {what} with one CPU thread, although {cpu_cores(cores)} are there for it",
        severity=Severity.HINT,
        level=Level.E1,
        evidence=(
            Measure("threads", 1, "torch uses 1 thread per rank"),
            Measure("cpu_cores", cores, f"{cpu_cores(cores)} per rank"),
            Measure("main_thread_cores", round(main, 2), f"the training thread uses {main:.2f} of a core"),
        ),
        fix=Fix(
            text="Give each rank the threads it has cores for: torchrun sets OMP_NUM_THREADS=1 unless it is set",
            code=f"OMP_NUM_THREADS={count} torchrun --nproc_per_node={ranks} {shlex.join(rank.facts.command[1:])}",
            value=count,
            environment=(("OMP_NUM_THREADS", str(count)),),
        ),
        hint="no promise: it depends on how well the operations divide among threads",
        verify="Samples per second up",
        chart=("host.cpu_percent", "run.samples_per_second"),
    )


def _threads(case: RunCase) -> int | None:
    """As torch reports them, else as the process was started."""
    rank = case.run.critical
    if rank.facts.torch_threads is not None:
        return rank.facts.torch_threads
    environment = dict((rank.process.latest.environment if rank.process else None) or ())
    said = environment.get("OMP_NUM_THREADS", "")
    return int(said) if said.isascii() and said.isdecimal() else None
