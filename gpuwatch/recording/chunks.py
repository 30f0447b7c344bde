"""A segment, about a minute of samples: while it is open as rows in order of arrival, when sealed as columns.

A row's place in its segment is kept with it, so the samples come back in the very order in which they came.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwatch.recording.columns import ColumnReader, DamagedError, write_column
from gpuwatch.recording.kinds import Kind, KindReader
from gpuwatch.recording.packing import unpack
from gpuwatch.recording.shred import read_values, write_values
from gpuwatch.samples import Sample

_LEVEL = 6
_MOST_BYTES = 1 << 28
"""No chunk inflates to more: a few bytes of a hostile file may stand for gigabytes."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of one kind and subject in one segment, by column; `places` in the segment."""

    kind: Kind
    subject: str
    places: Sequence[int]
    columns: Sequence[Sequence[Any]]

    def column(self, name: str) -> Sequence[Any]:
        """One field's values."""
        return self.columns[[field for field, _ in self.kind.shape.fields].index(name)]

    def packed(self) -> bytes:
        """As a chunk."""
        out = bytearray()
        write_column(self.places, out)
        for (_, shape), values in zip(self.kind.shape.fields, self.columns, strict=True):
            write_values(shape, values, out)
        return zlib.compress(bytes(out), _LEVEL)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each row of a segment came: so many at this time, so many at that."""

    times_ns: Sequence[int]
    counts: Sequence[int]

    def packed(self) -> bytes:
        """As bytes."""
        out = bytearray(len(self.times_ns).to_bytes(4, "little"))
        write_column(self.times_ns, out)
        write_column(self.counts, out)
        return zlib.compress(bytes(out), _LEVEL)

    @classmethod
    def unpacked(cls, data: bytes) -> Arrivals:
        """The other way.

        Raises:
            DamagedError: the bytes are not what was written.
        """
        plain = _inflated(data)
        count, columns = int.from_bytes(plain[:4], "little"), ColumnReader(plain[4:])
        return cls(columns.read(count), columns.read(count))

    def places(self, start_ns: int, end_ns: int) -> range:
        """The places of the rows that came in (start, end]."""
        before = sum(count for time_ns, count in zip(self.times_ns, self.counts, strict=True) if time_ns <= start_ns)
        until = sum(count for time_ns, count in zip(self.times_ns, self.counts, strict=True) if time_ns <= end_ns)
        return range(before, until)


def streams_of(rows: Iterable[bytes], kinds: Sequence[Kind]) -> tuple[Arrivals, list[Stream]]:
    """What the rows of a segment hold, put together by kind and subject."""
    times_ns, counts = array("q"), array("q")
    found: dict[tuple[int, str], tuple[array[int], list[list[Any]]]] = {}
    place = 0
    for data in rows:
        for time_ns, samples in unpack(data):
            times_ns.append(time_ns)
            counts.append(len(samples))
            for number, row in samples:
                key = (number, kinds[number].subject(row))
                stream = found.get(key)
                if stream is None:
                    stream = found[key] = (array("q"), [])
                stream[0].append(place)
                stream[1].append(row)
                place += 1
    streams = [
        Stream(kinds[number], subject, places.tolist(), list(zip(*listed, strict=True)))
        for (number, subject), (places, listed) in found.items()
    ]
    return Arrivals(times_ns.tolist(), counts.tolist()), streams


def samples_of_chunk(kind: KindReader, count: int, data: bytes) -> Iterator[tuple[int, Sample]]:
    """The samples of a chunk with their places.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    columns = ColumnReader(_inflated(data))
    places = columns.read(count)
    try:
        read = [read_values(shape, count, columns) for _, shape in kind.shape.fields]
        rows = zip(*read, strict=True)
        made = [kind.sample(row) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError("a chunk does not decode") from error
    return zip(places, made, strict=True)


def samples_of_row(
    kinds: Mapping[int, KindReader], data: bytes, subjects: Collection[str] | None = None
) -> Iterator[tuple[int, Sample]]:
    """The samples of a row of the tail with their arrival; of the given kinds and subjects.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    try:
        for time_ns, samples in unpack(data):
            for number, row in samples:
                kind = kinds.get(number)
                if kind is not None and (subjects is None or kind.subject(row) in subjects):
                    yield time_ns, kind.from_plain(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError("a row does not decode") from error


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise DamagedError("a chunk does not inflate") from error
    if not inflater.eof:
        raise DamagedError("a chunk is torn")
    return plain
