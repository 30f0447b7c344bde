"""The metrics of a minute's steps, with the corrections that the timeline applies to the same samples.

A step that is sent twice counts once, a stop by a signal is taken off the step that holds it, parts of a step leave out
the pauses inside them, and GPU idle time counts where a step is settled: a report of a day, which reads minutes, then
agrees with the live figures of the same steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import islice
from statistics import median
from typing import Any

from gpuwatch.recording.chunks import Stream
from gpuwatch.recording.metric_values import Metrics
from gpuwatch.samples import StepEnd
from gpuwatch.timeline.columns import number as nan_if_unknown
from gpuwatch.timeline.settling import UNKNOWN, Settling
from gpuwatch.timeline.step_pauses import parts_within, wait_within, without_stop
from gpuwatch.timeline.stops import StopLog
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.warmup import WarmUp

_USUAL_OF = 64
_KEPT = 1_024  # steps that a reconnected hook may send again, and whose GPU gaps are still to come
_MOST_TRAINERS = 300
_MOST_GAPS_AHEAD = 256
_SILENT_MINUTES = 10
"""A trainer without any sample for so long is forgotten: a live one has one of its process every second."""
_FIELDS = tuple(StepEnd.__dataclass_fields__)
_NUMBER, _START, _END, _WAIT, _LOADER, _SAMPLES, _POSITION, _PAUSE, _COPY = map(
    _FIELDS.index,
    (
        *("number", "start_ns", "end_ns", "wait_seconds", "loader", "samples", "epoch_position"),
        *("phase_seconds", "copy_seconds"),
    ),
)
_PARTS_END = _COPY + 4
_OWN_NAMES = (
    "phase_seconds",
    "wait_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "copy_seconds",
    "wait_cpu_seconds",
)
_KNOWN_IN = {
    "wait": "wait_seconds",
    "samples": "step_samples",
    "copy": "copy_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimizer": "optimizer_seconds",
}
"""What need not be known of each step, and its metric."""


class _Trainer:
    """What is known of one trainer before the steps of a segment."""

    __slots__ = (
        "gaps_ahead",
        "has_ended",
        "has_gaps",
        "heard_minute",
        "recent",
        "settling",
        "stops",
        "usual",
        "warm_up",
    )

    def __init__(self) -> None:
        self.stops = StopLog()
        self.warm_up = WarmUp()
        self.settling = Settling()
        self.usual: deque[float] = deque(maxlen=_USUAL_OF)
        self.recent: dict[int, tuple[int, float, bool]] = {}  # number: end, training seconds, settled
        self.gaps_ahead: dict[int, float] = {}
        self.has_gaps = False
        self.has_ended = False
        self.heard_minute = 0

    def forget_old_steps(self) -> None:
        """Keeps the newest ones."""
        if len(self.recent) > _KEPT:
            self.recent = dict(islice(self.recent.items(), len(self.recent) - _KEPT, None))


class StepMetrics:
    """Derives them, segment after segment. Streams of one segment have to come in the order of their kinds."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._trainers: dict[str, _Trainer] = {}
        self._minute = 0

    def take(self, stream: Stream) -> None:
        """Streams of other kinds are ignored."""
        if stream.kind.name == "ProcessSample":
            self._process(stream)
        elif stream.kind.name == "RunFacts":
            self._facts(stream)
        elif stream.kind.name == "StepEnd":
            self._steps(stream)
        elif stream.kind.name == "GpuGap":
            self._gaps(stream)
        elif stream.kind.name == "TrainerEnded":
            self._ends(stream)

    def end_minute(self) -> None:
        """Leaves out the seconds of what was known in every step of a trainer: they are those of all its steps.

        Trainers that ended are forgotten: one with 1 000 steps takes 250 kB.
        """
        values = self._metrics.values
        for name in self._trainers:
            steps = len(values.get((name, "step_seconds"), ()))
            for each, metric in _KNOWN_IN.items():
                if len(values.get((name, metric), ())) in (0, steps):
                    values.pop((name, known_in(each)), None)
        self._minute += 1
        self._trainers = {
            name: trainer
            for name, trainer in self._trainers.items()
            if not trainer.has_ended and self._minute - trainer.heard_minute <= _SILENT_MINUTES
        }

    def _of(self, name: str) -> _Trainer:
        trainer = self._trainers.get(name)
        if trainer is None:
            while len(self._trainers) >= _MOST_TRAINERS:
                del self._trainers[next(iter(self._trainers))]
            trainer = self._trainers[name] = _Trainer()
        trainer.heard_minute = self._minute
        return trainer

    def _ends(self, stream: Stream) -> None:
        """A trainer whose link was lost may come back and send its last steps again."""
        trainer = self._trainers.get(stream.subject)
        if trainer is not None:
            trainer.has_ended = stream.column("how")[-1] != "lost"

    def _process(self, stream: Stream) -> None:
        trainer = self._of(stream.subject)
        for time_ns, state in zip(stream.column("time_ns"), stream.column("state"), strict=True):
            if state is not None:
                self._add_stop(stream.subject, trainer.stops.see(time_ns, state))

    def _add_stop(self, name: str, span: tuple[int, int | None] | None) -> None:
        if span is not None and span[1] is not None:
            self._metrics.add(name, "stopped_phase_seconds", [(span[1] - span[0]) / SECOND_NS])

    def _facts(self, stream: Stream) -> None:
        settling = self._of(stream.subject).settling
        for loaders in stream.column("loaders"):
            settling.learn_loaders(loaders)

    def _steps(self, stream: Stream) -> None:
        """All steps of a segment. Samples are built only of those with a pause: that takes longer than the rest."""
        name = stream.subject
        trainer = self._of(name)
        recent = trainer.recent
        taken: list[tuple[float | None, ...]] = []
        for row in zip(*stream.columns, strict=True):
            number, start_ns, end_ns, pause = row[_NUMBER], row[_START], row[_END], row[_PAUSE]
            if number in recent and recent[number][0] == end_ns:
                continue
            if trainer.stops.within(start_ns, end_ns):
                row = self._without_stop(name, trainer, row)
                pause = row[_PAUSE]
            training = (end_ns - start_ns) / SECOND_NS - pause
            if training < 0:
                continue
            wait_seconds = row[_WAIT]
            if sum(filter(None, row[_COPY:_PARTS_END])) + (wait_seconds or 0.0) > training:
                row = _within_training(row, training)
            recent[number] = (end_ns, training, self._is_settled(trainer, row, training))
            taken.append((training, *row[1:]))
            gap = trainer.gaps_ahead.pop(number, None)
            if gap is not None:
                self._add_gap(name, trainer, number, gap)
        if taken:
            self._add(name, dict(zip(("training", *_FIELDS[1:]), map(list, zip(*taken, strict=True)), strict=True)))
        if not trainer.has_gaps:
            trainer.forget_old_steps()

    def _without_stop(self, name: str, trainer: _Trainer, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self._add_stop(name, trainer.stops.close(row[_END]))
        return _row_of(without_stop(StepEnd(*row), median(trainer.usual) if trainer.usual else None))

    @staticmethod
    def _is_settled(trainer: _Trainer, row: tuple[Any, ...], training: float) -> bool:
        """As the timeline judges a step when it comes."""
        trainer.warm_up.step(row[_END], training)
        trainer.usual.append(training)
        samples = row[_SAMPLES]
        trainer.settling.learn_batch_size(samples)
        over_ns = trainer.warm_up.over_ns
        if over_ns is None or row[_END] <= over_ns:
            return False
        position, loader = row[_POSITION], row[_LOADER]
        return trainer.settling.holds(
            UNKNOWN if position is None else position,
            UNKNOWN if loader is None else loader,
            nan_if_unknown(samples),
        )

    def _add(self, name: str, steps: Mapping[str, list[Any]]) -> None:
        metrics, training = self._metrics, steps["training"]
        metrics.add(name, "step_seconds", training)
        for metric in _OWN_NAMES:
            metrics.add(name, metric, steps[metric])
        metrics.add(name, "step_batches", steps["batches"])
        metrics.add(name, "step_samples", steps["samples"])
        steps = {**steps, "step_samples": steps["samples"]}
        sizes = [
            count / each
            for count, each in zip(steps["samples"], steps["batches"], strict=True)
            if count is not None and each
        ]
        metrics.add(name, "batch_size", sizes)
        for metric, amounts in (("wait_share", steps["wait_seconds"]), ("samples_per_second", steps["samples"])):
            pairs = [(amount, train) for amount, train in zip(amounts, training, strict=True) if amount is not None]
            metrics.add_quotients(name, metric, pairs)
        for metric, amounts in ((known_in(each), steps[field]) for each, field in _KNOWN_IN.items()):
            if None in amounts:
                seconds = [train for amount, train in zip(amounts, training, strict=True) if amount is not None]
            else:
                seconds = training
            metrics.add_total(name, metric, math.fsum(seconds))

    def _gaps(self, stream: Stream) -> None:
        trainer = self._of(stream.subject)
        trainer.has_gaps = True
        self._metrics.add(stream.subject, "gap_seconds", stream.column("seconds"))
        for number, seconds in zip(stream.column("number"), stream.column("seconds"), strict=True):
            if number in trainer.recent:
                self._add_gap(stream.subject, trainer, number, seconds)
            elif len(trainer.gaps_ahead) < _MOST_GAPS_AHEAD:
                trainer.gaps_ahead[number] = seconds
        trainer.forget_old_steps()

    def _add_gap(self, name: str, trainer: _Trainer, number: int, seconds: float) -> None:
        """Once: a step whose gap has been counted is not asked for it again."""
        end_ns, training, is_settled = trainer.recent[number]
        if is_settled:
            trainer.recent[number] = (end_ns, training, False)
            self._metrics.add_total(name, "settled_gap_seconds", min(seconds, training))
            self._metrics.add_total(name, known_in("settled_gap"), training)


def known_in(name: str) -> str:
    """The metric of the training seconds of just those steps in which "wait", "samples", ... is known."""
    return f"{name}_train_seconds"


def _row_of(step: StepEnd) -> tuple[Any, ...]:
    return tuple(getattr(step, name) for name in _FIELDS)


def _within_training(row: tuple[Any, ...], training: float) -> tuple[Any, ...]:
    parts = [None if seconds != seconds else seconds for seconds in parts_within(StepEnd(*row), training)]
    values = list(row)
    values[_WAIT] = wait_within(row[_WAIT], training)
    values[_COPY:_PARTS_END] = parts
    return tuple(values)
