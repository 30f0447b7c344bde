"""Somebody holds a GPU that does nothing.

Means:
    A process holds memory on this GPU and starts no kernel there: a notebook left open, a server that nobody asks, or a
    job that trains on other GPUs and does not use the one it should. Nobody else can have it: money for nothing.
Evidence:
    NVML's list of processes on the GPU with their memory, and utilization 0 throughout. Of a job that makes steps on
    other GPUs any memory counts, of other programs 1 GiB.
Fires:
    For 10 minutes.
Clears:
    Utilization above 5%.
Not when:
    It is a job's only GPU; the job makes no steps (a pipeline that fills); other programs that hold less, as a display
    does; utilization is not reported (MIG).
Causes:
    LOCAL_RANK or device_ids that name other GPUs, or a script that uses fewer than it was given.
Fix:
    Of a job: look at LOCAL_RANK, device_ids and CUDA_VISIBLE_DEVICES; else end the process if nobody needs it.
Gain:
    No speed; the cost of a GPU.
Verify:
    Utilization above 5%, or the process gone.
Source:
    Microsoft's study of 400 jobs (ICSE'24); Meta's GCM idle checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import age, gibibytes, grouped, listed
from gpuwatch.samples import GpuProcess
from gpuwatch.timeline.runs import title_of
from gpuwatch.timeline.windows import RunWindow

TEN_MINUTES = 120  # evaluations, 5 s apart


@dataclass(frozen=True, slots=True)
class Thresholds:
    used_percent: float = threshold(5.0, "utilization: a GPU that is used more is not idle")
    held_gib: float = threshold(1.0, "memory that a program which does not train holds: a context alone has less")


@rule(
    "idle-gpu-allocated",
    family="multi_gpu",
    subject="gpu",
    level=Level.E0,
    gated=False,
    fire_after=TEN_MINUTES,
    thresholds=Thresholds,
)
def idle_gpu_allocated(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu, status = case.gpu, case.gpu.latest_status
    if gpu.utilization is None or gpu.utilization.mean > limits.used_percent or gpu.facts.mig or gpu.status != "live":
        return None
    processes_on_it = status.processes if status is not None else None
    holder = _holder(case, processes_on_it)
    if holder is None:
        return _of_nobody_in_training(case, processes_on_it or (), limits)
    run, processes = holder
    memory = _held_bytes(processes)
    held = f", {gibibytes(memory)}" if memory is not None else ""
    others = len(set(run.gpu_uuids) - {gpu.facts.uuid})
    return Draft(
        summary=f"{gpu_name(gpu)} is held by {run.title}{held} but idles, while the run trains on {others} other",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=(
            Measure("utilization_percent", round(gpu.utilization.max, 1), f"at most {gpu.utilization.max:.0f}% busy"),
            Measure("memory_bytes", memory, _holding(processes, memory)),
            Measure("steps", run.critical.steps, f"the run makes steps ({grouped(run.critical.steps)} in the window)"),
        ),
        fires=gpu.utilization.max < 1.0,
        fix=Fix(
            text="See which device each rank takes (LOCAL_RANK, device_ids, CUDA_VISIBLE_DEVICES), or give it back",
            code='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        ),
        hint="no speedup: it saves the cost of a GPU",
        ruled_out=(RuledOut("a job that waits", "it makes steps on its other GPUs"),),
        verify="Utilization above 5%, or no process of the job on it",
        chart=("gpu.utilization_percent", "gpu.memory_used_bytes"),
    )


def _of_nobody_in_training(case: GpuCase, listed_ones: Sequence[GpuProcess], limits: Thresholds) -> Draft | None:
    """A notebook, a server: no run of which steps are seen."""
    gpu = case.gpu
    training = {rank.facts.pid for run in case.scene.runs for rank in run.ranks}
    if gpu.utilization is None or any(process.pid in training for process in listed_ones):
        return None
    largest = max(listed_ones, key=lambda process: process.memory_bytes or 0, default=None)
    memory = _held_bytes(listed_ones)
    if largest is None or memory is None or memory < limits.held_gib * 2**30:
        return None
    idle_ns = case.scene.now_ns - gpu.idle_since_ns if gpu.idle_since_ns is not None else 0
    since = f"idle {age(idle_ns)}" if idle_ns else "idle"
    who = f"{largest.user}: " if largest.user else ""
    what = title_of(tuple((largest.command or f"process {largest.pid or largest.host_pid}").split(" ")))
    pid = largest.pid if largest.pid is not None else largest.host_pid
    return Draft(
        summary=f"{gpu_name(gpu)} {since}, {gibibytes(memory)} held by {who}{what}",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=(
            Measure("utilization_percent", round(gpu.utilization.max, 1), f"at most {gpu.utilization.max:.0f}% busy"),
            Measure("memory_bytes", memory, _holding(listed_ones, memory)),
        ),
        fires=gpu.utilization.max < 1.0,
        fix=Fix(
            text=f"End process {pid} ({what}) if nobody needs it: that frees {gibibytes(memory)} on {gpu_name(gpu)}"
        ),
        hint="no speedup: it frees a GPU",
        verify="Utilization above 5%, or the process gone",
        chart=("gpu.utilization_percent", "gpu.memory_used_bytes"),
    )


def _held_bytes(processes: Sequence[GpuProcess]) -> int | None:
    """What they hold together; None where that of one is unknown."""
    known = [process.memory_bytes for process in processes if process.memory_bytes is not None]
    return sum(known) if len(known) == len(processes) else None


def _holding(processes: Sequence[GpuProcess], memory: int | None) -> str:
    who = f"process{'es' if len(processes) > 1 else ''} {listed(str(process.pid) for process in processes)}"
    one = len(processes) == 1
    if memory is None:
        return (
            f"{who} {'is' if one else 'are'} on it, how much memory {'it holds' if one else 'they hold'} is not known"
        )
    return f"{who} {'holds' if one else 'hold'} {gibibytes(memory)} on it"


def _holder(case: GpuCase, processes: tuple[GpuProcess, ...] | None) -> tuple[RunWindow, list[GpuProcess]] | None:
    """The run that moves and has a process here in addition to its other GPUs."""
    for run in case.scene.runs:
        pids = {rank.facts.pid for rank in run.ranks if rank.ended is None}
        own = [process for process in processes or () if process.pid in pids]
        if own and run.critical.steps > 0 and set(run.gpu_uuids) - {case.gpu.facts.uuid}:
            return run, own
    return None
