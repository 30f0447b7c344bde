"""The main interpreter of a process and its threads, as lists in the target's memory that change while read."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from gpuwatch.foreign import status_fields
from gpuwatch.reader.layout import Layout
from gpuwatch.reader.memory import Gather, Memory, UnreadableAddressError
from gpuwatch.reader.program import Program

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
    try:
        ids = status_fields((memory.directory / "status").read_bytes()).get("NSpid", "").split()
    except OSError:
        return memory.pid
    return int(ids[-1]) if ids else memory.pid
