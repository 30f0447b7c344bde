"""Attaching to a running CPython: from a pid to an `Interpreter` that can be asked for stacks again and again."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gpuwatch.procfs import PROC, namespace_pids
from gpuwatch.reader.codes import Codes
from gpuwatch.reader.layout import (
    COOKIE,
    FIRST_SELF_DESCRIBING,
    NEWEST,
    OLDEST,
    SIZE,
    TABLES,
    FreeThreadedError,
    Layout,
    OffsetsError,
    PrereleaseError,
    UnknownMinorError,
    layout_from,
    version_of,
)
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.program import Program, find_program
from gpuwatch.reader.refusals import (
    OPERATION_SECONDS,
    CannotReadError,
    Reason,
    contained,
    gone,
    in_time,
    not_ready,
    refusal_of,
    replaced,
)
from gpuwatch.reader.stacks import NoFrameError, Stack, ThreadReader, TornError

MAX_THREADS = 4096
_MOST_REMEMBERED = 256
_MAX_INTERPRETERS = 256


@dataclass(frozen=True, slots=True)
class Thread:
    """A PyThreadState and whose it is. `id` is the kernel's where the target keeps that, else the pthread's."""

    address: int
    id: int
    is_main: bool


class ThreadList:
    """The threads of a process, read again by one call as long as none began or ended."""

    def __init__(self, memory: Memory, program: Program, layout: Layout) -> None:
        self._memory = memory
        self._program = program
        self._layout = layout
        self._own_id = own_id(memory)
        self._threads: list[Thread] = []
        self._gather: Gather | None = None
        self._expected = b""

    def read(self) -> list[Thread]:
        """The threads that have run Python, newest first.

        Raises:
            UnreadableAddressError: The list changed so that it led nowhere.
            CannotReadError: The process is gone.
        """
        if self._gather is not None:
            with suppress(UnreadableAddressError):
                if self._gather.read() == self._expected:
                    return self._threads
            self._gather = None
        self._threads = threads_of(self._memory, self._program, self._layout, self._own_id)
        self._remember()
        return self._threads

    def _remember(self) -> None:
        layout = self._layout
        interpreter = main_interpreter(self._memory, self._program, layout)
        if not interpreter or not 0 < len(self._threads) <= _MOST_REMEMBERED:
            return
        identity = layout.thread_id if layout.thread_native_id is None else layout.thread_native_id
        pieces = [(interpreter + layout.threads_head, 8)]
        for thread in self._threads:
            pieces += [(thread.address + layout.thread_next, 8), (thread.address + identity, 8)]
        count = len(pieces)
        if layout.threads_main is not None:
            pieces.append((interpreter + layout.threads_main, 8))
        if layout.runtime_main_thread is not None:
            pieces.append((self._program.runtime + layout.runtime_main_thread, 8))
        gather = Gather(self._memory, pieces)
        found = struct.unpack(f"<{len(pieces)}Q", gather.read())
        addresses = [thread.address for thread in self._threads]
        if [found[0], *found[1:count:2]] == [*addresses, 0]:
            self._gather, self._expected = gather, bytes(gather.view)


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


def threads_of(memory: Memory, program: Program, layout: Layout, own_id: int) -> list[Thread]:
    """The threads that have run Python, newest first.

    `own_id` is the process's id as it knows it itself, which is also its main thread's. The interpreter's note of
    that thread's id is of no use after a fork: 3.11 to 3.13 leave the parent's in it.

    Raises:
        UnreadableAddressError: The list changed so that it led nowhere.
        CannotReadError: The process is gone.
    """
    native = layout.thread_native_id
    interpreter = main_interpreter(memory, program, layout)
    if not interpreter:
        return []
    head = address = memory.pointer(interpreter + layout.threads_head)
    seen: dict[int, int] = {}
    younger = 0
    while address and address not in seen and len(seen) < MAX_THREADS:
        before, following, thread = memory.read_many(
            [
                (address + layout.thread_next - 8, 8),
                (address + layout.thread_next, 8),
                (address + (layout.thread_id if native is None else native), 8),
            ]
        )
        if int.from_bytes(before, "little") != younger:
            raise UnreadableAddressError(address)  # a thread began or ended: what follows may be anything
        seen[address] = int.from_bytes(thread, "little")
        younger, address = address, int.from_bytes(following, "little")
    main = _main_of(memory, program, layout, interpreter, seen, own_id)
    if head and memory.pointer(head + layout.thread_next) != next(islice(seen, 1, None), 0):
        raise UnreadableAddressError(head)  # 3.11 puts a new thread first before it says which one follows
    return [
        Thread(address, own_id if address == main and native is not None else thread, address == main)
        for address, thread in seen.items()
    ]


def _main_of(
    memory: Memory, program: Program, layout: Layout, interpreter: int, threads: dict[int, int], own_id: int
) -> int:
    """The main thread's PyThreadState: as the interpreter says, else by its id, else the oldest.

    Of several with its id it is the oldest: a thread that is being started bears its creator's until it runs.
    """
    oldest_first = dict(reversed(threads.items()))
    if layout.threads_main is not None:
        main = memory.pointer(interpreter + layout.threads_main)
        if main in threads:
            return main
    if layout.runtime_main_thread is not None:
        wanted = memory.pointer(program.runtime + layout.runtime_main_thread)
        ids = memory.read_many([(address + layout.thread_id, 8) for address in oldest_first])
        for address, value in zip(oldest_first, ids, strict=True):
            if int.from_bytes(value, "little") == wanted:
                return address
    for address, thread in oldest_first.items():
        if thread == own_id:
            return address
    return next(iter(oldest_first), 0)


def own_id(memory: Memory) -> int:
    """The process's id as it knows it itself: in a container another one than from outside."""
    return (namespace_pids(memory.pid, memory.proc_root) or [memory.pid])[-1]


