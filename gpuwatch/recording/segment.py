"""The segment that is being written: rows in the tail, then sealed as columns."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from gpuwatch.recording.chunks import Gathering
from gpuwatch.recording.events import printable
from gpuwatch.recording.kinds import KINDS
from gpuwatch.recording.packing import pack
from gpuwatch.recording.rollups import Minutes
from gpuwatch.recording.schema import CHUNK_BITS, Operation
from gpuwatch.samples import Sample

Batch = tuple[int, Sequence[Sample]]
"""When some samples came, and they."""

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
        self._gathering: Gathering | None = Gathering()
        self._unsaved: list[Operation] = []
        self._sealed: list[Operation] = []

    def add(self, batches: Sequence[Batch]) -> None:
        """The next second or so."""
        assert self._gathering is not None
        rows = [
            (time_ns, [(_NUMBERS[type(sample)], _VALUES[type(sample)](sample)) for sample in samples])
            for time_ns, samples in batches
        ]
        try:
            data = pack(rows)
        except (TypeError, OverflowError):
            count = sum(len(each) for _, each in rows)
            rows = [(time_ns, [row for row in each if _packs(row)]) for time_ns, each in rows]
            self.refused += count - sum(len(each) for _, each in rows)
            data = pack(rows)
        for time_ns, each in rows:
            self._gathering.add(time_ns, each)
            self.unsaved_samples += len(each)
        self.start_ns = self.start_ns or batches[0][0]
        self.end_ns = batches[-1][0]
        self.bytes += len(data)
        self._unsaved.append(
            (
                "INSERT INTO tail (segment, start_ns, end_ns, data, crc) VALUES (?, ?, ?, ?, ?)",
                (self.number, batches[0][0], self.end_ns, data, zlib.crc32(data)),
            )
        )

    def unsaved(self) -> list[Operation]:
        """What is to be written to the tail."""
        return self._unsaved

    def is_saved(self) -> None:
        """It was."""
        self._unsaved, self.unsaved_samples = [], 0

    def seal(self, minutes: Minutes) -> None:
        """Turns the rows into columns, and lets go of them."""
        assert self._gathering is not None
        streams = list(self._gathering.streams())
        minutes.take(streams)
        arrivals = self._gathering.arrivals().packed()
        chunks = [
            (stream.kind.number, printable(stream.subject), len(stream.places), zlib.crc32(data), data)
            for stream in streams
            for data in (stream.packed(),)
        ]
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
