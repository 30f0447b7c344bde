"""What changes rarely, in rows of its own: facts and events, which outlive the samples, and stretches of findings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuwatch.recording.chunks import EVENT_KINDS, KINDS
from gpuwatch.recording.schema import Operation, checksum
from gpuwatch.recording.types import FindingRecord
from gpuwatch.samples import (
    Candidates,
    GpuFacts,
    GpuLost,
    GpuSample,
    MachineFacts,
    PhaseSpan,
    RunFacts,
    Sample,
    TrainerEnded,
)

_MOST_KNOWN = 4_096
_MOST_A_MINUTE = 500  # a hostile trainer's phases are in the samples still
_KINDS = frozenset(EVENT_KINDS)
_FREQUENT = ("gc", "user")  # phases that every step may have
_REPEATED = frozenset({GpuFacts, MachineFacts, RunFacts, Candidates})  # written when they say something new


class Events:
    """Picks from the samples what is an event."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], object] = {}
        self._lost: set[str] = set()
        self._room = _MOST_A_MINUTE

    def begin_minute(self) -> None:
        """There is room again."""
        self._room = _MOST_A_MINUTE

    def of(self, samples: Iterable[Sample], time_ns: int) -> Sequence[Operation]:
        """What to write for samples that came at a time; mostly nothing."""
        if not self._lost and _KINDS.isdisjoint(map(type, samples)):
            return ()
        return [operation for sample in samples for operation in self._of(sample, time_ns)]

    def _of(self, sample: Sample, time_ns: int) -> Iterator[Operation]:
        cls = type(sample)
        if isinstance(sample, GpuSample):
            if sample.uuid in self._lost:
                yield self._found_again(sample.uuid, time_ns)
            return
        if cls not in _KINDS or (isinstance(sample, PhaseSpan) and sample.kind in _FREQUENT):
            return
        kind = KINDS[cls]
        subject = kind.subject(kind.row(sample))
        if isinstance(sample, TrainerEnded):
            self._known.pop((RunFacts, subject), None)  # 4 kB each, of trainings that come by the hundred
        if not self._room or (cls in _REPEATED and self._is_known(cls, subject, sample)):
            return
        self._room -= 1
        if isinstance(sample, GpuLost):
            self._lost.add(subject)
        values = (time_ns, kind.name, printable(subject), json.dumps(asdict(sample), default=dict))
        yield (
            "INSERT INTO event (time_ns, kind, subject, json, crc) VALUES (?, ?, ?, ?, ?)",
            (*values, checksum(values)),
        )

    def _found_again(self, uuid: str, time_ns: int) -> Operation:
        self._lost.discard(uuid)
        statement = "UPDATE event SET until_ns = ? WHERE kind = 'GpuLost' AND subject = ? AND until_ns IS NULL"
        return statement, (time_ns, printable(uuid))

    def _is_known(self, cls: type, subject: str, sample: Sample) -> bool:
        content: Any = {name: value for name, value in asdict(sample).items() if name != "time_ns"}
        if isinstance(sample, Candidates):
            content = {(each.pid, each.start_ticks, each.visibility, each.refusal) for each in sample.processes}
        if self._known.get((cls, subject)) == content:
            return True
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[cls, subject] = content
        return False


def printable(text: str) -> str:
    """A string that SQLite takes: bytes that are no UTF-8 are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


_WORDS_NS = 60_000_000_000


@dataclass(slots=True)
class _Stretch:
    number: int
    start_ns: int
    record: FindingRecord
    written_ns: int


class Findings:
    """The findings that are open."""

    def __init__(self) -> None:
        self._open: dict[str, _Stretch] = {}
        self._count = 0

    def take(self, now_ns: int, records: Sequence[FindingRecord]) -> Iterator[Operation]:
        """What to write after an evaluation."""
        present = {record.key for record in records}
        for key in [key for key in self._open if key not in present]:
            yield _row(self._open.pop(key), now_ns)
        for record in records:
            stretch = self._open.get(record.key)
            if stretch is not None:
                before = stretch.record
                if (before.state, before.severity) == (record.state, record.severity):
                    stretch.record = record
                    if record.blob != before.blob and now_ns - stretch.written_ns >= _WORDS_NS:
                        stretch.written_ns = now_ns
                        yield _row(stretch, None)
                    continue
                yield _row(stretch, now_ns)
            self._count += 1
            self._open[record.key] = _Stretch(self._count, now_ns, record, now_ns)
            yield _row(self._open[record.key], None)

    def last_words(self) -> Iterator[Operation]:
        """What to write at the end: the open ones as they are."""
        for stretch in self._open.values():
            yield _row(stretch, None)


def _row(stretch: _Stretch, end_ns: int | None) -> Operation:
    record = stretch.record
    values = (
        stretch.number,
        printable(record.key),
        stretch.start_ns,
        end_ns,
        record.state,
        record.rule,
        record.severity,
        None if record.run is None else printable(record.run),
        None if record.gpu is None else printable(record.gpu),
        record.blob,
    )
    return "INSERT OR REPLACE INTO finding VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, checksum(values))
