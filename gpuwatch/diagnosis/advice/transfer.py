"""What crosses the PCIe link of a run's GPU: what it can carry, how full it is, and what blocking copies cost.

A copy from pageable memory returns once the GPU has done what was queued before it, so most of the time that it holds
the thread up is the GPU's own computing: 0.89 of the time in a simulated job whose GPU idled for 0.26 of it, and that
became 1.30 times as fast. At most what the GPU idles can be recovered.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.starvation import idle_range, starvation_of
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import GpuWindow, RankWindow

TRANSFERS_PER_LANE = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
ENCODING = {1: 0.8, 2: 0.8}  # 8b/10b; from generation 3 on 128b/130b
_LATER_ENCODING = 128 / 130
BIT_ERROR_RATE = 1e-12
"""The specification's bound. Per lane and minute: 0.48 repeats at generation 3, 0.96 at 4, 1.92 at 5, as in DCGM."""

COPIES_CAP = "to the extent that the GPU idles during the copies; the pinned copy itself stays"
SLOWEST_PINNED = 0.5
"""Of what the link carries at most: what copies from pinned memory reach at worst."""
REMAINING_COPY = 0.5
"""Of what a pageable copy costs, what may stay where the link is not known: pinned copies are twice as fast or more."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a second into one GPU. `batches` is what its rank's loader makes, None where that is not known.

    `link_share` is the least share of the time in which the link must have been busy: at its peak rate, which no copy
    reaches.
    """

    gpu: GpuWindow
    received: float
    peak: float
    batches: float | None

    @property
    def link_share(self) -> float:
        """Received over peak."""
        return min(1.0, self.received / self.peak)


def traffic_of(case: RunCase, rank: RankWindow) -> Traffic | None:
    """The rank's GPU whose link is fullest; None where counter, width or generation is not known."""
    own = [gpu for gpu in case.gpus if gpu.facts.uuid in rank.facts.gpu_uuids] or (
        list(case.gpus) if len(case.gpus) == 1 else []
    )
    batches = batch_bytes_per_second(rank)
    found = []
    for gpu in own:
        peak, received = pcie_peak_bytes_per_second(gpu), gpu.pcie_rx_bytes_per_second
        if peak is not None and received is not None and not gpu.facts.mig:
            found.append(Traffic(gpu, received, peak, None if batches is None else batches / len(own)))
    return max(found, key=lambda one: one.link_share, default=None)


def batch_bytes_per_second(rank: RankWindow) -> float | None:
    """The bytes of the batches that a rank takes in a second of training."""
    loader, rate = rank.train_loader, rank.samples_per_second
    if loader is None or loader.batch_bytes is None or not loader.batch_size or rate is None:
        return None
    return loader.batch_bytes * rate / loader.batch_size


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


def exposed_copies(case: RunCase, copying: float) -> tuple[float, float] | None:
    """The least and the most of the time in which the GPU idles because of the copies; None where that is not known."""
    starvation = starvation_of(case)
    idle = None if starvation is None else idle_range(case, starvation)
    return None if idle is None else (min(copying, idle[0]), min(copying, idle[1]))


def copies_gain(case: RunCase, exposed: tuple[float, float]) -> Gain:
    """The range: all of the exposed time but for the pinned copy, which the GPU's own stream waits for."""
    received = batch_bytes_per_second(case.run.critical)
    peaks = [peak for peak in map(pcie_peak_bytes_per_second, case.gpus) if peak]
    least, most = exposed
    if received is None or not peaks:
        return from_share((1.0 - REMAINING_COPY) * least, most, COPIES_CAP)
    copying = received / min(peaks)
    low = max(0.0, least - copying / SLOWEST_PINNED)
    return from_share(low, max(low, most - copying), COPIES_CAP)
