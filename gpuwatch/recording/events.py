"""What is reported once, or when it changes, in rows of its own: they outlive the samples; replay starts from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gpuwatch.recording.kinds import EVENT_KINDS, KINDS
from gpuwatch.recording.schema import Operation, checksum
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
            content = {(each.pid, each.start_ticks, each.rung, each.refusal) for each in sample.processes}
        if self._known.get((cls, subject)) == content:
            return True
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[cls, subject] = content
        return False


def printable(text: str) -> str:
    """A string that SQLite takes: bytes that are no UTF-8 are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
