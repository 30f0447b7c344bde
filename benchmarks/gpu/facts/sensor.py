"""Square waves of many periods on the GPU: what its sensors make of them.

For each period: mean, sigma and p95-p5 in points, as 1 Hz polls at random phases see them (`polls`) and as the driver's
ring has them (`ring`); the shortest time between two changes of the polled value, which is the sensor's window at most;
and how far instant, averaged and plain power swing.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pynvml

from benchmarks.gpu.facts.answer import Answer, ask, attempt, rank_at
from gpuwatch.sources.nvml.driver import Driver

WAVES = {0.05: 3.0, 0.1: 3.0, 0.2: 3.0, 0.3: 3.0, 0.5: 4.0, 1.0: 4.0, 2.0: 6.0, 5.0: 10.0, 10.0: 20.0}
"""Period -> seconds."""
_POLLS_HZ = 50.0
_UTILIZATION = 1
_POWERS = {"instant": 186, "average": 185}


class Poller(threading.Thread):
    """Reads the sensors much faster than gpuwatch does, for a minute."""

    def __init__(self, handle: Any) -> None:
        super().__init__(daemon=True)
        self._handle = handle
        self._driver = Driver()
        self._ended = threading.Event()
        self.polls: list[tuple[float, float]] = []
        self.powers: dict[str, list[float]] = {name: [] for name in (*_POWERS, "usage")}
        newest = attempt(lambda: self._driver.samples(handle, _UTILIZATION, 0))
        self._since = newest[-1].stamp if isinstance(newest, list) and newest else 0
        self.ring: list[float] = []

    def run(self) -> None:
        """Until `end`."""
        while not self._ended.wait(1 / _POLLS_HZ):
            attempt(self._read)

    def end(self) -> None:
        """Stops it and drains the ring."""
        self._ended.set()
        self.join()
        entries = attempt(lambda: self._driver.samples(self._handle, _UTILIZATION, self._since))
        self.ring = [entry.value for entry in entries] if isinstance(entries, list) else []

    def _read(self) -> None:
        rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
        self.polls.append((time.monotonic(), rates.gpu))
        self.powers["usage"].append(pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
        values = pynvml.nvmlDeviceGetFieldValues(self._handle, list(_POWERS.values()))
        for name, value in zip(_POWERS, values, strict=True):
            if not value.nvmlReturn:
                self.powers[name].append(value.value.uiVal / 1e3)


def answer(args: argparse.Namespace) -> Answer:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    spin, multiply = loads(args.device)
    found: Answer = {}
    for period, seconds in WAVES.items():
        found[f"spin {period:g} s"] = wave(handle, spin, period, args.seconds or seconds)
    found["matmul 1 s"] = wave(handle, multiply, 1.0, args.seconds or 5.0)
    return found


def loads(device: str) -> tuple[Callable[[float], None], Callable[[float], None]]:
    """What keeps the GPU busy for this many seconds and returns then: spinning, or matrix products."""
    if device == "cpu":
        return time.sleep, time.sleep
    import torch

    from benchmarks.gpu.facts.event_pairs import cycles_per_millisecond

    per_ms = cycles_per_millisecond(torch)
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def spin(seconds: float) -> None:
        torch.cuda._sleep(round(1e3 * seconds * per_ms))
        torch.cuda.synchronize()

    def multiply(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(4):
                torch.mm(left, left)
            torch.cuda.synchronize()

    return spin, multiply


def wave(handle: Any, busy: Callable[[float], None], period: float, seconds: float) -> Answer:
    """Half of each period busy, half idle."""
    poller = Poller(handle)
    poller.start()
    began = time.monotonic()
    turn = 0
    while time.monotonic() < began + seconds:
        busy(period / 2)
        turn += 1
        time.sleep(max(0.0, began + turn * period - time.monotonic()))
    poller.end()
    values = [value for _, value in poller.polls]
    return {
        "polls": spread(values),
        "ring": spread(poller.ring),
        "ring entries": len(poller.ring),
        "shortest change s": shortest_change(poller.polls),
        "power swing W": {name: round(swing(powers), 1) for name, powers in poller.powers.items() if powers},
    }


def spread(values: Sequence[float]) -> Answer | None:
    """Points; None where there is nothing to tell them from."""
    if len(values) < 3:
        return None
    return {
        "mean": round(statistics.fmean(values), 1),
        "sigma": round(statistics.stdev(values), 1),
        "p95-p5": round(swing(values), 1),
    }


def swing(values: Sequence[float]) -> float:
    return rank_at(values, 0.95) - rank_at(values, 0.05)


def shortest_change(polls: Sequence[tuple[float, float]]) -> float | None:
    """Between two changes; a tenth of them may be chance."""
    changed = [at for (_, before), (at, value) in pairwise(polls) if value != before]
    between = [late - early for early, late in pairwise(changed)]
    return round(rank_at(between, 0.1), 3) if len(between) >= 5 else None


if __name__ == "__main__":
    raise SystemExit(ask(__doc__, answer))
