"""Training runs on the CPU although a GPU is free.

Means:
    A torch that is built for GPUs trains on the CPU cores while a GPU of this machine does nothing: the model was
    never moved to it.
Evidence:
    Steps that are made on the CPU, a torch with CUDA (its version, or its libraries in the process), a process that
    uses a core or more, and a GPU that nothing computes on.
Fires:
    All of that for a process of two minutes and more.
Clears:
    The process has a context on a GPU, or no GPU is free.
Not when:
    The process does not train (tokenizing, preprocessing); its torch is built without CUDA; CUDA_VISIBLE_DEVICES is
    empty on purpose; the driver cannot be reached (gpuwatch doctor says why). What is not known of these keeps the
    rule silent.
Causes:
    The model was never moved to the GPU; CUDA_VISIBLE_DEVICES hides it; or the installed torch is built for CPUs.
Fix:
    device = torch.device("cuda"), model.to(device), and the batches with it.
Gain:
    A hint: it depends on the model.
Verify:
    The process has a context on the GPU, and samples per second are up.
Source:
    Microsoft's study of GPU jobs (ICSE 2024): insufficient GPU computations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.sampled import enough, phase_samples
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import cpu_cores, listed
from gpuwatch.timeline.windows import GpuWindow, RankWindow

LEAST_SAMPLES = 30
TRAINS = ("backward", "optimizer")
_CUDA_VERSION = re.compile(r"\+cu\d+")
_CPU_VERSION = re.compile(r"\+cpu\b")
HIDDEN = frozenset({"", "-1", "none", "nodevfiles"})


@dataclass(frozen=True, slots=True)
class Thresholds:
    cores: float = threshold(1.0, "that the run keeps busy at least")
    age_seconds: float = threshold(120.0, "of the run at least")
    free_percent: float = threshold(5.0, "utilization below which a GPU is free")


@rule("gpu-unused", family="precision", subject="run", level=Level.E0, thresholds=Thresholds)
def gpu_unused(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, process = case.run.critical, case.run.critical.process
    if rank.facts.device != "cpu" or rank.facts.gpu_uuids or case.gpus or process is None or not _trains(rank):
        return None
    cores, age, free = process.tree_cores, process.latest.age_seconds, _free(case, limits)
    if cores is None or cores < limits.cores or age is None or age < limits.age_seconds or not free:
        return None
    if not _has_cuda(rank) or _hides_gpus(rank):
        return None
    names = listed(gpu_name(gpu) for gpu in free)
    return Draft(
        summary=f"Training runs on {cpu_cores(round(cores, 1))} while {names} {'is' if len(free) == 1 else 'are'} free",
        severity=Severity.WARNING,
        level=Level.E1,
        evidence=(
            Measure("device", rank.facts.device, "the model is trained on the CPU"),
            Measure("tree_cores", round(cores, 2), f"{cores:.1f} cores used"),
            Measure("free_gpus", len(free), f"nothing computes on {names}"),
            Measure("torch", rank.facts.torch, f"torch {rank.facts.torch or 'of an unknown version'}, built with CUDA"),
        ),
        fix=Fix(
            text="Move the model and each batch to the GPU",
            code='device = torch.device("cuda")\nmodel.to(device)\nbatch = batch.to(device, non_blocking=True)',
            file=rank.facts.model.optimizer_file,
            line=rank.facts.model.optimizer_line,
            value="cuda",
        ),
        hint="no promise: it depends on the model",
        verify="The process has a context on the GPU, and samples per second are up",
        chart=("gpu.utilization_percent", "run.samples_per_second"),
    )


def _trains(rank: RankWindow) -> bool:
    """Whether it makes training steps, as its hook or its stacks show."""
    if rank.facts.visibility == "exact":
        return rank.steps > 0
    stacks = enough(rank)
    return stacks is not None and phase_samples(stacks, *TRAINS) >= LEAST_SAMPLES


def _free(case: RunCase, limits: Thresholds) -> list[GpuWindow]:
    """GPUs on which nothing computes; one whose processes are not known may be in use."""
    return [
        gpu
        for gpu in case.scene.gpus
        if gpu.status == "live"
        and gpu.utilization is not None
        and gpu.utilization.max < limits.free_percent
        and gpu.latest_status is not None
        and gpu.latest_status.processes == ()
    ]


def _has_cuda(rank: RankWindow) -> bool:
    version = rank.facts.torch or ""
    if _CPU_VERSION.search(version):
        return False
    libraries = (rank.process.latest.libraries if rank.process else None) or ()
    return bool(_CUDA_VERSION.search(version)) or "torch_cuda" in libraries


def _hides_gpus(rank: RankWindow) -> bool:
    """Whether it was started without GPUs on purpose; unknown counts as yes."""
    environment = rank.process.latest.environment if rank.process else None
    if environment is None:
        return True
    visible = dict(environment).get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.strip().lower() in HIDDEN
