"""A check of `gpuwatch doctor`, and the report of all of them as text and as JSON."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rich.text import Text

from gpuwatch import __version__
from gpuwatch.text import aligned, printable


class State(str, Enum):
    """The state of a part of the machine. A word, not only a colour, says it on every output."""

    OK = "ok"
    WARNING = "warning"
    """Works, and less is measured than could be, or the training is held back."""
    PROBLEM = "problem"
    """A part of gpuwatch, or the training itself, cannot work."""
    UNKNOWN = "unknown"
    """Could not be checked."""


Detail = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: a sentence on its state, and the cure where it falls short."""

    name: str
    state: State
    sentence: str
    cure: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    rows: tuple[tuple[str, ...], ...] = ()  # a small table below the sentence, its head first
    section: str = ""  # the heading that it stands below; the first of a section brings it


_SCHEMA_VERSION = 1
_WIDEST = 110
_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.UNKNOWN: "cyan"}
_STATE_WIDTH = max(len(state.value) for state in State) + 2


def usable(checks: Sequence[Check]) -> bool:
    """Whether anything can be measured: a GPU answers, or a training run can link itself."""
    return any(check.name in ("driver", "link") and check.state in (State.OK, State.WARNING) for check in checks)


def as_json(checks: Sequence[Check]) -> dict[str, object]:
    """The report as plain values."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "gpuwatch": __version__,
        "usable": usable(checks),
        "checks": [
            {
                "check": check.name,
                "state": check.state.value,
                "sentence": check.sentence,
                "cure": check.cure,
                "details": dict(check.details),
                "rows": [list(row) for row in check.rows],
                "section": check.section,
            }
            for check in checks
        ],
    }


def as_lines(checks: Sequence[Check], width: int) -> list[tuple[State | None, str]]:
    """The report as lines; a line that begins a check carries its state, to be coloured."""
    name_width = max(len(check.name) for check in checks) + 2
    indent = " " * (_STATE_WIDTH + name_width)
    lines: list[tuple[State | None, str]] = []
    section = ""
    for check in checks:
        if check.section != section:
            section = check.section
            lines += [(None, ""), (None, f"{section[0].upper()}{section[1:]}")]
        head = f"{check.state.value:<{_STATE_WIDTH}}{check.name:<{name_width}}"
        first, *rest = textwrap.wrap(check.sentence, width, initial_indent=head, subsequent_indent=indent)
        lines.append((check.state, first))
        lines += [(None, line) for line in rest]
        if check.cure:
            cure_indent = indent + " " * len("fix: ")
            cured = textwrap.wrap(
                check.cure,
                width,
                initial_indent=f"{indent}fix: ",
                subsequent_indent=cure_indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += [(None, line) for line in cured]
        lines += [(None, f"  {row}") for row in aligned(check.rows)]
    return [*lines, (None, ""), (None, _verdict(checks))]


def _verdict(checks: Sequence[Check]) -> str:
    counts = [
        f"{count} {state.value}{'s' if count > 1 and state in (State.WARNING, State.PROBLEM) else ''}"
        for state in State
        if state is not State.OK and (count := sum(check.state is state for check in checks))
    ]
    found = ", ".join(counts) or "no problems"
    if usable(checks):
        return f"gpuwatch can measure here; {found}."
    return f"gpuwatch can measure nothing here: no GPU answers and no training run can be linked; {found}."


def styled(checks: Sequence[Check]) -> Iterator[Text]:
    """The report as lines for a terminal, as wide as it is."""
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    for state, line in as_lines(checks, max(60, width)):
        text = Text(printable(line))
        if state is not None:
            text.stylize(_STYLES[state], 0, len(state.value))
        yield text
