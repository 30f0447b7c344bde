"""What blocking copies to the GPU cost, and what copies that do not block would bring.

A copy from pageable memory returns once the GPU has done what was queued before it, so most of the time that it holds
the thread up is the GPU's own computing: 0.89 of the time in a simulated job whose GPU idled for 0.26 of it, and that
became 1.30 times as fast. What can be won back is at most what the GPU idles.
"""

from __future__ import annotations

from gpuwatch.diagnosis.advice.gains import from_share
from gpuwatch.diagnosis.advice.link import pcie_peak_bytes_per_second
from gpuwatch.diagnosis.advice.starvation import idle_range, starvation_of
from gpuwatch.diagnosis.advice.traffic import batch_bytes_per_second
from gpuwatch.diagnosis.finding import Gain
from gpuwatch.diagnosis.rule import RunCase

CAP = "to the extent that the GPU idles during the copies; the pinned copy itself stays"
SLOWEST_PINNED = 0.5
"""Of what the link carries at most: what copies from pinned memory reach at worst."""
REMAINING = 0.5
"""Of what a pageable copy costs, what may stay where the link is not known: pinned copies are twice as fast or more."""


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
        return from_share((1.0 - REMAINING) * least, most, CAP)
    copying = received / min(peaks)
    low = max(0.0, least - copying / SLOWEST_PINNED)
    return from_share(low, max(low, most - copying), CAP)
