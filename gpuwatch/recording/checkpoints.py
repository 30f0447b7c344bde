"""Moving the log into the file, in a thread of its own: it waits for the disk, on a busy one for seconds."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

_LAST_SECONDS = 5.0


class Checkpoints:
    """Makes one when asked to, unless the one before is still being made. The recorder goes on writing meanwhile.

    Args:
        path: of the file.
        connect: opens it; each checkpoint has a connection of its own.
    """

    def __init__(self, path: Path, connect: Callable[..., sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Begins one."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._make, name="gpuwatch-checkpoint", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits for the one that is being made."""
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def _make(self) -> None:
        """A disk that is full or failing tells the recorder itself; the log keeps everything until the next one.

        `mode=rw`: a file that was removed is not created again, empty.
        """
        uri = f"file:{quote(os.fsencode(self._path.absolute()))}?mode=rw"
        with suppress(sqlite3.Error), closing(self._connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
