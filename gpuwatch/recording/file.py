"""The SQLite file of a recording: how a reader opens it, and how the writer sees it.

A reader finds out whether it is a recording, and reads it without writing next to it. The writer keeps its place,
whether it is still there, its transactions, its log, and its limit.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpuwatch.recording.chunks import KIND_BY_NUMBER, stored_shape
from gpuwatch.recording.schema import (
    APPLICATION_ID,
    CHUNK_BITS,
    TABLES,
    VERSION,
    CannotOpenError,
    CannotRecordError,
    Operation,
    checksum,
    meta_row,
)
from gpuwatch.text import printable

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
        raise CannotOpenError(f"there is no recording {path}: check its name.") from None
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


FilesystemOf = Callable[[Path], "str | None"]

_NETWORK = re.compile(
    "9p|a?cfs|afs|beegfs|ceph|cifs|coda|fhgfs|fuse.*|gfs2?|glusterfs|gpfs|lustre|mmfs|nfs[34]?|ocfs2|orangefs|panfs|pvfs2|"
    "smb[23]|smbfs|sshfs|virtiofs|wekafs"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a recording is written. `home`: where it is copied to at its end, None if it is written there."""

    path: Path
    home: Path | None = None
    use_log: bool = True  # SQLite's write-ahead log
    note: str | None = None


