"""A segment, about a minute of samples: while it is open as rows in order of arrival, when sealed as columns.

A row's place in its segment is kept with it, so the samples come back in the very order in which they came.
"""

from __future__ import annotations

import json
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, get_args

from gpuwatch.recording.columns import (
    ColumnReader,
    DamagedError,
    Record,
    built,
    check_of,
    from_plain,
    read_values,
    record_of,
    revived,
    to_plain,
    unpack,
    write_column,
    write_values,
)
from gpuwatch.samples import (
    Candidates,
    GpuFacts,
    GpuLost,
    MachineFacts,
    PhaseSpan,
    RunFacts,
    Sample,
    TrainerEnded,
    XidEvent,
)

EVENT_KINDS = (GpuFacts, MachineFacts, RunFacts, GpuLost, XidEvent, TrainerEnded, PhaseSpan, Candidates)
"""What is reported once or when it changes: kept in rows of its own too, where it outlives them (`--record-max`)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sample being written. `row` gives the values of its fields in the order of its shape."""

    number: int
    name: str
    shape: Record
    row: Callable[[Any], tuple[Any, ...]]
    subject_key: Callable[[Sequence[Any]], Any]  # equal for rows of one subject
    subject_places: tuple[int, ...]  # in a row
    places: Mapping[str, int]  # of the fields

    def subject(self, row: Sequence[Any]) -> str:
        """A GPU's UUID, a trainer's name, or "" for the machine."""
        found = [row[place] for place in self.subject_places]
        return ".".join(map(str, found)) if found and found[0] is not None else ""


class KindReader:
    """A kind of sample being read: by the shape it was written with, into the class of today.

    Args:
        plain: the shape, as the file keeps it.
    """

    def __init__(self, plain: str) -> None:
        shape = from_plain(json.loads(plain))
        if not isinstance(shape, Record):
            raise ValueError("not the shape of a sample")
        self.shape = shape
        self.name = shape.name
        self.names = tuple(name for name, _ in shape.fields)
        self._class: Callable[..., Sample] | None = _KNOWN.get(shape.name)
        self._is_current = self._class is not None and shape == record_of(_KNOWN[shape.name])

    @property
    def is_known(self) -> bool:
        """Whether this version has such a sample."""
        return self._class is not None

    def sample(self, row: Sequence[Any]) -> Sample:
        """The sample of a row whose values are as in the class."""
        if self._is_current and self._class is not None:
            return self._class(*row)
        made: Sample = built(self.name, dict(zip(self.names, row, strict=True)))
        return made

    def from_plain(self, row: Sequence[Any]) -> Sample:
        """The sample of a row of plain values."""
        fields = zip(self.shape.fields, row, strict=True)
        return self.sample([revived(shape, value) for (_, shape), value in fields])


_KNOWN: dict[str, type] = {cls.__name__: cls for cls in get_args(Sample)}
_SUBJECTS = (("uuid",), ("trainer",), ("pid", "start_ticks"))


def _kind(number: int, cls: type) -> Kind:
    shape = record_of(cls)
    names = [name for name, _ in shape.fields]
    subject = next((each for each in _SUBJECTS if set(each) <= set(names)), ())
    places = tuple(names.index(name) for name in subject)
    key = itemgetter(*places) if places else _no_subject
    return Kind(
        number, cls.__name__, shape, attrgetter(*names), key, places, {name: at for at, name in enumerate(names)}
    )


def _no_subject(_: Sequence[Any]) -> None:
    return None


KINDS: dict[type, Kind] = {cls: _kind(number, cls) for number, cls in enumerate(get_args(Sample))}
"""By class. Every sample has two fields at least, so that `row` always gives a tuple."""

KIND_BY_NUMBER: tuple[Kind, ...] = tuple(KINDS.values())


def stored_shape(kind: Kind) -> str:
    """The kind's shape as the file keeps it."""
    return json.dumps(to_plain(kind.shape), separators=(",", ":"))


