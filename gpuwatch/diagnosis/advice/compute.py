"""What the compute-side rules share: how busy, how hard-working, and which share of the run they could speed up."""

from __future__ import annotations

from gpuwatch.samples import ModelFacts
from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

BUSY_PERCENT = 85.0
LOW_POWER_SHARE = 0.60
LOW_POWER_CLEAR_SHARE = 0.70
SLOWED_SHARE = 0.05
TRAINING_SHARE = 0.8


def power_share(gpu: GpuWindow) -> float | None:
    """Mean power as a share of the enforced limit, where both are known."""
    if gpu.power_watts is None or not gpu.power_limit_watts:
        return None
    return gpu.power_watts.mean / gpu.power_limit_watts


def is_limited(gpu: GpuWindow) -> bool:
    """Whether a lowered power limit, or any cause that takes clocks away, explains a low power by itself."""
    default = gpu.facts.power_limit_default_watts
    lowered = bool(default and gpu.power_limit_watts and gpu.power_limit_watts < 0.95 * default)
    return lowered or any(share >= SLOWED_SHARE for share in gpu.throttle_shares.values())


def works_lightly(gpu: GpuWindow, threshold: float = LOW_POWER_SHARE) -> bool:
    """Busy nearly all the time, yet drawing less than `threshold` of its power limit."""
    share = power_share(gpu)
    return (
        gpu.utilization is not None
        and gpu.utilization.mean >= BUSY_PERCENT
        and share is not None
        and share < threshold
        and not is_limited(gpu)
    )


def compute_share(run: RunWindow) -> float:
    """The share of the critical rank's wall time that a faster kernel could shorten.

    Waits and phases are taken off: with S the wait and c the phases, a factor G on the kernels alone brings
    1 / ((S + c) + (1 - S - c) / G), never G.
    """
    rank = run.critical
    phases = sum(total.share for total in rank.phases.values())
    idle = rank.gap_share if rank.gap_share is not None else (rank.wait_share or 0.0)
    return max(0.0, (1.0 - min(1.0, phases)) * (1.0 - min(1.0, idle)))


def hinted_range(run: RunWindow, factor: float) -> str:
    """What a published factor on the kernels means for this run at most: "1.0-1.8x", a small one to the percent."""
    share = compute_share(run)
    high = 1.0 / ((1.0 - share) + share / factor)
    if high < 1.005:
        return "1.0x"
    return f"1.0-{high:.{2 if factor < 1.5 or high < 1.05 else 1}f}x"


def capability(gpus: tuple[GpuWindow, ...]) -> tuple[int, int] | None:
    """The lowest compute capability among the run's GPUs; None where one is not known."""
    known = [gpu.facts.compute_capability for gpu in gpus]
    return None if not known or None in known else min(value for value in known if value is not None)


def trains_in_float32(model: ModelFacts) -> bool:
    """Nearly all weights are 32-bit and no autocast region was seen; unknown counts as no."""
    return model.autocast is False and model.float32_share is not None and model.float32_share >= 0.9


def peak_memory_share(rank: RankWindow) -> float | None:
    """Peak allocated bytes (what tensors really needed, not what the cache kept) over the GPU's memory."""
    memory = rank.memory
    if memory is None or memory.allocated_peak_bytes is None or not memory.total_bytes:
        return None
    return memory.allocated_peak_bytes / memory.total_bytes


def trains_in_16_bits(model: ModelFacts) -> bool:
    """Autocast was seen, or nearly no weight is 32-bit; unknown counts as no."""
    return model.autocast is True or (model.float32_share is not None and model.float32_share < 0.1)


def torch_version(text: str | None) -> tuple[int, int] | None:
    """(2, 13) of "2.13.0+cu130"."""
    parts = (text or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def trains_throughout(gpu: GpuWindow) -> bool:
    """Whether nearly all of the window is training: power is known of the whole of it only."""
    training, whole = gpu.train_utilization, gpu.utilization
    return training is None or whole is None or training.count >= TRAINING_SHARE * whole.count
