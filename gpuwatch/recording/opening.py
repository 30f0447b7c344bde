"""Opening a recording to read it: whether it is one, and how to read it without writing next to it."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuwatch.recording.schema import APPLICATION_ID, TABLES, VERSION
from gpuwatch.recording.types import CannotOpenError
from gpuwatch.text.escape import printable

_MAGIC = b"SQLite format 3\x00"
_HEAD_BYTES = 100
_BUSY_SECONDS = 5.0

_STATEMENTS = {statement.split()[2]: statement for statement in TABLES}
_NEEDED = frozenset(_STATEMENTS) - {"rollup_1h"}  # which the first recordings do not have
_FUNCTIONS = frozenset({"length", "min", "max"})
_READING_PRAGMAS = frozenset({"schema_version"})
_LIMITS = {
    "SQLITE_LIMIT_LENGTH": 64 << 20,  # a blob may claim 1 GB of a file that is a few pages in a circle
    "SQLITE_LIMIT_SQL_LENGTH": 10_000,
    "SQLITE_LIMIT_COLUMN": 32,
    "SQLITE_LIMIT_EXPR_DEPTH": 32,
    "SQLITE_LIMIT_COMPOUND_SELECT": 2,
    "SQLITE_LIMIT_VDBE_OP": 5_000,
    "SQLITE_LIMIT_FUNCTION_ARG": 8,
    "SQLITE_LIMIT_ATTACHED": 0,
    "SQLITE_LIMIT_TRIGGER_DEPTH": 1,
}
_STEPS = 4_000  # of SQLite's virtual machine between two calls of the progress handler
_FREE_STEPS = 400_000
_STEPS_PER_BYTE = 4
"""The longest queries take some 20 steps a row, and a row takes 25 bytes at least. Pages that are shared by many
parents of a hostile file's trees stand for more rows than it has bytes."""
_ROW_BYTES = 400  # of Python's objects, besides the values
_FREE_BYTES = 8 << 20
_BYTES_PER_BYTE = 8
_MOST_BYTES = 512 << 20


class TooMuchError(sqlite3.DatabaseError):
    """A query gives more than a recording of this size can hold."""


@dataclass(slots=True)
class _Steps:
    """A progress handler that ends a statement after a number of SQLite's steps."""

    left: int = 0

    def __call__(self) -> int:
        self.left -= _STEPS
        return self.left < 0