_MAIN_AGAIN_EVERY = 64  # samples; a child that was just forked may still name its parent's main thread
_THREAD_ROOT = "_bootstrap"  # threading.Thread's
_DOUBTFUL_AFTER = 8  # torn samples in a row, after which the target may have become another program


class Interpreter:
    """The main interpreter of another process.

    `codes` are those of the process that it is a fork of, if it is one: its own are compared with them first.
    `rejected` counts samples that gave no stack because what they saw was torn at each try.
    """

    def __init__(self, memory: Memory, program: Program, layout: Layout, codes: Codes | None = None) -> None:
        self.memory = memory
        self.budget = memory.budget
        self.layout = layout
        self.pid = memory.pid
        self.start_ticks = memory.start_ticks
        self.version = layout.version
        self.rejected = 0
        self.program = program
        self.codes = Codes(memory, layout, codes)
        self._threads = ThreadList(memory, program, layout)
        self._main: Thread | None = None
        self._sample_count = 0
        self._readers: dict[int, ThreadReader] = {}
        self._torn_in_a_row = 0
        self._last_main: Stack | None = None

    @contained
    def main_stack(self) -> Stack | None:
        """The main thread's stack; None where it was torn at each try, or where the thread runs no Python.

        Raises:
            CannotReadError: The process is gone, runs another program now, or is not to be read any more.
        """
        try:
            if self._main is None or self._sample_count % _MAIN_AGAIN_EVERY == 0:
                self._main = self._find_main()
            self._sample_count += 1
            stack = None if self._main is None else self._stack(self._main)
            if stack is not None and stack.frames[-1].code.name == _THREAD_ROOT:
                # Rarely the main thread's, after a fork in another thread: as a rule the list was torn.
                found, self._main = self._main, self._find_main()
                stack = stack if self._main == found else None
            return stack
        except UnreadableAddressError:
            self._check_program()
            self._note_torn()
            return None

    @contained
    def stacks(self) -> list[Stack]:
        """The stacks of all threads that run Python, the main thread's first, without those that were torn.

        Raises:
            CannotReadError: The process is gone, runs another program now, or is not to be read any more.
        """
        try:
            threads = self._threads.read()
        except UnreadableAddressError:
            self._check_program()
            self._note_torn()
            return []
        living = {thread.address for thread in threads}
        self._readers = {address: reader for address, reader in self._readers.items() if address in living}
        ordered = sorted(threads, key=lambda thread: not thread.is_main)
        return [stack for stack in map(self._stack, ordered) if stack is not None]

    def close(self) -> None:
        """Gives all files back. Idempotent."""
        self.memory.close()

    def _find_main(self) -> Thread | None:
        return next((thread for thread in self._threads.read() if thread.is_main), None)

    def _stack(self, thread: Thread) -> Stack | None:
        reader = self._readers.get(thread.address)
        if reader is None:
            reader = self._readers[thread.address] = ThreadReader(self.memory, self.layout, self.codes, thread.address)
        try:
            frames = reader.frames()
        except NoFrameError:
            return None
        except TornError:
            self._note_torn()
            return None
        self._torn_in_a_row = 0
        last = self._last_main
        if last is not None and thread.is_main and last.frames is frames and last.thread == thread.id:
            return last
        stack = Stack(thread.id, thread.is_main, frames)
        if thread.is_main:
            self._last_main = stack
        return stack

    def _note_torn(self) -> None:
        self.rejected += 1
        self._main = None
        self._torn_in_a_row += 1
        if self._torn_in_a_row >= _DOUBTFUL_AFTER:
            self._torn_in_a_row = 0
            self._check_program()

    def _check_program(self) -> None:
        """Whether the process still runs the program that was found in it: exec keeps pid and start time.

        Raises:
            CannotReadError: It does not.
        """
        if not self.program.lies_in(self.memory):
            raise replaced(self.pid)


