"""What stands at a moment of a recording: the newest of everything that is not reported again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from gpuwatch.recording.contents import Contents
from gpuwatch.recording.kinds import KindReader
from gpuwatch.recording.shapes import check_of, revived
from gpuwatch.samples import (
    BatchCount,
    GpuHealth,
    GpuStatus,
    NvmlState,
    PhaseSpan,
    RunMemory,
    Sample,
    Standing,
    XidEvent,
)

_RECENT_NS = 120_000_000_000
_RECENT = (NvmlState, GpuStatus, GpuHealth, BatchCount, RunMemory, Standing)
"""Reported every 30 s at least, so the last two minutes hold the newest."""

_SPAN = re.compile(r'"kind": "(\w+)", "start_ns": (-?\d+), "end_ns": (null|-?\d+)')

AnySample = TypeVar("AnySample")
Row = tuple[Any, ...]


class Events:
    """The events of a recording."""

    def __init__(self, contents: Contents, kinds: Mapping[str, KindReader]) -> None:
        self._contents = contents
        self._kinds = kinds

    def of(self, cls: type[AnySample], until_ns: int) -> list[AnySample]:
        """All of one class up to a moment, in the order in which they came."""
        rows = (row for row in self._rows(until_ns) if row[1] == cls.__name__)
        return [cast(AnySample, sample) for sample, _ in self._read(rows)]

    def standing(self, time_ns: int, samples: Callable[..., Iterator[Sample]]) -> list[Sample]:
        """What a timeline needs to know at a moment, in the order in which it came."""
        found: dict[object, Sample] = {}
        for sample, until_ns in self._read(_without_ended(self._rows(time_ns))):
            key = _key(sample)
            found.pop(key, None)
            is_over = until_ns is not None and until_ns <= time_ns
            if is_over or (isinstance(sample, PhaseSpan) and sample.end_ns is not None):
                continue
            found[key] = sample
        for sample in samples(time_ns - _RECENT_NS, time_ns, kinds=_RECENT):
            found.pop(_key(sample), None)
            found[_key(sample)] = sample
        return list(found.values())

    def _rows(self, until_ns: int) -> list[Row]:
        return self._contents.rows(
            "its events",
            "SELECT time_ns, kind, subject, json, crc, until_ns FROM event WHERE time_ns <= ? ORDER BY id",
            (until_ns,),
        )

    def _read(self, rows: Iterable[Row]) -> Iterator[tuple[Sample, int | None]]:
        for row in rows:
            kind = self._kinds.get(row[1])
            if kind is None or not kind.is_known:
                continue
            if not self._contents.is_intact(row[:5], "its events"):
                continue
            with self._contents.noting("its events"):
                sample = revived(kind.shape, json.loads(row[3]))
                if not check_of(type(sample))((sample,)) or not isinstance(row[5], (int, type(None))):
                    raise ValueError("not the values of an event")
                yield sample, row[5]


def _without_ended(rows: list[Row]) -> Iterator[Row]:
    """Leaves out the phases that ended: a day may have 20 000, and to take one apart takes 15 us."""
    spans = [_SPAN.search(row[3]) if row[1] == PhaseSpan.__name__ and isinstance(row[3], str) else None for row in rows]
    ended = {
        (row[2], *span.group(1, 2)) for row, span in zip(rows, spans, strict=True) if span and span.group(3) != "null"
    }
    for row, span in zip(rows, spans, strict=True):
        if span is None or (row[2], *span.group(1, 2)) not in ended:
            yield row


def _key(sample: Sample) -> object:
    """Equal for samples of which only the newest counts."""
    cls = type(sample)
    if isinstance(sample, XidEvent):
        return (cls, sample)
    if isinstance(sample, PhaseSpan):
        return (cls, sample.trainer, sample.kind, sample.start_ns)
    if isinstance(sample, BatchCount):
        return (cls, sample.trainer, sample.loader)
    return (cls, getattr(sample, "uuid", None), getattr(sample, "trainer", None))
