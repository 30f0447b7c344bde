"""The command line: argparse with one-sentence errors and the nearest valid word suggested."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, NoReturn

from gpuwatch import __version__
from gpuwatch.cli.config import DEFAULTS, add_config
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.config import INTERVAL_SECONDS
from gpuwatch.text import did_you_mean

COMMANDS = {
    "run": "start a training with the hook in it: gpuwatch run python train.py",
    "report": "watch for a while, or read a recording, then write a report",
    "watch": "one line per second, for logs, pipes and screen readers",
    "demo": "the dashboard for a simulated machine",
    "explain": "what a rule means and when it fires; without RULE: the list of rules",
    "doctor": "what gpuwatch can use on this machine, and how to fix what is missing",
    "stacks": "the sampled stacks of a process and its workers, for a flame graph",
    "config": "which settings apply, and which file each comes from",
    "trial": "A/B-test a change: alternating runs with and without it",
    "tune": "find the settings that make a training faster, prove them, write the patch",
    "record": "record a session into a file: gpuwatch record -- python train.py",
    "replay": "play a recording in the dashboard",
    "compare": "compare recordings from before and after a change",
    "export": "write a recording as CSV, Parquet, JSON lines, a trace for Perfetto, or for TensorBoard",
    "exporter": "serve GPUs, runs and findings as Prometheus metrics",
    "completion": "what your shell needs to complete all this",
}
"""Each command with its line in `gpuwatch --help`. Its arguments and its run are in the module of its name."""

DEFAULT_INTERVAL_SECONDS = 1.0

ANY_PROCESS = 0
"""What `--attach` is without a pid: whichever trains here. No process has this number."""

_ATTACHING = {
    "record": "gpuwatch record --attach [PID]",
    "report": "gpuwatch report --attach [PID]",
    "watch": "gpuwatch watch --attach [PID]",
    "stacks": "gpuwatch stacks PID",
}


class Parser(argparse.ArgumentParser):
    """Raises GpuwatchError where argparse would print its usage and exit.

    Args:
        command: its module is imported, and adds its arguments, when this parser is first used: `gpuwatch --help` and
            every other command go without it.
        **arguments: for argparse.
    """

    def __init__(self, *, command: str | None = None, **arguments: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)
        self._command = command
        self.describe: Callable[[], str] | None = None
        """Makes the description when help is asked for: the scenarios take 50 ms to import."""

    def complete(self) -> None:
        """Adds the arguments of its command."""
        if self._command is not None:
            name, self._command = self._command, None
            self.set_defaults(command=name)
            import_module(f"gpuwatch.cli.{name}").add_arguments(self)

    def complete_all(self) -> None:
        """The same for each of its commands."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    parser.complete()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses what it knows, with the arguments of its command."""
        self.complete()
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        """The help, with the description made now."""
        if self.describe is not None:
            self.description = self.describe()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """One sentence, and where to read on."""
        raise GpuwatchError(f"{message}; see `{self.prog} --help`")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses all of it, and says for what is left over what may have been meant."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            self.error(f"unknown argument {left[0]!r}{self._meant(left[0].split('=')[0])}")
        return parsed

    def _meant(self, option: str) -> str:
        """The commands that have such an option, else the nearest one of any."""
        commands: dict[str, Parser] = {
            name: parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, parser in action.choices.items()
        }
        self.complete_all()
        options = {name: parser._option_string_actions for name, parser in commands.items()}
        having = [f"`{self.prog} {name}`" for name, known in options.items() if option in known]
        if having:
            return f": it is an option of {' and '.join(having)}"
        if option in self._option_string_actions:
            return f": it stands without a command, `{self.prog} {option}`"
        return did_you_mean(option, chain(self._option_string_actions, *options.values()))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            name = "command" if is_command else max(action.option_strings, key=len, default=action.dest)
            raise GpuwatchError(unknown(name, str(value), [str(choice) for choice in action.choices]))


def unknown(what: str, value: str, known: Sequence[str]) -> str:
    """The sentence for a word that is none of the known ones."""
    return f"unknown {what} {value!r}{did_you_mean(value, known)}; there are: {', '.join(known)}"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of every command but `run`, whose command line belongs to the program that it starts."""
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what could come next
        from gpuwatch.cli.completion import answer

        answer(_parser())
    own, command_line = _cut(argv)
    if own[:1] == ["help"]:
        own = [*own[1:2], "--help"]
    arguments: argparse.Namespace = _parser().parse_args(own)
    if command_line:
        arguments.command_line = command_line
    elif arguments.command == "record" and "--" in argv:  # `-- $COMMAND` of a script that forgot to set it
        raise GpuwatchError("no command follows --: gpuwatch record -- python train.py")
    if arguments.command == "dashboard" and arguments.once:
        if arguments.attach is not None:
            raise GpuwatchError("--once shows the whole machine: leave out --attach, or use `gpuwatch report --attach`")
        arguments.command = "once"
    elif arguments.once or (arguments.json and arguments.command == "dashboard"):
        raise GpuwatchError("--once takes no command, and --json needs it: gpuwatch --once --json")
    arguments.interval_given = "interval" in arguments
    if not arguments.interval_given:
        arguments.interval = DEFAULT_INTERVAL_SECONDS
    if arguments.inject and not arguments.attach:
        raise GpuwatchError("--inject needs a process: add --attach PID; `gpuwatch --attach` lists them")
    return arguments


def _cut(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments for argparse, and the command line behind `--` of what `record`, `trial` and `tune` start.

    argparse would mix the two. It also drops the `--` of `compare BEFORE... -- AFTER...`, so those become options.
    """
    if "--" not in argv:
        return list(argv), []
    end = list(argv).index("--")
    own, behind = list(argv[:end]), list(argv[end + 1 :])
    if {"record", "trial", "tune"} & set(own):
        return own, behind
    if "compare" in argv:
        return [*own, *(f"--after={name}" for name in behind)], []
    return list(argv), []


