"""What the app asks of the monitor that may take time, off its own thread, and what it tells the user of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.recording import recorded_words
from gpuwatch.monitor.recorder import default_name

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


async def in_background(
    function: Callable[_Parameters, _Result], *arguments: _Parameters.args, **keywords: _Parameters.kwargs
) -> _Result:
    """The function's result, from a thread that quitting does not wait for.

    A disk, a parser or another process's memory may take seconds to answer, or for ever; `asyncio.to_thread` keeps the
    loop from ending until it has.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: Exception | None) -> None:
        if answered.cancelled():
            return
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(result)  # type: ignore[arg-type]  # None only where that is its result

    def run() -> None:
        result, raised = None, None
        try:
            result = function(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            raised = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=run, name="gpuwatch-background", daemon=True).start()
    return await answered


async def change_focus(app: DashboardApp, pid: int | None, words: str) -> None:
    """Has the monitor watch one process, or everything again."""
    try:
        await in_background(app.monitor.attach, pid)
    except (ValueError, OSError) as error:  # a simulated machine, a process that is gone
        _refuse(app, str(error))
        return
    app.viewing.narrow(None)
    app.notify(words, markup=False)


async def toggle_recording(app: DashboardApp) -> None:
    """Begins a recording in the current folder, or ends the one that is being written."""
    from gpuwatch.recording.types import CannotRecordError

    snapshot = app.monitor.snapshot()
    if snapshot.recording is not None:
        ended = await in_background(app.monitor.stop_recording)
        if ended is not None:
            severity = "information" if ended.problem is None else "warning"
            app.notify(f"{recorded_words(ended)}.", severity=severity, markup=False)  # type: ignore[arg-type]
        return
    try:
        path = Path.cwd() / default_name(time.time())
        await in_background(app.monitor.record, path)
    except (CannotRecordError, ValueError, OSError) as error:
        _refuse(app, str(error))
        return
    app.notify(f"Recording into {path.name}; r ends it.", markup=False)


def _refuse(app: DashboardApp, sentence: str) -> None:
    app.notify(say.escape(sentence), severity="error", markup=False)
