"""Reads a recording: while it is written, after it was closed, after a kill, and what is left of a damaged one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from pathlib import Path
from types import TracebackType

from gpuwatch.recording.chunks import gathered
from gpuwatch.recording.contents import Contents, Stretch
from gpuwatch.recording.head import meta_of, number
from gpuwatch.recording.hours import HOUR_NS, Hour
from gpuwatch.recording.minute_columns import MinuteColumns, Part, parts_of
from gpuwatch.recording.rollups import Minutes, unpack_minute
from gpuwatch.recording.shapes import check_of
from gpuwatch.recording.standing import Events
from gpuwatch.recording.types import FindingSpan, RecordingMeta, Rollup
from gpuwatch.samples import GpuFacts, Sample
from gpuwatch.timeline.tiers import MINUTE_NS
from gpuwatch.timeline.wall_times import Anchor, wall_time_at

_MANY_STRETCHES = 8
"""Of time, beyond which it is asked first which of them hold the kinds that are wanted."""


class Recording:
    """A recording that is open for reading, from any thread. Also a context manager.

    Times are CLOCK_MONOTONIC of the machine it was made on. A sample belongs to the moment when it reached the
    recorder: what a replay at that moment must know, be it of a step that ended before.

    Args:
        path: of the file.
        moment: a wall time as text, for messages.

    Raises:
        CannotOpenError: it cannot be read; one sentence with cause and cure.
    """

    def __init__(
        self,
        path: Path,
        *,
        moment: Callable[[float], str] = lambda wall_time: time.strftime("%H:%M", time.localtime(wall_time)),
    ) -> None:
        self.path = path
        self._moment = moment
        self._contents = Contents(path)
        self._kinds = self._contents.kinds()
        self.wall_anchors: tuple[Anchor, ...] = ()
        self._stretches: list[Stretch] = []
        self.start_ns = 0
        self.end_ns = 0
        self.refresh()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._contents.close()

    def refresh(self) -> None:
        """Takes note of what was written since."""
        self._head = self._contents.meta()
        self._stretches = self._contents.stretches()
        self.wall_anchors = self._contents.anchors() or self.wall_anchors or self._first_anchor()
        self.start_ns = self.wall_anchors[0][0] - 1  # so that (start, end] is everything
        self.end_ns = max([self.start_ns, *(each.end_ns for each in self._stretches)])

    @property
    def meta(self) -> RecordingMeta:
        """What it is a recording of, and what is missing of it as far as that has been seen by now."""
        return meta_of(self._head, self._contents.damaged, self.wall_time, self._moment)

    def wall_time(self, time_ns: int) -> float:
        """The wall clock at a moment, its jumps included, as time.time() gives it."""
        return wall_time_at(self.wall_anchors, time_ns)

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Every GPU that was seen, as last described, by index."""
        newest = {sample.uuid: sample for sample in self._events().of(GpuFacts, self.end_ns)}
        return tuple(sorted(newest.values(), key=lambda facts: (facts.index, facts.uuid)))

    def samples(
        self,
        start_ns: int,
        end_ns: int,
        *,
        kinds: Collection[type] | None = None,
        subjects: Collection[str] | None = None,
    ) -> Iterator[Sample]:
        """The samples that came in (start, end], in the order in which they came.

        They equal what was recorded, but for floats with more than nine decimals that are no counters: these have
        single precision (6e-8) once their minute is over.

        Args:
            start_ns: before the first.
            end_ns: of the last.
            kinds: the classes that are wanted; None for all.
            subjects: GPUs' UUIDs, trainers, "" for the machine; None for all.
        """
        return (sample for _, sample in self.arrivals(start_ns, end_ns, kinds=kinds, subjects=subjects))

    def arrivals(
        self,
        start_ns: int,
        end_ns: int,
        *,
        kinds: Collection[type] | None = None,
        subjects: Collection[str] | None = None,
    ) -> Iterator[tuple[int, Sample]]:
        """The same, each with the moment at which it came."""
        names = None if kinds is None else {kind.__name__ for kind in kinds}
        wanted = {
            number: kind
            for number, kind in self._kinds.items()
            if kind.is_known and (names is None or kind.name in names)
        }
        touched = [each for each in self._stretches if each.end_ns > start_ns and each.start_ns <= end_ns]
        holding = None
        if kinds is not None and len(touched) > _MANY_STRETCHES:
            holding = self._contents.segments_with(wanted, touched[0].number, touched[-1].number)
        for stretch in touched:
            if holding is None or stretch.number in holding:
                yield from self._contents.samples(stretch.number, start_ns, end_ns, wanted, subjects)

    def standing_facts(self, time_ns: int) -> list[Sample]:
        """What was reported once, or last, at or before a moment: what a timeline needs before the samples after it."""
        return self._events().standing(time_ns, self.samples)

    def findings(self, start_ns: int, end_ns: int) -> list[FindingSpan]:
        """The stretches in which findings stood, of those that touch [start, end], in the order of their beginning."""
        columns = "id, key, start_ns, end_ns, state, rule, severity, run, gpu, blob, crc"
        found = [
            FindingSpan(
                start_ns=row[2],
                end_ns=row[3],
                state=row[4],
                rule=row[5],
                severity=row[6],
                run=row[7],
                gpu=row[8],
                key=row[1],
                blob=row[9],
            )
            for row in self._contents.checked_rows("its findings", f"SELECT {columns} FROM finding ORDER BY id")
        ]
        is_span = check_of(FindingSpan)
        good = [span for span in found if is_span((span,))]
        if len(good) < len(found):
            self._contents.damaged.add("its findings")
        return [span for span in good if span.start_ns <= end_ns and (span.end_ns is None or span.end_ns >= start_ns)]

    def rollups(
        self,
        start_ns: int,
        end_ns: int,
        *,
        subjects: Collection[str] | None = None,
        metrics: Collection[str] | None = None,
    ) -> list[Rollup]:
        """The figures of each minute that touches (start, end], the last one as far as it goes. See `schema`."""
        parts, rows = self._parts(start_ns, end_ns, subjects, metrics)
        found = [
            row
            for (subject, metric), own in parts.items()
            for part in own
            for row in MinuteColumns([part]).rows(subject, metric)
        ]
        return sorted(found + rows, key=itemgetter(0))

    def minutes(
        self,
        start_ns: int,
        end_ns: int,
        *,
        subjects: Collection[str] | None = None,
        metrics: Collection[str] | None = None,
    ) -> dict[tuple[str, str], MinuteColumns]:
        """The same by subject and metric, as columns that are decoded when they are asked for: ten times as fast."""
        parts, rows = self._parts(start_ns, end_ns, subjects, metrics)
        loose: dict[tuple[str, str], list[Rollup]] = {}
        for row in rows:
            loose.setdefault((row.subject, row.metric), []).append(row)
        for key, own in loose.items():
            parts[key] = sorted((*parts.get(key, ()), *parts_of(own)), key=lambda part: part.column("minute_ns")[0])
        return {key: MinuteColumns(own) for key, own in parts.items()}

    def _first_anchor(self) -> tuple[Anchor, ...]:
        """Where those that were written cannot be read: its samples begin about when it was begun."""
        start_ns = self._stretches[0].start_ns if self._stretches else 0
        return ((start_ns, number(self._head.get("started_wall"), 0.0)),)

    def _parts(
        self,
        start_ns: int,
        end_ns: int,
        subjects: Collection[str] | None,
        metrics: Collection[str] | None,
    ) -> tuple[dict[tuple[str, str], list[Part]], list[Rollup]]:
        """What hours hold, and the rows of the minutes that are in none."""
        parts: dict[tuple[str, str], list[Part]] = {}
        rows: list[Rollup] = []
        first_ns = start_ns - MINUTE_NS + 1
        for hour_ns, data in self._contents.hours(start_ns, end_ns):
            own: list[tuple[tuple[str, str], Part]] | None = None
            with self._contents.noting("its hours"):
                hour = self._hour(hour_ns, data)
                own = [
                    ((subject, metric), part)
                    for metric in (hour.metrics if metrics is None else metrics)
                    for subject, part in hour.parts(metric, start_ns, end_ns, subjects)
                ]
            if own is None:  # its minutes are still there
                continue
            rows += self._minutes(first_ns, hour_ns - 1, subjects, metrics)
            first_ns = hour_ns + HOUR_NS
            for key, part in own:
                parts.setdefault(key, []).append(part)
        rows += self._minutes(first_ns, end_ns, subjects, metrics)
        rows += [
            row
            for row in self._open_minute(start_ns, end_ns)
            if (subjects is None or row.subject in subjects) and (metrics is None or row.metric in metrics)
        ]
        return parts, rows

    def _minutes(
        self, first_ns: int, last_ns: int, subjects: Collection[str] | None, metrics: Collection[str] | None
    ) -> list[Rollup]:
        found: list[Rollup] = []
        if first_ns <= last_ns:
            for minute_ns, data, crc in self._contents.minutes(first_ns, last_ns):
                with self._contents.noting("its minutes"):
                    found += unpack_minute(minute_ns, data, crc, subjects, metrics)
        return found

    def _hour(self, hour_ns: int, data: object) -> Hour:
        return Hour(hour_ns, data, lambda: self._contents.damaged.add("its hours"))

    def _open_minute(self, start_ns: int, end_ns: int) -> list[Rollup]:
        """Of the minute that is being written, or was when the writer was killed."""
        last = self._stretches[-1] if self._stretches else None
        if last is None or last.end_ns <= start_ns or last.start_ns > end_ns:
            return []
        minutes = Minutes()
        rows = self._contents.tail_rows()
        if not rows:
            return []
        with self._contents.noting("its tail"):
            for stream in gathered(rows, self._kinds).streams():
                minutes.take(stream)
        return minutes.finished(last.end_ns // MINUTE_NS * MINUTE_NS)

    def _events(self) -> Events:
        return Events(self._contents, {kind.name: kind for kind in self._kinds.values()})