def attach(
    pid: int,
    *,
    proc_root: Path = PROC,
    start_ticks: int | None = None,
    relative: Interpreter | None = None,
    cpu_seconds: float = OPERATION_SECONDS,
) -> Interpreter:
    """Finds the interpreter of a process.

    Args:
        pid: The process.
        proc_root: The /proc to read.
        start_ticks: If given, it is attached to only if it started then.
        relative: An interpreter of which this one may be a fork, or a fork of the same: what a fork shares with it
            need not be found again, which is nearly all that attaching costs. It may be closed by now.
        cpu_seconds: The CPU time that it may take.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    memory = Memory(pid, proc_root)
    try:
        if start_ticks is not None and memory.start_ticks != start_ticks:
            raise gone(pid)
        return in_time(pid, memory.budget, lambda: interpreter_in(memory, relative, cpu_seconds))
    except BaseException:
        memory.close()
        raise


def interpreter_in(
    memory: Memory, relative: Interpreter | None = None, cpu_seconds: float = OPERATION_SECONDS
) -> Interpreter:
    """The interpreter in a process's memory; the arguments and refusals are those of `attach`.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    memory.budget.begin(cpu_seconds)
    try:
        shares = relative is not None and relative.program.lies_in(memory)
        if relative is not None and shares:
            program, layout = relative.program, relative.layout
        else:
            program = find_program(memory)
            layout = _layout(memory, program)
        _check_state(memory, program, layout)
        return Interpreter(memory, program, layout, relative.codes if relative is not None and shares else None)
    except CannotReadError:
        raise
    except UnreadableAddressError:
        raise not_ready(memory.pid) from None
    except Exception as error:
        raise refusal_of(memory.pid, error) from error


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
        raise CannotReadError(
            Reason.NO_SYMBOLS,
            f"the Python of process {pid} was stripped of the symbols that name its version",
            "use a Python that is not stripped, or gpuwatch run",
        )
    if version < OLDEST:
        raise _other_version(pid, version, f"older than {OLDEST[0]}.{OLDEST[1]}, the oldest that gpuwatch reads")
    if version > NEWEST:
        raise _other_version(pid, version, f"newer than {NEWEST[0]}.{NEWEST[1]}, the newest this gpuwatch knows")
    if version < FIRST_SELF_DESCRIBING:
        return TABLES[version]
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
        raise _other_build(pid, "a Python with contradictory version information", "use gpuwatch run")
    return layout


def _check_state(memory: Memory, program: Program, layout: Layout) -> None:
    """Whether the interpreter is there already.

    Raises:
        CannotReadError: It is still starting.
    """
    interpreter = main_interpreter(memory, program, layout)
    if not interpreter or not memory.pointer(interpreter + layout.threads_head):
        raise not_ready(memory.pid)


def _other_build(pid: int, what: str, cure: str) -> CannotReadError:
    return CannotReadError(Reason.BUILD, f"process {pid} runs {what}, whose stacks are not read", cure)


def _other_version(pid: int, version: tuple[int, int], why: str) -> CannotReadError:
    return CannotReadError(
        Reason.VERSION,
        f"process {pid} runs Python {version[0]}.{version[1]}, {why}",
        "use gpuwatch run, which reads no memory",
    )


__all__ = ["Interpreter", "attach"]