_LEVEL = 3  # 1.5% larger than with 6, in 40% of the time
_MOST_BYTES = 1 << 25
"""No chunk inflates to more: a few bytes of a hostile file may stand for gigabytes."""
MOST_ROWS = 1 << 18
"""Of a segment: it is sealed at 4 MB, which is 80,000 of the smallest samples, or after the second that went beyond."""
_FREE_ROWS = 1024
_ROWS_PER_BYTE = 8
"""The jitter of a clock alone takes more than a byte of each sample, so a chunk that claims more is none."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of one kind and subject in one segment, by column; `places` in the segment."""

    kind: Kind
    subject: str
    places: Sequence[int]
    columns: Sequence[Sequence[Any]]

    def column(self, name: str) -> Sequence[Any]:
        """One field's values."""
        return self.columns[self.kind.places[name]]

    def packed(self) -> bytes:
        """As a chunk."""
        out = bytearray()
        write_column(self.places, out)
        for (_, shape), values in zip(self.kind.shape.fields, self.columns, strict=True):
            write_values(shape, values, out)
        return zlib.compress(bytes(out), _LEVEL)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each row of a segment came: how many came at each time."""

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
        plain = inflated(data)
        count, columns = int.from_bytes(plain[:4], "little"), ColumnReader(plain[4:])
        times_ns, counts = columns.read(count), columns.read(count)
        if set(map(type, chain(times_ns, counts))) - {int} or min(counts, default=0) < 0 or sum(counts) > MOST_ROWS:
            raise DamagedError("impossible numbers of arrivals")
        return cls(times_ns, counts)

    def places(self, start_ns: int, end_ns: int) -> range:
        """The places of the rows that came in (start, end]."""
        before, until = bisect_right(self.times_ns, start_ns), bisect_right(self.times_ns, end_ns)
        return range(sum(self.counts[:before]), sum(self.counts[:until]))

    def of(self, places: Iterable[int]) -> list[int]:
        """When the rows at these places came."""
        ends = list(accumulate(self.counts))
        return [self.times_ns[bisect_right(ends, place)] for place in places]


_KEYS = tuple(kind.subject_key for kind in KIND_BY_NUMBER)


class Gathering:
    """The samples of a segment by kind and subject, as they come: the values of all rows one after the other.

    A column is then every n-th of them, which is found in a third of the time that it takes to go through rows.
    """

    def __init__(self) -> None:
        self._times_ns, self._counts = array("q"), array("q")
        self._streams: dict[tuple[int, object], tuple[array[int], list[Any]]] = {}
        self._place = 0

    def add(self, time_ns: int, rows: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        """Rows that came at once, each with the number of its kind."""
        place, streams = self._place, self._streams
        for number, row in rows:
            key = (number, _KEYS[number](row))
            stream = streams.get(key)
            if stream is None:
                stream = streams[key] = (array("I"), [])
            stream[0].append(place)
            stream[1].extend(row)
            place += 1
        self._times_ns.append(time_ns)
        self._counts.append(place - self._place)
        self._place = place

    def arrivals(self) -> Arrivals:
        """When they came."""
        return Arrivals(self._times_ns.tolist(), self._counts.tolist())

    def streams(self) -> Iterator[Stream]:
        """Column by column, subject by subject in the order of the kinds: facts of a trainer come before its steps.

        Chunks of one kind are of nearly one size: side by side, just over half a page each, they fill half of a file.
        """
        subjects = {key: self._subject(key) for key in self._streams}
        for key in sorted(subjects, key=lambda key: (subjects[key], key[0])):
            (number, _), (places, values) = key, self._streams[key]
            kind = KIND_BY_NUMBER[number]
            width = len(kind.places)
            columns = [values[place::width] for place in range(width)]
            yield Stream(kind, subjects[key], places.tolist(), columns)

    def _subject(self, key: tuple[int, object]) -> str:
        kind = KIND_BY_NUMBER[key[0]]
        return kind.subject(self._streams[key][1][: len(kind.places)])


def gathered(rows: Iterable[bytes], kinds: Mapping[int, KindReader]) -> Gathering:
    """What rows of the tail hold, read back.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    found = Gathering()
    for data in rows:
        for time_ns, sample in fitting(list(samples_of_row(kinds, data))):
            kind = KINDS[type(sample)]
            found.add(time_ns, [(kind.number, kind.row(sample))])
    return found


def samples_of_chunk(
    kind: KindReader, count: int, data: bytes, wanted: range | None = None
) -> Iterator[tuple[int, Sample]]:
    """The samples of a chunk with their places; None: all.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    if not isinstance(count, int) or not 0 <= count <= min(MOST_ROWS, _FREE_ROWS + _ROWS_PER_BYTE * len(data)):
        raise DamagedError("a chunk claims more rows than it can hold")
    columns = ColumnReader(inflated(data))
    places = columns.read(count)
    try:
        read = [read_values(shape, count, columns) for _, shape in kind.shape.fields]
        if wanted is not None:
            first, last = bisect_left(places, wanted.start), bisect_left(places, wanted.stop)
            places, read = places[first:last], [values[first:last] for values in read]
        made = [kind.sample(row) for row in zip(*read, strict=True)]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise DamagedError("a chunk does not decode") from error
    return zip(places, made, strict=True)


def samples_of_row(kinds: Mapping[int, KindReader], data: bytes) -> Iterator[tuple[int, Sample]]:
    """The samples of a row of the tail with their arrival; of the given kinds.

    Raises:
        DamagedError: the bytes are not what was written.
    """
    try:
        for time_ns, samples in unpack(data):
            for number, row in samples:
                kind = kinds.get(number)
                if kind is not None:
                    yield time_ns, kind.from_plain(row)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise DamagedError("a row does not decode") from error


def fitting(found: Sequence[tuple[int, Sample]]) -> Sequence[tuple[int, Sample]]:
    """The samples whose values have the types of their fields, which a file does not ensure; the same list for all."""
    by_type: dict[type, list[Sample]] = {}
    for _, sample in found:
        by_type.setdefault(type(sample), []).append(sample)
    wrong = {cls for cls, samples in by_type.items() if not check_of(cls)(samples)}
    if not wrong:
        return found
    return [(time_ns, each) for time_ns, each in found if type(each) not in wrong or check_of(type(each))((each,))]


def inflated(data: bytes) -> bytes:
    """The bytes that were deflated.

    Raises:
        DamagedError: they are torn, or more than any chunk has.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, _MOST_BYTES)
    except (zlib.error, MemoryError) as error:
        raise DamagedError("a chunk does not inflate") from error
    if not inflater.eof:
        raise DamagedError("a chunk is torn")
    return plain
