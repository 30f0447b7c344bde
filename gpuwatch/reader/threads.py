"""The main interpreter of a process and its threads, as lists in the target's memory that change while read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from gpuwatch.reader.layout import Layout
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.program import Program

MAX_THREADS = 4096
_MAX_INTERPRETERS = 256


@dataclass(frozen=True, slots=True)
class Thread:
    """A PyThreadState and whose it is. `id` is the kernel's where the target keeps that, else the pthread's."""

    address: int
    id: int
    is_main: bool


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
        lines = (memory.directory / "status").read_text(errors="replace").splitlines()
    except OSError:
        return memory.pid
    ids = [line.split()[-1] for line in lines if line.startswith("NSpid:")]
    return int(ids[0]) if ids else memory.pid
