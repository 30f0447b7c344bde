"""Finds the Python in a process: which mapped file holds the interpreter's state, where, and of which version.

The version comes from the interpreter itself (`Py_Version`, the debug offsets, which functions it exports), never
from the name of a file: names lie in virtual environments, containers and renamed copies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

from gpuwatch.foreign import use_foreign, use_mapped
from gpuwatch.reader.elf import AARCH64, X86_64, Image, NotElfError, file_address, mapped_image
from gpuwatch.reader.maps import DELETED, Mapping
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.refusals import not_ready, refuse
from gpuwatch.reader.types import CannotReadError, Reason

OLDEST = (3, 8)
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
    """The interpreter of a process: where `_PyRuntime` is, and its version if its symbols tell (3.13+ tells itself)."""

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
        raise refuse(
            Reason.NOT_PYTHON,
            f"process {memory.pid} runs PyPy, whose stacks only PyPy can read",
            "use gpuwatch run, or train with CPython",
        )
    runtime = image.exported("_PyRuntime")
    if runtime is None and _looks_like_python(image.path):
        runtime = _from_file(memory, image, mapping, "_PyRuntime", ".PyRuntime")
    if runtime is None:
        if image.exported("PyInterpreterState_Head") or image.exported("Py_Initialize"):
            raise refuse(
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
    seen = 0
    for name, version in _FIRST_EXPORTED_IN:
        address = image.exported(name)
        if address is None:
            continue
        seen += 1
        if version is not None:
            return version
        value = int.from_bytes(memory.read(address, 4), "little")
        return value >> 24, value >> 16 & 0xFF
    if image.exported("Py_Initialize") is not None:
        return (3, 7)  # _PyRuntime came with 3.7
    for name, version in _FIRST_EXPORTED_IN:
        address = _from_file(memory, image, mapping, name, None)
        if address is None:
            continue
        if version is not None:
            return version
        value = int.from_bytes(memory.read(address, 4), "little")
        return value >> 24, value >> 16 & 0xFF
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
    program = _link(memory.directory / "exe")

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
    if mapping.path == _link(memory.directory / "exe"):
        yield by_link("exe")
    path = mapping.path.removesuffix(os.fsdecode(DELETED))
    yield by_name(path)
    # The kernel shows a name as this process sees it where the target's root lies below this one's.
    root = _link(memory.directory / "root")
    if root is not None and root != "/" and path.startswith(f"{root}/"):
        yield by_name(path[len(root) :])


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None


def _check_machine(pid: int, image: Image) -> None:
    if image.bits != 64:
        raise refuse(
            Reason.BUILD,
            f"process {pid} is a 32-bit program, and only 64-bit Pythons are read",
            "train with a 64-bit Python",
        )
    if image.machine not in (X86_64, AARCH64):
        raise refuse(
            Reason.ARCHITECTURE,
            f"process {pid} is a program for a processor (ELF machine {image.machine}) whose Pythons are not read; "
            "x86-64 and aarch64 are",
            "use gpuwatch run, which reads no memory",
        )


def _no_python(memory: Memory, first: Mapping | None, named_python: bool) -> CannotReadError:
    pid = memory.pid
    if first is None:
        return refuse(
            Reason.NOT_PYTHON, f"process {pid} has no program (a thread of the kernel?)", "name a training process"
        )
    with suppress(NotElfError):
        if mapped_image(memory, first.start, first.path).needs("libpython"):
            return not_ready(pid)
    name = PurePath(first.path).name
    if named_python:
        return refuse(
            Reason.NO_SYMBOLS,
            f"process {pid} runs {name}, which was stripped of the symbol that leads to its stacks (_PyRuntime)",
            "train with a Python that is not stripped, or use gpuwatch run",
        )
    return refuse(
        Reason.NOT_PYTHON, f"process {pid} runs {name}, not Python", "list what trains here: gpuwatch --attach"
    )
