"""The segment that is being written: rows in the tail, then sealed as columns."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from gpuwatch.recording.chunks import Gathering
from gpuwatch.recording.events import printable
from gpuwatch.recording.kinds import KINDS
from gpuwatch.recording.packing import pack, pack_list
from gpuwatch.recording.rollups import Minutes
from gpuwatch.recording.schema import CHUNK_BITS, Operation
from gpuwatch.samples import Sample

_NUMBERS: dict[type, int] = {cls: kind.number for cls, kind in KINDS.items()}
_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {cls: kind.row for cls, kind in KINDS.items()}


class Segment:
    """The samples of one minute, or of a part of one in which very much came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.start_ns = 0
        self.end_ns = 0
        self.bytes = 0  # of what would go into the file
        self.unsaved_samples = 0
        self.refused = 0
        self._row: list[bytes] = []
        self._row_start_ns = 0
        self._gathering: Gathering | None = Gathering()
        self._unsaved: list[Operation] = []
        self._sealed: list[Operation] = []

    def add(self, time_ns: int, samples: Sequence[Sample]) -> None:
        """Samples that came at once.

        They are taken apart at once: a second later the processor has to fetch them again, which takes three times as
        long.
        """
        assert self._gathering is not None
        rows = [(_NUMBERS[type(sample)], _VALUES[type(sample)](sample)) for sample in samples]
        try:
            data = pack((time_ns, rows))
        except (TypeError, OverflowError):
            count = len(rows)
            rows = [row for row in rows if _packs(row)]
            self.refused += count - len(rows)
            data = pack((time_ns, rows))
        self._gathering.add(time_ns, rows)
        self.unsaved_samples += len(rows)
        self.start_ns = self.start_ns or time_ns
        self.end_ns = time_ns
        self._row_start_ns = self._row_start_ns or time_ns
        self._row.append(data)

    def end_row(self) -> None:
        """What has come since the last one is a row of the tail."""
        if not self._row:
            return
        data = pack_list(self._row)
        self.bytes += len(data)
        self._unsaved.append(
            (
                "INSERT INTO tail (segment, start_ns, end_ns, data, crc) VALUES (?, ?, ?, ?, ?)",
                (self.number, self._row_start_ns, self.end_ns, data, zlib.crc32(data)),
            )
        )
        self._row, self._row_start_ns = [], 0

    def unsaved(self) -> list[Operation]:
        """What is to be written to the tail."""
        return self._unsaved

    def is_saved(self) -> None:
        """It was."""
        self._unsaved, self.unsaved_samples = [], 0

    def seal(self, minutes: Minutes) -> None:
        """Turns the rows into columns, and lets go of them: one stream after the other, whose values are then near."""
        assert self._gathering is not None
        arrivals = self._gathering.arrivals().packed()
        chunks: list[tuple[int, str, int, int, bytes]] = []
        for stream in self._gathering.streams():
            minutes.take(stream)
            data = stream.packed()
            chunks.append((stream.kind.number, printable(stream.subject), len(stream.places), zlib.crc32(data), data))
        self.bytes = len(arrivals) + sum(len(chunk[-1]) for chunk in chunks)
        head = (self.number, self.start_ns, self.end_ns, self.bytes, arrivals, zlib.crc32(arrivals))
        first = self.number << CHUNK_BITS
        self._sealed = [
            ("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?)", head),
            *(
                ("INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)", (first + place, *chunk))
                for place, chunk in enumerate(chunks)
            ),
            ("DELETE FROM tail WHERE segment = ?", (self.number,)),
        ]
        self._gathering, self._unsaved = None, []

    def sealed(self) -> list[Operation]:
        """What replaces the tail's rows."""
        return self._sealed


def _packs(value: object) -> bool:
    try:
        pack(value)
    except (TypeError, OverflowError):
        return False
    return True
