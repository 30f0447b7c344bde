"""The processes that train as a table: a line each with its figures, and below it what gave it away."""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Mapping, Sequence

from gpuwatch.samples import Candidate
from gpuwatch.text.escape import printable

_HEAD = ("PID", "GPU", "AGE", "DETAIL", "USER")
_NUMBERS = ("PID", "AGE")
_DETAIL = {"exact": "exact", "sampled": "sampled", "proc": "/proc only", "hardware": "hardware only"}
_INDENT = 8
_LEAST_COMMAND = 20
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def table_lines(
    processes: Sequence[Candidate], gpu_indices: Mapping[str, int], width: int | None
) -> list[tuple[bool, str]]:
    """(whether it is a process's own line, the line), the head first.

    Args:
        processes: in their order.
        gpu_indices: of the GPUs, by UUID.
        width: of the terminal; None where lines are not folded, as in a pipe.
    """
    rows = [_cells(each, gpu_indices) for each in processes]
    columns = [*zip(_HEAD, *rows, strict=True)]
    if len({each.user for each in processes}) < 2:
        del columns[_HEAD.index("USER")]
    widths = [max(map(len, column)) for column in columns]
    lines = [(False, _line(columns, widths, 0, "COMMAND", width))]
    for number, each in enumerate(processes, 1):
        lines.append((True, _line(columns, widths, number, printable(shlex.join(each.command)), width)))
        for note in _notes(each):
            lines += [(False, line) for line in _folded(printable(note), width)]
    return lines


def age_words(seconds: float) -> str:
    """How long it runs, in its two largest units at most: "45 s", "12 min", "2 h 5 min", "3 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    for (size, unit), (smaller, smaller_unit) in itertools.pairwise(_UNITS):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{int(seconds // 60)} min"


def _cells(each: Candidate, gpu_indices: Mapping[str, int]) -> tuple[str, ...]:
    indices = sorted(gpu_indices[uuid] for uuid in each.gpu_uuids if uuid in gpu_indices)
    gpus = ",".join(map(str, indices)) or "-"
    return str(each.pid), gpus, age_words(each.age_seconds), _DETAIL[each.rung], printable(each.user)


def _line(columns: Sequence[Sequence[str]], widths: Sequence[int], row: int, command: str, width: int | None) -> str:
    cells = (
        column[row].rjust(size) if column[0] in _NUMBERS else column[row].ljust(size)
        for column, size in zip(columns, widths, strict=True)
    )
    head = "  ".join(cells) + "  "
    if width is None:
        return head + command
    room = max(_LEAST_COMMAND, width - len(head))
    return head + (command if len(command) <= room else f"{command[: room - 1]}…")


def _notes(each: Candidate) -> list[str]:
    notes = [each.why]
    if each.refusal:
        climb = f"; to see more: {each.climb}" if each.climb else ""
        notes.append(f"its stacks cannot be read: {each.refusal.rstrip('.')}{climb}")
    return notes


def _folded(note: str, width: int | None) -> list[str]:
    indent = " " * _INDENT
    if width is None:
        return [indent + note]
    return textwrap.wrap(
        note,
        max(_INDENT + _LEAST_COMMAND, width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
