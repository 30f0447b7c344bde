"""Which config counts and which rules apply: the options, what they add to a command, and `gpuwatch config`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gpuwatch.cli.output import ExitCode, GpuwatchError, say, write_stdout
from gpuwatch.config import PROJECT_FILE, TABLE, Config, ConfigError, load, short_number, toml_key, user_file
from gpuwatch.text import printable

DEFAULTS = {"config_file": None, "isolated": False, "select": None, "ignore": None, "config": Config()}
"""What they are where they are not given. `config` is what `apply_config` puts there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Writes the settings that apply here as TOML, with the file that each comes from."
    add_config(parser)


def config(arguments: argparse.Namespace) -> int:
    found = configured(arguments)
    write_stdout("".join(f"{printable(line)}\n" for line in _lines(found)))
    return ExitCode.OK


def add_config(parser: argparse.ArgumentParser) -> None:
    """The options. Suppressed defaults, so that they may stand before or after the command."""
    group = parser.add_argument_group("rules and config")
    group.add_argument(
        "--select",
        action="append",
        type=_words,
        default=argparse.SUPPRESS,
        metavar="RULE,...",
        help="use only these rules: ids, prefixes of ids (workers-), families (data), all",
    )
    group.add_argument(
        "--ignore",
        action="append",
        type=_words,
        default=argparse.SUPPRESS,
        metavar="RULE,...",
        help="leave these rules out; where both options name a rule, the more specific one wins",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--config",
        dest="config_file",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="read this file instead of [tool.gpuwatch] in the nearest pyproject.toml and the user's config.toml",
    )
    which.add_argument("--isolated", action="store_true", default=argparse.SUPPRESS, help="read no config file")


def apply_config(arguments: argparse.Namespace) -> None:
    """Puts what the config says in place of what the command line leaves open; `arguments.config` becomes all of it.

    Raises:
        GpuwatchError: it cannot be used.
    """
    found = configured(arguments)
    if found.interval_seconds is not None and not arguments.interval_given:
        arguments.interval = found.interval_seconds
    if arguments.command == "report" and arguments.fail_on is None:
        arguments.fail_on = found.fail_on
    if arguments.command == "report" and arguments.price_per_kwh is None:
        arguments.price_per_kwh = found.price_per_kwh
    if found.read_only:
        arguments.read_only = True
    arguments.config = found


def configured(arguments: argparse.Namespace) -> Config:
    """The config that holds for a command.

    Raises:
        GpuwatchError: it cannot be used; the sentence names file, key and value.
    """
    if arguments.isolated and arguments.config_file is not None:
        raise GpuwatchError("--config names a file and --isolated reads none: give one of them")
    try:
        found = load(
            config=arguments.config_file,
            isolated=arguments.isolated,
            select=_joined(arguments.select),
            ignore=_joined(arguments.ignore),
            folder=current_folder(),
        )
    except ConfigError as error:
        raise GpuwatchError(str(error)) from error
    for sentence in found.ignored:
        say(f"gpuwatch: {sentence}")
    return found


def current_folder() -> Path | None:
    """The current folder; None where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of rules, such as data,amp-off")
    return words


def _joined(given: Sequence[Sequence[str]] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(word for words in given for word in words)


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
            default = short_number(getattr(usual, name))
            yield f"{toml_key(name)} = {_toml(value.value)}  # {value.origin}; by default {default}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
