"""The line tables of code objects: which line an instruction belongs to, in the three formats of 3.8 to 3.15."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

_NO_LINE_3_10 = -128
_NO_COLUMNS, _LONG, _NONE = 13, 14, 15  # PyCodeLocationInfoKind
_FIRST_ONE_LINE = 10


@dataclass(frozen=True, slots=True)
class LineTable:
    """Lines by the byte of the bytecode where each run of instructions starts; None: no line of the source."""

    starts: tuple[int, ...]
    lines: tuple[int | None, ...]
    first_line: int

    def line(self, offset: int) -> int | None:
        """The line of the instruction at `offset`. Before the first one the function has not begun: its own line."""
        if offset < 0 or not self.starts:
            return self.first_line
        return self.lines[bisect_right(self.starts, offset) - 1]


def line_table(version: tuple[int, int], raw: bytes, first_line: int) -> LineTable:
    """The table of a code object of Python `version`: co_lnotab up to 3.9, co_linetable after."""
    if version >= (3, 11):
        runs = _locations(raw, first_line)
    elif version == (3, 10):
        runs = _pairs_3_10(raw, first_line)
    else:
        runs = _pairs_3_8(raw, first_line)
    starts: list[int] = []
    lines: list[int | None] = []
    for start, line in runs:
        if starts and starts[-1] == start:
            lines[-1] = line
        elif not lines or lines[-1] != line:
            starts.append(start)
            lines.append(line)
    return LineTable(tuple(starts), tuple(lines), first_line)


def _pairs_3_8(raw: bytes, first_line: int) -> list[tuple[int, int | None]]:
    """Objects/lnotab_notes.txt: (bytes, signed lines) pairs."""
    address, line = 0, first_line
    runs: list[tuple[int, int | None]] = [(0, line)]
    for index in range(0, len(raw) - 1, 2):
        address += raw[index]
        line += _signed(raw[index + 1])
        runs.append((address, line))
    return runs


def _pairs_3_10(raw: bytes, first_line: int) -> list[tuple[int, int | None]]:
    """PEP 626: (bytes, signed lines) pairs, each with the line of its own bytes; -128 is no line."""
    address, line = 0, first_line
    runs: list[tuple[int, int | None]] = []
    for index in range(0, len(raw) - 1, 2):
        delta = _signed(raw[index + 1])
        if delta == _NO_LINE_3_10:
            runs.append((address, None))
        else:
            line += delta
            runs.append((address, line))
        address += raw[index]
    return runs


def _locations(raw: bytes, first_line: int) -> list[tuple[int, int | None]]:
    """Objects/locations.md: entries that begin with a byte above 127, of which only the line is of use."""
    address, line = 0, first_line
    runs: list[tuple[int, int | None]] = []
    position = 0
    while position < len(raw):
        first = raw[position]
        kind, units = first >> 3 & 15, (first & 7) + 1
        position += 1
        if kind in (_LONG, _NO_COLUMNS):
            delta, _ = _signed_varint(raw, position)
            line += delta
        elif _FIRST_ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _FIRST_ONE_LINE
        runs.append((address, None if kind == _NONE else line))
        address += 2 * units
        while position < len(raw) and not raw[position] & 128:
            position += 1
    return runs


def _signed_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(raw):
        byte = raw[position]
        position += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return (-(value >> 1) if value & 1 else value >> 1), position


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte
