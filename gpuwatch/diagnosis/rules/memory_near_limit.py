"""GPU memory is almost full; a slightly larger batch will fail.

Means:
    The next longer sequence or larger batch ends in an out-of-memory error.
Evidence:
    torch's peak reserved memory over the GPU's where the hook reports it, else the memory in use that NVML reports.
Fires:
    92% (information), 97% (warning).
Clears:
    Below 88%.
Not when:
    The caching allocator keeps memory that it no longer needs: what tensors needed is the allocated peak, shown next to
    it. Without the hook a framework that takes all memory at once (JAX, TensorFlow, vLLM) looks the same.
Causes:
    The run's tensors, PyTorch's cache, or another process: the peak of what is allocated shows which.
Fix:
    Smaller batch by a fifth, gradient checkpointing, an 8-bit optimizer, or
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.
Gain:
    No speed; it prevents a crash.
Verify:
    The peak.
Source:
    kineto 90%; TraceML@d5cec51 92 and 97%.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent
from gpuwatch.timeline.windows import MemoryTotals, RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.92, "of the memory is used: reported from here on")
    warning_share: float = threshold(0.97, "a warning from here on", bounded_by="fire_share")
    clear_share: float = threshold(0.88, "until less is used", bounded_by="fire_share")


@rule("memory-near-limit", family="memory", subject="gpu", level=Level.E0, thresholds=Thresholds)
def memory_near_limit(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    rank = _rank_on(case)
    if rank is not None and rank.memory and rank.memory.reserved_peak_bytes and rank.memory.total_bytes:
        used, total = rank.memory.reserved_peak_bytes, rank.memory.total_bytes
        level, source = Level.E2, "torch reserved"
    elif gpu.memory_used_bytes is not None and gpu.facts.memory_total_bytes:
        used, total = int(gpu.memory_used_bytes.max), gpu.facts.memory_total_bytes
        level, source = Level.E0, "in use"
    else:
        return None
    share = used / total
    if share < limits.clear_share:
        return None
    batch = rank.train_loader.batch_size if rank and rank.train_loader else None
    return Draft(
        summary=f"{gpu_name(gpu)} memory {percent(share)} full ({gibibytes(total - used)} free)",
        severity=Severity.WARNING if share >= limits.warning_share else Severity.INFO,
        level=level,
        evidence=(
            Measure("memory_bytes", used, f"{source} {gibibytes(used)} of {gibibytes(total)}"),
            share_measure("memory_share", share, "taken"),
            *_allocated(rank.memory if rank else None),
        ),
        fires=share >= limits.fire_share,
        fix=Fix(
            text=(
                "Leave room before it fails: "
                + (f"batch_size={max(1, int(batch * 0.8))}, " if batch else "a batch smaller by a fifth, ")
                + "gradient checkpointing, or expandable segments against fragmentation"
            ),
            code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            value=max(1, int(batch * 0.8)) if batch else None,
        ),
        verify="Peak memory below 88%",
        chart=("gpu.memory_used_bytes",),
    )


def _rank_on(case: GpuCase) -> RankWindow | None:
    if case.run is None:
        return None
    return next((rank for rank in case.run.ranks if case.gpu.facts.uuid in rank.facts.gpu_uuids), None)


def _allocated(memory: MemoryTotals | None) -> tuple[Measure, ...]:
    if memory is None or memory.allocated_peak_bytes is None:
        return ()
    peak = memory.allocated_peak_bytes
    return (Measure("allocated_peak_bytes", peak, f"tensors needed at most {gibibytes(peak)}"),)
