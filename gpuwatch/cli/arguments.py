"""The command line: argparse with one-sentence errors and the nearest valid word suggested."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NoReturn

from gpuwatch._version import __version__
from gpuwatch.cli import (
    compare_options,
    config_options,
    export_options,
    record_options,
    replay_options,
    report_options,
    trial_options,
)
from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.config.load import INTERVAL_SECONDS
from gpuwatch.text.nearest import did_you_mean

MOST_LOOKS_HZ = 1000
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

    `describe` makes the description when help is asked for: the scenarios take 50 ms to import.
    """

    def __init__(self, *, describe: Callable[[], str] | None = None, **arguments: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)
        self._describe = describe

    def format_help(self) -> str:
        """The help with its description, made now."""
        if self._describe is not None:
            self.description = self._describe()
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
        commands = {
            name: parser._option_string_actions
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, parser in action.choices.items()
        }
        having = [f"`{self.prog} {name}`" for name, options in commands.items() if option in options]
        if having:
            return f": it is an option of {' and '.join(having)}"
        return did_you_mean(option, chain(self._option_string_actions, *commands.values()))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "command" if isinstance(action, argparse._SubParsersAction) else _name(action)
            raise GpuwatchError(unknown(name, str(value), [str(choice) for choice in action.choices]))


def unknown(what: str, value: str, known: Sequence[str]) -> str:
    """The sentence for a word that is none of the known ones."""
    return f"unknown {what} {value!r}{did_you_mean(value, known)}; there are: {', '.join(known)}"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of every command but `run`, whose command line belongs to somebody else."""
    own, behind = _without_command(argv)
    arguments: argparse.Namespace = _parser().parse_args(compare_options.with_sides(own))
    if behind:
        arguments.command_line = behind
    elif arguments.command == "record" and "--" in argv:  # `-- $COMMAND` of a script that forgot to set it
        raise GpuwatchError("no command was given behind --: gpuwatch record -- python train.py")
    arguments.interval_given = "interval" in arguments
    if not arguments.interval_given:
        arguments.interval = DEFAULT_INTERVAL_SECONDS
    if arguments.inject and not arguments.attach:
        raise GpuwatchError("--inject needs to know where: give --attach PID with it; `gpuwatch --attach` lists them")
    return arguments


def _without_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What gpuwatch is told, and behind `--` the command line of what it starts: argparse would mix the two."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    return (words[:end], words[end + 1 :]) if {"record", "trial"} & set(words[:end]) else (words, [])


def _parser() -> Parser:
    parser = Parser(
        prog="gpuwatch",
        description="Watch GPU training live: why the GPU idles, and the line to change.\n"
        "Without a command: the dashboard over this machine.",
        epilog="Exit codes: 0 fine, 1 findings at or above --fail-on, 2 could not measure, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    parser.set_defaults(command="dashboard", attach=None, inject=False, yes=False, **config_options.DEFAULTS)
    add_watching(parser)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    report_options.add(commands)
    _add_watch(commands)
    _add_demo(commands)
    _add_explain(commands)
    _add_doctor(commands)
    _add_stacks(commands)
    config_options.add(commands)
    trial_options.add(commands)
    record_options.add(commands)
    replay_options.add(commands)
    compare_options.add(commands)
    export_options.add(commands)
    return parser


def _add_run(commands: Any) -> None:
    """For the help page only: `run` never gets this far."""
    commands.add_parser("run", help="start a training with the hook in it: gpuwatch run python train.py")


def _add_watch(commands: Any) -> None:
    watch = commands.add_parser(
        "watch",
        help="one line per second, for logs, pipes and screen readers",
        description="One line per second on stdout; findings go to stderr as they come.",
    )
    watch.set_defaults(command="watch")
    watch.add_argument("--duration", type=seconds, metavar="S", help="seconds to watch (default: until Ctrl-C)")
    add_watching(watch)
    add_simulate(watch)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="the dashboard over a simulated machine",
        describe=_scenario_list,
    )
    demo.set_defaults(command="demo")
    demo.add_argument("scenario", nargs="?", default="starved", metavar="SCENARIO", help="default: starved")


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser("explain", help="what a rule means and when it fires; without a rule: the list")
    explain.set_defaults(command="explain")
    explain.add_argument("rule", nargs="?", metavar="RULE")


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="what this machine offers, and the cure for each shortcoming")
    doctor.set_defaults(command="doctor")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")


def _add_stacks(commands: Any) -> None:
    stacks = commands.add_parser(
        "stacks",
        help="the sampled stacks of a process and its workers, for a flame graph",
        description="Looks at the stacks of a running Python process and its DataLoader workers without stopping them, "
        "then writes them to stdout. Ctrl-C writes what was seen so far.",
    )
    stacks.set_defaults(command="stacks")
    stacks.add_argument("pid", type=_pid, metavar="PID")
    stacks.add_argument("--seconds", type=seconds, default=10.0, metavar="S", help="how long to sample (default 10)")
    stacks.add_argument(
        "--rate", type=_rate, metavar="HZ", help="samples per second (default 100, with --threads 10: each costs more)"
    )
    stacks.add_argument("--threads", action="store_true", help="all threads, not only the main one of each process")
    stacks.add_argument(
        "--format",
        choices=("text", "collapsed", "speedscope"),
        default="text",
        help="text: a call tree (default); collapsed: for flamegraph.pl; speedscope: for www.speedscope.app",
    )
    stacks.add_argument("-o", "--output", metavar="FILE", help="write to a file, whole or not at all")


def add_watching(parser: argparse.ArgumentParser) -> None:
    """Options of everything that watches. Suppressed defaults, so that they may stand before or after the command."""
    parser.add_argument(
        "--attach",
        type=_pid,
        nargs="?",
        const=ANY_PROCESS,
        metavar="PID",
        default=argparse.SUPPRESS,
        help="only this process, what it started, and their GPUs, hooked or not; without PID: lists those that train",
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
    config_options.add_config(parser)


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """The option of a made-up machine."""
    parser.add_argument("--simulate", metavar="SCENARIO", help="a simulated machine in place of this one")


def _scenario_list() -> str:
    from gpuwatch.sources.simulator import SCENARIOS

    width = max(map(len, SCENARIOS))
    head = "The dashboard over a simulated machine and training run. Scenarios:\n"
    return head + "\n".join(f"  {name:{width}}  {scenario.description}" for name, scenario in SCENARIOS.items())


def _pid(text: str) -> int:
    if text in _ATTACHING:
        raise argparse.ArgumentTypeError(f"{text!r} is a command and stands first: `{_ATTACHING[text]}`")
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a process id is a number such as 4711, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A duration, a week at most."""
    value = _number(text)
    if not 0 <= value <= 7 * 24 * 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 604800 seconds (a week)")
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if not 1 <= value <= MOST_LOOKS_HZ:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {MOST_LOOKS_HZ} samples per second")
    return value


def _interval(text: str) -> float:
    value = _number(text)
    least, most = INTERVAL_SECONDS
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most:.0f} seconds")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def _name(action: argparse.Action) -> str:
    return max(action.option_strings, key=len, default=action.dest)
