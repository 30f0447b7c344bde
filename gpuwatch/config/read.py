"""Reads one TOML file, or says in one sentence where it does not parse."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from gpuwatch.config.errors import ConfigError

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_bytes(path: Path) -> bytes:
    """The file's content.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror or error}") from error


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