@dataclass(slots=True)
class Opened:
    """A connection that only reads. `copy`: a folder of our own that the file had to be copied to."""

    path: Path
    connection: sqlite3.Connection
    copy: Path | None = None
    is_cut_off: bool = False
    _steps: _Steps = field(default_factory=_Steps)
    _schema: object = None

    def __post_init__(self) -> None:
        self.connection.set_progress_handler(self._steps, _STEPS)
        self._schema = self._schema_version()

    def rows(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, whose work and memory are bounded by what a file of this size can hold.

        Raises:
            sqlite3.DatabaseError: the file is damaged, or the query goes beyond its bounds.
        """
        size = _size_of(self.path)
        self._steps.left = _FREE_STEPS + size * _STEPS_PER_BYTE
        room = min(_MOST_BYTES, _FREE_BYTES + size * _BYTES_PER_BYTE)
        if self._schema_version() != self._schema:
            _check_schema(self.path, self.connection)
            self._schema = self._schema_version()
        for row in self.connection.execute(statement, values):
            room -= _ROW_BYTES + sum(len(value) for value in row if isinstance(value, (bytes, str)))
            if room < 0:
                raise TooMuchError("more rows than the file can hold")
            yield row

    def _schema_version(self) -> object:
        self._steps.left = max(self._steps.left, _FREE_STEPS)
        return self.connection.execute("PRAGMA schema_version").fetchone()

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
    _check_companions(path)
    try:
        try:
            connection = _connected(path, "mode=ro")
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if "malformed" not in str(error):
                raise
            connection = _connected(path, "mode=ro", may_be_cut_off=True)
            if connection is not None:
                return Opened(path, connection, is_cut_off=True)
        if connection is not None:
            return Opened(path, connection)
        # SQLite cannot make its index of the log where it may not write: in a folder or on a medium that is read-only.
        if not _has_log(path):
            connection = _connected(path, "mode=ro&immutable=1")
            if connection is not None:
                return Opened(path, connection)
        return _opened_copy(path)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where the message quotes what is no text
        if "locked" in str(error):
            raise CannotOpenError(
                f"{path} is being recorded where it cannot be read at the same time: stop the recording first."
            ) from None
        reason = printable(str(error))
        raise CannotOpenError(f"{path} is damaged at its beginning and cannot be read: {reason}.") from None


def _head(path: Path) -> bytes:
    try:
        # Opening a pipe would wait for a writer, forever; opening some devices does something.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise CannotOpenError(f"{path} is {_kind(mode)}: a recording is read from a file.")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(_HEAD_BYTES)
            raise CannotOpenError(f"{path} is no longer a file: a recording is read from a file.")
    except FileNotFoundError:
        raise CannotOpenError(f"There is no recording {path}: check its name.") from None
    except IsADirectoryError:
        raise CannotOpenError(f"{path} is a folder: name the recording in it.") from None
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _check_companions(path: Path) -> None:
    """SQLite reads the files of these names next to it as parts of it.

    In a folder where others may make files, theirs would be taken for the recording, and a link would lead to any file.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        companion = path.resolve().with_name(f"{path.resolve().name}{suffix}")
        try:
            found, own = companion.lstat(), path.stat()
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode):
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "no file"
            raise CannotOpenError(
                f"{companion} next to the recording is {kind}: move {path.name} to a folder of its own."
            )
        if found.st_uid not in (own.st_uid, os.geteuid(), 0):
            raise CannotOpenError(
                f"{companion} belongs to user {found.st_uid}, who did not make the recording: move {path.name} to "
                "a folder of its own."
            )


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
        _restrict(connection)
        if may_be_cut_off:
            connection.execute("PRAGMA writable_schema=ON")
        connection.set_progress_handler(_Steps(_FREE_STEPS + _size_of(path) * _STEPS_PER_BYTE), _STEPS)
        _check_schema(path, connection)
        connection.execute("PRAGMA query_only=ON")
        connection.set_authorizer(_authorized)
        # No count(*): that walks a tree without asking the progress handler.
        connection.execute("SELECT 1 FROM kind LIMIT 1").fetchone()
    except CannotOpenError:
        connection.close()
        raise
    except sqlite3.Error as error:
        connection.close()
        if "unable to open" in str(error) or "readonly" in str(error):
            return None
        raise
    return connection


def _restrict(connection: sqlite3.Connection) -> None:
    """Takes from SQLite what a recording does not need and a hostile file could use."""
    for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    set_limit = getattr(connection, "setlimit", None)  # Python 3.11
    if set_limit is not None:
        for name, value in _LIMITS.items():
            set_limit(getattr(sqlite3, name), value)
    set_config = getattr(connection, "setconfig", None)  # Python 3.12
    if set_config is not None:
        set_config(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined,unused-ignore]


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    """A file with anything but our tables is refused: a view in place of one computes whatever its maker likes.

    Raises:
        CannotOpenError: it holds something else, or lacks a table.
    """
    found = set()
    for kind, name, table, statement in connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 64"
    ):
        if kind == "table" and name == table and statement is not None and _STATEMENTS.get(name) == statement:
            found.add(name)
        elif not (kind == "index" and statement is None and table in _STATEMENTS):
            what = re.sub(r"[^\w ]", "?", f"{kind} {name}"[:60])
            raise CannotOpenError(
                f"{path} is damaged or was not made by gpuwatch: it holds the {what}, which no recording has."
            )
    if not found >= _NEEDED:
        missing = ", ".join(sorted(_NEEDED - found))
        raise CannotOpenError(f"{path} is damaged or was not made by gpuwatch: it lacks {missing}.")


def _authorized(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """What a statement may do: read our tables themselves, not through a view that took the place of one meanwhile."""
    is_allowed = (
        action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION)
        or (action == sqlite3.SQLITE_READ and source is None and first in (*_STATEMENTS, "sqlite_master"))
        or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and first in _READING_PRAGMAS and second is None)
    )
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


def _size_of(path: Path) -> int:
    """Of the file and its log."""
    size = 0
    for name in (path.name, f"{path.name}-wal"):
        with suppress(OSError):
            size += path.with_name(name).stat().st_size
    return size


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
    return Opened(folder / path.name, connection, folder)