def filesystem_of(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of file system that a folder lies on, such as "ext4" or "nfs4"; None where it is not known."""
    try:
        device = folder.stat().st_dev
        lines = mountinfo.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [wanted]:
            return after.split(" ")[0] if after else None
    return None


def is_network(filesystem: str | None) -> bool:
    """Whether a file system is one of those that the log must not lie on."""
    return filesystem is not None and _NETWORK.fullmatch(filesystem) is not None


def place_for(
    path: Path, filesystem: FilesystemOf = filesystem_of, temp_folders: Sequence[Path] | None = None
) -> Place:
    """Decides. Nothing is written yet.

    Raises:
        CannotRecordError: there is no such folder.
    """
    folder = path.parent
    if not folder.is_dir():
        raise CannotRecordError(f"{path} cannot be recorded to: there is no folder {folder}; create it first.")
    kind = filesystem(folder)
    if not is_network(kind):
        return Place(path)
    if path.exists():
        raise CannotRecordError(f"{path} exists: choose another name, or remove it first.")
    if not os.access(folder, os.W_OK):
        raise CannotRecordError(f"{path} cannot be recorded to: permission denied; choose another place.")
    for local in temp_folders if temp_folders is not None else (Path(tempfile.gettempdir()), Path("/var/tmp")):
        if local.is_dir() and os.access(local, os.W_OK) and not is_network(filesystem(local)):
            work = Path(tempfile.mkdtemp(prefix="gpuwatch-recording-", dir=local)) / path.name
            return Place(work, path, note=f"recorded at {work} and copied to {path} at the end: {folder} is {kind}")
    return Place(path, use_log=False, note=f"{folder} is {kind}: the recording cannot be read before it has ended")


class LostFileError(Exception):
    """The file is no longer there, or no longer whole: nothing that is written to it could be read."""


class _HeldFile:
    """Somebody may remove, replace or empty the file; SQLite goes on writing to what has no name any more.

    It is let go of after SQLite's own connections: closing any descriptor of a file drops a process's locks on it.

    Args:
        path: of the file.
        descriptor: of it, which is closed by `close`.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._least_bytes = 0
        self._mark: int | None = None

    def watch(self, mark: int) -> None:
        """From now on `check` sees, too, when an emptied file has grown again: SQLite was just bringing its log in.

        Args:
            mark: the place of a byte that is not 0 and is never written again. What was never written reads as 0.
        """
        self._mark = mark

    def check(self) -> None:
        """Three system calls, 4 us. A file that was only renamed is written to the end: SQLite still holds it.

        Raises:
            LostFileError: says what has happened to it.
        """
        if self._descriptor is None:
            return
        held = os.fstat(self._descriptor)
        if not held.st_nlink:
            raise LostFileError(f"{self._path} was {'replaced' if self._path.exists() else 'removed'}")
        if held.st_size < self._least_bytes or self._is_hollow(self._descriptor):
            raise LostFileError(f"{self._path} was cut short")
        self._least_bytes = held.st_size  # it only grows: what is dropped from it leaves room for what comes

    def _is_hollow(self, descriptor: int) -> bool:
        with suppress(OSError):  # what a disk that fails says, it says to SQLite too
            return self._mark is not None and os.pread(descriptor, 1, self._mark) in (b"", b"\0")
        return False

    @property
    def is_in_place(self) -> bool:
        """Whether it still has its name: the log of that name is then its own."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def copy_back(work: Path, home: Path) -> tuple[Path, str | None]:
    """Copies the file, so that at `home` there is all of it or what was there before.

    Returns:
        Where it lies now, and what went wrong, if anything: then it is still where it was written.
    """
    part = home.with_name(f"{home.name}.part")
    try:
        with (
            work.open("rb") as source,
            os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb"
            ) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        part.replace(home)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        reason = (error.strerror or str(error)).lower()
        return work, f"the recording is at {work}: it could not be copied to {home}: {reason}"
    with suppress(OSError):
        work.unlink()
        work.parent.rmdir()
    return home, None


_LAST_SECONDS = 5.0


class _Checkpoints:
    """Moves the log into the file, in a thread of its own: it waits for the disk, on a busy one for seconds.

    None is begun while the one before is still being made. The recorder goes on writing meanwhile.

    Args:
        path: of the file.
        connect: opens it; each checkpoint has a connection of its own.
    """

    def __init__(self, path: Path, connect: Callable[..., sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._make, name="gpuwatch-checkpoint", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def _make(self) -> None:
        """The recorder notices a disk that is full or failing itself; the log keeps everything until the next one.

        `mode=rw`: a file that was removed is not created again, empty.
        """
        uri = f"file:{quote(os.fsencode(self._path.absolute()))}?mode=rw"
        with suppress(sqlite3.Error), closing(self._connect(uri, uri=True, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


Connect = Callable[..., sqlite3.Connection]

_LOG_PAGES = 10_000
"""40 MB, when the recorder has to bring the log in itself. A minute takes about 1 MB and ends with a checkpoint."""
_LEAST_BYTES = 64 << 20
_CACHE_KIB = 512
_LOCKED_SECONDS = 0.2  # that a stranger with the file open may hold up the monitor
_SPARE_BYTES = 32_768  # pages that are partly empty
_FULL = ("full", "disk i/o error", "unable to open")


class StoreError(Exception):
    """A write that did not succeed and may later; the file holds what it held before."""


class Store:
    """One file, created at once or as soon as there is room for it.

    Args:
        place: of the file; an empty one may be there already.
        max_bytes: that the file is to stay below.
        connect: opens it.
    """

    def __init__(self, place: Place, *, max_bytes: int | None = None, connect: Connect = sqlite3.connect) -> None:
        self.path = place.path
        self.note = place.note
        self._use_log = place.use_log
        self._max_bytes = max_bytes
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._checkpoints = _Checkpoints(place.path, connect)
        self._held: _HeldFile | None = None
        self._reserve()

    @property
    def bytes(self) -> int:
        """What the file and its log take."""
        return sum(size_of(path) for path in (self.path, self.path.with_name(f"{self.path.name}-wal")))

    def write(self, operations: Sequence[Operation]) -> None:
        """Makes all of the changes, or none.

        Raises:
            StoreError: none were made.
            LostFileError: the file is no longer there, and nothing can be written to it any more.
        """
        if self._held is not None:
            self._held.check()
        try:
            connection = self._opened()
            if len(operations) == 1:  # a statement alone is a transaction
                connection.execute(*operations[0])
                return
            try:
                connection.execute("BEGIN IMMEDIATE")
                for statement, values in operations:
                    connection.execute(statement, values)
                connection.execute("COMMIT")
            except sqlite3.Error:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            raise StoreError(_cause(error)) from error

    def minutes(self, start_ns: int, end_ns: int) -> list[tuple[int, object, object]]:
        """The figures of the minutes that begin in [start, end), packed, with their checksums.

        Raises:
            StoreError: they could not be read.
        """
        if self._connection is None:
            return []
        statement = "SELECT minute_ns, data, crc FROM rollup_1m WHERE minute_ns >= ? AND minute_ns < ?"
        try:
            return self._connection.execute(statement, (start_ns, end_ns)).fetchall()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(_cause(error)) from error

    def checkpoint(self) -> None:
        """Has the log brought into the file, without waiting for it.

        A log that must stay small the recorder brings in itself: a thread that gets no turn would let it grow.
        """
        has_room = self._max_bytes is None or self._max_bytes >= _LEAST_BYTES
        if has_room and self._use_log and self._connection is not None:
            self._checkpoints.begin()

    def trim(self, tail_bytes: int) -> None:
        """Drops the oldest samples where the file is about to outgrow its limit.

        Args:
            tail_bytes: that the open segment will take in addition to what is sealed.

        Raises:
            StoreError: they could not be dropped.
        """
        if self._max_bytes is None or self._connection is None:
            return
        try:
            excess = self._live_bytes() + tail_bytes + _SPARE_BYTES - round(0.95 * self._max_bytes)
            if excess <= 0:
                return
            last, end_ns = 0, None
            for number, until_ns, size in self._connection.execute("SELECT id, end_ns, bytes FROM segment ORDER BY id"):
                last, end_ns = number, until_ns
                excess -= size
                if excess <= 0:
                    break
        except sqlite3.Error as error:
            raise StoreError(_cause(error)) from error
        if end_ns is None:
            return
        self.write(
            [
                ("DELETE FROM chunk WHERE id < ?", (last + 1 << CHUNK_BITS,)),
                ("DELETE FROM segment WHERE id <= ?", (last,)),
                meta_row("samples_from_ns", end_ns),
            ]
        )

    def abandon(self) -> None:
        """Lets go of a file that is lost, and removes its log, if nothing else is in its place."""
        self.close()
        if not self.path.exists():
            self._remove_log()

    def close(self) -> None:
        """Puts everything into the one file, for readers in folders that they may not write to."""
        self._checkpoints.finish()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if self._held is not None and self._held.is_in_place:  # else the log of that name may be another one's
                with suppress(sqlite3.Error):  # a reader that has it open keeps the log, empty
                    connection.execute("PRAGMA journal_mode=DELETE")
            with suppress(sqlite3.Error):
                connection.close()
        if self._held is not None:
            self._held.close()

    def _reserve(self) -> None:
        """Makes the empty file, readable by its owner only."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._held = _HeldFile(self.path, descriptor)
            if os.fstat(descriptor).st_size:
                self._held.close()
                raise CannotRecordError(f"{self.path} exists: choose another name, or remove it first.")
            os.fchmod(descriptor, 0o600)
            self._remove_log()  # next to an empty file it is of one that was removed
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CannotRecordError(f"{self.path} is a symbolic link: name the file itself.") from None
            raise CannotRecordError(
                f"{self.path} cannot be recorded to: {(error.strerror or str(error)).lower()}; choose another place."
            ) from None
        try:
            self._opened()
        except (sqlite3.Error, OSError) as error:
            if not _is_full(error):
                self._held.close()
                raise CannotRecordError(f"{self.path} cannot be recorded to: {_cause(error)}.") from None

    def _remove_log(self) -> None:
        for suffix in ("wal", "shm", "journal"):
            self.path.with_name(f"{self.path.name}-{suffix}").unlink(missing_ok=True)

    def _opened(self) -> sqlite3.Connection:
        """The connection; the tables come before the log, so that a reader finds the head in the file itself."""
        if self._connection is not None:
            return self._connection
        connection = self._connect(
            str(self.path), timeout=_LOCKED_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute("PRAGMA synchronous=NORMAL")
            # Debian's SQLite overwrites what is deleted with zeros: each minute's tail, 1 MB, is written again for it.
            connection.execute("PRAGMA secure_delete=OFF")
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _create(connection)
            self._set_journal(connection)
            if self._held is not None:
                self._held.watch(_place_of_kinds(connection))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _set_journal(self, connection: sqlite3.Connection) -> None:
        pages = _LOG_PAGES if self._max_bytes is None else max(32, min(_LOG_PAGES, self._max_bytes // 40_960))
        if self._use_log and connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] == "wal":
            connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
            connection.execute(f"PRAGMA journal_size_limit={pages * 4096}")
            return
        if self._use_log:
            self.note = f"no write-ahead log at {self.path.parent}: the recording cannot be read before it has ended"
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=TRUNCATE")

    def _live_bytes(self) -> int:
        assert self._connection is not None
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")
    for table in TABLES:
        connection.execute(table)
    for kind in KIND_BY_NUMBER:
        values = (kind.number, kind.name, stored_shape(kind))
        connection.execute("INSERT INTO kind VALUES (?, ?, ?, ?)", (*values, checksum(values)))
    connection.execute("COMMIT")


def _place_of_kinds(connection: sqlite3.Connection) -> int:
    """Where the page of the table lies that is written once; it begins with what kind of page it is, which is not 0."""
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'kind'").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((page - 1) * size)


def _is_full(error: Exception) -> bool:
    return any(words in str(error).lower() for words in _FULL)


def _cause(error: Exception) -> str:
    text = str(error).lower()
    return "no space left" if "is full" in text or "no space" in text else text


def size_of(path: Path) -> int:
    """0 of a file that is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
