"""What a PCIe link can carry, and how many repeats are its usual noise."""

from __future__ import annotations

from gpuwatch.timeline.windows import GpuWindow

TRANSFERS_PER_LANE = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
ENCODING = {1: 0.8, 2: 0.8}  # 8b/10b; from generation 3 on 128b/130b
_LATER_ENCODING = 128 / 130
BIT_ERROR_RATE = 1e-12
"""The specification's bound. Per lane and minute: 0.48 repeats at generation 3, 0.96 at 4, 1.92 at 5, as in DCGM."""


def pcie_peak_bytes_per_second(gpu: GpuWindow) -> float | None:
    """What the link carries at most in one direction as it is now; None where width or generation is not known."""
    status = gpu.latest_status
    if status is None or status.pcie_generation not in TRANSFERS_PER_LANE or not status.pcie_width:
        return None
    encoding = ENCODING.get(status.pcie_generation, _LATER_ENCODING)
    return TRANSFERS_PER_LANE[status.pcie_generation] * encoding * status.pcie_width / 8


def replay_limit_per_minute(gpu: GpuWindow) -> float | None:
    """Repeats a minute that a link within its specification may show."""
    status = gpu.latest_status
    if status is None or status.pcie_generation not in TRANSFERS_PER_LANE or not status.pcie_width:
        return None
    return TRANSFERS_PER_LANE[status.pcie_generation] * BIT_ERROR_RATE * 60 * status.pcie_width


def excess_replays(gpu: GpuWindow) -> tuple[float, float] | None:
    """Repeats a minute and their limit, where they are beyond it."""
    rate = gpu.links.pcie_replays_per_minute if gpu.links else None
    limit = replay_limit_per_minute(gpu)
    return None if rate is None or limit is None or rate <= limit else (rate, limit)
