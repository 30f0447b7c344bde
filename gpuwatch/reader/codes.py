"""Code objects of the target, read once and kept: their names, files and line tables do not change.

A code object can end and another take its address (modules once they are imported, functions made at run time,
torch.compile), so what is kept is compared with the target now and then, and when it returns to a stack. Which line an
instruction belongs to is written in the three formats of 3.8 to 3.15.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpuwatch.reader.layout import BYTES_DATA, OBJECT_SIZE, OBJECT_TYPE, TEXT_ENCODINGS, TEXT_HEAD, TYPE_NAME, Layout
from gpuwatch.reader.memory import Memory, UnreadableAddressError


@dataclass(frozen=True, slots=True)
class Code:
    """A code object of the target. `file` is as the target has it: relative ones are relative to its cwd at start."""

    address: int
    file: str
    name: str
    qualified_name: str | None  # None before Python 3.11
    first_line: int


MAX_KEPT = 20_000
_MAX_KEPT_BYTES = 64 << 20  # of names and tables; those of 20,000 real code objects are 12 MB
_MAX_TEXT = 4096  # characters that are kept of a name
_MAX_LENGTH = 1 << 24
_MAX_TABLE = 1 << 20  # bytes, which is about 100,000 lines of one module; of a longer one no line is known
_TYPE_OF_CODE = b"code\0"


class NoCodeError(Exception):
    """What a frame names as its code is none: the frame was torn."""


@dataclass(frozen=True, slots=True)
class KnownCode:
    """A code object. `fingerprint` is what shows that another one lies at its address."""

    code: Code
    table: LineTable
    bytecode: int  # the address of the first instruction, 0 up to 3.10
    bytecode_size: int
    frame_size: int  # of its frames in the data stack, in bytes; 0 up to 3.10
    fingerprint: bytes

    @property
    def is_shim(self) -> bool:
        """Whether it is the code that 3.13 and later push below an inlined `__init__`, which no traceback shows."""
        return self.code.file == self.code.name == "__init__"

    @property
    def size(self) -> int:
        """About the bytes that it takes here."""
        code = self.code
        characters = len(code.file) + len(code.name) + len(code.qualified_name or "")
        return 512 + 4 * characters + 8 * len(self.table.starts)


class Codes:
    """The code objects of one process; a fork has most of those of its `relative` at the same addresses."""

    def __init__(self, memory: Memory, layout: Layout, relative: Codes | None = None) -> None:
        self._memory = memory
        self._layout = layout
        self._known: dict[int, KnownCode] = {}
        self._unverified: dict[int, KnownCode] = {}  # not on a stack at the last comparison: compared before it is used
        self._kept_bytes = 0
        self._relative = relative
        self._code_type: int | None = None if relative is None else relative._code_type
        names = [layout.code_file, layout.code_name, layout.code_line_table]
        if layout.code_qualified_name is not None:
            names.append(layout.code_qualified_name)
        self._head_size = max(*names, layout.code_first_line, layout.code_bytecode) + 8

    @property
    def known(self) -> dict[int, KnownCode]:
        """What was compared lately, by address; for lookups only."""
        return self._known

    def load(self, address: int) -> KnownCode:
        """The code object at an address.

        Raises:
            NoCodeError: There is none.
            CannotReadError: The process is gone.
        """
        known = self._known.get(address)
        if known is not None:
            return known
        try:
            known = self._verified(address) or self._read(address)
        except (UnreadableAddressError, struct.error):
            raise NoCodeError(hex(address)) from None
        self._kept_bytes += known.size
        if len(self._known) + len(self._unverified) >= MAX_KEPT or self._kept_bytes > _MAX_KEPT_BYTES:
            self._known.clear()
            self._unverified.clear()
            self._kept_bytes = known.size
        self._known[address] = known
        return known

    def forget_replaced(self, addresses: Iterable[int]) -> bool:
        """Forgets those that are another code object now, or none any more; says whether there were any.

        All others are compared when they are asked for again: to compare them all now would take a call for each.

        Raises:
            CannotReadError: The process is gone.
        """
        kept = {address: self._known.pop(address) for address in addresses if address in self._known}
        self._unverified |= self._known
        self._known.clear()
        try:
            heads = self._memory.read_many([(address + OBJECT_TYPE, self._head_size) for address in kept])
        except UnreadableAddressError:
            heads = []
        for (address, known), head in zip(kept.items(), heads, strict=False):
            if known.fingerprint == self._fingerprint(head):
                self._known[address] = known
        self._kept_bytes -= sum(known.size for address, known in kept.items() if address not in self._known)
        return len(self._known) < len(kept)

    def _verified(self, address: int) -> KnownCode | None:
        """What was known of this code object, or is of the relative's, if it still is the same."""
        known = self._unverified.pop(address, None)
        if known is not None:
            self._kept_bytes -= known.size
        elif self._relative is not None:
            known = self._relative.known.get(address) or self._relative._unverified.get(address)
        if known is None:
            return None
        head = self._memory.read(address + OBJECT_TYPE, self._head_size)
        return known if known.fingerprint == self._fingerprint(head) else None

    def _read(self, address: int) -> KnownCode:
        layout, memory = self._layout, self._memory
        if address % 8:
            raise NoCodeError(hex(address))
        head = memory.read(address + OBJECT_TYPE, self._head_size)
        self._check_type(_pointer(head, 0))
        first_line = _int(head, layout.code_first_line)
        file = self._text(_field_pointer(head, layout.code_file))
        name = self._text(_field_pointer(head, layout.code_name))
        qualified_name = None
        if layout.code_qualified_name is not None:
            qualified_name = self._text(_field_pointer(head, layout.code_qualified_name))
        table = self._line_table(_field_pointer(head, layout.code_line_table), first_line)
        if layout.heap_frames:
            bytecode = 0
            units = memory.pointer(_field_pointer(head, layout.code_bytecode) + OBJECT_SIZE)
            bytecode_size = units
        else:
            bytecode = address + layout.code_bytecode
            bytecode_size = 2 * _field_pointer(head, OBJECT_SIZE)
        return KnownCode(
            Code(address, file, name, qualified_name, first_line),
            table,
            bytecode,
            bytecode_size,
            8 * sum(_int(head, offset) for offset in layout.code_frame_words) + 8 * layout.code_frame_words_more,
            self._fingerprint(head),
        )

    def _check_type(self, address: int) -> None:
        """Learns PyCode_Type by its name at the first code object, and expects it at all others."""
        if self._code_type is None:
            name = self._memory.pointer(address + TYPE_NAME)
            if self._memory.read(name, len(_TYPE_OF_CODE)) != _TYPE_OF_CODE:
                raise NoCodeError(hex(address))
            self._code_type = address
        elif address != self._code_type:
            raise NoCodeError(hex(address))

    def _fingerprint(self, head: bytes) -> bytes:
        layout = self._layout
        return (
            head[:8]
            + _field(head, layout.code_file, 8)
            + _field(head, layout.code_name, 8)
            + _field(head, layout.code_line_table, 8)
            + _field(head, layout.code_first_line, 4)
        )

    def _text(self, address: int) -> str:
        """A str object in one of the compact forms, which all names of the compiler have."""
        shape = self._layout.text_shape(address, self._memory.read(address + OBJECT_SIZE, TEXT_HEAD))
        if shape is None or shape[1] > _MAX_LENGTH:
            raise NoCodeError(hex(address))
        start, length, width = shape
        size = width * min(length, _MAX_TEXT)
        return self._memory.read(start, size).decode(TEXT_ENCODINGS[width], "replace") if size else ""

    def _line_table(self, address: int, first_line: int) -> LineTable:
        memory = self._memory
        size = memory.pointer(address + OBJECT_SIZE)
        if size > _MAX_TABLE:
            return no_lines(first_line)
        raw = memory.read(address + BYTES_DATA, size) if size else b""
        return line_table(self._layout.version, raw, first_line, memory.budget.check)


def _field(head: bytes, offset: int, size: int) -> bytes:
    return head[offset - OBJECT_TYPE : offset - OBJECT_TYPE + size]


def _int(head: bytes, offset: int) -> int:
    return int.from_bytes(_field(head, offset, 4), "little", signed=True)


def _pointer(head: bytes, position: int) -> int:
    return int.from_bytes(head[position : position + 8], "little")


def _field_pointer(head: bytes, offset: int) -> int:
    return _pointer(head, offset - OBJECT_TYPE)


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

    Kept as numbers of 32 bits: lists of 500,000 of them, which a table of 1 MiB may hold, take 40 MB.
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

    From a number on that no compiler writes, its instructions have no line. `check` is called every 4,096 entries.
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
