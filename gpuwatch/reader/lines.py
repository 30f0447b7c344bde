"""The line tables of code objects: which line an instruction belongs to, in the three formats of 3.8 to 3.15."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_NO_LINE_3_10 = -128
_NO_COLUMNS, _LONG, _NONE = 13, 14, 15  # PyCodeLocationInfoKind
_FIRST_ONE_LINE = 10


_LARGEST_VARINT_SHIFT = 30  # CPython writes 32 bits in six bytes
_LAST_LINE = (1 << 31) - 1
_NO_LINE = -1
_CHECK_EVERY = 4096

_Run = tuple[int, "int | None"]


@dataclass(frozen=True, slots=True)
class LineTable:
    """Lines by the byte of the bytecode where each run of instructions starts.

    Kept as numbers of 32 bits: lists of 500 000 of them, which a table of 1 MiB may hold, take 40 MB.
    """

    starts: array[int]
    lines: array[int]  # -1: no line of the source
    first_line: int

    def line(self, offset: int) -> int | None:
        """The line of the instruction at `offset`. Before the first one the function has not begun: its own line."""
        if offset < 0 or not self.starts:
            return self.first_line
        line = self.lines[bisect_right(self.starts, offset) - 1]
        return None if line == _NO_LINE else line


def line_table(
    version: tuple[int, int], raw: bytes, first_line: int, check: Callable[[], object] = lambda: None
) -> LineTable:
    """The table of a code object of Python `version`: co_lnotab up to 3.9, co_linetable after.

    From a number on that no compiler writes, its instructions have no line. `check` is called every 4 096 entries.
    """
    if version >= (3, 11):
        runs = _locations(raw, first_line)
    elif version == (3, 10):
        runs = _pairs_3_10(raw, first_line)
    else:
        runs = _pairs_3_8(raw, first_line)
    starts, lines = array("I"), array("i")
    for number, (start, line) in enumerate(runs):
        if number % _CHECK_EVERY == 0:
            check()
        if line is None or not 0 <= line <= _LAST_LINE:
            line = _NO_LINE
        if starts and starts[-1] == start:
            lines[-1] = line
        elif not lines or lines[-1] != line:
            starts.append(start)
            lines.append(line)
    return LineTable(starts, lines, first_line)


def no_lines(first_line: int) -> LineTable:
    """The table of a code object whose own one is not read."""
    return LineTable(array("I", [0]), array("i", [_NO_LINE]), first_line)


def _pairs_3_8(raw: bytes, first_line: int) -> Iterator[_Run]:
    """Objects/lnotab_notes.txt: (bytes, signed lines) pairs."""
    address, line = 0, first_line
    yield 0, line
    for index in range(0, len(raw) - 1, 2):
        address += raw[index]
        line += _signed(raw[index + 1])
        yield address, line


def _pairs_3_10(raw: bytes, first_line: int) -> Iterator[_Run]:
    """PEP 626: (bytes, signed lines) pairs, each with the line of its own bytes; -128 is no line."""
    address, line = 0, first_line
    for index in range(0, len(raw) - 1, 2):
        delta = _signed(raw[index + 1])
        if delta == _NO_LINE_3_10:
            yield address, None
        else:
            line += delta
            yield address, line
        address += raw[index]


def _locations(raw: bytes, first_line: int) -> Iterator[_Run]:
    """Objects/locations.md: entries that begin with a byte above 127, of which only the line is of use."""
    address, line = 0, first_line
    position = 0
    while position < len(raw):
        first = raw[position]
        kind, units = first >> 3 & 15, (first & 7) + 1
        position += 1
        if kind in (_LONG, _NO_COLUMNS):
            delta = _signed_varint(raw, position)
            if delta is None:
                yield address, None
                return
            line += delta
        elif _FIRST_ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _FIRST_ONE_LINE
        yield address, None if kind == _NONE else line
        address += 2 * units
        while position < len(raw) and not raw[position] & 128:
            position += 1


def _signed_varint(raw: bytes, position: int) -> int | None:
    """None for one of more than 32 bits."""
    value = shift = 0
    while position < len(raw):
        byte = raw[position]
        position += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
        if shift > _LARGEST_VARINT_SHIFT:
            return None
    return -(value >> 1) if value & 1 else value >> 1


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte
