"""One trainer seen from outside: 15 min of its stack samples and of its loaders' counters, and the line that is slow.

Of a loop without a loader the counted batches are its iterations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, Literal, get_args

from gpuwatch.samples import (
    NO_LOADER,
    BatchCount,
    CallCount,
    CurrentLine,
    FeederPhase,
    LineCount,
    Role,
    StackPhase,
    StackTally,
    WorkerPhase,
)
from gpuwatch.timeline.columns import SECOND_NS, Table
from gpuwatch.timeline.figures import quotient
from gpuwatch.timeline.times import Span, covered_ns
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow, WorkerShare, wilson

LOG_NS = 900 * SECOND_NS  # as long as the raw steps of a hooked trainer
_SINGLE_NS = 120 * SECOND_NS  # twice the rules' window; older tallies are merged
_MERGED_NS = 15 * SECOND_NS
_SUMMED_NS = 8 * SECOND_NS
"""A window takes tallies in sums of this length: it slides once a second, and adding each one again is most of its
cost, 8 ms with 128 workers."""
_LONG_START_SECONDS = 30.0
"""Of waits for first batches in a window in which no epoch began: workers take that long to start nowhere."""
_WAITING_SHARE = 0.9
"""Of the samples of a second that the thread spends in next(): some are torn, some fall on a log line of a library."""
_UNBROKEN_NS = 10 * SECOND_NS
"""Without samples for longer, whether the thread waited all the while is not known."""
_LINES_PER_BLOCK = 64
_WORKERS_PER_BLOCK = 256
_TIDY_LINES = 4_096
_LINES_SHOWN = 20

PHASES: tuple[str, ...] = get_args(StackPhase)
WORKER_PHASES: tuple[str, ...] = get_args(WorkerPhase)
FEEDER_PHASES: tuple[str, ...] = get_args(FeederPhase)
NOT_TRAINING = frozenset({"eval", "save", "compile"})
_AT_WORK = ("wait", "forward", "backward", "optimizer", "sync", "copy")

_SUMS = (
    "samples",
    "rejected",
    "eval_waiting_samples",
    "receiving_samples",
    "first_wait_samples",
    "handed_samples",
    "worker_samples",
    "feeder_rounds",
    "cpu_seconds",
)
_PHASE_COUNTS = ("phases", "worker_phases", "feeder_phases")
_COUNTS = ("workers", *_PHASE_COUNTS)
_LINES_OF_TALLY = ("lines", "calls", "worker_lines", "worker_calls", "feeder_lines", "feeder_calls")
_LINE_COUNTS = (*_LINES_OF_TALLY, "by_worker", "worker_tops")

_LineKey = tuple[str, str, int, str, "str | None", "str | None", "str | None"]
"""Phase, file, line, function, leaf; of a call the called function and its file instead of a leaf."""

_MOST_ROWS = 1_024
_MOST_LOADERS = 64  # a script may make a new one every epoch
_USUAL_OF = 64
_READ_EVERY_NS = 5 * SECOND_NS // 2  # readings come about once a second; further apart they missed something

LEAST_SAMPLES = 20
HANDED_SHARE = 0.5
"""Of the waits: where most are for another thread or process, that is what makes the batches."""
MAKING_THREADS = 0.5
"""At a time, in the mean: a thread that mostly waits for worker processes itself only passes their batches on."""

HotPlace = Literal["main thread while waiting", "loading thread", "workers"]
_MOST_LINES = 4  # of a function; more say nothing that its name does not


@dataclass(slots=True, eq=False)
class _Block:
    """One tally, or the sum of those of 15 s: named as in the tally. Lines are counted by the log's numbers of them."""

    start_ns: int
    end_ns: int
    span_ns: int = 0
    samples: int = 0
    rejected: int = 0
    eval_waiting_samples: int = 0
    receiving_samples: int = 0
    first_wait_samples: int = 0
    handed_samples: int = 0
    worker_samples: int = 0
    feeder_rounds: int = 0
    cpu_seconds: float = 0.0
    workers: Counter[int] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    worker_phases: Counter[str] = field(default_factory=Counter)
    feeder_phases: Counter[str] = field(default_factory=Counter)
    lines: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)
    worker_lines: Counter[int] = field(default_factory=Counter)
    worker_calls: Counter[int] = field(default_factory=Counter)
    feeder_lines: Counter[int] = field(default_factory=Counter)
    feeder_calls: Counter[int] = field(default_factory=Counter)
    by_worker: Counter[tuple[int, int]] = field(default_factory=Counter)  # by pid, and whether it was busy
    worker_tops: Counter[tuple[int, int]] = field(default_factory=Counter)  # by pid and line

    @property
    def all_lines(self) -> tuple[Counter[int], ...]:
        """All counts of lines and calls."""
        return self.lines, self.calls, self.worker_lines, self.worker_calls, self.feeder_lines, self.feeder_calls

    def __lt__(self, other: _Block) -> bool:
        return self.end_ns < other.end_ns

    def add(self, other: _Block, *, with_lines: bool = True) -> None:
        """Takes another one in."""
        self.start_ns = min(self.start_ns, other.start_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.span_ns += other.span_ns
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in (*_COUNTS, *_LINE_COUNTS) if with_lines else _COUNTS:
            getattr(self, name).update(getattr(other, name))

    def stretch(self, of_starts: float) -> Stretch:
        """What it holds of training."""
        each = self.span_ns / SECOND_NS / self.samples if self.samples else 0.0
        training = self.samples - sum(self.phases[phase] for phase in NOT_TRAINING)
        waiting = self.phases["wait"] - of_starts * self.first_wait_samples
        return Stretch(each * training, each * waiting, bool(self.phases["log"]))

    def forget_rare_lines(self) -> None:
        """Keeps the lines with the most samples: shares are of all samples, so those of the others stay right."""
        for lines in self.all_lines:
            if len(lines) > _LINES_PER_BLOCK:
                kept = lines.most_common(_LINES_PER_BLOCK)
                lines.clear()
                lines.update(dict(kept))
        for workers in (self.by_worker, self.worker_tops):
            if len(workers) > _WORKERS_PER_BLOCK:
                most = dict(workers.most_common(_WORKERS_PER_BLOCK))
                workers.clear()
                workers.update(most)


class StackLog:
    """Tallies one by one for 2 min, then merged to 15 s each: 180 blocks of at most 64 lines, however long it runs."""

    def __init__(self) -> None:
        self.current_line: CurrentLine | None = None
        self.waiting_since_ns: int | None = None
        """Since when all samples of the training thread were waits; None where the newest ones were not."""
        self._singles: list[_Block] = []
        self._merged: dict[int, _Block] = {}
        self._sums: dict[int, tuple[int, _Block]] = {}
        """Of singles by when they ended, in _SUMMED_NS: how many, and their sum."""
        self._newest_ns = 0
        self._ids: dict[_LineKey, int] = {}
        self._keys: dict[int, _LineKey] = {}
        self._texts: dict[int, str | None] = {}
        self._next_id = 0
        self._tidy_at = _TIDY_LINES

    @property
    def end_ns(self) -> int | None:
        """Until when there were samples."""
        return self._newest_ns or None

    def add(self, tally: StackTally) -> None:
        """Takes up one tally, early or late."""
        if tally.end_ns <= tally.start_ns:
            return
        block = _Block(tally.start_ns, tally.end_ns)
        block.span_ns = tally.end_ns - tally.start_ns
        for name in _SUMS:
            setattr(block, name, getattr(tally, name))
        block.workers[tally.workers] += 1
        for name in _PHASE_COUNTS:
            getattr(block, name).update(getattr(tally, name))
        for name in _LINES_OF_TALLY:
            getattr(block, name).update(self._counted(getattr(tally, name)))
        for worker in tally.by_worker:
            block.by_worker.update({(worker.pid, False): worker.idle, (worker.pid, True): worker.samples - worker.idle})
            if worker.line is not None:
                for number, samples in self._counted((worker.line,)).items():
                    block.worker_tops[worker.pid, number] += samples
        block.forget_rare_lines()
        self._follow_wait(tally)
        self._newest_ns = max(self._newest_ns, tally.end_ns)
        insort(self._singles, block)
        self._sums.pop(block.end_ns // _SUMMED_NS, None)
        self._compact()

    def see(self, current_line: CurrentLine) -> None:
        """Where the training thread stands, unless it is known better."""
        if self.current_line is None or current_line.time_ns >= self.current_line.time_ns:
            self.current_line = current_line

    def _follow_wait(self, tally: StackTally) -> None:
        if tally.end_ns <= self._newest_ns or not tally.samples:
            return
        if tally.phases.get("wait", 0) < _WAITING_SHARE * tally.samples:
            self.waiting_since_ns = None
        elif self.waiting_since_ns is None or tally.start_ns - self._newest_ns > _UNBROKEN_NS:
            self.waiting_since_ns = tally.start_ns

    def reaches(self, start_ns: int) -> bool:
        """Whether everything since then is still here."""
        return self._newest_ns - start_ns <= LOG_NS

    def trains_since(self, start_ns: int) -> bool:
        """Whether any sample since then saw the training loop at work."""
        return any(block.phases[phase] for block in self._blocks(start_ns, self._newest_ns) for phase in _AT_WORK)

    def window(
        self,
        start_ns: int,
        end_ns: int,
        counts: BatchCounts | None = None,
        stops: Sequence[Span] = (),
        *,
        with_lines: bool = True,
    ) -> StackWindow | None:
        """The samples whose middle lies in (start, end]; None without one.

        Args:
            start_ns: of the window.
            end_ns: of the window.
            counts: the batches that were counted meanwhile.
            stops: when the process was stopped: no samples were taken then.
            with_lines: to add them up is most of the work, and those of every rank are not needed.
        """
        blocks = list(self._blocks(start_ns, end_ns))
        total = self._total(_Block(end_ns, start_ns), blocks, with_lines=with_lines)
        if not total.span_ns:
            return None
        counted = counts.between(start_ns, end_ns, (total.start_ns, total.end_ns), stops) if counts else None
        is_fresh = self.current_line is not None and start_ns < self.current_line.time_ns <= end_ns + SECOND_NS
        begun_ns = counts.first_round_ns(_usual(total.workers)) if counts else None
        return self._summed(total, blocks, counted, begun_ns, self.current_line if is_fresh else None)

    def _total(self, total: _Block, blocks: Sequence[_Block], *, with_lines: bool) -> _Block:
        """Adds blocks to one, taking the sum of those that ended in the same 8 s where the window has all of them."""
        singles = {id(block) for block in self._singles}
        for place, group in groupby(blocks, lambda block: block.end_ns // _SUMMED_NS if id(block) in singles else None):
            found = list(group)
            count, summed = self._sum_of(place) if place is not None and len(found) > 2 else (0, None)
            for block in found if summed is None or count != len(found) else (summed,):
                total.add(block, with_lines=with_lines)
        return total

    def _sum_of(self, place: int) -> tuple[int, _Block]:
        if place not in self._sums:
            start_ns, end_ns = place * _SUMMED_NS, (place + 1) * _SUMMED_NS
            first = bisect_left(self._singles, start_ns, key=attrgetter("end_ns"))
            found = self._singles[first : bisect_left(self._singles, end_ns, key=attrgetter("end_ns"))]
            summed = _Block(found[0].start_ns, found[0].end_ns)
            for block in found:
                summed.add(block)
            self._sums[place] = len(found), summed
        return self._sums[place]

    def _summed(
        self,
        total: _Block,
        blocks: Sequence[_Block],
        counted: Counted | None,
        begun_ns: int | None,
        current_line: CurrentLine | None,
    ) -> StackWindow:
        """The figures of a window from the sum of its blocks; until `begun_ns` the session's first epoch started."""
        training = total.samples - sum(total.phases[phase] for phase in NOT_TRAINING)
        busy = total.worker_samples - total.worker_phases["idle"]
        fed = total.feeder_phases.total()
        longer = _longer_at_starts(total, counted)
        of_starts = longer / total.first_wait_samples if total.first_wait_samples else 0.0
        beginning = [block for block in blocks if begun_ns is not None and block.end_ns <= begun_ns]
        begun = sum(block.phases["start"] + of_starts * block.first_wait_samples for block in beginning)
        stretches = [block.stretch(of_starts) for block in sorted(blocks)]
        log_quiet, log_pause = pauses_of_logging(stretches)
        return StackWindow(
            seconds=total.span_ns / SECOND_NS,
            samples=total.samples,
            rejected=total.rejected,
            phases=_shares(total.phases, PHASES, total.samples),
            train_phases=_shares(total.phases, [each for each in PHASES if each not in NOT_TRAINING], training),
            lines=self._lines(total.lines, total.samples),
            calls=self._lines(total.calls, total.samples),
            eval_wait_share=quotient(total.eval_waiting_samples, total.phases["eval"]),
            receiving_share=quotient(total.receiving_samples, total.samples),
            first_wait_share=quotient(longer, total.samples),
            beginning_share=begun / total.samples if total.samples else None,
            log_quiet_seconds=log_quiet,
            log_pause_seconds=log_pause,
            waits=waits_of(stretches),
            workers=_usual(total.workers),
            workers_mean=sum(count * times for count, times in total.workers.items()) / total.workers.total(),
            worker_samples=total.worker_samples,
            worker_phases=_shares(total.worker_phases, WORKER_PHASES, total.worker_samples),
            worker_lines=self._lines(total.worker_lines, busy),
            worker_calls=self._lines(total.worker_calls, busy),
            handed_samples=total.handed_samples,
            feeder_rounds=total.feeder_rounds,
            feeder_samples=fed,
            feeder_phases=_shares(total.feeder_phases, FEEDER_PHASES, fed),
            feeder_lines=self._lines(total.feeder_lines, fed),
            feeder_calls=self._lines(total.feeder_calls, fed),
            by_worker=self._by_worker(total),
            current_line=current_line,
            batches_per_second=counted.per_second if counted else None,
            batches_exact=counted.exact if counted else True,
            batches_of_loader=counted.of_loader if counted else True,
            batches=counted.batches if counted else 0,
            epochs=counted.epochs if counted else 0,
            cpu_share=total.cpu_seconds * SECOND_NS / total.span_ns,
        )

    def _by_worker(self, total: _Block) -> tuple[WorkerShare, ...]:
        """Each worker's busy share of its samples, and of these the line that it was seen on most."""
        found = []
        for pid in dict.fromkeys(pid for pid, _ in total.by_worker):
            busy = total.by_worker[pid, True]
            samples = busy + total.by_worker[pid, False]
            tops = Counter({line: count for (of, line), count in total.worker_tops.items() if of == pid})
            line = next(iter(self._lines(tops, busy)), None)
            if samples:
                found.append(WorkerShare(pid, samples, wilson(busy, samples), line))
        return tuple(found)

    def _blocks(self, start_ns: int, end_ns: int) -> Iterator[_Block]:
        for block in (*self._merged.values(), *self._singles):
            if start_ns < (block.start_ns + block.end_ns) // 2 <= end_ns:
                yield block

    def _counted(self, lines: Iterable[LineCount | CallCount]) -> Counter[int]:
        """The samples of each line by its number, which is a tenth of the memory of its names."""
        counts: Counter[int] = Counter()
        for line in lines:
            key = _key(line)
            number = self._ids.get(key)
            if number is None:
                number = self._ids[key] = self._next_id
                self._keys[number] = key
                self._next_id += 1
            if line.text is not None or number not in self._texts:
                self._texts[number] = line.text
            counts[number] += line.samples
        return counts

    def _compact(self) -> None:
        """Merges what is older than 2 min and drops what is older than 15."""
        while self._singles and self._newest_ns - self._singles[0].end_ns > _SINGLE_NS:
            block = self._singles.pop(0)
            self._sums.pop(block.end_ns // _SUMMED_NS, None)
            place = block.end_ns // _MERGED_NS
            merged = self._merged.setdefault(place, _Block(block.start_ns, block.end_ns))
            merged.add(block)
            merged.forget_rare_lines()
        oldest = (self._newest_ns - LOG_NS) // _MERGED_NS
        if any(place < oldest for place in self._merged):
            self._merged = {place: block for place, block in self._merged.items() if place >= oldest}
        if len(self._keys) > self._tidy_at:
            self._forget_unused_lines()

    def _forget_unused_lines(self) -> None:
        used = {
            number
            for block in (*self._merged.values(), *self._singles)
            for lines in (*block.all_lines, [line for _, line in block.worker_tops])
            for number in lines
        }
        self._keys = {number: key for number, key in self._keys.items() if number in used}
        self._texts = {number: text for number, text in self._texts.items() if number in used}
        self._ids = {key: number for number, key in self._keys.items()}
        self._tidy_at = max(_TIDY_LINES, 2 * len(used))

    def _lines(self, counts: Mapping[int, int], samples: int) -> tuple[LineShare, ...]:
        """The lines with the most samples; of what runs below one, the leaf that was seen most."""
        by_line: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for number, count in counts.items():
            phase, file, line_number, function, _, callee, callee_file = self._keys[number]
            by_line.setdefault((phase, file, line_number, function, callee, callee_file), []).append((count, number))
        totals = Counter({line: sum(count for count, _ in found) for line, found in by_line.items()})
        shown = []
        for line, count in totals.most_common(_LINES_SHOWN):
            found = max(by_line[line])[1]
            phase, file, number, function, callee, callee_file = line
            shown.append(
                LineShare(
                    phase=phase,
                    file=file,
                    line=number,
                    function=function,
                    samples=count,
                    share=wilson(min(count, samples), samples),
                    text=self._texts[found],
                    leaf=self._keys[found][4],
                    callee=callee,
                    callee_file=callee_file,
                )
            )
        return tuple(shown)


def _key(line: LineCount | CallCount) -> _LineKey:
    if isinstance(line, LineCount):
        return line.phase, line.file, line.line, line.function, line.leaf, None, None
    return line.phase, line.file, line.line, line.function, None, line.callee, line.callee_file


def _shares(counts: Mapping[str, int], names: Collection[str], samples: int) -> dict[str, Share]:
    """Those of all names: one that was never seen in that many samples has a share of 0 with an upper bound."""
    return {name: wilson(counts.get(name, 0), samples) for name in names} if samples > 0 else {}


def _longer_at_starts(total: _Block, counted: Counted | None) -> int:
    """Of the samples that wait for the first batch of each worker, those beyond what as many other batches wait."""
    first = total.first_wait_samples
    if counted is None:
        return first
    waited_seconds = total.span_ns / SECOND_NS * first / max(1, total.samples)
    if not counted.epochs and waited_seconds >= _LONG_START_SECONDS:
        return 0  # the first round of that many workers takes too long to be a start
    firsts = counted.epochs * _usual(total.workers)
    later = counted.batches - firsts
    if later <= firsts:
        return first  # too few to say what is usual
    return max(0, round(first - (total.phases["wait"] - first) * firsts / later))


def _usual(workers: Counter[int]) -> int:
    """How many there mostly were, those moments aside in which an epoch ended and none lived."""
    living = Counter({count: times for count, times in workers.items() if count})
    return living.most_common(1)[0][0] if living else 0


@dataclass(frozen=True, slots=True)
class Stretch:
    """The seconds of training in one tally, those of them that waited for a batch, and whether a sample saw logging."""

    training_seconds: float
    waited_seconds: float
    logs: bool


def waits_of(stretches: Iterable[Stretch]) -> tuple[tuple[float, float], ...]:
    """Training and waiting, stretch by stretch; those without training tell nothing."""
    return tuple((each.training_seconds, each.waited_seconds) for each in stretches if each.training_seconds > 0.0)


def pauses_of_logging(stretches: Iterable[Stretch]) -> tuple[float | None, float | None]:
    """Seconds of training since the last look at logging, and the most that passed from one to the next.

    What a tally saw lies anywhere in its second: the first figure is the least, the second the most it can be.
    """
    quiet: float | None = None
    longest: float | None = None
    before = 0.0
    for each in stretches:
        if not each.logs:
            quiet = quiet if quiet is None else quiet + each.training_seconds
            continue
        if quiet is not None:
            longest = max(longest or 0.0, before + quiet + each.training_seconds)
        quiet, before = 0.0, each.training_seconds
    return quiet, longest


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
        self.rows = Table({"batches": "d", "epochs": "d", "exact": "b"}, max_age_ns=LOG_NS, max_rows=_MOST_ROWS)
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
        self._grown_since_ns = 0  # when any of them had grown before its newest growth
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
        if self.last_growth_ns is None or count.time_ns > self.last_growth_ns:  # all loaders may be read at once
            self._grown_since_ns = self.first_ns if self.last_growth_ns is None else self.last_growth_ns
            self.last_growth_ns = count.time_ns
        since_ns = self._grown_since_ns
        self.train_loader = count.loader
        if since_ns >= count.time_ns:
            return Growth(grown, None, count.time_ns)
        self.usual.append((count.time_ns - since_ns) / SECOND_NS / grown)
        # The first batch after an evaluation was not made during it.
        longest_ns = round(grown * median(self.usual) * SECOND_NS)
        return Growth(grown, max(since_ns, count.time_ns - longest_ns), count.time_ns)

    def between(self, start_ns: int, end_ns: int, sampled: Span, stops: Sequence[Span] = ()) -> Counted | None:
        """The growth from the first to the last reading in [start, end]; None where no loader trains.

        Args:
            start_ns: of the window.
            end_ns: of the window.
            sampled: when the first sample in the window began and the last one ended. Where readings are missing there
                although the thread was sampled, no loop over a loader ran: that time counts, without batches.
            stops: when the process was stopped, which does not count.
        """
        training = self._training()
        read = [span for each in self._loaders.values() if (span := _read_within(each.rows, start_ns, end_ns))]
        if not training or not any(each.read_ns > start_ns - LOG_NS for each in training):
            return None
        first_ns = min((first for first, _ in read), default=end_ns)
        last_ns = max((last for _, last in read), default=start_ns)
        was_read_before = any(each.rows.until(start_ns) > 0 for each in self._loaders.values())
        if was_read_before and first_ns - sampled[0] > _READ_EVERY_NS:
            first_ns = sampled[0]
        if sampled[1] - last_ns > _READ_EVERY_NS:
            last_ns = sampled[1]
        return Counted(
            batches=_grown(training, "batches", first_ns, last_ns),
            epochs=_grown(training, "epochs", first_ns, last_ns),
            seconds=max(0, last_ns - first_ns - covered_ns(stops, first_ns, last_ns)) / SECOND_NS,
            exact=all(all(each.rows["exact"][each.rows.since(start_ns) :]) for each in training),
            of_loader=self.train_loader != NO_LOADER,
        )

    def first_round_ns(self, workers: int) -> int | None:
        """When each worker's first batch of the first epoch was taken, as soon as a reading shows it.

        The newest reading before that; None without one.
        """
        read = [each.rows for each in self._training() if len(each.rows)]
        if not read:
            return None
        rows = min(read, key=lambda each: each.times[0])
        over = (time_ns for time_ns, batches in zip(rows.times, rows["batches"], strict=True) if batches >= workers)
        return next(over, rows.times[-1])

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
    """The first and the last reading in [start, end]: what a counter grew by since its reading at the start counts."""
    low, high = rows.since(start_ns - 1), rows.until(end_ns)
    return (rows.times[low], rows.times[high - 1]) if low < high else None


def _grown(loaders: Iterable[_Loader], column: str, first_ns: int, last_ns: int) -> int:
    return sum(max(0, each.at(last_ns, column) - each.at(first_ns, column)) for each in loaders)


def is_handed_over(stacks: StackWindow) -> bool:
    """Whether what the training thread waits for is handed over by another thread or process, not by a loader."""
    waits = stacks.phases["wait"].value * stacks.samples if "wait" in stacks.phases else 0.0
    return stacks.handed_samples >= LEAST_SAMPLES and stacks.handed_samples >= HANDED_SHARE * waits


def is_fed(stacks: StackWindow) -> bool:
    """Whether threads of the training process make the batches that it waits for.

    Such a thread makes one batch after the other, also while the training computes, and shares the interpreter with the
    training thread: while one of them runs Python, the other waits.
    """
    enough = is_handed_over(stacks) and stacks.feeder_rounds >= LEAST_SAMPLES
    return enough and making_threads(stacks) >= MAKING_THREADS


def making_samples(stacks: StackWindow) -> int:
    """Samples of threads that feed the training thread in which they made batches."""
    return round(stacks.feeder_samples * stacks.feeder_phases["make"].value) if stacks.feeder_samples else 0


def making_threads(stacks: StackWindow) -> float:
    """How many of them make batches at a time, in the mean."""
    return making_samples(stacks) / stacks.feeder_rounds if stacks.feeder_rounds else 0.0


def pinning(stacks: StackWindow) -> Share | None:
    """How busy a loader's thread is that pins batches; None without samples of one."""
    parts = [stacks.feeder_phases.get(name) for name in ("pin", "pin-idle")]
    busy, idle = (round(stacks.feeder_samples * part.value) if part is not None else 0 for part in parts)
    return wilson(busy, busy + idle) if busy + idle else None


@dataclass(frozen=True, slots=True)
class HotLine:
    """The line and who runs it. Its share is of that thread's time, or of the workers' busy time."""

    line: LineShare
    where: HotPlace


def hot_line(rank: RankWindow) -> HotLine | None:
    """The top line of loading; None where the threads that load were not read.

    With workers, the training thread's own top line while it waits is the `for` statement, which says nothing.
    """
    stacks = rank.stacks
    if stacks is None:
        return None
    if is_fed(stacks):
        in_thread = hottest_line(stacks.feeder_lines, stacks.feeder_calls, ("make",))
        return HotLine(in_thread, "loading thread") if in_thread is not None else None
    in_workers = hottest_line(stacks.worker_lines, stacks.worker_calls, ("item",))
    if in_workers is not None:
        return HotLine(in_workers, "workers")
    loader = rank.train_loader
    known = loader.num_workers if loader is not None and loader.num_workers is not None else stacks.workers
    while_waiting = hottest_line(stacks.lines, stacks.calls, ("wait",)) if known == 0 else None
    return HotLine(while_waiting, "main thread while waiting") if while_waiting is not None else None


def hottest_line(lines: Iterable[LineShare], calls: Iterable[LineShare], phases: Collection[str]) -> LineShare | None:
    """Where most samples of these phases were taken: a line, or a call of a function that has no such line.

    From the outermost functions inwards the line or call with the most samples is followed, into a function only as
    long as one line or call in it has half of its samples. None without samples.
    """
    found = _merged([each for each in (*lines, *calls) if each.phase in phases])
    if not found:
        return None
    called = Counter[tuple[str | None, str | None]]()
    for each in found:
        if each.callee is not None:
            called[each.callee_file, each.callee] += each.samples
    outermost = [each for each in found if (each.file, each.function) not in called]
    chosen = max(outermost or found, key=attrgetter("samples"))
    passed = set[tuple[str | None, str | None]]()
    while chosen.callee is not None:
        callee = chosen.callee_file, chosen.callee
        inside = [each for each in found if (each.file, each.function) == callee]
        top = max(inside, key=attrgetter("samples"), default=None)
        if top is None or 2 * top.samples < called[callee] or callee in passed:
            return _as_function(chosen, inside, called[callee])
        passed.add(callee)
        chosen = top
    return chosen


def _merged(found: Sequence[LineShare]) -> list[LineShare]:
    """Each line and each call once, whatever phase it was seen in most."""
    groups: dict[tuple[str, int, str, str | None, str | None], list[LineShare]] = {}
    for each in found:
        groups.setdefault((each.file, each.line, each.function, each.callee_file, each.callee), []).append(each)
    merged = []
    for group in groups.values():
        chief = max(group, key=attrgetter("samples"))
        if len(group) > 1:
            samples = sum(each.samples for each in group)
            of = round(chief.samples / chief.share.value) if chief.share.value > 0.0 else samples
            text = next((each.text for each in group if each.text), None)
            chief = replace(chief, samples=samples, share=wilson(min(samples, of), of), text=text)
        merged.append(chief)
    return merged


def _as_function(call: LineShare, inside: Iterable[LineShare], samples: int) -> LineShare:
    """The call, with the few lines that have most of the function's samples; of a comprehension its line."""
    by_line, below = Counter[int](), Counter[str]()
    for each in inside:
        by_line[each.line] += each.samples
        if each.leaf is not None:
            below[each.leaf] += each.samples
    most = by_line.most_common(_MOST_LINES)
    lines: tuple[int, ...] = ()
    for count in range(1, len(most) + 1):
        if 2 * sum(each for _, each in most[:count]) >= samples:
            lines = tuple(sorted(line for line, _ in most[:count]))
            break
    leaf = below.most_common(1)[0][0] if below else None
    if call.callee is not None and call.callee.endswith(">"):
        return replace(call, callee=None, callee_file=None, leaf=leaf)
    return replace(call, callee_lines=lines, leaf=leaf)
