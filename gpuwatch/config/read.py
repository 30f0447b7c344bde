"""Reads one TOML file, or says in one sentence where it does not parse."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpuwatch.config.errors import ConfigError

_MOST_BYTES = 256 << 10
_MOST_PARTS = 64
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}""")
"""The parser walks all parts of a key for each key below it: 29 kB of such keys took 17 s."""
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _bounded(file.read(_MOST_BYTES + 1), path)
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error


def read_found(path: Path, trusted: Collection[int]) -> tuple[bytes, str | None]:
    """The content of a file that was found, not named, and why it must not count: who may change it may silence rules.

    As git has it (safe.directory): the file and its folder must be of a trusted user, and writable by no others; the
    folder may be one as /tmp, where only the owner of a file may change it.

    Args:
        path: a file's path.
        trusted: the users whose files count.

    Raises:
        ConfigError: a file of a trusted user cannot be read.
    """
    try:
        link, folder = path.lstat(), path.parent.stat()
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", None
    except OSError as error:
        if link.st_uid not in trusted:
            return b"", None
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b"", None
        why = _why_untrusted(status, link, folder, trusted)
        content = file.read(_MOST_BYTES + 1)
    return (content[:_MOST_BYTES], why) if why is not None else (_bounded(content, path), None)


def _why_untrusted(
    status: os.stat_result, link: os.stat_result, folder: os.stat_result, trusted: Collection[int]
) -> str | None:
    for what, each in (("it", status), ("the link to it", link), ("its folder", folder)):
        is_shared = each is folder and each.st_mode & stat.S_ISVTX
        if each.st_uid not in trusted and not is_shared:
            return f"{what} belongs to user {each.st_uid}"
        if stat.S_ISLNK(each.st_mode) or is_shared:
            continue
        if each.st_mode & stat.S_IWOTH:
            return f"{what} may be changed by all users"
        if each.st_mode & stat.S_IWGRP and each.st_gid not in (os.getegid(), 0):
            return f"{what} may be changed by group {each.st_gid}"
    return None


def _bounded(data: bytes, path: Path) -> bytes:
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES >> 10} KiB, more than a config is read of")
    return data


def parsed(data: bytes, path: Path) -> dict[str, Any]:
    """Its keys.

    Raises:
        ConfigError: it is no TOML.
    """
    # Here, not above: most commands find no file to read.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: the file is not UTF-8, as TOML has to be") from error
    if _LONG_KEY.search(text):
        raise ConfigError(f"{path}: a key of more than {_MOST_PARTS} parts is not read")
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:  # of TOML, or a number of thousands of digits
        said = str(error)
        place = _PLACE.search(said)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        raise ConfigError(f"{path}, line {line}: {_PLACE.sub('', said)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: its tables lie too deep in each other to be read") from error
    return found
