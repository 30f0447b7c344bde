"""The metrics of a minute, derived from its samples; `schema` lists them.

Those of steps have the corrections that the timeline applies to the same samples: a step that is sent twice counts
once, a stop by a signal is taken off the step that holds it, parts of a step leave out the pauses inside them, and GPU
idle time counts where a step is settled. A report of a day, which reads minutes, then agrees with the live figures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import sub
from statistics import median
from typing import Any, cast

from gpuwatch import metrics as registry
from gpuwatch.recording.chunks import Stream
from gpuwatch.recording.columns import Scalar
from gpuwatch.recording.schema import Rollup
from gpuwatch.samples import StepEnd
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.columns import number as nan_if_unknown
from gpuwatch.timeline.phases import StopLog
from gpuwatch.timeline.stacks import NOT_TRAINING
from gpuwatch.timeline.steps import UNKNOWN, Settling, WarmUp, parts_within, wait_within, without_stop
from gpuwatch.timeline.times import Span, covered_ns

_MOST = 1e300
_COUNTER_KEPT_NS = 3_600_000_000_000
"""After its last reading: what a counter grew by over a longer silence belongs to no minute."""
_MOST_METRICS = 20_000
"""In a minute: 300 trainers' worth. Memory stays bounded however many processes claim to train."""


class _Metrics:
    """What the derivations of metrics fill. NaN and infinity are no values."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = {}
        self.means: dict[tuple[str, str], tuple[int, float]] = {}
        self._sums: dict[tuple[str, str], list[float]] = {}
        self._counters: dict[tuple[str, str], tuple[int, float]] = {}

    def add(self, subject: str, metric: str, values: Sequence[float | None]) -> None:
        """Values of a gauge; None is left out."""
        try:
            known, total = cast("Sequence[float]", values), sum(cast("Sequence[float]", values))
        except TypeError:  # None is among them: a sum finds it in half the time that looking for it takes
            known = [value for value in values if value is not None]
            total = sum(known)
        if not known:
            return
        if not math.isfinite(total):
            known = [value for value in known if abs(value) < _MOST]
        self._of(subject, metric).extend(known)

    def add_quotients(self, subject: str, metric: str, pairs: Iterable[tuple[float, float]]) -> None:
        """Quotients, whose mean is that of the sums: a long step counts for more than a short one."""
        usable = [(above, below) for above, below in pairs if below > 0]
        if not usable:
            return
        self.add(subject, metric, [above / below for above, below in usable])
        sums = self._sums.setdefault((subject, metric), [0.0, 0.0, 0.0])
        for place, amount in enumerate((len(usable), sum(a for a, _ in usable), sum(b for _, b in usable))):
            sums[place] += amount
        self.means[subject, metric] = (int(sums[0]), sums[1] / sums[2])

    def add_total(self, subject: str, metric: str, amount: float) -> None:
        """A part of the minute's sum, which is its only value."""
        if math.isfinite(amount):
            values = self._of(subject, metric)
            values[:] = [amount + sum(values)]

    def add_shares(self, subject: str, metric: str, hits: Sequence[int], counts: Sequence[int]) -> None:
        """Shares of stack samples, counted as many as there were samples."""
        self.add_quotients(subject, metric, zip(hits, counts, strict=True))
        sums = self._sums.get((subject, metric))
        if sums is not None:
            self.means[subject, metric] = (int(sums[2]), sums[1] / sums[2])

    def add_growth(
        self, subject: str, metric: str, times_ns: Sequence[int], readings: Sequence[float | None], scale: float | None
    ) -> None:
        """What a counter grew by in the minute, once; a reading below the one before it is a reset and counts nothing.

        Args:
            subject: that the counter is of.
            metric: to put it under.
            times_ns: of the readings.
            readings: of the counter.
            scale: for the growth per nanosecond, which counts as many as the seconds it is of: the minute in which a
                recording ends may have few; None: the growth itself.
        """
        if not readings:
            return
        key = (subject, metric)
        before = self._counters.get(key)
        grown = 0.0
        if before is None or not before[1] == readings[0] == readings[-1]:
            values = _known_of(readings)
            if not values:
                return
            if len(values) < len(times_ns):
                times_ns = [at_ns for at_ns, value in zip(times_ns, readings, strict=True) if value is not None]
            before = before or (times_ns[0], values[0])
            grown = _growth([before[1], *values])
            readings = values
        self._counters[key] = (times_ns[-1], cast("float", readings[-1]))
        span_ns = times_ns[-1] - before[0]
        if span_ns <= 0 or not math.isfinite(grown):
            return
        sums = self._sums.setdefault(key, [0.0, 0.0])
        sums[0] += grown
        sums[1] += span_ns
        value = sums[0] if scale is None else sums[0] / sums[1] * scale
        self._of(subject, metric)[:] = [value]
        if scale is not None:
            self.means[key] = (max(1, round(sums[1] / SECOND_NS)), value)

    def last_reading(self, subject: str, metric: str) -> int:
        """The time up to which a series has been counted; -1 at first."""
        return self._counters.get((subject, metric), (-1, 0.0))[0]

    def counted_until(self, subject: str, metric: str, time_ns: int) -> None:
        """Notes it."""
        self._counters[subject, metric] = (time_ns, 0.0)

    def begin_minute(self) -> None:
        """Forgets all but what counters of the last hour had reached."""
        newest_ns = max((time_ns for time_ns, _ in self._counters.values()), default=0)
        self._counters = {
            key: reading for key, reading in self._counters.items() if newest_ns - reading[0] <= _COUNTER_KEPT_NS
        }
        self.values.clear()
        self.means.clear()
        self._sums.clear()
        if len(self._counters) > _MOST_METRICS:
            self._counters.clear()

    def _of(self, subject: str, metric: str) -> list[float]:
        found = self.values.get((subject, metric))
        if found is None:
            found = []
            if len(self.values) < _MOST_METRICS:
                self.values[subject, metric] = found
        return found


