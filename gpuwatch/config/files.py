"""The files that settings come from: the nearest pyproject.toml upward with a `[tool.gpuwatch]`, and the user's own.

What is wrong with one is said in one sentence with the file, the key, the value and what is allowed.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.gpuwatch"
_IGNORED = "the config {path} is ignored, because {why}: name it with --config to have it count"
_MOST_BYTES = 256 << 10
_MOST_PARTS = 64
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MOST_PARTS}}}""")
"""The parser walks all parts of a key for each key below it: 29 kB of such keys took 17 s."""
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class ConfigError(Exception):
    """A config that cannot be used; its text is the whole sentence."""


def shown(value: object) -> str:
    """A value as TOML writes it, cut short: it comes from a file that anybody may have written."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = text.replace("'", '"') if isinstance(value, str) else text
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Source:
    """A file that counts, and its keys. `table` is where they stand in it; the user's file has them at the top."""

    path: Path
    keys: Mapping[str, Any]
    table: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting, and where it comes from: a file, or an option."""

    value: Any
    origin: str

    @property
    def by(self) -> str:
        """The origin in a sentence: "config (/home/user/pyproject.toml)", "--select"."""
        return self.origin if self.origin.startswith("--") else f"config ({self.origin})"


def full_key(source: Source, *keys: str) -> str:
    """A key as a sentence names it: "tool.gpuwatch.interval"."""
    return ".".join((source.table, *keys) if source.table else keys)


def sources(
    *,
    config: str | None,
    isolated: bool,
    folder: Path | None,
    ignored: list[str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[Source, ...]:
    """The files that count, the one that wins first. With `config` it is that file alone, with `isolated` none.

    Args:
        config: a file that the user names: a pyproject.toml, or one with plain keys.
        isolated: whether all files are to be left aside.
        folder: where the search upward begins; None if the current folder is gone.
        ignored: takes a sentence for each file that does not count because others may have written it.
        environ: asked for XDG_CONFIG_HOME and HOME.

    Raises:
        ConfigError: a file that counts cannot be read or does not parse.
    """
    if isolated:
        return ()
    if config is not None:
        return (_named(Path(config)),)
    trusted = trusted_users(environ)
    found = (_project_source(folder, trusted, ignored), _user_source(environ, trusted, ignored))
    return tuple(source for source in found if source is not None)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's file is, whether it exists or not; None for a user without a home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117 - the XDG specification has relative ones ignored
        return Path(base) / "gpuwatch" / "config.toml"
    home = environ.get("HOME", "")
    return Path(home) / ".config" / "gpuwatch" / "config.toml" if home else None


def _named(path: Path) -> Source:
    keys = parsed(read_bytes(path), path)
    if path.name == PROJECT_FILE:
        return Source(path, _tool_table(keys, path) or {}, TABLE)
    return Source(path, keys)


def trusted_users(environ: Mapping[str, str]) -> frozenset[int]:
    """Whose files count: this user's and root's; for root also those of the user who became root by sudo."""
    before = environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return frozenset({0, os.geteuid(), *([int(before)] if before.isascii() and before.isdecimal() else ())})


def _user_source(environ: Mapping[str, str], trusted: Collection[int], ignored: list[str]) -> Source | None:
    path = user_file(environ)
    if path is None or not _is_file(path):
        return None
    data, why = read_found(path, trusted)
    if why is not None:
        ignored.append(_IGNORED.format(path=path, why=why))
        return None
    return Source(path, parsed(data, path))


def _project_source(folder: Path | None, trusted: Collection[int], ignored: list[str]) -> Source | None:
    for path in _candidates(folder):
        data, why = read_found(path, trusted)
        # Most are of projects that never heard of gpuwatch: what is wrong with them is not ours to say.
        if b"gpuwatch" not in data:
            continue
        if why is not None:
            ignored.append(_IGNORED.format(path=path, why=why))
            continue
        table = _tool_table(parsed(data, path), path)
        if table is not None:
            return Source(path, table, TABLE)
    return None


def _candidates(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield from (path for each in (folder, *folder.parents) if _is_file(path := each / PROJECT_FILE))


def _tool_table(keys: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    tools = keys.get("tool", {})
    table = tools.get("gpuwatch") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.gpuwatch is no table; write [tool.gpuwatch] and its keys below")
    return table


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above that may not be looked into
        return False


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
