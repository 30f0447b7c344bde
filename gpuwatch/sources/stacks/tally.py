"""Samples added up to one tally about every second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gpuwatch.samples.stacks import CallCount, LineCount, StackTally, WorkerCount
from gpuwatch.sources.stacks.culprit import Call, Culprit
from gpuwatch.sources.stacks.feeders import FeederLook
from gpuwatch.sources.stacks.looks import Look

_LINES_TOLD: Final = 200


class TallyBuilder:
    """What was seen of one trainer and its workers since the last tally."""

    def __init__(self, trainer: str, now_ns: int) -> None:
        self._trainer = trainer
        self._start(now_ns)

    def add(self, look: Look) -> None:
        """One look at the training thread."""
        phase = look.phase
        self._samples += 1
        self._phases[phase] += 1
        if look.reading.culprit is not None:
            self._lines[phase, look.reading.culprit] += 1
        for call in look.reading.calls:
            self._calls[phase, call] += 1
        if phase == "eval":
            self._eval_waiting += look.reading.waits
        elif phase == "wait":
            self._handed += look.handed is not None
            self._receiving += look.reading.receiving
            self._first_waits += look.first_wait

    def add_worker(self, pid: int, phase: str, culprit: Culprit | None, calls: tuple[Call, ...] = ()) -> None:
        """One look at a worker."""
        self._worker_samples += 1
        self._by_worker.setdefault(pid, Counter())[phase, culprit] += 1
        self._worker_phases[phase] += 1
        if culprit is not None:
            self._worker_lines[phase, culprit] += 1
        for call in calls:
            self._worker_calls[phase, call] += 1

    def add_feeders(self, looks: Sequence[FeederLook]) -> None:
        """One look at the threads that feed the training thread."""
        self._feeder_looks += 1
        for look in looks:
            self._feeder_phases[look.phase] += 1
            if look.phase != "idle" and look.reading.culprit is not None:
                self._feeder_lines[look.phase, look.reading.culprit] += 1
            for call in look.reading.calls if look.phase != "idle" else ():
                self._feeder_calls[look.phase, call] += 1

    def reject(self, count: int = 1) -> None:
        """Looks at the training thread that were torn."""
        self._rejected += count

    def reject_worker(self) -> None:
        """A look at a worker that was torn."""
        self._worker_rejected += 1

    def spend(self, cpu_ns: int) -> None:
        """What looks at this trainer cost."""
        self._cpu_ns += cpu_ns

    def age_ns(self, now_ns: int) -> int:
        """How long this tally has been open."""
        return now_ns - self._start_ns

    def take(self, now_ns: int, workers: int) -> StackTally | None:
        """The tally up to now; the next begins. None where nothing was seen."""
        seen = self._samples or self._rejected or self._worker_samples or self._worker_rejected
        tally = StackTally(
            trainer=self._trainer,
            start_ns=self._start_ns,
            end_ns=now_ns,
            samples=self._samples,
            phases=dict(self._phases),
            lines=_line_counts(self._lines),
            rejected=self._rejected,
            eval_waiting_samples=self._eval_waiting,
            workers=workers,
            worker_samples=self._worker_samples,
            worker_rejected=self._worker_rejected,
            worker_phases=dict(self._worker_phases),
            worker_lines=_line_counts(self._worker_lines),
            receiving_samples=self._receiving,
            first_wait_samples=self._first_waits,
            cpu_seconds=self._cpu_ns / 1e9,
            calls=_call_counts(self._calls),
            worker_calls=_call_counts(self._worker_calls),
            handed_samples=self._handed,
            feeder_looks=self._feeder_looks,
            feeder_phases=dict(self._feeder_phases),
            feeder_lines=_line_counts(self._feeder_lines),
            feeder_calls=_call_counts(self._feeder_calls),
            by_worker=tuple(_worker_count(pid, seen) for pid, seen in self._by_worker.items()),
        )
        self._start(now_ns)
        return tally if seen else None

    def _start(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._phases: Counter[str] = Counter()
        self._worker_phases: Counter[str] = Counter()
        self._lines: Counter[tuple[str, Culprit]] = Counter()
        self._worker_lines: Counter[tuple[str, Culprit]] = Counter()
        self._calls: Counter[tuple[str, Call]] = Counter()
        self._worker_calls: Counter[tuple[str, Call]] = Counter()
        self._by_worker: dict[int, Counter[tuple[str, Culprit | None]]] = {}
        self._feeder_phases: Counter[str] = Counter()
        self._feeder_lines: Counter[tuple[str, Culprit]] = Counter()
        self._feeder_calls: Counter[tuple[str, Call]] = Counter()
        self._samples = self._rejected = self._worker_samples = self._worker_rejected = 0
        self._eval_waiting = self._receiving = self._first_waits = self._cpu_ns = 0
        self._handed = self._feeder_looks = 0


def _worker_count(pid: int, seen: Counter[tuple[str, Culprit | None]]) -> WorkerCount:
    lines = Counter({(phase, line): samples for (phase, line), samples in seen.items() if line is not None})
    idle = sum(samples for (phase, _), samples in seen.items() if phase == "idle")
    return WorkerCount(pid, seen.total(), idle, next(iter(_line_counts(lines, most=1)), None))


def _line_counts(counter: Counter[tuple[str, Culprit]], most: int = _LINES_TOLD) -> tuple[LineCount, ...]:
    return tuple(
        LineCount(phase, line.file, line.line, line.function, samples, text=line.text, leaf=line.leaf)
        for (phase, line), samples in counter.most_common(most)
    )


def _call_counts(counter: Counter[tuple[str, Call]]) -> tuple[CallCount, ...]:
    return tuple(
        CallCount(
            phase, call.file, call.line, call.function, call.callee_file, call.callee, samples=samples, text=call.text
        )
        for (phase, call), samples in counter.most_common(_LINES_TOLD)
    )
