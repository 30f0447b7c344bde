"""Starts the dashboard: refuses a terminal that cannot show it, and ends in time whatever happens."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from gpuwatch.dashboard.terminal import (
    ENDING_SIGNALS,
    UNFIT_EXIT_CODE,
    TerminalGuard,
    hide_splash,
    is_splash_shown,
    show_splash,
    splash_taken_over,
    terminal_problem,
)

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp
    from gpuwatch.monitor.snapshot import Snapshot

GONE_EXIT_CODE = 128 + signal.SIGHUP
"""Of a terminal that is gone, also where no signal said so."""
_M_ARENA_MAX = -8  # of malloc.h
STOP_SECONDS = 0.7
"""What the sources get to end before the process leaves without them: quitting takes less than a second."""


def run_dashboard(
    monitor: Any,
    *,
    narrowed_to: str | None = None,
    origin_label: str = "LIVE",
    replays: bool = False,
    read_only: bool = False,
    notify: bool = False,
    environ: Mapping[str, str] = os.environ,
    leave_now: Callable[[int], object] = os._exit,
) -> int:
    """Runs the dashboard of a monitor until the user quits, and stops the monitor.

    The monitor starts first and on a thread of its own, so that its child comes up while Textual is imported.

    Args:
        monitor: The monitor, not yet started.
        narrowed_to: What the view is narrowed to, for the top bar.
        origin_label: What the top bar says before the first snapshot: "LIVE", "SIMULATED starved".
        replays: Whether it plays a recording.
        read_only: Whether it sends no signals to processes.
        notify: Whether the terminal tells of critical findings and of the ends of runs.
        environ: Asked for TERM.
        leave_now: Ends the process at once; a seam for tests.

    Returns:
        The exit code: 0, 130 after Ctrl-C, 128 and the signal's number after SIGTERM or SIGHUP, 2 where the
        terminal is unfit (one sentence on stderr says why).
    """
    problem = terminal_problem(environ)
    if problem is not None and is_splash_shown():
        return GONE_EXIT_CODE  # it was fit for the first frame
    if problem is not None:
        sys.stderr.write(f"gpuwatch: {problem}\n")
        return UNFIT_EXIT_CODE
    use_one_heap()
    asked = _AskedToLeave()
    guard = TerminalGuard(asked, leave_now)
    guard.start()
    show_splash(origin_label, environ)
    if origin_label == "LIVE":
        monitor.subscribe(_show_first_numbers)
    starter = threading.Thread(target=monitor.start, name="gpuwatch-start", daemon=True)
    starter.start()
    try:
        return asked.run(partial(_make_app, monitor, narrowed_to, origin_label, replays, read_only, notify))
    finally:
        hide_splash()
        _end_recording(monitor)
        stopper = threading.Thread(target=_stop, args=(monitor, starter), name="gpuwatch-stop", daemon=True)
        stopper.start()
        stopper.join(STOP_SECONDS)
        guard.stop()


@contextmanager
def first_frame(label: str = "LIVE", environ: Mapping[str, str] = os.environ) -> Iterator[bool]:
    """Paints the first frame at once, for while the rest is imported; whatever comes, the screen is given back.

    Its value is whether it is on the screen: not on a terminal that cannot show the dashboard.

    Args:
        label: "LIVE" or "SIMULATED starved".
        environ: Asked for TERM.
    """
    if terminal_problem(environ) is not None:
        yield False
        return
    before = {number: signal.signal(number, _leave_now) for number in ENDING_SIGNALS}
    try:
        show_splash(label, environ)
        yield True
    except OSError:
        if terminal_problem(environ) is None:
            raise
        sys.exit(GONE_EXIT_CODE)
    finally:
        hide_splash()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_now(number: int, frame: FrameType | None) -> None:
    """Ends the process: an exception would be changed or lost by what is being imported.

    `__set_name__` turns any exception into a RuntimeError, and a weak reference's callback swallows it.
    """
    hide_splash()
    os._exit(128 + number)


class _AskedToLeave:
    """Passes a wish to end on to the app, also one that comes before there is an app."""

    def __init__(self) -> None:
        self._code: int | None = None
        self._app: DashboardApp | None = None

    def __call__(self, code: int) -> None:
        self._code = code
        if self._app is not None:
            self._app.leave(code)

    def run(self, make_app: Callable[[], DashboardApp]) -> int:
        """Runs the app; returns its exit code."""
        app = make_app()
        self._app = app
        if self._code is not None:
            return self._code
        splash_taken_over()
        result = app.run()
        return result if result is not None else app.return_code or 0


def use_one_heap() -> None:
    """Has all threads allocate from one heap of the C library, before there are any; only glibc has the call.

    By default each thread has its own, and what a minute's recording leaves free in one of them no other thread uses:
    16 of 36 MB after 400 trainings.
    """
    import ctypes  # not before the first frame

    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _show_first_numbers(snapshot: Snapshot) -> None:
    """Paints a snapshot's numbers for as long as Textual is not there, on the monitor's thread."""
    if is_splash_shown():
        from gpuwatch.dashboard.first_numbers import show_gpus

        show_gpus([sample for gpu in snapshot.gpus if gpu.latest for sample in (gpu.facts, gpu.latest)])


def _stop(monitor: Any, starter: threading.Thread) -> None:
    starter.join()
    monitor.stop()


def _end_recording(monitor: Any) -> None:
    """Ends a recording that is being written, and says where it lies: the screen that said so is gone."""
    if monitor.snapshot().recording is None:
        return
    ended = monitor.stop_recording()
    if ended is None:
        return
    from gpuwatch.dashboard.words import recorded_words

    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(f"gpuwatch: {recorded_words(ended, 'recorded')}\n")


def _import_asyncio_without_ssl() -> None:
    """Imports it without ssl, which it takes where it finds it: 4.7 MB, and nothing here connects anywhere."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # what the import system reads as "there is none"
    try:
        with _deferring(_Deferred("asyncio.sslproto")):
            import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


