"""The SQLite file as the writer sees it: made as soon as there is room, written to in transactions, trimmed."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpuwatch.recording.checkpoints import Checkpoints
from gpuwatch.recording.held_file import HeldFile
from gpuwatch.recording.kinds import KIND_BY_NUMBER, stored_shape
from gpuwatch.recording.placement import Place
from gpuwatch.recording.schema import APPLICATION_ID, CHUNK_BITS, TABLES, VERSION, Operation, checksum, meta_row
from gpuwatch.recording.types import CannotRecordError

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
        self._checkpoints = Checkpoints(place.path, connect)
        self._held: HeldFile | None = None
        self._reserve()

    @property
    def bytes(self) -> int:
        """What the file and its log take."""
        return sum(_size(path) for path in (self.path, self.path.with_name(f"{self.path.name}-wal")))

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
            self._checkpoints.ask()

    def trim(self, tail_bytes: int) -> None:
        """Drops the oldest samples where the file is about to outgrow its limit.

        Args:
            tail_bytes: that the open segment will take beside what is sealed.

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
        """Lets go of a file that is lost, and takes away what lies beside its place, if nothing else lies there."""
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
            self._held = HeldFile(self.path, descriptor)
            if os.fstat(descriptor).st_size:
                self._held.close()
                raise CannotRecordError(f"{self.path} exists: choose another name, or remove it first.")
            os.fchmod(descriptor, 0o600)
            self._remove_log()  # beside an empty file it is of one that was removed
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