def _growth(values: list[float]) -> float:
    """The sum of all steps upwards; a counter rarely steps down, and sorting what is sorted takes a fifth as long."""
    if values == sorted(values):
        return values[-1] - values[0]
    grown: float = sum(step for step in map(sub, values[1:], values) if step > 0)
    return grown


def _known_of(values: Sequence[float | None]) -> Sequence[float]:
    """The values that are known; mostly that is all of them, which is ten times sooner seen than copied."""
    return [value for value in values if value is not None] if None in values else cast("Sequence[float]", values)


Ring = Sequence[Sequence[tuple[int, float]]]


def _gpu(stream: Stream, metrics: _Metrics) -> None:
    """Without the impossible values that the timeline leaves out too."""
    uuid, times_ns = stream.subject, stream.column("time_ns")
    for name, ring in registry.GPU_RINGS.items():
        _gauge_with_ring(uuid, name, stream, stream.column(ring), metrics)
    for gauge in registry.GPU_GAUGES:
        if gauge.ring is None:
            metrics.add(uuid, gauge.name, _plausible(gauge.name, stream.column(gauge.name)))
    for counter in registry.GPU_COUNTERS.values():
        metrics.add_growth(uuid, counter.minute, times_ns, stream.column(counter.name), counter.minute_scale)


def _gauge_with_ring(uuid: str, name: str, stream: Stream, rings: Ring, metrics: _Metrics) -> None:
    """What happened between the polls where the driver kept it, each value once however the drains overlap."""
    if not any(rings):
        metrics.add(uuid, name, _plausible(name, stream.column(name)))
        return
    until, values = metrics.last_reading(uuid, f"{name} ring"), []
    for ring, poll in zip(rings, stream.column(name), strict=True):
        new = [(time_ns, value) for time_ns, value in ring if time_ns > until]
        if new:
            until = new[-1][0]
            values += [value for _, value in new]
        elif not ring:
            values.append(poll)
    metrics.counted_until(uuid, f"{name} ring", until)
    metrics.add(uuid, name, _plausible(name, values))


def _plausible(name: str, values: Sequence[float | None]) -> Sequence[float | None]:
    """Without what a driver hands out in place of a value; mostly that is none, which is seen in no time."""
    low, high = registry.GPU[name].low, registry.GPU[name].high
    known = _known_of(values)
    if not known or (low <= min(known) and max(known) <= high):
        return known
    return [value for value in known if low <= value <= high]


def _host(stream: Stream, metrics: _Metrics) -> None:
    for (name, shape), values in zip(stream.kind.shape.fields, stream.columns, strict=True):
        if isinstance(shape, Scalar) and name != "time_ns":
            metrics.add("host", name, values)


