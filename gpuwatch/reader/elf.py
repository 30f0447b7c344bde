"""A program or library as it lies in another process's memory, and the addresses of its symbols.

Exported symbols are looked up in the mapped dynamic section: that needs no file, so a deleted binary, another mount
namespace and removed section headers make no difference. Only what is never mapped (`.symtab`, the section headers)
is read from the file.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

from gpuwatch.reader.memory import Memory, UnreadableAddressError

MAGIC = b"\x7fELF"
CLASS_64 = 2
X86_64 = 62
AARCH64 = 183

_EXECUTABLE = 2  # ET_EXEC: mapped at the addresses it names
_LOAD, _DYNAMIC = 1, 2  # p_type
_SYMTAB = 2  # sh_type
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 1, 4, 5, 6, 0x6FFFFEF5

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_CHAIN = 4096
_MAX_SECTION_BYTES = 64 << 20
_SYMBOLS_AT_ONCE = 16_384
_MOST_POSITIONS = 256  # of one name's text in a string table; a linker writes it once, and others may end with it


class NotElfError(Exception):
    """What was taken for a program is none, or is cut short."""


@dataclass(slots=True)
class Image:
    """A mapped ELF file. `base` is where its first byte lies, `bias` what its own addresses are shifted by."""

    memory: Memory
    base: int
    path: str
    bits: int
    machine: int
    bias: int
    header: bytes
    _dynamic: dict[int, int] = field(default_factory=dict)
    _needed: list[int] = field(default_factory=list)

    def exported(self, name: str) -> int | None:
        """The address of an exported symbol."""
        if not {_DT_STRTAB, _DT_SYMTAB} <= self._dynamic.keys():
            return None
        try:
            for index in self._buckets(name):
                entry = self.memory.read(self._dynamic[_DT_SYMTAB] + index * _SYMBOL.size, _SYMBOL.size)
                name_offset, _, _, section, value, _ = _SYMBOL.unpack(entry)
                if section and self._string(name_offset, len(name) + 1) == name:
                    return int(value) + self.bias
        except UnreadableAddressError:
            return None
        return None

    def needs(self, name: str) -> bool:
        """Whether it is linked with a library whose name contains `name`."""
        try:
            return any(name in self.memory.text(self._dynamic[_DT_STRTAB] + offset, 256) for offset in self._needed)
        except (UnreadableAddressError, KeyError):
            return False

    def _string(self, offset: int, size: int) -> str:
        found = self.memory.read(self._dynamic[_DT_STRTAB] + offset, size)
        return found.split(b"\0", 1)[0].decode(errors="replace")

    def _buckets(self, name: str) -> Iterator[int]:
        if _DT_GNU_HASH in self._dynamic:
            return self._gnu_bucket(name.encode())
        if _DT_HASH in self._dynamic:
            return self._sysv_bucket(name.encode())
        return iter(())

    def _gnu_bucket(self, name: bytes) -> Iterator[int]:
        table = self._dynamic[_DT_GNU_HASH]
        buckets, first, bloom, _ = struct.unpack("<IIII", self.memory.read(table, 16))
        if not buckets:
            return
        wanted = 5381
        for byte in name:
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        start = table + 16 + bloom * 8
        index = _u32(self.memory, start + 4 * (wanted % buckets))
        chains = start + 4 * buckets
        for position in range(index, index + _MAX_CHAIN):
            if position < first:
                return
            value = _u32(self.memory, chains + 4 * (position - first))
            if value | 1 == wanted | 1:
                yield position
            if value & 1:
                return

    def _sysv_bucket(self, name: bytes) -> Iterator[int]:
        table = self._dynamic[_DT_HASH]
        buckets, _ = struct.unpack("<II", self.memory.read(table, 8))
        if not buckets:
            return
        wanted = 0
        for byte in name:
            wanted = (wanted << 4) + byte
            high = wanted & 0xF0000000
            wanted = (wanted ^ (high >> 24)) & ~high & 0xFFFFFFFF
        index = _u32(self.memory, table + 8 + 4 * (wanted % buckets))
        for _ in range(_MAX_CHAIN):
            if not index:
                return
            yield index
            index = _u32(self.memory, table + 8 + 4 * (buckets + index))


def mapped_image(memory: Memory, base: int, path: str) -> Image:
    """The image whose first byte is mapped at `base`.

    Raises:
        NotElfError: It is none.
    """
    try:
        head = memory.read(base, _HEADER.size)
    except UnreadableAddressError:
        raise NotElfError(path) from None
    if head[:4] != MAGIC or head[5] != 1:
        raise NotElfError(path)
    machine = int.from_bytes(head[18:20], "little")
    if head[4] != CLASS_64:
        return Image(memory, base, path, 32, machine, 0, head)
    fields = _HEADER.unpack(head)
    kind, segments_at, segment_size, segment_count = fields[1], fields[5], fields[9], fields[10]
    if segment_size != _SEGMENT.size or not 0 < segment_count < 256:
        raise NotElfError(path)
    try:
        raw = memory.read(base + segments_at, segment_size * segment_count)
    except UnreadableAddressError:
        raise NotElfError(path) from None
    segments = [_SEGMENT.unpack_from(raw, index * segment_size) for index in range(segment_count)]
    loaded = [segment for segment in segments if segment[0] == _LOAD]
    if not loaded:
        raise NotElfError(path)
    first = min(loaded, key=lambda segment: int(segment[2]))
    bias = 0 if kind == _EXECUTABLE else base - (first[3] - first[2])
    image = Image(memory, base, path, 64, machine, bias, head)
    for segment in segments:
        if segment[0] == _DYNAMIC:
            _read_dynamic(image, segment[3] + bias, segment[6])
    return image


def file_address(file: BinaryIO, image: Image, name: str, section: str | None = None) -> int | None:
    """The address of a symbol that only the file names, or else of the section called `section`.

    The file counts only if it starts as the mapped image does.
    """
    head = file.read(_HEADER.size)
    if head != image.header:
        return None
    fields = _HEADER.unpack(head)
    sections_at, section_size, count, names_index = fields[6], fields[11], fields[12], fields[13]
    if not sections_at or section_size != _SECTION.size or names_index >= count:
        return None
    raw = _at(file, sections_at, section_size * count)
    if len(raw) < section_size * count:
        return None
    sections = [_SECTION.unpack_from(raw, index * section_size) for index in range(count)]
    # A linked file has at most one (gABI, "Sections"): further ones would only cost time.
    table = next((entry for entry in sections if entry[1] == _SYMTAB and entry[6] < count), None)
    if table is not None:
        value = _symtab_value(file, table, sections[table[6]], name.encode(), image.memory.budget.check)
        if value is not None:
            return value + image.bias
    if section is not None:
        names = _at(file, sections[names_index][4], sections[names_index][5])
        wanted = section.encode() + b"\0"
        for entry in sections:
            if names[entry[0] : entry[0] + len(wanted)] == wanted:
                return int(entry[3]) + image.bias
    return None


def _symtab_value(
    file: BinaryIO, table: tuple[int, ...], strings: tuple[int, ...], name: bytes, check: Callable[[], None]
) -> int | None:
    names = _at(file, strings[4], strings[5])
    # Linkers let one name be the end of another, so its start says nothing.
    found = islice(re.finditer(re.escape(name) + b"\0", names), _MOST_POSITIONS)
    positions = {match.start() for match in found}
    if not positions:
        return None
    symbols = memoryview(_at(file, table[4], table[5]))
    step = _SYMBOLS_AT_ONCE * _SYMBOL.size
    for start in range(0, len(symbols) // _SYMBOL.size * _SYMBOL.size, step):
        check()
        part = symbols[start : start + step]
        for name_offset, _, _, section, value, _ in _SYMBOL.iter_unpack(part[: len(part) // 24 * 24]):
            if name_offset in positions and section:
                return int(value)
    return None


def _read_dynamic(image: Image, address: int, size: int) -> None:
    try:
        raw = image.memory.read(address, min(size, 65536) // 16 * 16)
    except UnreadableAddressError:
        return
    for tag, value in struct.iter_unpack("<QQ", raw):
        if tag == 0:
            return
        if tag == _DT_NEEDED:
            image._needed.append(value)
        elif tag in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH):
            # glibc's loader writes the final address into the mapped table, musl's leaves the file's.
            image._dynamic[tag] = value if value >= image.bias else value + image.bias


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    """A part of a file, empty where the file does not hold all of it; a sparse one holds terabytes."""
    if size > _MAX_SECTION_BYTES or offset + size > os.fstat(file.fileno()).st_size:
        return b""
    file.seek(offset)
    return file.read(size)


def _u32(memory: Memory, address: int) -> int:
    return int.from_bytes(memory.read(address, 4), "little")
