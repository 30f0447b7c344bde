"""What crosses the PCIe link of a run's GPU: how full the link is, and how much of that are batches."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from gpuwatch.diagnosis.advice.link import pcie_peak_bytes_per_second
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import GpuWindow, RankWindow


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


def batches_per_step(rank: RankWindow) -> int:
    """How many batches go into one optimizer step, by the samples of both; 1 where that is not known."""
    loader = rank.train_loader
    samples = [count for count in rank.columns.samples if count == count]
    if loader is None or not loader.batch_size or not samples:
        return 1
    return max(1, round(median(samples) / loader.batch_size))
