"""Attaching to a running CPython: from a pid to an `Interpreter` that can be asked for stacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuwatch.reader.codes import Codes
from gpuwatch.reader.debug_offsets import (
    COOKIE,
    NEWEST,
    SIZE,
    FreeThreadedError,
    OffsetsError,
    PrereleaseError,
    UnknownMinorError,
    layout_from,
    version_of,
)
from gpuwatch.reader.layout import FIRST_SELF_DESCRIBING, TABLES, Layout
from gpuwatch.reader.memory import PROC, Memory, UnreadableAddressError
from gpuwatch.reader.plan import TornError
from gpuwatch.reader.program import OLDEST, Program, find_program
from gpuwatch.reader.refusals import gone, not_ready, refuse, replaced
from gpuwatch.reader.stacks import NoFrameError, ThreadReader
from gpuwatch.reader.types import CannotReadError, Reason, Stack

MAX_THREADS = 4096
_MAX_INTERPRETERS = 256
_DOUBTFUL_AFTER = 8  # torn looks in a row, after which the target may have become another program


class Interpreter:
    """The main interpreter of another process.

    `rejected` counts looks that gave no stack because what they saw was torn at each try.
    """

    def __init__(self, memory: Memory, program: Program, layout: Layout) -> None:
        self.memory = memory
        self.layout = layout
        self.pid = memory.pid
        self.start_ticks = memory.start_ticks
        self.version = layout.version
        self.rejected = 0
        self._program = program
        self._codes = Codes(memory, layout)
        self._own_id = _own_id(memory)
        self._main: ThreadReader | None = None
        self._main_thread = 0
        self._others: dict[int, ThreadReader] = {}
        self._torn_in_a_row = 0

    def main_stack(self) -> Stack | None:
        """The main thread's stack; None where it was torn at each try, or where the thread runs no Python.

        Raises:
            CannotReadError: The process is gone.
        """
        try:
            if self._main is None:
                self._main, self._main_thread = self._find_main()
            frames = self._main.frames()
        except NoFrameError:
            self._torn_in_a_row = 0
            return None
        except (TornError, UnreadableAddressError):
            self._note_torn()
            return None
        self._torn_in_a_row = 0
        return Stack(self._main_thread, True, frames)

    def stacks(self) -> list[Stack]:
        """The stacks of all threads that run Python, the main thread's first, without those that were torn.

        Raises:
            CannotReadError: The process is gone.
        """
        found: list[Stack] = []
        try:
            threads = list(self._threads())
        except UnreadableAddressError:
            self._note_torn()
            return found
        main = self._main_of(threads)
        self._others = {address: reader for address, reader in self._others.items() if address in dict(threads)}
        for address, thread in threads:
            reader = self._others.get(address)
            if reader is None:
                reader = self._others[address] = ThreadReader(self.memory, self.layout, self._codes, address)
            try:
                frames = reader.frames()
            except NoFrameError:
                continue
            except TornError:
                self.rejected += 1
                continue
            is_main = address == main
            found.append(Stack(self._own_id if is_main and self._has_native_ids else thread, is_main, frames))
        return sorted(found, key=lambda stack: not stack.is_main)

    def close(self) -> None:
        """Gives all files back. Idempotent."""
        self.memory.close()

    @property
    def _has_native_ids(self) -> bool:
        return self.layout.thread_native_id is not None

    def _note_torn(self) -> None:
        self.rejected += 1
        self._main = None
        self._torn_in_a_row += 1
        if self._torn_in_a_row >= _DOUBTFUL_AFTER:
            self._torn_in_a_row = 0
            self._check_program()

    def _check_program(self) -> None:
        """Whether the process still runs the program that was found in it: exec keeps pid and start time."""
        image = self._program.image
        try:
            same = self.memory.read(image.base, len(image.header)) == image.header
        except UnreadableAddressError:
            same = False
        if not same:
            raise replaced(self.pid)

    def _find_main(self) -> tuple[ThreadReader, int]:
        threads = list(self._threads())
        if not threads:
            raise NoFrameError
        address = self._main_of(threads)
        thread = self._own_id if self._has_native_ids else dict(threads)[address]
        return ThreadReader(self.memory, self.layout, self._codes, address), thread

    def _threads(self) -> Iterator[tuple[int, int]]:
        """Each PyThreadState with its thread's id, newest first."""
        layout, memory = self.layout, self.memory
        id_offset = layout.thread_id if layout.thread_native_id is None else layout.thread_native_id
        interpreter = main_interpreter(memory, self._program, layout)
        if not interpreter:
            return
        address = memory.pointer(interpreter + layout.threads_head)
        seen: set[int] = set()
        while address and address not in seen and len(seen) < MAX_THREADS:
            seen.add(address)
            following, thread = memory.read_many([(address + layout.thread_next, 8), (address + id_offset, 8)])
            yield address, int.from_bytes(thread, "little")
            address = int.from_bytes(following, "little")

    def _main_of(self, threads: list[tuple[int, int]]) -> int:
        """The main thread's PyThreadState: as the interpreter says, else by its id, else the oldest."""
        if not threads:
            return 0
        layout, memory = self.layout, self.memory
        addresses = dict(threads)
        if layout.threads_main is not None:
            interpreter = main_interpreter(memory, self._program, layout)
            main = memory.pointer(interpreter + layout.threads_main)
            if main in addresses:
                return main
        if layout.runtime_main_thread is not None:
            wanted = memory.pointer(self._program.runtime + layout.runtime_main_thread)
            ids = memory.read_many([(address + layout.thread_id, 8) for address in addresses])
            for address, value in zip(addresses, ids, strict=True):
                if int.from_bytes(value, "little") == wanted:
                    return address
        for address, thread in threads:
            if thread == self._own_id:
                return address
        return threads[-1][0]


