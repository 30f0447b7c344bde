"""The section "training on this machine" of `gpuwatch doctor`: what its GPUs can do, and how to start a training on it.

What is not known of a GPU is said to be unknown: nothing is guessed from its name but the peak rates of the models that
NVIDIA's documents list.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from gpuwatch.cli.checks import Check, State
from gpuwatch.diagnosis.advice.precision import (
    BF16_FROM,
    FP8_FROM,
    PEAKS,
    TENSOR_CORES_FROM,
    has,
    model_of,
)
from gpuwatch.diagnosis.advice.workers import filling_workers
from gpuwatch.numbers import byte_size, cpu_cores, listed
from gpuwatch.procfs import shown
from gpuwatch.samples import GpuFacts, GpuStatus
from gpuwatch.sources.host.machine import CpuLimit, NumaNodes
from gpuwatch.sources.nvml.source import NvmlSurvey

SECTION = "training on this machine"
_UNKNOWN = "unknown"
_TORCH_SECONDS = 30.0

# In a process of its own and without a GPU to see, so that no CUDA context is created.
_ASK_TORCH = r"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # a torch.py in the current folder is not ours to run
import json, torch
found = {
    "matmul_precision": torch.get_float32_matmul_precision(),
    "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
    "cudnn_tf32": torch.backends.cudnn.allow_tf32,
    "kernels": getattr(torch._C, "_cuda_getArchFlags", lambda: None)(),
}
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Cores:
    """The CPU cores of this machine, and how many of them this process may use."""

    count: int
    affinity: int | None
    limit: CpuLimit

    @property
    def allowed(self) -> float:
        """What the affinity and the CPU quota leave."""
        quota = self.limit.quota_cores
        return self.by_affinity if quota is None else min(quota, self.by_affinity)

    @property
    def by_affinity(self) -> int:
        """What the affinity leaves."""
        return self.count if self.affinity is None else min(self.count, self.affinity)

    @property
    def words(self) -> str:
        """How many of how many, and what limits them."""
        quota = self.limit.quota_cores
        if quota is not None and quota < self.by_affinity:
            return f"{cpu_cores(quota)} (a CPU quota; the machine has {self.count})"
        if self.by_affinity < self.count:
            return f"{cpu_cores(self.by_affinity)} (CPU affinity; the machine has {self.count})"
        return cpu_cores(self.count)


@dataclass(frozen=True, slots=True)
class TorchDefaults:
    """What an unchanged torch does with float32, and for which GPUs it holds kernels: "sm_80 sm_90 compute_90"."""

    matmul_precision: str | None
    matmul_tf32: bool | None
    cudnn_tf32: bool | None
    kernels: str | None


def training_checks(
    found: NvmlSurvey,
    torch: Check,
    cores: Cores,
    environment: Mapping[str, str] = os.environ,
    sys_root: Path = Path("/sys"),
    physical_cores: Callable[[], int | None] = lambda: psutil.cpu_count(logical=False),
) -> list[Check]:
    """The whole section, of which a machine without GPUs has only the way to start a training.

    Args:
        found: what the driver answered.
        torch: the check of the installed torch, whose details name the interpreter that has it.
        cores: of this machine.
        environment: what a training would be started with.
        sys_root: where the kernel says on which NUMA node a GPU is.
        physical_cores: how many there are, without their second threads.
    """
    gpus = tuple(gpu for gpu in found.gpus if gpu.mig_parent is None)
    checks = []
    if gpus:
        nodes = NumaNodes(sys_root)
        checks = [check_gpus(gpus, found.statuses, nodes), check_peaks(gpus)]
        if torch.details.get("cuda"):
            checks.append(check_torch_defaults(gpus, torch, ask_torch(str(torch.details["interpreter"]))))
        checks.append(check_launch(gpus, cores, environment.get("CUDA_VISIBLE_DEVICES"), nodes))
    else:
        checks = [check_cpu_launch(cores, physical_cores())]
    return [replace(check, section=SECTION) for check in checks]


def check_gpus(gpus: Sequence[GpuFacts], statuses: Sequence[GpuStatus], nodes: NumaNodes) -> Check:
    """Generation, number formats, memory, link and NUMA node of each GPU."""
    by_uuid, node_of = {status.uuid: status for status in statuses}, dict(nodes.of_gpus())
    rows, narrow = [], []
    for gpu in gpus:
        status, node = by_uuid.get(gpu.uuid), node_of.get(gpu.kernel_address)
        width = status.pcie_width if status is not None else None
        if width is not None and gpu.pcie_width_max is not None and width < gpu.pcie_width_max:
            narrow.append(f"GPU {gpu.index} uses {width} of {gpu.pcie_width_max} lanes")
        rows.append(
            (
                str(gpu.index),
                model_of(gpu.name) + (" (MIG)" if gpu.mig else ""),
                _capability(gpu),
                byte_size(gpu.memory_total_bytes) if gpu.memory_total_bytes else _UNKNOWN,
                *(_yes_or_no(has(gpu.compute_capability, since)) for since in (BF16_FROM, FP8_FROM, BF16_FROM)),
                _link(status.pcie_generation if status is not None else None, width),
                _link(gpu.pcie_generation_max, gpu.pcie_width_max),
                _place(node, nodes),
            )
        )
    head = ("GPU", "model", "capability", "memory", "bf16", "fp8", "TF32", "PCIe now", "at most", "NUMA node: cores")
    result = partial(Check, "gpus", details={"gpus": len(gpus)}, rows=(head, *rows))
    if narrow:
        return result(
            State.WARNING,
            f"{listed(narrow)}: copies to it take longer than they need to.",
            "Seat the card again, or move it to a slot with all lanes; some boards share the lanes of two slots.",
        )
    many = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return result(
        State.OK, f"{many}. An idle PCIe link may lower its generation to save power; it rises as soon as data moves."
    )


def _capability(gpu: GpuFacts) -> str:
    return _UNKNOWN if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)


def _yes_or_no(known: bool | None) -> str:
    return _UNKNOWN if known is None else "yes" if known else "no"


def _link(generation: int | None, width: int | None) -> str:
    if generation is None and width is None:
        return _UNKNOWN
    if width is None:
        return f"gen {generation}, lanes {_UNKNOWN}"
    return f"x{width}" if generation is None else f"gen {generation} x{width}"


def _place(node: int | None, nodes: NumaNodes) -> str:
    if node is None:
        return "one node" if nodes.count == 1 else _UNKNOWN
    return f"{node}: {nodes.cores_of(node) or _UNKNOWN}"


def check_peaks(gpus: Sequence[GpuFacts]) -> Check:
    """NVIDIA's own figures for each model that is here."""
    head = ("TFLOPS", "bf16", "fp16", "fp8", "TF32", "fp32", "source")
    rows, missing = [], []
    for name, gpu in {model_of(gpu.name): gpu for gpu in gpus}.items():
        peak = PEAKS.get(name)
        if peak is None:
            missing.append(name)
            continue
        half = f"{peak.half:g}"
        has_bf16, has_half = (has(gpu.compute_capability, since) for since in (BF16_FROM, TENSOR_CORES_FROM))
        rates = (
            half if has_bf16 else "none" if has_bf16 is False else _UNKNOWN,
            half if has_half is not False else "none",
            *("none" if rate is None else f"{rate:g}" for rate in (peak.fp8, peak.tf32, peak.fp32)),
        )
        rows.append((name, *rates, peak.source))
    unlisted = f"Unknown for {listed(missing)}, whose data sheet is not in gpuwatch's table." if missing else ""
    if not rows:
        return Check("peak-rates", State.UNKNOWN, f"Peak rates: {unlisted[0].lower()}{unlisted[1:]}")
    said = "Peak rates without sparsity, from NVIDIA's documents; a training reaches only a part of them."
    return Check("peak-rates", State.OK, f"{said} {unlisted}".rstrip(), rows=(head, *rows))