def _stacks(stream: Stream, metrics: _Metrics) -> None:
    counts: Sequence[int] = stream.column("samples")
    phases: Sequence[Mapping[str, int]] = stream.column("phases")
    for phase in dict.fromkeys(phase for each in phases for phase in each):
        metrics.add_shares(stream.subject, f"stack_{phase}_share", [each.get(phase, 0) for each in phases], counts)
    training = [
        count - sum(each.get(phase, 0) for phase in NOT_TRAINING) for count, each in zip(counts, phases, strict=True)
    ]
    waits = [each.get("wait", 0) for each in phases]
    metrics.add_shares(stream.subject, "stack_wait_train_share", waits, training)
    spans = zip(stream.column("start_ns"), stream.column("end_ns"), strict=True)
    seconds = sum(max(0, end_ns - start_ns) for start_ns, end_ns in spans) / SECOND_NS
    metrics.add_total(stream.subject, "stack_seconds", seconds)


_DERIVATIONS: Mapping[str, Callable[[Stream, _Metrics], None]] = {
    "GpuSample": _gpu,
    "HostSample": _host,
    "StackTally": _stacks,
}
"""By the kind of sample that they are derived from."""


_USUAL_OF = 64
_KEPT = 1_024  # steps that a reconnected hook may send again, and whose GPU gaps are still to come
_STOPS_KEPT = 64
_MOST_LOADERS = 64
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
_KNOWN_IN = {
    "wait": "wait_seconds",
    "samples": "step_samples",
    "copy": "copy_seconds",
    "forward": "forward_seconds",
    "backward": "backward_seconds",
    "optimizer": "optimizer_seconds",
}
"""What need not be known of each step, and its metric."""
_FIELD_OF = {"step_samples": "samples"}
"""Of `StepEnd`, where it is not called as its metric."""


class _Trainer:
    """What is known of one trainer before the steps of a segment."""

    __slots__ = (
        "counted",
        "counted_from_ns",
        "gaps_ahead",
        "has_ended",
        "has_gaps",
        "heard_minute",
        "knows_training",
        "recent",
        "settling",
        "stopped",
        "stops",
        "usual",
        "warm_up",
    )

    def __init__(self) -> None:
        self.stops = StopLog()
        self.stopped: deque[Span] = deque(maxlen=_STOPS_KEPT)
        self.warm_up = WarmUp()
        self.settling = Settling()
        self.usual: deque[float] = deque(maxlen=_USUAL_OF)
        self.recent: dict[int, tuple[int, float, bool]] = {}  # number: end, training seconds, settled
        self.gaps_ahead: dict[int, float] = {}
        self.counted: dict[int, tuple[int, int, int]] = {}  # loader: newest reading, its batches and epochs
        self.counted_from_ns: int | None = None
        self.knows_training = False
        self.has_gaps = False
        self.has_ended = False
        self.heard_minute = 0

    def forget_old_steps(self) -> None:
        """Keeps the newest ones."""
        if len(self.recent) > _KEPT:
            self.recent = dict(islice(self.recent.items(), len(self.recent) - _KEPT, None))


