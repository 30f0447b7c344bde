"""Attaching to a running CPython: from a pid to an `Interpreter` that can be asked for stacks."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.reader.memory import PROC, Memory
from gpuwatch.reader.types import CannotReadError, Reason, Stack


class Interpreter:
    """The main interpreter of another process.

    `rejected` counts looks that gave no stack because what they saw was torn.
    """

    def __init__(self, memory: Memory, version: tuple[int, int]) -> None:
        self.memory = memory
        self.pid = memory.pid
        self.start_ticks = memory.start_ticks
        self.version = version
        self.rejected = 0

    def main_stack(self) -> Stack | None:
        """The main thread's stack; None where it was torn at each try.

        Raises:
            CannotReadError: The process is gone.
        """
        raise NotImplementedError

    def stacks(self) -> list[Stack]:
        """The stacks of all threads that run Python, without those that were torn.

        Raises:
            CannotReadError: The process is gone.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Gives all files back. Idempotent."""
        self.memory.close()


def attach(pid: int, *, proc_root: Path = PROC) -> Interpreter:
    """Finds the interpreter of a process.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    raise CannotReadError(Reason.NOT_READY, f"process {pid} cannot be read yet", None)
