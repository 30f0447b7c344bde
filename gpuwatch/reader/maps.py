r"""What a process has mapped, from /proc/PID/maps.

The kernel escapes the line feed in a file's name, as `\012`, and nothing else: any other character, and every byte
that is no UTF-8, may stand in it. The fields before the name hold no slash, so it begins at the first one of its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

MAPS_LIMIT = 16 << 20
"""vm.max_map_count lines of 130 characters are half of it; names of 4 KiB would make 270 MB of them."""
DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps. `name` is how /proc/PID/map_files calls it."""

    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    path: str
    name: str


def mapped_files(raw: bytes) -> Iterator[Mapping]:
    """The mappings of files; a line that the limit of reading has cut is left out."""
    for line in raw.split(b"\n")[:-1]:
        head, slash, path = line.partition(b"/")
        fields = head.split() if slash else ()
        if len(fields) != 5:
            continue
        name, permissions, offset, _, inode = fields
        start, _, end = name.partition(b"-")
        try:
            numbers = int(start, 16), int(end, 16), int(offset, 16), int(inode)
        except ValueError:
            continue
        yield Mapping(
            numbers[0],
            numbers[1],
            permissions.decode("ascii", "replace"),
            numbers[2],
            numbers[3],
            os.fsdecode(slash + path),
            name.decode("ascii", "replace"),
        )


def mapped_paths(raw: bytes) -> set[bytes]:
    """The names of the mapped files, without the mark of those that were deleted.

    Searching in names is left to string methods: a pattern with two open ends takes hours for names made for it.
    """
    found = {line[line.find(b"/") :] for line in raw.split(b"\n")[:-1] if b"/" in line}
    return {path.removesuffix(DELETED) for path in found}
