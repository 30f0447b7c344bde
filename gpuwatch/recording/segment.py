"""The segment that is being written: rows in the tail, then sealed as columns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from gpuwatch.recording.chunks import streams_of
from gpuwatch.recording.events import printable
from gpuwatch.recording.kinds import KIND_BY_NUMBER, KINDS
from gpuwatch.recording.packing import pack
from gpuwatch.recording.rollups import Minutes
from gpuwatch.recording.schema import CHUNK_BITS
from gpuwatch.recording.store import Operation
from gpuwatch.samples import Sample

Batch = tuple[int, Sequence[Sample]]
"""When some samples came, and they."""


class Row:
    """About a second of samples. `samples` counts them, `refused` those that no file can hold."""

    __slots__ = ("data", "end_ns", "refused", "samples", "start_ns")

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.start_ns, self.end_ns = batches[0][0], batches[-1][0]
        self.samples = sum(len(samples) for _, samples in batches)
        self.refused = 0
        plain = [(time_ns, [_plain(sample) for sample in samples]) for time_ns, samples in batches]
        try:
            self.data = pack(plain)
        except (TypeError, OverflowError):
            kept = [(time_ns, [each for each in samples if _packs(each)]) for time_ns, samples in plain]
            self.data = pack(kept)
            self.refused = self.samples - sum(len(samples) for _, samples in kept)


class Segment:
    """The rows of one minute, or of a part of one in which very much came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: list[Row] = []
        self.saved = 0  # of `rows`, those that are in the file's tail
        self.bytes = 0
        self._sealed: list[Operation] = []

    def add(self, row: Row) -> None:
        """The next second."""
        self.rows.append(row)
        self.bytes += len(row.data)

    def unsaved(self) -> list[Operation]:
        """What is to be written to the tail."""
        return [
            (
                "INSERT INTO tail (segment, start_ns, end_ns, data, crc) VALUES (?, ?, ?, ?, ?)",
                (self.number, row.start_ns, row.end_ns, row.data, zlib.crc32(row.data)),
            )
            for row in self.rows[self.saved :]
        ]

    @property
    def unsaved_samples(self) -> int:
        """How many samples the file does not hold."""
        return sum(row.samples for row in self.rows[self.saved :])

    def seal(self, minutes: Minutes) -> None:
        """Turns the rows into columns, once; what the file holds already is let go of."""
        arrivals, streams = streams_of((row.data for row in self.rows), KIND_BY_NUMBER)
        minutes.take(streams)
        chunks = [stream.packed() for stream in streams]
        head = arrivals.packed()
        size = len(head) + sum(map(len, chunks))
        first = self.number << CHUNK_BITS
        self._sealed = [
            (
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?)",
                (self.number, self.rows[0].start_ns, self.rows[-1].end_ns, size, head, zlib.crc32(head)),
            ),
            *(
                (
                    "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        first + place,
                        stream.kind.number,
                        printable(stream.subject),
                        len(stream.places),
                        zlib.crc32(data),
                        data,
                    ),
                )
                for place, (stream, data) in enumerate(zip(streams, chunks, strict=True))
            ),
            ("DELETE FROM tail WHERE segment = ?", (self.number,)),
        ]
        self.rows, self.saved = self.rows[self.saved :], 0
        self.bytes = size + sum(len(row.data) for row in self.rows)

    def sealed(self) -> list[Operation]:
        """What replaces the tail's rows."""
        return self._sealed


def _plain(sample: Sample) -> tuple[int, tuple[object, ...]]:
    kind = KINDS[type(sample)]
    return kind.number, kind.row(sample)


def _packs(value: object) -> bool:
    try:
        pack(value)
    except (TypeError, OverflowError):
        return False
    return True
