"""Each kind of sample as a recording knows it: its number, how it becomes a row, and what its subject is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, get_args

from gpuwatch.recording.shapes import Record, built, from_plain, record_of, revived, to_plain
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
"""What is reported once or when it changes: kept beside the samples too, where it outlives them (`--record-max`)."""


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
        return _subject(self.subject_places, row)


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
        self._subject_places = _subject_places(self.names)
        self._class: Callable[..., Sample] | None = _KNOWN.get(shape.name)
        self._is_current = self._class is not None and shape == record_of(_KNOWN[shape.name])

    @property
    def is_known(self) -> bool:
        """Whether this version has such a sample."""
        return self._class is not None

    @property
    def is_current(self) -> bool:
        """Whether its fields are those of this version."""
        return self._is_current

    def subject(self, row: Sequence[Any]) -> str:
        """As `Kind.subject`."""
        return _subject(self._subject_places, row)

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


def _subject_places(names: Sequence[str]) -> tuple[int, ...]:
    fields = next((each for each in _SUBJECTS if set(each) <= set(names)), ())
    return tuple(names.index(name) for name in fields)


def _subject(places: Sequence[int], row: Sequence[Any]) -> str:
    found = [row[place] for place in places]
    return ".".join(map(str, found)) if found and found[0] is not None else ""


def _kind(number: int, cls: type) -> Kind:
    shape = record_of(cls)
    names = [name for name, _ in shape.fields]
    places = _subject_places(names)
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