def ask_torch(interpreter: str, timeout_seconds: float = _TORCH_SECONDS) -> TorchDefaults | None:
    """The defaults of the torch that this interpreter finds; None where it does not answer in time."""
    try:
        run = subprocess.run(
            [interpreter, "-c", _ASK_TORCH],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            timeout=timeout_seconds,
            check=True,
        )
        found: Any = json.loads(run.stdout)
        return TorchDefaults(
            matmul_precision=shown(str(found["matmul_precision"]).encode()),
            matmul_tf32=bool(found["matmul_tf32"]),
            cudnn_tf32=bool(found["cudnn_tf32"]),
            kernels=shown(str(found["kernels"]).encode()) if found["kernels"] else None,
        )
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def check_torch_defaults(gpus: Sequence[GpuFacts], torch: Check, defaults: TorchDefaults | None) -> Check:
    """Whether float32 is computed in TF32 unless the script asks for it, and whether this torch runs on these GPUs."""
    version = torch.details.get("version")
    result = partial(
        Check,
        "torch-defaults",
        details={}
        if defaults is None
        else {
            "float32_matmul_precision": defaults.matmul_precision,
            "matmul_allow_tf32": defaults.matmul_tf32,
            "cudnn_allow_tf32": defaults.cudnn_tf32,
            "kernels": defaults.kernels,
        },
    )
    if defaults is None:
        return result(State.UNKNOWN, f"The defaults of torch {version} are unknown: it could not be imported in time.")
    without = [gpu for gpu in gpus if _runs_on(defaults.kernels, gpu.compute_capability) is False]
    if without:
        which = listed(f"GPU {gpu.index} ({_capability(gpu)})" for gpu in without)
        return result(
            State.PROBLEM,
            f"torch {version} has no kernels for {which}, only for {defaults.kernels}: a training on it fails.",
            "Install a build for its compute capability: https://pytorch.org/get-started/locally/.",
        )
    said = (
        f"Unless the script says otherwise, torch {version} multiplies float32 matrices in "
        f'{_format(defaults.matmul_tf32)} (float32_matmul_precision is "{defaults.matmul_precision}", '
        f"torch.backends.cuda.matmul.allow_tf32 {defaults.matmul_tf32}) and convolves in "
        f"{_format(defaults.cudnn_tf32)} (torch.backends.cudnn.allow_tf32 {defaults.cudnn_tf32})."
    )
    can_tf32 = any(has(gpu.compute_capability, BF16_FROM) for gpu in gpus)
    if can_tf32 and defaults.matmul_tf32 is False:
        return result(
            State.OK,
            said,
            'For trainings in float32: `torch.set_float32_matmul_precision("high")`, which rounds the inputs of matrix '
            "products to 10 bits of mantissa; `gpuwatch trial tf32=true -- python train.py` measures what it brings.",
        )
    return result(State.OK, said)


