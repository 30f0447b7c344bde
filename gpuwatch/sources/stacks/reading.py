"""What this room needs of the reader: a process whose stacks can be asked for, and its loaders' counters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from gpuwatch.procfs import read_stat
from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.attach import attach as attach_to
from gpuwatch.reader.loaders import LoaderReader, LoaderState
from gpuwatch.reader.stacks import Frame, Stack


class Readable(Protocol):
    """Another Python process; each call raises `CannotReadError` once it is gone."""

    pid: int
    start_ticks: int
    version: tuple[int, int]

    def main_stack(self) -> Stack | None:
        """The main thread's stack; None where it was torn."""

    def stacks(self) -> list[Stack]:
        """The stacks of all threads."""

    def close(self) -> None:
        """Gives all files back."""


class Counters(Protocol):
    """The loader iterators of one process."""

    def state(self, stack: Stack) -> LoaderState | None:
        """The innermost loop over a loader's iterator that the stack stands in."""

    def recheck(self, state: LoaderState) -> int | None:
        """The same iterator's count now; None where it is gone."""

    def integer(self, frame: Frame, name: str) -> int | None:
        """The int that a variable of the frame holds."""


Attach = Callable[[int, Path], "tuple[Readable, Counters]"]
"""(pid, /proc) -> the process; raises `CannotReadError`."""


class AttachReader:
    """Attaches the reader, and keeps what forks share: workers of a trainer, ranks of a launcher that forks them."""

    def __init__(self) -> None:
        self._attached: WeakValueDictionary[int, Interpreter] = WeakValueDictionary()
        self._last_child: WeakValueDictionary[int, Interpreter] = WeakValueDictionary()  # by its parent's pid

    def __call__(self, pid: int, proc_root: Path) -> tuple[Readable, Counters]:
        """Attaches to a process; it raises `CannotReadError`."""
        stat = read_stat(proc_root, pid)
        parent = None if stat is None else stat.parent
        relative = None if parent is None else self._attached.get(parent) or self._last_child.get(parent)
        interpreter = self._attached[pid] = attach_to(pid, proc_root=proc_root, relative=relative)
        if parent is not None:
            self._last_child[parent] = interpreter
        return interpreter, LoaderReader(interpreter)