def attach(pid: int, *, proc_root: Path = PROC, start_ticks: int | None = None) -> Interpreter:
    """Finds the interpreter of a process; with `start_ticks` only if it started then.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    memory = Memory(pid, proc_root)
    try:
        if start_ticks is not None and memory.start_ticks != start_ticks:
            raise gone(pid)
        program = find_program(memory)
        layout = _layout(memory, program)
        _check_state(memory, program, layout)
        return Interpreter(memory, program, layout)
    except UnreadableAddressError:
        memory.close()
        raise not_ready(pid) from None
    except BaseException:
        memory.close()
        raise


def main_interpreter(memory: Memory, program: Program, layout: Layout) -> int:
    """The main interpreter's PyInterpreterState, 0 where there is none yet."""
    if layout.interpreters_main is not None:
        return memory.pointer(program.runtime + layout.interpreters_main)
    address = memory.pointer(program.runtime + layout.interpreters_head)
    for _ in range(_MAX_INTERPRETERS):
        if not address:
            break
        number, following = memory.read_many(
            [(address + layout.interpreter_id, 8), (address + layout.interpreter_next, 8)]
        )
        if not any(number):
            return address
        address = int.from_bytes(following, "little")
    return 0


def _layout(memory: Memory, program: Program) -> Layout:
    """The layout of the interpreter's version.

    Raises:
        CannotReadError: It is of a version or build that is not known.
    """
    pid = memory.pid
    if program.debug_build:
        raise _other_build(pid, "a debug build of Python", "train with a release build")
    raw = b""
    if program.version is None or program.version >= FIRST_SELF_DESCRIBING:
        raw = memory.read(program.runtime, SIZE)
    version = program.version or version_of(raw)
    if version is None:
        raise refuse(
            Reason.NO_SYMBOLS,
            f"the Python of process {pid} was stripped of the symbols that tell its version",
            "train with a Python that is not stripped, or use gpuwatch run",
        )
    if version in TABLES:
        return TABLES[version]
    if version < OLDEST:
        raise _other_version(pid, version, f"older than {OLDEST[0]}.{OLDEST[1]}, the oldest that is read")
    if version > NEWEST:
        raise _other_version(pid, version, f"newer than {NEWEST[0]}.{NEWEST[1]}, the newest this gpuwatch knows")
    if raw[: len(COOKIE)] == bytes(len(COOKIE)):
        raise not_ready(pid)
    return _described(pid, version, raw)


def _described(pid: int, version: tuple[int, int], raw: bytes) -> Layout:
    try:
        layout = layout_from(raw)
    except FreeThreadedError:
        raise _other_build(
            pid, "a free-threaded build of Python (no GIL)", "use gpuwatch run, or train with the default build"
        ) from None
    except PrereleaseError:
        raise _other_version(pid, version, "a pre-release, whose layout is not final") from None
    except UnknownMinorError:
        raise _other_version(pid, version, "not known to this gpuwatch") from None
    except OffsetsError as error:
        raise _other_build(pid, f"an unusual build of Python ({error})", "use gpuwatch run") from None
    if layout.version != version:
        raise _other_build(pid, "a Python that contradicts itself about its version", "use gpuwatch run")
    return layout


def _check_state(memory: Memory, program: Program, layout: Layout) -> None:
    """Whether the interpreter is there already.

    Raises:
        CannotReadError: It is still starting.
    """
    interpreter = main_interpreter(memory, program, layout)
    if not interpreter or not memory.pointer(interpreter + layout.threads_head):
        raise not_ready(memory.pid)


def _own_id(memory: Memory) -> int:
    """The process's id as it knows it itself: in a container another one than from outside."""
    try:
        lines = (memory.directory / "status").read_text(errors="replace").splitlines()
    except OSError:
        return memory.pid
    ids = [line.split()[-1] for line in lines if line.startswith("NSpid:")]
    return int(ids[0]) if ids else memory.pid


def _other_build(pid: int, what: str, cure: str) -> CannotReadError:
    return refuse(Reason.BUILD, f"process {pid} runs {what}, whose stacks are not read", cure)


def _other_version(pid: int, version: tuple[int, int], why: str) -> CannotReadError:
    return refuse(
        Reason.VERSION,
        f"process {pid} runs Python {version[0]}.{version[1]}, {why}",
        "use gpuwatch run, which reads no memory",
    )
