"""Where a recording is written: in its place, or on this machine's own disk where its place is a network's.

SQLite's write-ahead log needs shared memory between the processes of one machine; on NFS, Lustre and FUSE it has
corrupted files or failed outright, with a single writer too.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.recording.types import CannotRecordError

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
    """The type of file system that a folder lies on, such as "ext4" or "nfs4"; None where it cannot be told."""
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
