"""Reads the source file that a finding points at, as it was when the training started."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpuwatch.foreign import read_foreign, read_named, rights_of_user, whereabouts
from gpuwatch.procfs import is_running
from gpuwatch.samples import RunFacts

_LARGEST_FILE_BYTES = 512 * 1024
_SAVED_THEN_STARTED_SECONDS = 2.0  # some file systems round times of change to as much


class UnreadableSourceError(Exception):
    """The file cannot be read as the source that runs; the message says why."""


def read_source(path: Path, not_newer_than: float | None = None, of: RunFacts | None = None) -> bytes:
    """The bytes of a source file, with the rights of the process that names it.

    While the process runs, its own root and mounts are where the name leads; after that only the same name of this
    machine is left, and only for a process that had this machine's files.

    Args:
        path: the name, absolute.
        not_newer_than: when the training started: a file changed since then is not what runs, and its lines may have
            moved.
        of: the process; None for one of this user that names what this process would find, too.

    Raises:
        UnreadableSourceError: there is no such file, or it must not be read.
    """
    if not path.is_absolute():
        raise UnreadableSourceError(f"{path} is not an absolute path")
    try:
        if of is not None and is_running(of.pid, of.start_ticks):
            found = read_foreign(of.pid, str(path), _LARGEST_FILE_BYTES, start_ticks=of.start_ticks)
        else:
            if of is not None:
                _check_place(path, of)
            user = os.geteuid() if of is None or of.user is None else of.user
            found = read_named(str(path), _LARGEST_FILE_BYTES, rights_of_user(user))
    except OSError as error:
        raise UnreadableSourceError(f"{path} cannot be read ({error.strerror})") from error
    if not_newer_than is not None and found.modified_seconds > not_newer_than + _SAVED_THEN_STARTED_SECONDS:
        raise UnreadableSourceError(f"{path} was changed after the training started")
    return found.content


def read_recorded_source(recording: Path, path: Path, not_newer_than: float | None, of: RunFacts | None) -> bytes:
    """The same for a process of a recording: only one of this user's own recordings may name files of this machine.

    Raises:
        UnreadableSourceError: the recording is another user's, or of another machine, boot or container.
    """
    try:
        owner = recording.stat().st_uid
    except OSError as error:
        raise UnreadableSourceError(f"{path} is not read: {recording} is gone ({error.strerror})") from error
    if owner != os.geteuid():
        raise UnreadableSourceError(f"{path} is not read: the recording that names it is of user {owner}")
    if of is None:
        raise UnreadableSourceError(f"{path} is not read: the recording does not say which process names it")
    _check_place(path, of)
    return read_source(path, not_newer_than, of)


def _check_place(path: Path, of: RunFacts) -> None:
    here = whereabouts()
    if of.boot is None or of.mount_namespace is None:
        raise UnreadableSourceError(f"{path} is not read: it is not known on which machine the training ran")
    if of.boot != here.boot:
        raise UnreadableSourceError(
            f"{path} is not read: the training ran on another machine, or before this one was started"
        )
    if of.mount_namespace != here.mount_namespace:
        raise UnreadableSourceError(f"{path} is not read: the training ran in a container, with files of its own")


def name_in_patch(path: Path, folder: Path | None) -> str:
    """What a patch calls the file: its path from the repository's root, else from the training's folder, else its name.

    `git apply` refuses absolute names, and skips in silence what is not named from the root of its repository.
    """
    if not path.is_absolute() and folder is not None:
        path = folder / path
    root = next((parent for parent in path.parents if _holds_repository(parent)), folder)
    return path.relative_to(root).as_posix() if root is not None and path.is_relative_to(root) else path.name


def _holds_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:  # a folder that may not be looked into
        return False


def process_started(start_ticks: int) -> float | None:
    """`start_ticks` of /proc/PID/stat (hundredths of a second after boot, on Linux) as wall time."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / 100
