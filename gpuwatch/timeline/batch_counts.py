"""The batches that a trainer's loops took, read from outside: the loaders' own counters over 15 min.

Of a loop without a loader they are its iterations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gpuwatch.samples import BatchCount, Role
from gpuwatch.samples.stacks import NO_LOADER
from gpuwatch.timeline.columns import Table
from gpuwatch.timeline.spans import Span, covered_ns
from gpuwatch.timeline.tiers import SECOND_NS

_KEPT_NS = 900 * SECOND_NS
_MOST_ROWS = 1_024
_MOST_LOADERS = 64  # a script may make a new one every epoch
_USUAL_OF = 64
_READ_EVERY_NS = 5 * SECOND_NS // 2  # readings come about once a second; further apart they missed something


@dataclass(frozen=True, slots=True)
class Growth:
    """Batches that the training loop took from one reading at which it had grown to the next."""

    batches: int
    start_ns: int | None  # None: of the first reading, before which nothing is known
    end_ns: int


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted in a window."""

    batches: int
    epochs: int
    seconds: float
    exact: bool
    of_loader: bool  # else the loop's own count of its iterations

    @property
    def per_second(self) -> float | None:
        """The rate; None over no time, which one reading alone is."""
        return self.batches / self.seconds if self.seconds > 0 else None


class _Loader:
    """One loader's counter. Where watching started over it starts from zero, and goes on here from where it was."""

    __slots__ = ("_last", "batches", "epochs", "role", "rows")

    def __init__(self) -> None:
        self.role: Role = "unknown"
        self.batches = 0
        self.epochs = 0
        # Floats, because counts of a damaged recording may add up beyond 64 bits.
        self.rows = Table({"batches": "d", "epochs": "d", "exact": "b"}, max_age_ns=_KEPT_NS, max_rows=_MOST_ROWS)
        self._last = (0, 0)

    @property
    def read_ns(self) -> int:
        """The newest reading."""
        return self.rows.times[-1] if len(self.rows) else 0

    def read(self, count: BatchCount) -> int:
        """The growth since the reading before."""
        last_batches, last_epochs = self._last
        is_anew = count.batches < last_batches or count.epochs < last_epochs
        grown = count.batches - (0 if is_anew else last_batches)
        self.batches += grown
        self.epochs += count.epochs - (0 if is_anew else last_epochs)
        self._last = (count.batches, count.epochs)
        self.role = count.role
        self.rows.add(count.time_ns, (self.batches, self.epochs, count.exact))
        return grown

    def at(self, time_ns: int, column: str) -> int:
        """The counter at a moment; before the first reading that is known it had what that adds to."""
        row = self.rows.until(time_ns) - 1
        if row >= 0:
            return int(self.rows[column][row])
        return 0 if self.rows.reaches(time_ns) else int(self.rows[column][0])


class BatchCounts:
    """The counters of all loaders of one trainer; those that train make its steps."""

    def __init__(self) -> None:
        self.total = 0
        self.train_loader: int | None = None  # whose counter grew last
        self.first_ns: int | None = None  # when a loop over a loader was seen first
        self.last_growth_ns: int | None = None
        self.usual: deque[float] = deque(maxlen=_USUAL_OF)  # seconds per batch
        self._loaders: dict[int, _Loader] = {}
        self._retired = 0

    def add(self, count: BatchCount) -> Growth | None:
        """Takes one reading; a late one says nothing that the newer one does not. The growth, if it is of training."""
        if self.first_ns is None:
            self.first_ns = count.time_ns
        loader = self._loaders.setdefault(count.loader, _Loader())
        if len(loader.rows) and count.time_ns <= loader.read_ns:
            return None
        grown = loader.read(count)
        self._retire()
        training = self._training()
        self.total = self._retired + sum(each.batches for each in training)
        if grown <= 0 or loader not in training:
            return None
        since_ns, self.last_growth_ns = self.last_growth_ns, max(self.last_growth_ns or 0, count.time_ns)
        self.train_loader = count.loader
        if since_ns is None or since_ns >= count.time_ns:
            return Growth(grown, None, count.time_ns)
        self.usual.append((count.time_ns - since_ns) / SECOND_NS / grown)
        # The first batch after an evaluation was not made during it.
        longest_ns = round(grown * median(self.usual) * SECOND_NS)
        return Growth(grown, max(since_ns, count.time_ns - longest_ns), count.time_ns)

    def between(self, start_ns: int, end_ns: int, looks: Span, stops: Sequence[Span] = ()) -> Counted | None:
        """The growth from the first to the last reading in (start, end]; None where no loader trains.

        Args:
            start_ns: of the window.
            end_ns: of the window.
            looks: when the first look in the window began and the last one ended. Where readings are missing there
                although the thread was looked at, no loop over a loader ran: that time counts, without batches.
            stops: when the process was stopped, which does not count.
        """
        training = self._training()
        read = [span for each in self._loaders.values() if (span := _read_within(each.rows, start_ns, end_ns))]
        if not training or not any(each.read_ns > start_ns - _KEPT_NS for each in training):
            return None
        first_ns = min((first for first, _ in read), default=end_ns)
        last_ns = max((last for _, last in read), default=start_ns)
        was_read_before = any(each.rows.until(start_ns) > 0 for each in self._loaders.values())
        if was_read_before and first_ns - looks[0] > _READ_EVERY_NS:
            first_ns = looks[0]
        if looks[1] - last_ns > _READ_EVERY_NS:
            last_ns = looks[1]
        return Counted(
            batches=_grown(training, "batches", first_ns, last_ns),
            epochs=_grown(training, "epochs", first_ns, last_ns),
            seconds=max(0, last_ns - first_ns - covered_ns(stops, first_ns, last_ns)) / SECOND_NS,
            exact=all(all(each.rows["exact"][each.rows.since(start_ns) :]) for each in training),
            of_loader=self.train_loader != NO_LOADER,
        )

    def _training(self) -> list[_Loader]:
        """The loaders that train; while none is known to, those of which nothing is known yet."""
        training = [each for each in self._loaders.values() if each.role == "train"]
        return training or [each for each in self._loaders.values() if each.role == "unknown"]

    def _retire(self) -> None:
        """Forgets the loader that was read longest ago, but for what it adds to the total."""
        if len(self._loaders) > _MOST_LOADERS:
            oldest = min(self._loaders, key=lambda each: self._loaders[each].read_ns)
            loader = self._loaders.pop(oldest)
            self._retired += loader.batches if loader.role == "train" else 0


def _read_within(rows: Table, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """The first and the last reading in (start, end]."""
    low, high = rows.since(start_ns), rows.until(end_ns)
    return (rows.times[low], rows.times[high - 1]) if low < high else None


def _grown(loaders: Iterable[_Loader], column: str, first_ns: int, last_ns: int) -> int:
    return sum(max(0, each.at(last_ns, column) - each.at(first_ns, column)) for each in loaders)
