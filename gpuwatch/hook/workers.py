"""DataLoader workers: one FETCH record per batch, wall and CPU time, on the worker's own connection.

Time is taken at the worker's queues, between the task it gets and the batch it puts, so that a user's traceback from
`__getitem__` holds no frame of ours.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
from _thread import get_ident
from importlib.machinery import PathFinder
from time import monotonic_ns, thread_time_ns
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

try:
    from pkgutil import resolve_name
except ImportError:  # Python 3.8
    from pydoc import locate as resolve_name  # type: ignore[assignment]

from . import process
from .quiet import quietly
from .ring import append, pending, pulse
from .wire import FETCH

starting = 0
"""The number of the loader whose workers are being started; a forked worker finds it here."""

_IDLE_SECONDS = 0.05
_NO_BATCH = ("_IterableDatasetStopIteration", "ExceptionWrapper", "_AckStartup")


def replace_worker_loop(module: ModuleType) -> None:
    """Puts a `WorkerLoop` in the place of the worker function."""
    home: Any = module.utils.data._utils.worker if module.__name__ == "torch" else module
    home._worker_loop = WorkerLoop(home._worker_loop, home.__name__)


class WorkerLoop:
    """Torch's worker function with a clock at its queues.

    It is pickled for spawned workers. Where the child could not import this module, it is pickled as the name of the
    function it replaces, so that a training never fails for want of gpuwatch.
    """

    def __init__(self, original: Callable[..., Any], home: str, origin: Optional[Dict[str, Any]] = None) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._home = home
        self._origin = origin

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
        origin = quietly(_origin_below, os.getpid()) if _is_importable_in_children() else None
        if origin is None:
            return resolve_name, (f"{self._home}._worker_loop",)
        return restore, (self._home, origin)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs torch's function in the worker."""
        timed = None if named else quietly(self._timed, arguments)
        if timed is None:
            return self._original(*arguments, **named)
        try:
            return self._original(*timed)
        finally:
            _end_session()

    def _timed(self, arguments: Tuple[Any, ...]) -> Optional[List[Any]]:
        """The arguments with a clock at the queues, None where they are others than those that are known."""
        code = self._original.__code__
        names = code.co_varnames[: code.co_argcount]
        if not {"index_queue", "data_queue", "worker_id"} <= set(names[: len(arguments)]):
            return None
        from .session import session

        values = list(arguments)
        number = values[names.index("worker_id")]
        origin = self._origin or _origin_below(os.getppid())
        session.become_worker({"pid": os.getpid(), **origin, "worker": number})
        clock = _Clock(origin["loader"] or 0, number)
        tasks, results = names.index("index_queue"), names.index("data_queue")
        values[tasks], values[results] = _Tasks(values[tasks], clock), _Results(values[results], clock)
        return values


def restore(home: str, origin: Dict[str, Any]) -> WorkerLoop:
    """Unpickles a `WorkerLoop` in a spawned worker."""
    function = resolve_name(f"{home}._worker_loop")
    original = function._original if isinstance(function, WorkerLoop) else function
    return WorkerLoop(original, home, origin)


def _origin_below(parent: int) -> Dict[str, Any]:
    return {"parent": parent, "parent_start_ticks": process.start_ticks(parent), "loader": starting or None}


def _end_session() -> None:
    from .session import session

    session.end()


def _is_importable_in_children() -> bool:
    root = __name__.partition(".")[0]
    if root == "_gpuwatch_hook":  # children get it from the launcher's sitecustomize, through their environment
        site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
        on_path = site in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return on_path and os.path.isfile(os.path.join(site, "sitecustomize.py"))
    spec = PathFinder.find_spec(root, sys.path)  # multiprocessing hands this list to its children
    return spec is not None and spec.origin == getattr(sys.modules.get(root), "__file__", None)


class _Clock:
    """The task a worker is at."""

    def __init__(self, loader: int, worker: int) -> None:
        self._loader = loader
        self._worker = worker
        self._started_ns = 0
        self._cpu_ns = 0

    def start(self) -> None:
        """A task has come."""
        self._started_ns = monotonic_ns()
        self._cpu_ns = thread_time_ns()

    def stop(self, is_batch: bool) -> None:
        """The task is done; only one that made a batch is told."""
        if is_batch and self._started_ns:
            cpu_ns, end_ns = thread_time_ns() - self._cpu_ns, monotonic_ns()
            append((FETCH, 0, self._loader, get_ident(), self._started_ns, end_ns, self._worker, cpu_ns))
        self._started_ns = 0


class _Tasks:
    """The index queue; a task is a tuple, everything else steers the worker."""

    def __init__(self, inner: Any, clock: _Clock) -> None:
        self._queue = inner
        self._clock = clock

    def get(self, *arguments: Any, **named: Any) -> Any:
        """The queue's own `get`; a task starts the clock."""
        if pending and "timeout" in named:
            try:
                task = self._queue.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                pulse.flush(monotonic_ns())  # nothing to do: tell what is held back, lest a kill takes it along
                task = self._queue.get(*arguments, **named)
        else:
            task = self._queue.get(*arguments, **named)
        if isinstance(task, tuple):
            self._clock.start()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Results:
    """The data queue."""

    def __init__(self, inner: Any, clock: _Clock) -> None:
        self._queue = inner
        self._clock = clock

    def put(self, result: Any, *arguments: Any, **named: Any) -> Any:
        """The queue's own `put`; a batch stops the clock."""
        self._clock.stop(_is_batch(result))
        answer = self._queue.put(result, *arguments, **named)
        now_ns = monotonic_ns()
        if now_ns >= pulse.due_ns:
            pulse.flush(now_ns)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _is_batch(result: Any) -> bool:
    made = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    if type(made) is tuple and made and type(made[0]).__name__ in _NO_BATCH:
        return False  # torchdata puts (data, worker, state)
    return made is not None and type(made).__name__ not in _NO_BATCH


PATCHES = {
    "torch": (replace_worker_loop,),
    "torchdata.stateful_dataloader.stateful_dataloader": (replace_worker_loop,),
}
