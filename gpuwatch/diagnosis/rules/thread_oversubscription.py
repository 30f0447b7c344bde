"""Each loader worker starts its own thread pool (OpenCV, NumPy, OpenMP): hundreds of threads compete for the cores.

Means:
    A library in the workers takes one thread for each core of the machine, in every worker. The kernel then spends
    its time on switching between them instead of on the work.
Evidence:
    Threads of the workers that ran a tenth as long as the busiest one within a second (sleeping ones and those that
    only send batches do not count), against the cores this rank may use; the kernel's share of the workers' CPU
    time, or the load per core. What is lost: waits for data, and the time in which the training thread could run and
    did not, as far as the GPU idles inside steps meanwhile.
Fires:
    At least twice as many active threads as cores and two in each worker, a quarter of the workers' CPU time spent in
    the kernel (or a load of two per core), and 5% lost.
Clears:
    Fewer than 1.2 active threads per core, or less than 3% lost. A warning from 10% on.
Not when:
    The threads sleep, or the workers use less than half of the cores; torch itself runs one thread in a worker.
    Storage, a CPU quota or pinned workers explain it first. Many workers of one thread each have their own rule.
Causes:
    OpenCV, MKL, OpenBLAS, Arrow or polars, whichever of them is loaded in the process and named by the workers'
    hottest line.
Fix:
    One thread per worker: cv2.setNumThreads(0) or pyarrow.set_cpu_count(1) in worker_init_fn, or OMP_NUM_THREADS,
    MKL_NUM_THREADS and OPENBLAS_NUM_THREADS before NumPy is imported (the last alone where training itself computes
    on the CPU); more where there are fewer workers than cores.
Gain:
    One over the GPU's busy share, or without a GPU 1 / (1 - S), within the 5% by which a minute's figure is off: too
    many threads slow launches as well as loading. It is promised only where it is no more than a quarter above a second
    estimate, in which batches are made as many times as fast as threads now compete for each core, up to 4 times, and
    their waits for storage stay. Otherwise the gain depends on how long one thread takes for a batch, which CPU time
    does not show while threads spin: then there is a hint with both ends. Measured with np.linalg.svd in 4 workers on 2
    cores: 8.7 batches a second, 59.8 with one OpenBLAS thread each; 4 and 10 times were reported.
Verify:
    Fewer than 1.2 active threads per core, and the kernel's share down.
Source:
    mmdetection#6867 (2048 threads), mmocr#721, pytorch#82219 and #22535; torch's worker.py sets one thread for torch
    alone.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import Uncrowded, step_cost, uncrowded
from gpuwatch.diagnosis.advice.fixes import place_of, worker_init_fix
from gpuwatch.diagnosis.advice.lines import hottest_of_workers, loading_measures
from gpuwatch.diagnosis.advice.resources import allowed_cores
from gpuwatch.diagnosis.advice.rivals import rivals
from gpuwatch.diagnosis.advice.starvation import Starvation, idle_outside_waits, starvation_of, train_busy_percent
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, listed
from gpuwatch.timeline.windows import RankWindow

WARNED_FROM = 0.10
LITTLE_LOST = "no promise: little is lost to waits; 4x and more was reported in bad cases"
THREADS_PER_WORKER = 2.0
USED_SHARE = 0.5
"""Of the cores, by all workers: in one that only yields numbers the sending thread counts as much as the worker."""
FUNCTION = "one_thread_per_worker"
NAMES = {"cv2": "OpenCV", "openblas": "OpenBLAS", "mkl": "MKL", "arrow": "Arrow", "polars": "Polars"}


@dataclass(frozen=True, slots=True)
class Thresholds:
    threads_per_core: float = threshold(2.0, "at work: reported from here on")
    clear_threads_per_core: float = threshold(1.2, "until fewer are", bounded_by="threads_per_core")
    system_share: float = threshold(0.25, "of the workers' CPU time passes in the kernel at least")
    load_per_core: float = threshold(2.0, "or the load is as high as this")
    lost_share: float = threshold(0.05, "of the time lost to waits and to launches that come late, at least")
    clear_lost_share: float = threshold(0.03, "until less is lost", bounded_by="lost_share")


@rule(
    "thread-oversubscription",
    family="data",
    subject="run",
    level=Level.E1,
    fades=True,
    thresholds=Thresholds,
)
def thread_oversubscription(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, starvation, cores = case.run.critical, starvation_of(case), allowed_cores(case)
    workers = rank.workers
    if workers is None or workers.active_threads is None:
        return None
    each = workers.active_threads / max(1, workers.count)
    used = None if workers.cpu_cores is None else workers.cpu_cores * workers.count / cores
    if (
        workers.active_threads < limits.clear_threads_per_core * cores
        or each < THREADS_PER_WORKER
        or (used is not None and used < USED_SHARE)
        or starvation is None
    ):
        return None
    late = _launched_late(case, starvation)
    lost = starvation.share + late
    if lost < limits.clear_lost_share:
        return None
    load = _load_per_core(case)
    grinds = (workers.system_share or 0.0) >= limits.system_share or (load or 0.0) >= limits.load_per_core
    brings = Uncrowded(None, LITTLE_LOST)
    if starvation.share >= WARNED_FROM:
        brings = uncrowded(case, starvation, step_cost(case, starvation), workers.active_threads / cores)
    return Draft(
        summary=(
            f"{workers.active_threads} threads of {workers.count} workers compete for {cpu_cores(cores)}: "
            f"a library in each worker starts its own"
        ),
        severity=Severity.WARNING if lost >= WARNED_FROM else Severity.INFO,
        level=min(starvation.level, Level.E2),
        evidence=(
            Measure("active_threads", workers.active_threads, f"about {each:.0f} threads at work in each worker"),
            Measure("cpu_cores", cores, f"{cpu_cores(cores)} for this rank"),
            *_grinding(workers.system_share, load),
            share_measure("starvation_share", starvation.share, "lost to waits for data"),
            *((share_measure("run_delay_share", late, "the training thread waits for a core"),) if late else ()),
            *loading_measures(rank),
        ),
        fires=workers.active_threads >= limits.threads_per_core * cores and grinds and lost >= limits.lost_share,
        fix=_fix(rank, cores, workers.count),
        gain=brings.gain,
        hint=brings.hint,
        ruled_out=rivals(case, "cpu", "threads"),
        verify="Fewer than 1.2 active threads per core, and the wait below 6%",
        chart=("host.cpu_percent", "run.wait_share"),
    )


def _launched_late(case: RunCase, starvation: Starvation) -> float:
    """The share of time in which the training thread waits for a core and the GPU idles inside steps.

    In a simulated job of 64 threads on 8 cores waits took 5% of the time and launches 57%: one thread in each worker
    made it 3.1 times as fast.
    """
    process, busy = case.run.critical.process, train_busy_percent(case)
    in_line = process.run_delay_share if process is not None else None
    if in_line is None or busy is None:
        return 0.0
    return min(in_line, idle_outside_waits(case.run.critical, starvation, busy))


def _load_per_core(case: RunCase) -> float | None:
    load = case.host.latest.load_1m if case.host else None
    return None if load is None or case.machine is None else load / max(1, case.machine.cpu_count)


def _grinding(system_share: float | None, load: float | None) -> tuple[Measure, ...]:
    measures = []
    if system_share is not None:
        measures.append(share_measure("worker_system_share", system_share, "of the workers' CPU time in the kernel"))
    if load is not None:
        measures.append(Measure("load_per_core", round(load, 2), f"load {load:.1f} per core"))
    return tuple(measures)


def _fix(rank: RankWindow, cores: float, workers: int) -> Fix:
    threads = max(1, math.floor(cores / max(1, workers)))
    found = _libraries(rank)
    said = f" ({listed(NAMES[name] for name in found)} {'is' if len(found) == 1 else 'are'} loaded)" if found else ""
    file, line = place_of(rank.train_loader)
    one = f"{threads} thread{'' if threads == 1 else 's'}"
    statements = {
        "cv2": (f"cv2.setNumThreads({0 if threads == 1 else threads})", "cv2.ocl.setUseOpenCL(False)"),
        "arrow": (f"pyarrow.set_cpu_count({threads})",),
    }.get(found[0] if found else "")
    if statements is not None:
        text = f"Let each worker use {one}, by a worker_init_fn of the DataLoader{said}"
        return worker_init_fix(rank.train_loader, FUNCTION, statements, text, threads)
    names: tuple[str, ...] = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    if found[:1] == ("polars",):
        names = ("POLARS_MAX_THREADS", *names)
    elif rank.facts.device == "cpu" and found[:1] == ("openblas",):
        names = ("OPENBLAS_NUM_THREADS",)  # torch computes with the other two, and keeps its threads
    elif rank.facts.device == "cpu":
        limit = (f"threadpoolctl.threadpool_limits({threads})",)
        text = f"Let each worker use {one}, by a worker_init_fn of the DataLoader: training keeps its own{said}"
        return worker_init_fix(rank.train_loader, FUNCTION, limit, text, threads)
    environment = tuple((name, str(threads)) for name in names)
    return Fix(
        text=f"Let each worker use {one}: set this where the script is started, libraries read it only once{said}",
        code=f"{' '.join(map('='.join, environment))} {shlex.join(rank.facts.command)}",
        file=file,
        line=line,
        value=threads,
        environment=environment,
    )


def _libraries(rank: RankWindow) -> tuple[str, ...]:
    """The loaded libraries that start threads, the one at work in the workers' hottest line first."""
    known = (rank.process.latest.libraries if rank.process else None) or ()
    line = hottest_of_workers(rank.stacks, "item", "collate")
    words = f"{line.text or ''} {line.leaf or ''}" if line is not None else ""
    uses_cv2, uses_numpy = "cv2" in words, any(name in words for name in ("np.", "numpy", "scipy"))
    order = ["cv2", "polars", "arrow", "mkl", "openblas"]
    if uses_numpy and not uses_cv2:
        order = ["mkl", "openblas", "cv2", "polars", "arrow"]
    return tuple(name for name in order if name in known)
