"""Findings as stretches: written when one comes, changes its state or severity, or goes; its words once a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuwatch.recording.events import printable
from gpuwatch.recording.schema import Operation, checksum
from gpuwatch.recording.types import FindingRecord

_WORDS_NS = 60_000_000_000


@dataclass(slots=True)
class _Stretch:
    number: int
    start_ns: int
    record: FindingRecord
    written_ns: int


class Findings:
    """Those that stand."""

    def __init__(self) -> None:
        self._standing: dict[str, _Stretch] = {}
        self._count = 0

    def take(self, now_ns: int, records: Sequence[FindingRecord]) -> Iterator[Operation]:
        """What to write after an evaluation."""
        present = {record.key for record in records}
        for key in [key for key in self._standing if key not in present]:
            yield _row(self._standing.pop(key), now_ns)
        for record in records:
            stretch = self._standing.get(record.key)
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
            self._standing[record.key] = _Stretch(self._count, now_ns, record, now_ns)
            yield _row(self._standing[record.key], None)

    def last_words(self) -> Iterator[Operation]:
        """What to write at the end: how those stand that stand."""
        for stretch in self._standing.values():
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
