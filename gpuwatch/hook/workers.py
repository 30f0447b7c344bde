"""DataLoader workers: one FETCH record per batch, wall and CPU time, on the worker's own connection.

Time is taken at the worker's queues, between the task it gets and the batch it puts, so that a user's traceback from
`__getitem__` holds no frame of ours.
"""

from __future__ import annotations

import functools
import posix
import queue
import sys
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

from . import facts, loaders
from .hidden import hidden
from .quiet import quietly
from .ring import append, native_id, pending, pulse, started
from .session import session
from .wire import FETCH

_IDLE_SECONDS = 0.05
_NO_BATCH = ("_IterableDatasetStopIteration", "ExceptionWrapper", "_AckStartup")


def replace_worker_loop(module: ModuleType) -> None:
    """Puts a clock around the worker function, under every name that it is called or pickled by.

    A spawned worker gets the function as a name, which it looks up in its own torch: a worker with a hook of its own
    finds the function that this hook has patched there, any other one finds torch's.
    """
    home: Any = module.utils.data._utils.worker if module.__name__ == "torch" else module
    original = home._worker_loop
    timed = _timed(original)
    definition: Any = sys.modules.get(original.__module__)
    for holder in (home, definition):
        if getattr(holder, "_worker_loop", None) is original:
            holder._worker_loop = timed


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _worker_loop(*arguments: Any, **named: Any) -> Any:
        timed = None if named else quietly(_with_clock, original, arguments)
        if timed is None:
            return original(*arguments, **named)
        try:
            return original(*timed)
        finally:
            session.end()

    return hidden(_worker_loop)


def _with_clock(function: Callable[..., Any], arguments: Any) -> Optional[List[Any]]:
    """The arguments with a clock at the queues, None where they are others than those that are known."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    if not {"index_queue", "data_queue", "worker_id"} <= set(names[: len(arguments)]):
        return None
    values = list(arguments)
    number = values[names.index("worker_id")]
    loader = loaders.take_loader()
    session.become_worker({"pid": posix.getpid(), **_parent(), "worker": number, "loader": loader})
    clock = _Clock(loader or 0, number)
    tasks, results = names.index("index_queue"), names.index("data_queue")
    values[tasks], values[results] = _Tasks(values[tasks], clock), _Results(values[results], clock)
    return values


def _parent() -> Dict[str, Any]:
    """The process that this one works for: behind a fork server it is not the one above it."""
    pid = sys.modules["multiprocessing.process"]._current_process._parent_pid or posix.getppid()
    return {"parent": pid, "parent_start_ticks": facts.start_ticks(pid)}


class _Clock:
    """The task a worker is at."""

    def __init__(self, loader: int, worker: int) -> None:
        self._loader = loader
        self._worker = worker
        self._started_ns = 0
        self._cpu_ns = 0

    def start(self) -> None:
        """A task has come."""
        self._started_ns = started()
        self._cpu_ns = thread_time_ns()

    def stop(self, is_batch: bool) -> None:
        """The task is done; only one that made a batch is recorded."""
        if is_batch and self._started_ns:
            cpu_ns, end_ns = thread_time_ns() - self._cpu_ns, monotonic_ns()
            if pulse.awake:
                append((FETCH, 0, self._loader, native_id(), self._started_ns, end_ns, self._worker, cpu_ns))
        self._started_ns = 0


class _Queue:
    """One of a worker's queues, with its clock."""

    def __init__(self, inner: Any, clock: _Clock) -> None:
        self._queue = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Tasks(_Queue):
    """The index queue; a task is a tuple, everything else steers the worker."""

    def get(self, *arguments: Any, **named: Any) -> Any:
        """The queue's own `get`; a task starts the clock."""
        if pending and "timeout" in named:
            try:
                task = self._queue.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                pulse.flush(monotonic_ns())  # nothing to do: send what is held back, lest a kill takes it along
                task = self._queue.get(*arguments, **named)
        else:
            task = self._queue.get(*arguments, **named)
        if isinstance(task, tuple):
            self._clock.start()
        return task


class _Results(_Queue):
    """The data queue."""

    def put(self, result: Any, *arguments: Any, **named: Any) -> Any:
        """The queue's own `put`; a batch stops the clock."""
        self._clock.stop(_is_batch(result))
        answer = self._queue.put(result, *arguments, **named)
        now_ns = monotonic_ns()
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)
        return answer


def _is_batch(result: Any) -> bool:
    made = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    if type(made) is tuple and made and type(made[0]).__name__ in _NO_BATCH:
        return False  # torchdata puts (data, worker, state)
    return made is not None and type(made).__name__ not in _NO_BATCH


PATCHES = {
    "torch": (replace_worker_loop,),
    "torchdata.stateful_dataloader.stateful_dataloader": (replace_worker_loop,),
}
