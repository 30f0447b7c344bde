"""How processes are attached to, where nothing else is said: by the reader."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from gpuwatch.reader.attach import Interpreter
from gpuwatch.reader.attach import attach as attach_to
from gpuwatch.reader.loaders import LoaderReader
from gpuwatch.sources.host.procfs import read_stat
from gpuwatch.sources.stacks.reading import Counters, Readable


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