def _parser() -> Parser:
    parser = Parser(
        prog="gpuwatch",
        description="Watch GPU training live: why the GPU idles, and the line to change.\n"
        "Without a command: the dashboard for this machine.",
        epilog="Exit codes: 0 fine, 1 findings at or above --fail-on, 2 could not measure, 130 interrupted.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"gpuwatch {__version__}")
    parser.add_argument("-1", "--once", action="store_true", help="print the GPUs and who has them, and end")
    parser.add_argument("--read-only", action="store_true", help="the dashboard sends no signals to processes")
    parser.add_argument("--json", action="store_true", help="with --once: as JSON, what is unknown as null")
    parser.set_defaults(command="dashboard", attach=None, inject=False, yes=False, **DEFAULTS)
    add_watching(parser)
    add_alerts(parser)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, line in COMMANDS.items():  # `run` is there for the help page: the entry point calls it first
        commands.add_parser(name, help=line, command=None if name == "run" else name)
    return parser


def add_watching(parser: argparse.ArgumentParser) -> None:
    """Options of everything that watches. Suppressed defaults, so that they may stand before or after the command."""
    parser.add_argument(
        "--attach",
        type=pid,
        nargs="?",
        const=ANY_PROCESS,
        metavar="PID",
        default=argparse.SUPPRESS,
        help="only this process, its children and their GPUs, hooked or not; without PID: list what trains here",
    )
    parser.add_argument(
        "--inject",
        action="store_true",
        default=argparse.SUPPRESS,
        help="with --attach: install the hook in the running process (Python 3.14 and later), after asking",
    )
    parser.add_argument("--yes", action="store_true", default=argparse.SUPPRESS, help="with --inject: do not ask")
    parser.add_argument(
        "--interval", type=_interval, metavar="S", default=argparse.SUPPRESS, help="seconds between polls (default 1)"
    )
    add_config(parser)


def add_alerts(parser: argparse.ArgumentParser) -> None:
    """The options. Suppressed defaults, so that they may stand before or after the command."""
    group = parser.add_argument_group("alerts, for critical findings, hangs and the end of a run")
    group.add_argument(
        "--notify", action="store_true", default=argparse.SUPPRESS, help="ring the bell and show a desktop notification"
    )
    group.add_argument(
        "--on-finding",
        metavar="CMD",
        default=argparse.SUPPRESS,
        help="run this shell command, for 10 s at most; GPUWATCH_FINDING_RULE, _SEVERITY, _SENTENCE, _RUN, _PID and "
        "_GPU are in its environment",
    )


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """The option of a simulated machine."""
    option = parser.add_argument("--simulate", metavar="SCENARIO", help="watch a simulated machine instead of this one")
    completed_from(option, scenarios)


def scenarios() -> list[str]:
    """The names of the simulated machines."""
    from gpuwatch.sources.simulator.scenarios import SCENARIOS

    return list(SCENARIOS)


def completed_from(argument: argparse.Action, words: Callable[[], Sequence[str]]) -> None:
    """Has shells complete an argument from these words, which are made when one asks."""
    argument.completer = lambda **_: words()  # type: ignore[attr-defined]  # where argcomplete looks for it


def add_output(parser: argparse.ArgumentParser) -> None:
    """The option of a file in place of stdout."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file; it is complete or not written at all")


def pid(text: str) -> int:
    """A process id."""
    if text in _ATTACHING:
        raise argparse.ArgumentTypeError(f"{text!r} is a command and comes first: `{_ATTACHING[text]}`")
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a process id is a number such as 4711, not {text!r}")
    return int(text)


_UNITS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """A duration in seconds, or with its unit (90s, 20m, 1.5h); a week at most."""
    unit = _UNITS.get(text[-1:])
    value = number(text) if unit is None else number(text[:-1]) * unit
    if not 0 <= value <= 7 * 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 604800 seconds (a week)")
    return value


def number(text: str) -> float:
    """A number of seconds, of any size."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def _interval(text: str) -> float:
    value = number(text)
    least, most = INTERVAL_SECONDS
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most:.0f} seconds")
    return value