class _Deferred(ModuleType):
    """Stands in for a module until something of it is used.

    Args:
        name: of the module.
        functions: of it that are imported by name.
    """

    def __init__(self, name: str, *functions: str) -> None:
        super().__init__(name)
        for function in functions:
            setattr(self, function, partial(self._call, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks of any module
            raise AttributeError(name)
        value = getattr(self._load(), name)
        setattr(self, name, value)
        return value

    def _call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._load(), function)(*args, **kwargs)

    def _load(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)


@contextmanager
def _deferring(*deferred: _Deferred) -> Iterator[None]:
    """Has what is imported meanwhile get these for the modules of their names."""
    placed = [module for module in deferred if sys.modules.setdefault(module.__name__, module) is module]
    try:
        yield
    finally:
        for module in placed:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


def _import_app() -> type[DashboardApp]:
    """Imports it without what Textual needs for pressed keys, downloads, mistakes in CSS and one type: 2.3 MB."""
    types = _Deferred("textual.types")
    with _deferring(
        types,
        _Deferred("difflib", "get_close_matches"),
        _Deferred("mimetypes"),
        _Deferred("platformdirs", "user_downloads_path"),
        _Deferred("unicodedata"),
        _Deferred("uuid", "uuid4"),
    ):
        from textual._types import IgnoreReturnCallbackType

        vars(types).update(IgnoreReturnCallbackType=IgnoreReturnCallbackType)
        from gpuwatch.dashboard.app import DashboardApp
    return DashboardApp


def _make_app(
    monitor: Any,
    narrowed_to: str | None,
    origin_label: str,
    replays: bool,
    read_only: bool = False,
    notify: bool = False,
) -> DashboardApp:
    _import_asyncio_without_ssl()
    app = _import_app()
    from gpuwatch.dashboard.state import load

    if replays:
        from gpuwatch.dashboard.replay import ReplayApp

        return ReplayApp(monitor, narrowed_to=narrowed_to, origin_label=origin_label, state=load())
    return app(
        monitor, narrowed_to=narrowed_to, origin_label=origin_label, read_only=read_only, notify=notify, state=load()
    )
