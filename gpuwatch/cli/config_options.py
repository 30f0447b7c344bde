"""Options that say which config counts and which rules speak; and what the config adds to the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.output import say
from gpuwatch.config.errors import ConfigError
from gpuwatch.config.load import Config, load

DEFAULTS = {"config_file": None, "isolated": False, "select": None, "ignore": None, "config": Config()}
"""What they are where they are not given. `config` is what `apply_config` puts there."""


def add(commands: Any) -> None:
    """Adds `gpuwatch config`."""
    config = commands.add_parser(
        "config",
        help="which config files count, and what they set",
        description="Writes the settings that hold here as TOML, with the file that each comes from.",
    )
    config.set_defaults(command="config")
    add_config(config)


def add_config(parser: argparse.ArgumentParser) -> None:
    """The options. Suppressed defaults, so that they may stand before or after the command."""
    group = parser.add_argument_group("rules and config")
    group.add_argument(
        "--select",
        action="append",
        type=_words,
        default=argparse.SUPPRESS,
        metavar="RULE,...",
        help="only these rules: ids, beginnings of ids (workers-), families (data), all",
    )
    group.add_argument(
        "--ignore",
        action="append",
        type=_words,
        default=argparse.SUPPRESS,
        metavar="RULE,...",
        help="leave these rules out; where both mean one, the more exact word wins",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--config",
        dest="config_file",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="this file in place of [tool.gpuwatch] of the nearest pyproject.toml and of the user's config.toml",
    )
    which.add_argument("--isolated", action="store_true", default=argparse.SUPPRESS, help="no config file at all")


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
    arguments.config = found


def configured(arguments: argparse.Namespace) -> Config:
    """The config that holds for a command.

    Raises:
        GpuwatchError: it cannot be used; the sentence names file, key and value.
    """
    if arguments.isolated and arguments.config_file is not None:
        raise GpuwatchError("--config names a file and --isolated wants none: give one of them")
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
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rules, such as data,amp-off")
    return words


def _joined(given: Sequence[Sequence[str]] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(word for words in given for word in words)
