"""The looks at one trainer from outside: 15 min of tallies, and the shares that are cut from them."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from gpuwatch.samples import CallCount, FeederPhase, LineCount, StackPhase, StackTally, Standing, WorkerPhase
from gpuwatch.timeline.batch_counts import BatchCounts
from gpuwatch.timeline.spans import Span
from gpuwatch.timeline.stack_stretches import Stretch, pauses_of_logging, waits_of
from gpuwatch.timeline.stats import wilson
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import LineShare, Share, StackWindow

LOG_NS = 900 * SECOND_NS  # as long as the raw steps of a hooked trainer
_SINGLE_NS = 120 * SECOND_NS  # twice the rules' window; older tallies are merged
_MERGED_NS = 15 * SECOND_NS
_LINES_PER_BLOCK = 64
_TIDY_LINES = 4_096
_LINES_SHOWN = 20

PHASES: tuple[str, ...] = get_args(StackPhase)
WORKER_PHASES: tuple[str, ...] = get_args(WorkerPhase)
FEEDER_PHASES: tuple[str, ...] = get_args(FeederPhase)
NOT_TRAINING = frozenset({"eval", "save", "compile"})
_AT_WORK = ("wait", "forward", "backward", "optimizer", "sync", "copy")

_LineKey = tuple[str, str, int, str, "str | None", "str | None", "str | None"]
"""Phase, file, line, function, leaf; of a call the called function and its file instead of a leaf."""


class _Block:
    """One tally, or the sum of those of 15 s. Lines are counted by the number that the log gave them."""

    __slots__ = (
        "calls",
        "cpu_seconds",
        "end_ns",
        "eval_waiting",
        "feeder_calls",
        "feeder_lines",
        "feeder_looks",
        "feeder_phases",
        "first_wait",
        "handed",
        "lines",
        "phases",
        "receiving",
        "rejected",
        "samples",
        "span_ns",
        "start_ns",
        "worker_calls",
        "worker_lines",
        "worker_phases",
        "worker_samples",
        "workers",
    )

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.span_ns = 0
        self.samples = self.rejected = self.eval_waiting = self.receiving = self.first_wait = self.worker_samples = 0
        self.handed = self.feeder_looks = 0
        self.cpu_seconds = 0.0
        self.workers: Counter[int] = Counter()
        self.phases: Counter[str] = Counter()
        self.worker_phases: Counter[str] = Counter()
        self.lines: Counter[int] = Counter()
        self.worker_lines: Counter[int] = Counter()
        self.calls: Counter[int] = Counter()
        self.worker_calls: Counter[int] = Counter()
        self.feeder_phases: Counter[str] = Counter()
        self.feeder_lines: Counter[int] = Counter()
        self.feeder_calls: Counter[int] = Counter()

    @property
    def all_lines(self) -> tuple[Counter[int], ...]:
        """All counts of lines and calls."""
        return self.lines, self.worker_lines, self.calls, self.worker_calls, self.feeder_lines, self.feeder_calls

    def __lt__(self, other: _Block) -> bool:
        return self.end_ns < other.end_ns

    def add(self, other: _Block, *, with_lines: bool = True) -> None:
        """Takes another one in."""
        self.start_ns = min(self.start_ns, other.start_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.span_ns += other.span_ns
        self.samples += other.samples
        self.rejected += other.rejected
        self.eval_waiting += other.eval_waiting
        self.receiving += other.receiving
        self.first_wait += other.first_wait
        self.worker_samples += other.worker_samples
        self.handed += other.handed
        self.feeder_looks += other.feeder_looks
        self.cpu_seconds += other.cpu_seconds
        self.workers.update(other.workers)
        self.phases.update(other.phases)
        self.worker_phases.update(other.worker_phases)
        self.feeder_phases.update(other.feeder_phases)
        if with_lines:
            for lines, others in zip(self.all_lines, other.all_lines, strict=True):
                lines.update(others)

    def stretch(self) -> Stretch:
        """What it holds of training."""
        each = self.span_ns / SECOND_NS / self.samples if self.samples else 0.0
        training = self.samples - sum(self.phases[phase] for phase in NOT_TRAINING)
        return Stretch(each * training, each * (self.phases["wait"] - self.first_wait), bool(self.phases["log"]))

    def forget_rare_lines(self) -> None:
        """Keeps the lines with the most samples: shares are of all samples, so those of the others stay right."""
        for lines in self.all_lines:
            if len(lines) > _LINES_PER_BLOCK:
                kept = lines.most_common(_LINES_PER_BLOCK)
                lines.clear()
                lines.update(dict(kept))


class StackLog:
    """Tallies one by one for 2 min, then merged to 15 s each: 180 blocks of at most 64 lines, however long it runs."""

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self._singles: list[_Block] = []
        self._merged: dict[int, _Block] = {}
        self._newest_ns = 0
        self._ids: dict[_LineKey, int] = {}
        self._keys: dict[int, _LineKey] = {}
        self._texts: dict[int, str | None] = {}
        self._next_id = 0
        self._tidy_at = _TIDY_LINES

    @property
    def end_ns(self) -> int | None:
        """Until when there were looks."""
        return self._newest_ns or None

    def add(self, tally: StackTally) -> None:
        """Takes up one tally, early or late."""
        if tally.end_ns <= tally.start_ns:
            return
        block = _Block(tally.start_ns, tally.end_ns)
        block.span_ns = tally.end_ns - tally.start_ns
        block.samples, block.rejected = tally.samples, tally.rejected
        block.eval_waiting, block.receiving = tally.eval_waiting_samples, tally.receiving_samples
        block.first_wait, block.worker_samples = tally.first_wait_samples, tally.worker_samples
        block.cpu_seconds = tally.cpu_seconds
        block.workers[tally.workers] += 1
        block.phases.update(tally.phases)
        block.worker_phases.update(tally.worker_phases)
        block.lines.update(self._counted(tally.lines))
        block.worker_lines.update(self._counted(tally.worker_lines))
        block.calls.update(self._counted(tally.calls))
        block.worker_calls.update(self._counted(tally.worker_calls))
        block.handed, block.feeder_looks = tally.handed_samples, tally.feeder_looks
        block.feeder_phases.update(tally.feeder_phases)
        block.feeder_lines.update(self._counted(tally.feeder_lines))
        block.feeder_calls.update(self._counted(tally.feeder_calls))
        block.forget_rare_lines()
        self._newest_ns = max(self._newest_ns, tally.end_ns)
        insort(self._singles, block)
        self._compact()

    def see(self, standing: Standing) -> None:
        """Where the training thread stands, unless it is known better."""
        if self.standing is None or standing.time_ns >= self.standing.time_ns:
            self.standing = standing

    def reaches(self, start_ns: int) -> bool:
        """Whether everything since then is still here."""
        return self._newest_ns - start_ns <= LOG_NS

    def trains_since(self, start_ns: int) -> bool:
        """Whether any look since then saw the training loop at work."""
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
        """The looks whose middle lies in (start, end]; None without one.

        Args:
            start_ns: of the window.
            end_ns: of the window.
            counts: the batches that were counted beside the looks.
            stops: when the process was stopped: no samples were taken then.
            with_lines: to add them up is most of the work, and those of every rank are not needed.
        """
        total = _Block(end_ns, start_ns)
        blocks = list(self._blocks(start_ns, end_ns))
        for block in blocks:
            total.add(block, with_lines=with_lines)
        if not total.span_ns:
            return None
        training = total.samples - sum(total.phases[phase] for phase in NOT_TRAINING)
        busy = total.worker_samples - total.worker_phases["idle"]
        fed = total.feeder_phases.total()
        seconds = total.span_ns / SECOND_NS
        counted = counts.between(start_ns, end_ns, (total.start_ns, total.end_ns), stops) if counts else None
        is_fresh = self.standing is not None and start_ns < self.standing.time_ns <= end_ns + SECOND_NS
        stretches = [block.stretch() for block in sorted(blocks)]
        log_quiet, log_pause = pauses_of_logging(stretches)
        return StackWindow(
            seconds=seconds,
            samples=total.samples,
            rejected=total.rejected,
            phases=_shares(total.phases, PHASES, total.samples),
            train_phases=_shares(total.phases, [each for each in PHASES if each not in NOT_TRAINING], training),
            lines=self._lines(total.lines, total.samples),
            calls=self._lines(total.calls, total.samples),
            eval_wait_share=_part(total.eval_waiting, total.phases["eval"]),
            receiving_share=_part(total.receiving, total.samples),
            first_wait_share=_part(total.first_wait, total.samples),
            log_quiet_seconds=log_quiet,
            log_pause_seconds=log_pause,
            waits=waits_of(stretches),
            workers=_usual(total.workers),
            workers_mean=sum(count * times for count, times in total.workers.items()) / total.workers.total(),
            worker_samples=total.worker_samples,
            worker_phases=_shares(total.worker_phases, WORKER_PHASES, total.worker_samples),
            worker_lines=self._lines(total.worker_lines, busy),
            worker_calls=self._lines(total.worker_calls, busy),
            handed_samples=total.handed,
            feeder_looks=total.feeder_looks,
            feeder_samples=fed,
            feeder_phases=_shares(total.feeder_phases, FEEDER_PHASES, fed),
            feeder_lines=self._lines(total.feeder_lines, fed),
            feeder_calls=self._lines(total.feeder_calls, fed),
            standing=self.standing if is_fresh else None,
            batches_per_second=counted.per_second if counted else None,
            batches_exact=counted.exact if counted else True,
            batches_of_loader=counted.of_loader if counted else True,
            batches=counted.batches if counted else 0,
            epochs=counted.epochs if counted else 0,
            cpu_share=total.cpu_seconds / seconds,
        )

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
            for lines in block.all_lines
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
    """Those of all names: one that was never seen in so many looks has a share of 0 with an upper bound."""
    return {name: wilson(counts.get(name, 0), samples) for name in names} if samples > 0 else {}


def _part(count: int, of: int) -> float | None:
    return count / of if of > 0 else None


def _usual(workers: Counter[int]) -> int:
    """How many there mostly were, those moments aside in which an epoch ended and none lived."""
    living = Counter({count: times for count, times in workers.items() if count})
    return living.most_common(1)[0][0] if living else 0
