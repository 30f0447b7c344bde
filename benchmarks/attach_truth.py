"""What `benchmarks/scripts/augmented.py` wrote down about itself, cut to any stretch of time.

Stamps are pairs (CLOCK_MONOTONIC nanoseconds, what begins there), so a stretch between two stamps belongs to the first.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

PHASES = ("wait", "copy", "forward", "backward", "optimizer", "item", "eval", "save")
"""In the order of the script's constants, which begin with 1."""

_FORWARD = PHASES.index("forward") + 1


@dataclass(frozen=True, slots=True)
class Stamps:
    """One file: when (ascending, nanoseconds), and what began."""

    times_ns: npt.NDArray[np.int64]
    begun: npt.NDArray[np.int64]

    @classmethod
    def read(cls, path: Path) -> Stamps:
        pairs = np.fromfile(path, dtype=np.int64).reshape(-1, 2)
        used = pairs[: int(np.argmin(pairs[:, 0] > 0))]  # the rest of the file was never written
        return cls(used[:, 0], used[:, 1])

    def seconds(self, start_ns: int, end_ns: int) -> Counter[int]:
        """Seconds of each kind within the stretch; the last one stamped lasts until the end."""
        if not len(self.times_ns):
            return Counter()
        edges = np.clip(np.append(self.times_ns, max(end_ns, int(self.times_ns[-1]))), start_ns, end_ns)
        totals: Counter[int] = Counter()  # of floats: typeshed's counters count in int
        for kind in np.unique(self.begun):
            seconds = float(np.diff(edges)[self.begun == kind].sum()) / 1e9
            if seconds > 0:
                totals[int(kind)] = seconds
        return totals

    def spans(self, kind: int, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """The stretches of one kind within the stretch."""
        edges = np.clip(np.append(self.times_ns, max(end_ns, int(self.times_ns[-1]))), start_ns, end_ns)
        return [
            (int(edges[i]), int(edges[i + 1])) for i in np.flatnonzero(self.begun == kind) if edges[i] < edges[i + 1]
        ]


class Truth:
    """All stamps of one run of the script."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        self._phases = Stamps.read(folder / f"{pid}.phases")
        self._lines = {int(path.name.split(".")[0]): Stamps.read(path) for path in folder.glob("*.lines")}

    def phase_shares(self, start_ns: int, end_ns: int) -> dict[str, float]:
        """Share of the stretch in each phase of the training thread."""
        seconds = self._phases.seconds(start_ns, end_ns)
        return {name: seconds[number] / sum(seconds.values()) for number, name in enumerate(PHASES, 1)}

    def batches_per_second(self, start_ns: int, end_ns: int) -> float:
        """Batches that training took."""
        times = self._phases.times_ns[self._phases.begun == _FORWARD]
        within = times[(times >= start_ns) & (times < end_ns)]
        return len(within) / ((end_ns - start_ns) / 1e9)

    def batches(self) -> int:
        """Of the whole run."""
        return int((self._phases.begun == _FORWARD).sum())

    def worker_line_shares(self, start_ns: int, end_ns: int) -> dict[int, float]:
        """Share of each line of the augmentation in the time that all workers spend in it."""
        return _shares(sum((each.seconds(start_ns, end_ns) for each in self._of_workers()), Counter()))

    def main_line_shares(self, start_ns: int, end_ns: int) -> dict[int, float]:
        """The same on the training thread, which loads by itself where there are no workers, in training only."""
        seconds: Counter[int] = Counter()
        with contextlib.suppress(KeyError):
            lines = self._lines[self.pid]
            for start, end in self._phases.spans(PHASES.index("wait") + 1, start_ns, end_ns):
                first, last = np.searchsorted(lines.times_ns, [start, end])
                part = slice(max(0, int(first) - 1), int(last))
                seconds += Stamps(lines.times_ns[part], lines.begun[part]).seconds(start, end)
        return _shares(seconds)

    def workers(self) -> int:
        """How many processes loaded."""
        return len([*self._of_workers()])

    def _of_workers(self) -> list[Stamps]:
        return [stamps for pid, stamps in self._lines.items() if pid != self.pid]


def _shares(seconds: Counter[int]) -> dict[int, float]:
    busy = {line: value for line, value in seconds.items() if line}  # 0: between two samples
    return {line: value / sum(busy.values()) for line, value in sorted(busy.items(), key=lambda item: -item[1])}
