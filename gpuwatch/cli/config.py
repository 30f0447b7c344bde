"""`gpuwatch config`: which files count, and what they and the command line set."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from gpuwatch.cli.config_options import configured
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import write_stdout
from gpuwatch.config.find import PROJECT_FILE, TABLE, user_file
from gpuwatch.config.load import Config
from gpuwatch.config.thresholds import number, written
from gpuwatch.text.escape import printable


def config(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    found = configured(arguments)
    write_stdout("".join(f"{printable(line)}\n" for line in _lines(found)))
    return ExitCode.OK


def _lines(found: Config) -> Iterator[str]:
    for path in found.files:
        yield f"# reads {path}{f' [{TABLE}]' if path.name == PROJECT_FILE else ''}"
    if not found.files:
        own = user_file(os.environ)
        yield f"# no config: neither [{TABLE}] in a {PROJECT_FILE} here or above, nor {own or 'a config.toml'}"
    for key, value in found.plain.items():
        yield f"{key} = {_toml(value.value)}  # {value.origin}"
    if found.settings.ignored:
        yield f"# left out: {', '.join(sorted(found.settings.ignored))}"
    for rule_id, values in groupby(found.thresholds.items(), lambda item: item[0][0]):
        yield ""
        yield f"[rules.{rule_id}]"
        usual = type(found.settings.thresholds[rule_id])()
        for (_, name), value in values:
            default = number(getattr(usual, name))
            yield f"{written(name)} = {_toml(value.value)}  # {value.origin}; by default {default}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
