"""Opening a recording to read it: whether it is one, and how to read it without writing beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpuwatch.recording.schema import APPLICATION_ID, VERSION
from gpuwatch.recording.types import CannotOpenError

_MAGIC = b"SQLite format 3\x00"
_HEAD_BYTES = 100
_BUSY_SECONDS = 5.0


@dataclass(slots=True)
class Opened:
    """A connection that only reads. `copy`: a folder of our own that the file had to be copied to."""

    connection: sqlite3.Connection
    copy: Path | None = None
    is_cut_off: bool = False

    def close(self) -> None:
        """Idempotent."""
        self.connection.close()
        if self.copy is not None:
            shutil.rmtree(self.copy, ignore_errors=True)


def open_recording(path: Path) -> Opened:
    """Opens it as it is now, and as it grows where it is still being written.

    Raises:
        CannotOpenError: it is none, a newer gpuwatch wrote it, or it cannot be read.
    """
    _check_head(path, _head(path))
    try:
        try:
            connection = _connected(path, "mode=ro")
        except sqlite3.DatabaseError as error:
            if "malformed" not in str(error):
                raise
            connection = _connected(path, "mode=ro", may_be_cut_off=True)
            if connection is not None:
                return Opened(connection, is_cut_off=True)
        if connection is not None:
            return Opened(connection)
        # SQLite cannot make its index of the log where it may not write: in a folder or on a medium that is read-only.
        if not _has_log(path):
            connection = _connected(path, "mode=ro&immutable=1")
            if connection is not None:
                return Opened(connection)
        return _opened_copy(path)
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise CannotOpenError(
                f"{path} is being recorded where it cannot be read at the same time: end it first."
            ) from None
        raise CannotOpenError(f"{path} is damaged from its beginning and cannot be read: {error}.") from None


def _head(path: Path) -> bytes:
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # opening it would wait for a writer, for ever
            raise CannotOpenError(f"{path} is a pipe: a recording is read from a file.")
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except FileNotFoundError:
        raise CannotOpenError(f"There is no recording {path}: check its name.") from None
    except IsADirectoryError:
        raise CannotOpenError(f"{path} is a folder: name the recording in it.") from None
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def _check_head(path: Path, head: bytes) -> None:
    if not head:
        raise CannotOpenError(f"{path} is empty: nothing was recorded, or the disk had no room for it.")
    if not head.startswith(_MAGIC) or head[68:72] != APPLICATION_ID.to_bytes(4, "big"):
        raise CannotOpenError(f"{path} is not a gpuwatch recording: name a file that `gpuwatch record` wrote.")
    version = int.from_bytes(head[60:64], "big")
    if version > VERSION:
        raise CannotOpenError(
            f"{path} was written by a newer gpuwatch (format {version}, this one reads {VERSION}): update gpuwatch."
        )


def _connected(path: Path, parameters: str, *, may_be_cut_off: bool = False) -> sqlite3.Connection | None:
    """None where SQLite cannot open it in this way.

    A file that is shorter than its head says is refused by SQLite, unless its schema may be written to: then what is
    there is read (`lockBtree` in its btree.c). Nothing is written, as the connection only reads.
    """
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?{parameters}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        if may_be_cut_off:
            connection.execute("PRAGMA writable_schema=ON")
        connection.execute("SELECT count(*) FROM meta").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if "unable to open" in str(error) or "readonly" in str(error):
            return None
        raise
    return connection


def _has_log(path: Path) -> bool:
    with suppress(OSError):
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    return False


def _opened_copy(path: Path) -> Opened:
    """A copy with its log, as after a kill on a medium that has been made read-only since."""
    folder = Path(tempfile.mkdtemp(prefix="gpuwatch-reading-"))
    try:
        for name in (path.name, f"{path.name}-wal"):
            if path.with_name(name).exists():
                shutil.copyfile(path.with_name(name), folder / name)
        connection = _connected(folder / path.name, "mode=rw")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise CannotOpenError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    if connection is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise CannotOpenError(f"{path} cannot be read: SQLite cannot open it.")
    return Opened(connection, folder)