def _format(is_tf32: bool | None) -> str:
    return "TF32 where the GPU has it" if is_tf32 else "full float32"


def _runs_on(kernels: str | None, capability: tuple[int, int] | None) -> bool | None:
    """Whether one of the kernels is for this GPU: of its generation and no later, or compiled when it is loaded."""
    if not kernels or capability is None:
        return None
    for kernel in kernels.split():
        kind, _, number = kernel.partition("_")
        digits = number.rstrip("af")  # sm_90a: for just that capability
        if kind not in ("sm", "compute") or not digits.isdecimal():
            return None
        made_for = (int(digits[:-1] or 0), int(digits[-1]))
        same = made_for[0] == capability[0] or kind == "compute"
        if made_for == capability or (same and made_for < capability and digits == number):
            return True
    return False


def check_launch(gpus: Sequence[GpuFacts], cores: Cores, visible: str | None, nodes: NumaNodes) -> Check:
    """One process per GPU: the line, the threads, and how many workers each may have."""
    whole = [gpu for gpu in gpus if not gpu.mig]
    count = len(whole) if visible is None else min(len(whole), _visible(visible))
    result = partial(Check, "launch")
    if not whole:
        return result(
            State.UNKNOWN,
            "MIG divides every GPU, and a process uses one instance: how to start one depends on the instances.",
            "Name an instance for each process: `CUDA_VISIBLE_DEVICES=MIG-... python train.py`; see `nvidia-smi -L`.",
        )
    if not count:
        return result(
            State.WARNING,
            f"CUDA_VISIBLE_DEVICES={visible} hides every GPU from a training that is started here.",
            "Unset it: `unset CUDA_VISIBLE_DEVICES`.",
        )
    each = cores.allowed / count
    workers = filling_workers(each)
    program = "python" if count == 1 else f"torchrun --nproc-per-node={count}"
    command = f"OMP_NUM_THREADS=1 {program} train.py"
    of_these = "" if count == len(gpus) else f" of {len(gpus)}"
    said = f"{count}{of_these} GPU{'' if len(gpus) == 1 else 's'} and {cores.words}"
    said += f", {each:.3g} for each of {count} processes" if count > 1 else ""
    rows = [
        ("start:", command),
        ("why 1:", "DataLoader workers inherit it, and threads beyond the cores slow all of them"),
        ("workers:", f"num_workers={workers} at most in each process; `gpuwatch tune loader` finds how many it needs"),
    ]
    if each >= 2:
        rows.append(("without:", f"OMP_NUM_THREADS={math.floor(each)} if the process loads by itself (num_workers=0)"))
    here = {node for address, node in nodes.of_gpus() if address in {gpu.kernel_address for gpu in whole}}
    if len(here) > 1:
        rows.append(("nodes:", "`torchrun --numa-binding=node` (torch 2.9) keeps each process by its GPU"))
    result = partial(
        result,
        details={
            "processes": count,
            "cores": cores.allowed,
            "workers_per_process": workers,
            "omp_num_threads": 1,
            "command": command,
        },
        rows=tuple(rows),
    )
    if each < 2:
        return result(
            State.WARNING,
            f"{said}: too few for a training loop and a worker per GPU, so loading may hold the GPUs back.",
            "Ask for more cores (`docker --cpus`, Kubernetes limits.cpu, Slurm --cpus-per-task), or use fewer GPUs.",
        )
    return result(State.OK, f"{said}: each takes one for its training loop, and workers the others.")


def _visible(value: str) -> int:
    """How many GPUs CUDA_VISIBLE_DEVICES names: those up to the first that is none."""
    count = 0
    for name in value.split(","):
        if not name.strip().isdecimal() and not name.strip().startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count


def check_cpu_launch(cores: Cores, physical: int | None) -> Check:
    """The line for a machine on which a training computes on the CPU."""
    threads = max(1, math.floor(min(cores.allowed, physical or cores.allowed)))
    command = f"OMP_NUM_THREADS={threads} python train.py"
    why = "one thread for each physical core" if threads < math.floor(cores.allowed) else "one thread for each core"
    if cores.limit.quota_cores is not None and cores.limit.quota_cores < cores.by_affinity:
        why = "torch counts the machine's cores by itself, not those that the quota allows"
    return Check(
        "launch",
        State.OK,
        f"No GPU answers: a training computes on the CPU, with {cores.words}.",
        details={"processes": 1, "cores": cores.allowed, "omp_num_threads": threads, "command": command},
        rows=(
            ("start:", command),
            (f"why {threads}:", why),
            ("workers:", "num_workers=0 to begin with: workers take cores away; `gpuwatch tune loader` tries more"),
        ),
    )
