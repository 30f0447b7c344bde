"""What the app asks of the monitor that may take time, off its own thread, and what it tells the user of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.recording import recorded_words
from gpuwatch.monitor.recorder import default_name

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp


async def change_focus(app: DashboardApp, pid: int | None, words: str) -> None:
    """Has the monitor watch one process, or everything again."""
    try:
        await asyncio.to_thread(app.monitor.attach, pid)
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
        ended = await asyncio.to_thread(app.monitor.stop_recording)
        if ended is not None:
            severity = "information" if ended.problem is None else "warning"
            app.notify(f"{recorded_words(ended)}.", severity=severity, markup=False)  # type: ignore[arg-type]
        return
    try:
        path = Path.cwd() / default_name(time.time())
        await asyncio.to_thread(app.monitor.record, path)
    except (CannotRecordError, ValueError, OSError) as error:
        _refuse(app, str(error))
        return
    app.notify(f"Recording into {path.name}; r ends it.", markup=False)


def _refuse(app: DashboardApp, sentence: str) -> None:
    app.notify(say.escape(sentence), severity="error", markup=False)
