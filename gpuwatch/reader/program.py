"""Finds the Python in a process: which mapped file holds the interpreter's state, where, and of which version.

The version comes from the interpreter itself (`Py_Version`, the debug offsets, which functions it exports), never
from the name of a file: names lie in virtual environments, containers and renamed copies. Exported symbols are looked
up in the mapped dynamic section: that needs no file, so a deleted binary, another mount namespace and removed section
headers make no difference. Only what is never mapped (`.symtab`, the section headers) is read from the file.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePath
from typing import BinaryIO

from gpuwatch.foreign import use_foreign, use_mapped
from gpuwatch.procfs import DELETED, Mapping, link_target
from gpuwatch.reader.layout import OLDEST
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.refusals import CannotReadError, Reason, not_ready

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


_MAX_FILES = 1024
_LARGEST_PROGRAM_BYTES = 4 << 30  # only parts of it are read
_Way = Callable[[Callable[[BinaryIO], int | None]], int | None]
_FIRST_EXPORTED_IN = (
    ("Py_Version", None),
    ("PyModule_AddObjectRef", (3, 10)),
    ("PyModule_AddType", (3, 9)),
    ("PyCode_NewWithPosOnlyArgs", (3, 8)),
)
"""Public functions of the C API by the minor version that brought them; `Py_Version` holds the version itself."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process's interpreter: where `_PyRuntime` is, and its version if its symbols give it (3.13+ states its own)."""

    image: Image
    runtime: int
    version: tuple[int, int] | None
    debug_build: bool

    def lies_in(self, memory: Memory) -> bool:
        """Whether a process has this program, at this address.

        Raises:
            CannotReadError: The process is gone, or may not be read.
        """
        try:
            return memory.read(self.image.base, len(self.image.header)) == self.image.header
        except UnreadableAddressError:
            return False


def find_program(memory: Memory) -> Program:
    """The image that holds the interpreter's state; of several the one that is in use.

    Raises:
        CannotReadError: There is none that can be read; says why.
    """
    files = _mapped_files(memory)
    first = files[0] if files else None
    refusal: CannotReadError | None = None
    unused: Program | None = None
    named_python = False
    for mapping in files:
        try:
            image = mapped_image(memory, mapping.start, mapping.path)
        except NotElfError:
            continue
        if mapping is first:
            _check_machine(memory.pid, image)
        elif image.bits != 64:
            continue
        try:
            program = _python_in(memory, image, mapping)
        except CannotReadError as found:
            refusal = refusal or found
            continue
        if program is not None:
            if _in_use(memory, program):
                return program
            unused = unused or program
        named_python = named_python or (mapping is first and _looks_like_python(mapping.path))
    if refusal is not None:
        raise refusal
    if unused is not None:
        return unused
    raise _no_python(memory, first, named_python)


def _python_in(memory: Memory, image: Image, mapping: Mapping) -> Program | None:
    """The interpreter in one image, None where there is none.

    Raises:
        CannotReadError: There is one, but of a kind that is not read.
    """
    if image.exported("pypy_main_startup") or image.exported("rpython_startup_code"):
        raise CannotReadError(
            Reason.NOT_PYTHON,
            f"process {memory.pid} runs PyPy, whose stacks only PyPy can read",
            "use gpuwatch run, or train with CPython",
        )
    runtime = image.exported("_PyRuntime")
    if runtime is None and _looks_like_python(image.path):
        runtime = _from_file(memory, image, mapping, "_PyRuntime", ".PyRuntime")
    if runtime is None:
        if image.exported("PyInterpreterState_Head") or image.exported("Py_Initialize"):
            raise CannotReadError(
                Reason.VERSION,
                f"process {memory.pid} runs a Python older than {OLDEST[0]}.{OLDEST[1]}",
                f"train with Python {OLDEST[0]}.{OLDEST[1]} or newer",
            )
        return None
    return Program(
        image,
        runtime,
        _version(memory, image, mapping),
        debug_build=image.exported("_Py_NegativeRefcount") is not None,
    )


def _version(memory: Memory, image: Image, mapping: Mapping) -> tuple[int, int] | None:
    for is_exported in (True, False):
        for name, version in _FIRST_EXPORTED_IN:
            address = image.exported(name) if is_exported else _from_file(memory, image, mapping, name, None)
            if address is None:
                continue
            if version is not None:
                return version
            value = int.from_bytes(memory.read(address, 4), "little")
            return value >> 24, value >> 16 & 0xFF
        if is_exported and image.exported("Py_Initialize") is not None:
            return (3, 7)  # _PyRuntime came with 3.7
    return None


