"""What becomes of the samples: held back until the purpose of their loop is known, then counted.

They give a tally about every second, the spans of evaluation and saving, and the line where the training thread stands.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gpuwatch.reader.stacks import Stack
from gpuwatch.samples import CallCount, CurrentLine, LineCount, PhaseSpan, StackPhase, StackTally, WorkerCount
from gpuwatch.sources.stacks.classify import Call, CodeKey, Culprit, Reading
from gpuwatch.sources.stacks.loops import Loops, Site
from gpuwatch.sources.stacks.workers import FeederSample

HOLD_NS: Final = 2_000_000_000
_MOST_HELD: Final = 1024


@dataclass(slots=True)
class StackSample:
    """One usable sample. `starts_in` is the code that called iter(), while the loop it begins is not yet seen."""

    time_ns: int
    reading: Reading
    site: Site | None
    batches: int = 0  # the loop's count by then
    iterator: int | None = None
    yielded: int = 0  # batches of this iterator
    first_wait: bool = False
    starts_in: CodeKey | None = None
    infers: bool = False  # of a process that trains nothing: what looks like its evaluation is its work
    handed: StackPhase | None = None  # what waiting for another thread or process is, where it does

    @property
    def is_pinned(self) -> bool:
        """Whether its loop's loader has workers and a thread that pins their batches."""
        state = self.site.state if self.site is not None else None
        return state is not None and bool(state.settings.num_workers and state.settings.pin_memory)

    @property
    def phase(self) -> str:
        """The phase it belongs to, given the role of its loop."""
        reading, role = self.reading, self.site.role if self.site is not None else None
        if role == "eval" or (reading.evaluates and not self.infers):
            return "eval"
        if role == "neither":
            return "other"
        return self.handed or reading.phase


