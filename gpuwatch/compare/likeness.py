"""Whether two sides measured the same thing: only like is compared with like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwatch.compare.measured import Measured, Subject
from gpuwatch.text.numbers import grouped


@dataclass(frozen=True, slots=True)
class Likeness:
    """`differences` leave only samples/s comparable; `notes` are what else a reader must know."""

    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether every figure may be compared."""
        return not self.differences


def likeness(before: Sequence[Measured], after: Sequence[Measured]) -> Likeness:
    """What differs between the runs of both sides, or within one of them."""
    subjects = [each.subject for each in (*before, *after)]
    differences = []
    for what, read in _SAME:
        seen = list(dict.fromkeys(text for subject in subjects if (text := read(subject)) is not None))
        if len(seen) > 1:
            differences.append(f"different {what}: {_listed(before, read)} before, {_listed(after, read)} after")
    notes = (
        [f"not known of every run, and so not checked: {', '.join(unknown)}"] if (unknown := _unknown(subjects)) else []
    )
    for what, read in _TOLD:
        seen = list(dict.fromkeys(text for subject in subjects if (text := read(subject)) is not None))
        if len(seen) > 1:
            notes.append(f"{what} differs: {_listed(before, read)} before, {_listed(after, read)} after")
    if any(_SIMULATED.search(each.label) for each in (*before, *after)):
        notes.append("simulated: these numbers are of no machine")
    return Likeness(tuple(differences), tuple(notes))


def _model(subject: Subject) -> str | None:
    if subject.model_parameters is None:
        return None
    bits = "" if subject.parameter_bits is None else f" of {subject.parameter_bits} bits"
    return f"{grouped(subject.model_parameters)} parameters{bits}"


def _batch_size(subject: Subject) -> str | None:
    return None if subject.batch_size is None else str(subject.batch_size)


def gpus_in_words(subject: Subject) -> str | None:
    """The names with their numbers: "8 x NVIDIA H200"."""
    names = subject.gpu_names
    if not names:
        return None
    counts = {name: names.count(name) for name in names}
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _autocast(subject: Subject) -> str | None:
    return None if subject.autocast is None else subject.autocast or "off"


_SIMULATED = re.compile(r"^SIMULATED\b|\(SIMULATED\b")
"""In the label of a made-up machine, or of the report of its recording: "RECORDING a.gpuwatch (SIMULATED starved)"."""

_Read = Callable[[Subject], str | None]
_SAME: tuple[tuple[str, _Read], ...] = (("model", _model), ("batch size", _batch_size), ("GPU", gpus_in_words))
_TOLD: tuple[tuple[str, _Read], ...] = (
    ("autocast", _autocast),
    ("torch", lambda subject: subject.torch),
    ("the script", lambda subject: subject.title),
)


def _unknown(subjects: Sequence[Subject]) -> list[str]:
    return [what for what, read in _SAME if any(read(subject) is None for subject in subjects)]


def _listed(side: Sequence[Measured], read: _Read) -> str:
    return " and ".join(dict.fromkeys(read(each.subject) or "not known" for each in side))