def _in_use(memory: Memory, program: Program) -> bool:
    """Whether the runtime was initialised: a program may carry one Python and run another's library."""
    with suppress(UnreadableAddressError):
        return any(memory.read(program.runtime, 4096))
    return False


def _mapped_files(memory: Memory) -> list[Mapping]:
    """The first mapping of each file, the program first, then what is named like Python, then the others."""
    found: dict[str, Mapping] = {}
    for mapping in memory.maps():
        if mapping.inode and not mapping.offset:
            found.setdefault(mapping.path, mapping)
    program = link_target(f"{memory.directory}/exe")

    def rank(mapping: Mapping) -> tuple[bool, bool, bool]:
        memory.budget.charge(0)
        name = mapping.path.rpartition("/")[2]
        return mapping.path != program, not _looks_like_python(name), ".so" in name

    return sorted(found.values(), key=rank)[:_MAX_FILES]


def _looks_like_python(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith(("python", "libpython", "pypy", "libpypy"))


def _from_file(memory: Memory, image: Image, mapping: Mapping, name: str, section: str | None) -> int | None:
    def search(file: BinaryIO) -> int | None:
        return file_address(file, image, name, section)

    memory.budget.check()  # the operation's end, by the clock of this thread and not of the one that searches
    for way in _ways(memory, mapping):
        with suppress(OSError):
            found = way(search)
            if found is not None:
                return found
    return None


def _ways(memory: Memory, mapping: Mapping) -> Iterator[_Way]:
    """Each way that may lead to the file of a mapping; a deleted one is only reached by the kernel's own links.

    Those need rights that a user lacks (`map_files`) or exist for the program alone.
    """
    start_ticks, proc_root = memory.start_ticks, memory.proc_root

    def by_link(link: str) -> _Way:
        return lambda use: use_mapped(
            memory.pid, link, _LARGEST_PROGRAM_BYTES, use, start_ticks=start_ticks, proc_root=proc_root
        )

    def by_name(path: str) -> _Way:
        return lambda use: use_foreign(
            memory.pid, path, _LARGEST_PROGRAM_BYTES, use, start_ticks=start_ticks, proc_root=proc_root
        )

    yield by_link(f"map_files/{mapping.name}")
    if mapping.path == link_target(f"{memory.directory}/exe"):
        yield by_link("exe")
    path = mapping.path.removesuffix(os.fsdecode(DELETED))
    yield by_name(path)
    # The kernel shows a name as this process sees it where the target's root lies below this one's.
    root = link_target(f"{memory.directory}/root")
    if root is not None and root != "/" and path.startswith(f"{root}/"):
        yield by_name(path[len(root) :])


def _check_machine(pid: int, image: Image) -> None:
    if image.bits != 64:
        raise CannotReadError(
            Reason.BUILD,
            f"process {pid} is a 32-bit program, and only 64-bit Pythons are read",
            "train with a 64-bit Python",
        )
    if image.machine not in (X86_64, AARCH64):
        raise CannotReadError(
            Reason.ARCHITECTURE,
            f"process {pid} is a program for a processor (ELF machine {image.machine}) whose Pythons are not read; "
            "x86-64 and aarch64 are",
            "use gpuwatch run, which reads no memory",
        )


def _no_python(memory: Memory, first: Mapping | None, named_python: bool) -> CannotReadError:
    pid = memory.pid
    if first is None:
        return CannotReadError(
            Reason.NOT_PYTHON, f"process {pid} runs no program (a kernel thread?)", "name a training process"
        )
    with suppress(NotElfError):
        if mapped_image(memory, first.start, first.path).needs("libpython"):
            return not_ready(pid)
    name = PurePath(first.path).name
    if named_python:
        return CannotReadError(
            Reason.NO_SYMBOLS,
            f"process {pid} runs {name}, which was stripped of the symbol that leads to its stacks (_PyRuntime)",
            "use a Python that is not stripped, or gpuwatch run",
        )
    return CannotReadError(
        Reason.NOT_PYTHON, f"process {pid} runs {name}, not Python", "list what trains here: gpuwatch --attach"
    )
