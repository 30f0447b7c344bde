"""The main interpreter of another process, which can be asked for stacks again and again."""

from __future__ import annotations

from gpuwatch.reader.codes import Codes
from gpuwatch.reader.containment import contained
from gpuwatch.reader.layout import Layout
from gpuwatch.reader.memory import Memory, UnreadableAddressError
from gpuwatch.reader.plan import TornError
from gpuwatch.reader.program import Program
from gpuwatch.reader.refusals import replaced
from gpuwatch.reader.stacks import NoFrameError, ThreadReader
from gpuwatch.reader.threads import Thread, ThreadList
from gpuwatch.reader.types import Stack

_MAIN_AGAIN_EVERY = 64  # looks; a child that was just forked may still name its parent's main thread
_THREAD_ROOT = "_bootstrap"  # threading.Thread's
_DOUBTFUL_AFTER = 8  # torn looks in a row, after which the target may have become another program


class Interpreter:
    """The main interpreter of another process.

    `codes` are those of the process that it is a fork of, if it is one: its own are compared with them first.
    `rejected` counts looks that gave no stack because what they saw was torn at each try.
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
        self._looks = 0
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
            if self._main is None or self._looks % _MAIN_AGAIN_EVERY == 0:
                self._main = self._find_main()
            self._looks += 1
            stack = None if self._main is None else self._stack(self._main)
            if stack is not None and stack.frames[-1].code.name == _THREAD_ROOT:
                # Seldom the main thread's, after a fork in another thread: as a rule the list was torn.
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
