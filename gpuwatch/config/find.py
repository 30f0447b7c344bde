"""Finds the files: the nearest pyproject.toml upward that has a `[tool.gpuwatch]`, and the user's own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.config.errors import ConfigError
from gpuwatch.config.read import parsed, read_bytes, read_found

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.gpuwatch"
_IGNORED = "the config {path} is ignored, because {why}: name it with --config to have it count"


@dataclass(frozen=True, slots=True)
class Source:
    """A file that counts, and its keys. `table` is where they stand in it; the user's file has them at the top."""

    path: Path
    keys: Mapping[str, Any]
    table: str = ""


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