class HeldSamples:
    """A queue whose head waits until its loop's role is proven, or supposed after 2 s."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._queue: deque[StackSample] = deque()

    def put(self, sample: StackSample) -> None:
        """Adds the newest sample; one in a loop shows which loop the iter() before it began."""
        if sample.site is not None:
            for earlier in reversed(self._queue):
                if earlier.starts_in is None:
                    break
                if earlier.starts_in == sample.site.code:
                    earlier.site, earlier.starts_in = sample.site, None
        self._queue.append(sample)

    def drop_since(self, time_ns: int) -> None:
        """Forgets the samples after a time: the process was stopped at some moment since."""
        while self._queue and self._queue[-1].time_ns > time_ns:
            self._queue.pop()

    def ready(self, until_ns: int, now_ns: int) -> Iterator[StackSample]:
        """The samples up to a time whose phase is known by now, in their order."""
        while self._queue and self._queue[0].time_ns <= until_ns:
            head = self._queue[0]
            if not self._settled(head):
                if now_ns - head.time_ns < HOLD_NS and len(self._queue) < _MOST_HELD:
                    return
                self._suppose(head)
            yield self._queue.popleft()

    def _settled(self, sample: StackSample) -> bool:
        decided = sample.site is None or self._loops.decide(sample.site)
        return sample.reading.evaluates or (decided and sample.starts_in is None)

    def _suppose(self, sample: StackSample) -> None:
        if sample.site is not None:
            self._loops.suppose(sample.site)
        elif sample.starts_in is not None:
            known = [site for site in self._loops if site.code == sample.starts_in and site.role is not None]
            sample.site = known[-1] if known and all(site.role == known[0].role for site in known) else None
            sample.starts_in = None


_KINDS: Final[dict[str, Literal["eval", "checkpoint"]]] = {"eval": "eval", "save": "checkpoint"}
_GAP_SAMPLES: Final = 2


@dataclass(slots=True)
class _Open:
    span: PhaseSpan
    samples: int
    waits: int
    last_ns: int
    after_ns: int | None = None  # the first sample outside of it since
    outside: int = 0
    batches: int = 0
    iterator: int | None = None
    yielded: int = 0

    def count(self, sample: StackSample, from_its_start: bool = True) -> None:
        """Adds the batches since the last sample that was counted."""
        if sample.iterator is None:
            return
        if sample.iterator == self.iterator and sample.yielded >= self.yielded:
            self.batches += sample.yielded - self.yielded
        elif from_its_start:
            self.batches += sample.yielded
        self.iterator, self.yielded = sample.iterator, sample.yielded


class Spans:
    """Opens a span at the midpoint before the first sample in it, closes it at the midpoint after the last.

    One sample outside does not end it: a torn or odd stack would cut an evaluation in two.
    """

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._open: _Open | None = None
        self._previous_ns: int | None = None

    def see(self, sample: StackSample) -> Iterator[PhaseSpan]:
        """Takes the next sample; gives what opens or closes by it."""
        kind = _KINDS.get(sample.phase)
        current = self._open
        if current is not None and kind == current.span.kind and _same_loader(current.span, sample):
            self._extend(current, sample)
        elif current is not None and kind is None and current.outside + 1 < _GAP_SAMPLES:
            current.outside += 1
            current.after_ns = current.after_ns or sample.time_ns
        else:
            if current is not None:
                yield self._close(current, current.after_ns or sample.time_ns)
            if kind is not None:
                yield self._begin(kind, sample)
        self._previous_ns = sample.time_ns

    def end(self, now_ns: int) -> Iterator[PhaseSpan]:
        """Closes what is open, when nothing more will be seen."""
        if self._open is not None:
            yield self._close(self._open, max(now_ns, self._open.last_ns))

    def _begin(self, kind: Literal["eval", "checkpoint"], sample: StackSample) -> PhaseSpan:
        before = self._previous_ns if self._previous_ns is not None else sample.time_ns
        site, culprit = sample.site, sample.reading.culprit
        file, line = (culprit.file, culprit.line) if culprit is not None else (None, None)
        loader = None
        if kind == "eval" and site is not None and site.role == "eval":
            file, line, loader = site.code[0], site.line, site.number
        span = PhaseSpan(self._trainer, kind, (before + sample.time_ns) // 2, None, loader=loader, file=file, line=line)
        self._open = _Open(span, 1, int(sample.reading.waits), sample.time_ns)
        if loader is not None:
            self._open.count(sample, from_its_start=self._previous_ns is not None)
        return span

    def _extend(self, current: _Open, sample: StackSample) -> None:
        current.samples += 1
        current.waits += sample.reading.waits
        current.last_ns, current.after_ns, current.outside = sample.time_ns, None, 0
        site = sample.site
        if site is None or site.role != "eval":
            return
        if current.span.loader is None and current.span.kind == "eval":
            current.span = replace(current.span, loader=site.number, file=site.code[0], line=site.line)
        current.count(sample)

    def _close(self, current: _Open, after_ns: int) -> PhaseSpan:
        self._open = None
        end_ns = max((current.last_ns + after_ns) // 2, current.span.start_ns + 1)
        if current.span.kind != "eval":
            return replace(current.span, end_ns=end_ns)
        seconds = (end_ns - current.span.start_ns) / 1e9
        counted = current.span.loader is not None
        return replace(
            current.span,
            end_ns=end_ns,
            batches=current.batches if counted else None,
            wait_seconds=seconds * current.waits / current.samples if counted else None,
        )


def _same_loader(span: PhaseSpan, sample: StackSample) -> bool:
    number = sample.site.number if sample.site is not None and sample.site.role == "eval" else None
    return None in (number, span.loader) or number == span.loader


class LineTracker:
    """The line of the last sample. It stands there only as long as no batch is taken and no caller moves on."""

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._since_ns = 0
        self._key: tuple[object, ...] | None = None
        self._sample: StackSample | None = None
        self._leaf: Culprit | None = None
        self._in_loop: bool | None = None
        self.main_file: str | None = None

    def see(self, stack: Stack, sample: StackSample, in_loop: bool | None = None) -> None:
        """Takes the newest sample; `in_loop` says whether it is inside a loop that trains, as far as one is known."""
        culprit = sample.reading.culprit
        if culprit is None:
            innermost = stack.frames[0]
            code = innermost.code
            culprit = Culprit(code.file, innermost.line or code.first_line, code.name, None, None)
        key = culprit.file, culprit.line, sample.reading.where, sample.batches
        if key != self._key:
            self._key, self._since_ns = key, sample.time_ns
        self._sample, self._leaf, self._in_loop = sample, culprit, in_loop
        self.main_file = stack.frames[-1].code.file

    def now(self) -> CurrentLine | None:
        """The last stack, as a sample."""
        if self._sample is None or self._leaf is None:
            return None
        line = self._leaf
        return CurrentLine(
            self._trainer,
            self._sample.time_ns,
            self._since_ns,
            self._sample.phase,
            line.file,
            line.line,
            line.function,
            text=line.text,
            leaf=line.leaf,
            in_loop=self._in_loop,
        )


_MOST_LINES: Final = 200


class _Seen:
    """Samples of one kind of thread, by phase, by line of the user's and by the calls that led to it."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()
        self._lines: Counter[tuple[str, Culprit]] = Counter()
        self._calls: Counter[tuple[str, Call]] = Counter()

    def add(self, phase: str, culprit: Culprit | None, calls: Iterable[Call]) -> None:
        self.phases[phase] += 1
        if culprit is not None:
            self._lines[phase, culprit] += 1
        for call in calls:
            self._calls[phase, call] += 1

    def lines(self, most: int = _MOST_LINES) -> tuple[LineCount, ...]:
        return tuple(
            LineCount(phase, line.file, line.line, line.function, samples, text=line.text, leaf=line.leaf)
            for (phase, line), samples in self._lines.most_common(most)
        )

    def calls(self) -> tuple[CallCount, ...]:
        return tuple(
            CallCount(phase, c.file, c.line, c.function, c.callee_file, c.callee, samples=samples, text=c.text)
            for (phase, c), samples in self._calls.most_common(_MOST_LINES)
        )