class _StepMetrics:
    """Derives them, segment after segment. Streams of one segment have to come in the order of their kinds."""

    def __init__(self, metrics: _Metrics) -> None:
        self._metrics = metrics
        self._trainers: dict[str, _Trainer] = {}
        self._minute = 0
        self._takers: Mapping[str, Callable[[Stream], None]] = {
            "ProcessSample": self._process,
            "RunFacts": self._facts,
            "StepEnd": self._steps,
            "GpuGap": self._gaps,
            "PhaseSpan": self._phases,
            "BatchCount": self._counts,
            "TrainerEnded": self._ends,
        }

    def take(self, stream: Stream) -> None:
        """Streams of other kinds are ignored."""
        take = self._takers.get(stream.kind.name)
        if take is not None:
            take(stream)

    def end_minute(self) -> None:
        """Leaves out the seconds of what was known in every step of a trainer: they are those of all its steps.

        Trainers that ended are forgotten: one with 1,000 steps takes 250 kB.
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
            self._of(name).stopped.append((span[0], span[1]))

    def _phases(self, stream: Stream) -> None:
        """Those that ended, less the stops in them, which are phases of their own."""
        stopped = self._of(stream.subject).stopped
        columns = (stream.column(name) for name in ("kind", "start_ns", "end_ns"))
        for kind, start_ns, end_ns in zip(*columns, strict=True):
            if end_ns is not None and end_ns > start_ns:
                seconds = (end_ns - start_ns - covered_ns(stopped, start_ns, end_ns)) / SECOND_NS
                self._metrics.add(stream.subject, f"{kind}_phase_seconds", [seconds])

    def _counts(self, stream: Stream) -> None:
        """Batches of the loaders that train, as the timeline counts them: a loader that begins over begins from 0."""
        trainer = self._of(stream.subject)
        grown, read_ns = 0.0, []
        columns = (stream.column(name) for name in ("role", "loader", "time_ns", "batches", "epochs"))
        for role, loader, time_ns, batches, epochs in zip(*columns, strict=True):
            last_ns, last_batches, last_epochs = trainer.counted.pop(loader, (-1, 0, 0))
            is_late, is_over = time_ns <= last_ns, batches < last_batches or epochs < last_epochs
            trainer.counted[loader] = (last_ns, last_batches, last_epochs) if is_late else (time_ns, batches, epochs)
            trainer.knows_training = trainer.knows_training or role == "train"
            if is_late:
                continue
            if trainer.counted_from_ns is None:
                trainer.counted_from_ns = time_ns
            read_ns.append(time_ns)
            is_training = role == "train" or (role == "unknown" and not trainer.knows_training)
            if is_training and time_ns > trainer.counted_from_ns:  # what the first reading adds to is not known
                grown += batches - (0 if is_over else last_batches)
        while len(trainer.counted) > _MOST_LOADERS:
            del trainer.counted[next(iter(trainer.counted))]
        if read_ns and read_ns[-1] != trainer.counted_from_ns:
            self._metrics.add_total(stream.subject, "counted_batches", grown)
        read_ns.sort()
        self._metrics.add_growth(stream.subject, "counted_seconds", read_ns, [at / SECOND_NS for at in read_ns], None)

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
        settled_wait = settled_train = 0.0
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
            is_settled = self._is_settled(trainer, row, training)
            recent[number] = (end_ns, training, is_settled)
            if is_settled and wait_seconds is not None:
                settled_wait += min(wait_seconds, training)
                settled_train += training
            taken.append((training, *row[1:]))
            gap = trainer.gaps_ahead.pop(number, None)
            if gap is not None:
                self._add_gap(name, trainer, number, gap)
        if taken:
            self._add(name, dict(zip(("training", *_FIELDS[1:]), map(list, zip(*taken, strict=True)), strict=True)))
        if settled_train:
            self._metrics.add_total(name, "settled_wait_seconds", settled_wait)
            self._metrics.add_total(name, known_in("settled_wait"), settled_train)
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
        metrics.add(name, "step_batches", steps["batches"])
        waits = zip(steps["wait_seconds"], training, strict=True)
        metrics.add_quotients(name, "wait_share", [(wait, train) for wait, train in waits if wait is not None])
        for each, metric in _KNOWN_IN.items():
            amounts, seconds = steps[_FIELD_OF.get(metric, metric)], training
            metrics.add(name, metric, amounts)
            if None in amounts:
                seconds = [train for amount, train in zip(amounts, training, strict=True) if amount is not None]
            metrics.add_total(name, known_in(each), math.fsum(seconds))

    def _gaps(self, stream: Stream) -> None:
        trainer = self._of(stream.subject)
        trainer.has_gaps = True
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


class Minutes:
    """Gathers the values of the minute that is being written, and what counters had reached before it."""

    def __init__(self) -> None:
        self._metrics = _Metrics()
        self._steps = _StepMetrics(self._metrics)

    def take(self, stream: Stream) -> None:
        """Counts a segment's samples of one kind and subject; streams have to come in the order of their kinds."""
        self._steps.take(stream)
        derive = _DERIVATIONS.get(stream.kind.name)
        if derive is not None:
            derive(stream, self._metrics)

    def finished(self, minute_ns: int) -> list[Rollup]:
        """The minute's figures; the next one begins."""
        self._steps.end_minute()
        rows = [
            _rollup(minute_ns, subject, metric, values, self._metrics.means.get((subject, metric)))
            for (subject, metric), values in self._metrics.values.items()
            if values
        ]
        self._metrics.begin_minute()
        return rows


def _rollup(
    minute_ns: int, subject: str, metric: str, values: Sequence[float], figures: tuple[int, float] | None
) -> Rollup:
    """`figures`: count and mean where they are not those of the values."""
    ordered = sorted(values)
    count = len(ordered)
    if ordered[0] == ordered[-1]:
        mean, sigma = ordered[0], 0.0
    else:
        mean = sum(ordered) / count
        sigma = math.dist(ordered, [mean] * count) / math.sqrt(count - 1)
    if figures is not None:
        said, mean = figures
    else:
        said = count
    marks = (_at(ordered, 0.5), _at(ordered, 0.95), sigma, _at(ordered, 0.05))
    return Rollup(minute_ns, subject, metric, said, ordered[0], mean, ordered[-1], *marks)


def _at(ordered: Sequence[float], share: float) -> float:
    """A percentile, between the two values that it falls between."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