class TallyBuilder:
    """What was seen of one trainer and its workers since the last tally."""

    def __init__(self, trainer: str, now_ns: int) -> None:
        self._trainer = trainer
        self._start(now_ns)

    def add(self, sample: StackSample) -> None:
        """One sample of the training thread."""
        phase, reading = sample.phase, sample.reading
        self._training.add(phase, reading.culprit, reading.calls)
        if phase == "eval":
            self._eval_waiting += reading.waits
        elif phase == "wait":
            self._handed += sample.handed is not None
            self._receiving += reading.receiving
            self._first_waits += sample.first_wait

    def add_worker(self, pid: int, phase: str, culprit: Culprit | None, calls: tuple[Call, ...] = ()) -> None:
        """One sample of a worker."""
        self._workers.add(phase, culprit, calls)
        self._by_worker.setdefault(pid, _Seen()).add(phase, culprit, ())

    def add_feeders(self, samples: Sequence[FeederSample]) -> None:
        """One sample of the threads that feed the training thread."""
        self._feeder_rounds += 1
        for sample in samples:
            is_idle = sample.phase == "idle"
            self._feeders.add(
                sample.phase, None if is_idle else sample.reading.culprit, () if is_idle else sample.reading.calls
            )

    def reject(self) -> None:
        """A look at the training thread that was torn."""
        self._rejected += 1

    def reject_worker(self) -> None:
        """A sample of a worker that was torn."""
        self._worker_rejected += 1

    def spend(self, cpu_ns: int) -> None:
        """What samples of this trainer cost."""
        self._cpu_ns += cpu_ns

    def age_ns(self, now_ns: int) -> int:
        """How long this tally has been open."""
        return now_ns - self._start_ns

    def take(self, now_ns: int, workers: int) -> StackTally | None:
        """The tally up to now; the next begins. None where nothing was seen."""
        training, workers_seen, feeders = self._training, self._workers, self._feeders
        samples, worker_samples = training.phases.total(), workers_seen.phases.total()
        is_empty = not (samples or self._rejected or worker_samples or self._worker_rejected)
        tally = StackTally(
            trainer=self._trainer,
            start_ns=self._start_ns,
            end_ns=now_ns,
            samples=samples,
            phases=dict(training.phases),
            lines=training.lines(),
            rejected=self._rejected,
            eval_waiting_samples=self._eval_waiting,
            workers=workers,
            worker_samples=worker_samples,
            worker_rejected=self._worker_rejected,
            worker_phases=dict(workers_seen.phases),
            worker_lines=workers_seen.lines(),
            receiving_samples=self._receiving,
            first_wait_samples=self._first_waits,
            cpu_seconds=self._cpu_ns / 1e9,
            calls=training.calls(),
            worker_calls=workers_seen.calls(),
            handed_samples=self._handed,
            feeder_rounds=self._feeder_rounds,
            feeder_phases=dict(feeders.phases),
            feeder_lines=feeders.lines(),
            feeder_calls=feeders.calls(),
            by_worker=tuple(
                WorkerCount(pid, seen.phases.total(), seen.phases["idle"], next(iter(seen.lines(most=1)), None))
                for pid, seen in self._by_worker.items()
            ),
        )
        self._start(now_ns)
        return None if is_empty else tally

    def _start(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._training, self._workers, self._feeders = _Seen(), _Seen(), _Seen()
        self._by_worker: dict[int, _Seen] = {}
        self._rejected = self._worker_rejected = 0
        self._eval_waiting = self._receiving = self._first_waits = self._cpu_ns = 0
        self._handed = self._feeder_rounds = 0
