"""`gpuwatch trial`: proves a change by running the training with and without it."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuwatch import __version__
from gpuwatch.cli.arguments import add_output, duration
from gpuwatch.cli.output import ExitCode, GpuwatchError, append_step_summary, output_to, say
from gpuwatch.cli.run import flag_that_ignores_the_environment, hooked_environment, inherited_environment
from gpuwatch.cli.signals import StopSignals
from gpuwatch.edits.source import read_source
from gpuwatch.numbers import grouped
from gpuwatch.text import json_text, printable
from gpuwatch.trial.changes import Arm, TrialError, arms_of, checked_command
from gpuwatch.trial.experiment import Experiment
from gpuwatch.trial.render import ArmPatch, document, patch_of, render_markdown, render_text, speed_words
from gpuwatch.trial.results import RunResult, Steady, TrialResult, remarks
from gpuwatch.trial.runner import Enough, Runner, Stopping

_DEFAULT_SECONDS = 20.0
_MOST_RUNS = 100
_EXAMPLES = """\
examples:
  gpuwatch trial num_workers=8 pin_memory=true -- python train.py
  gpuwatch trial --sweep num_workers=0,2,4,8 -- python train.py --epochs 1
  gpuwatch trial --arm 'num_workers=4' --arm 'num_workers=4 prefetch_factor=4' -- torchrun --nproc_per_node=8 train.py
  gpuwatch trial tf32=true --fail-if not-faster -- python train.py

changes: num_workers, pin_memory, persistent_workers, prefetch_factor, in_order (of the training's DataLoader),
non_blocking, tf32, cudnn_benchmark, compile, env.NAME, and with --arg the command's own flags.

exit codes: 0 compared, 1 --fail-if holds, 2 nothing could be compared, 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpuwatch trial [CHANGE ...] [--sweep NAME=V,V] [--arm 'CHANGE...'] [OPTION ...] -- COMMAND..."
    parser.description = (
        "Runs COMMAND with and without the changes, alternating, each in a fresh process that is stopped\n"
        "after a while, and says which is faster and how certain that is.\n"
        "The hook applies the changes; no file is edited."
    )
    parser.epilog = _EXAMPLES
    parser.set_defaults(command_line=[])
    parser.add_argument("changes", nargs="*", metavar="CHANGE", help="NAME=VALUE; several changes form one arm")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="one arm per value; with several --sweep one per combination",
    )
    parser.add_argument("--arm", action="append", default=[], metavar="'CHANGE...'", help="one more arm")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="a flag of COMMAND to add or replace"
    )
    parser.add_argument("--runs", type=_runs, default=5, metavar="N", help="runs of each arm (default 5)")
    add_runs(parser)
    parser.add_argument(
        "--fail-if", choices=("slower", "not-faster"), help="exit 1 when an arm is slower, or when none is faster"
    )
    parser.add_argument("--format", choices=("text", "json", "md"), default="text", help="default text")
    add_output(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """The options of how long each run is, what counts as a change, and where it runs."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=positive, default=None, metavar="S", help="seconds of settled training per run (default 20)"
    )
    length.add_argument("--steps", type=_steps, metavar="N", help="settled steps per run, instead of --seconds")
    parser.add_argument(
        "--patience",
        type=positive,
        default=600.0,
        metavar="S",
        help="seconds without a step after which a run has failed (default 600)",
    )
    parser.add_argument(
        "--min-effect", type=_share, default=0.02, metavar="P%", help="the smallest change that counts (default 2%%)"
    )
    parser.add_argument(
        "--scratch", action="store_true", help="run in an empty folder each time; give absolute paths of data"
    )


def enough_of(arguments: argparse.Namespace) -> Enough:
    """How long each run is watched."""
    seconds = None if arguments.steps else arguments.seconds or _DEFAULT_SECONDS
    return Enough(seconds, arguments.steps, arguments.patience)


def say_where_it_writes(arguments: argparse.Namespace) -> None:
    """Warns that the runs write what the program writes."""
    if not arguments.scratch:
        say(
            "gpuwatch: each run writes its checkpoints and logs where the program always does; "
            "--scratch gives it an empty folder"
        )


def trial(arguments: argparse.Namespace) -> int:
    try:
        arms = arms_of(arguments.changes, arguments.sweep, arguments.arm, arguments.arg)
        command = checked_command(arguments.command_line)
    except TrialError as error:
        raise GpuwatchError(str(error)) from error
    check_hook(command)
    write = output_to(arguments.output)
    enough = enough_of(arguments)
    environment = inherited_environment()
    experiment = Experiment(arms, arguments.runs, arguments.min_effect, command, environment)
    say_where_it_writes(arguments)
    progress = TrialProgress()
    make_runs(
        lambda runner: experiment.perform(runner, progress),
        command,
        environment,
        enough,
        progress,
        scratch=arguments.scratch,
    )
    result = _result(experiment, command, enough, scratch=arguments.scratch)
    if arguments.format == "json":
        text = json_text(document(result, __version__), indent=2) + "\n"
    else:
        text = render_markdown(result) if arguments.format == "md" else render_text(result)
    write(text)
    append_step_summary(lambda: [render_markdown(result)])
    return _exit_code(result, arguments.fail_if)


def check_hook(command: list[str]) -> None:
    """Refuses what would run without the hook, which makes the changes and counts the steps."""
    if sys.platform != "linux":
        raise GpuwatchError("a trial needs the hook's link, which exists on Linux only")
    ignored = flag_that_ignores_the_environment(command)
    if ignored:
        raise GpuwatchError(
            f"{command[0]} {ignored} ignores PYTHONPATH, so it would run without the hook: leave it out"
        )


def make_runs(
    perform: Callable[[Runner], None],
    command: list[str],
    environment: dict[str, str],
    enough: Enough,
    progress: TrialProgress,
    *,
    scratch: bool,
) -> None:
    """Lets `perform` run the command as often as it wants; Ctrl-C ends the run that is going on, and asks it to stop.

    Raises:
        GpuwatchError: no run gives a figure.
    """
    stopping = Stopping()
    with (
        StopSignals(stopping),
        Runner(command, environment, hooked_environment, enough, scratch, stopping) as runner,
    ):
        try:
            perform(runner)
        except TrialError as error:
            hint = "; with --scratch it runs in an empty folder: give absolute paths of its data" if scratch else ""
            raise GpuwatchError(f"{error}{hint}") from error
        finally:
            progress.clear()


def _result(experiment: Experiment, command: list[str], enough: Enough, *, scratch: bool) -> TrialResult:
    metric, arms = experiment.results()
    result = TrialResult(
        command=tuple(command),
        metric=metric,
        runs_per_arm=experiment.runs_per_arm,
        seconds=enough.seconds,
        steps=enough.steps,
        min_effect=experiment.min_effect,
        arms=arms,
        notes=(*experiment.notes, *remarks(arms, metric)),
        interrupted=experiment.interrupted,
        scratch=scratch,
    )
    patch = ArmPatch(b"", ())
    if result.best is not None and experiment.probe is not None:
        patch = patch_of(result.best.arm, experiment.probe, Path.cwd(), read_source)
    return replace(result, patch=patch.data, by_hand=patch.by_hand)


def _exit_code(result: TrialResult, fail_if: str | None) -> int:
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if not result.compares:
        return ExitCode.CANNOT_MEASURE
    verdicts = {each.judgement.verdict for each in result.arms[1:]}
    fails = (fail_if == "slower" and "slower" in verdicts) or (fail_if == "not-faster" and "faster" not in verdicts)
    return ExitCode.FINDINGS if fails else ExitCode.OK


def _runs(text: str) -> int:
    return whole(text, 1, _MOST_RUNS, "runs")


def _steps(text: str) -> int:
    return whole(text, 10, 10**9, "steps")


def whole(text: str, least: int, most: int, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {least} and {most} {what}")
    return int(text)


def positive(text: str) -> float:
    value = duration(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("0 seconds measure nothing")
    return value


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%").strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share such as 2%") from None
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0% and 100%")
    return value / 100


class TrialProgress:
    """How far a trial has got, on stderr: a line per run, and on a terminal the run that is going on."""

    def __init__(self) -> None:
        self._head = ""
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0

    def begins(self, arm: Arm, place: int, of: int | str) -> Callable[[Steady | None], None]:
        """A run begins; the first run, which does not count, has place 0. `of`: how many there are, or what is left."""
        left = f" of {of}" if isinstance(of, int) else f" ({of})" if of else ""
        self._head = f"first run ({arm.label}), not counted" if place == 0 else f"run {place}{left}: {arm.label}"
        self._show("starting")
        began = time.monotonic()

        def go_on(steady: Steady | None) -> None:
            self._show(f"not settled after {time.monotonic() - began:.0f} s" if steady is None else _speed(steady))

        return go_on

    def ended(self, run: RunResult) -> None:
        """The run has ended: its line stays."""
        self.clear()
        if run.failure is not None:
            if run.place >= 0:  # a first run that fails ends the trial, which says why
                say(f"{self._head}: {run.failure.reason}")
        elif run.interrupted:
            say(f"{self._head}: stopped")
        elif run.steady is not None:
            say(f"{self._head}: {_speed(run.steady)}")

    def _show(self, what: str) -> None:
        if not self._is_terminal:
            return
        # A line that wraps could not be taken back. Its end is what changes, so the arm's name gives way.
        room = max(20, shutil.get_terminal_size().columns - len(what) - 4)
        head = self._head if len(self._head) <= room else f"{self._head[: room - 3]}..."
        line = printable(f"{head}: {what} ")
        self.clear()
        sys.stderr.write(line)
        sys.stderr.flush()
        self._shown = len(line)

    def clear(self) -> None:
        """Takes back what is on the terminal's line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            self._shown = 0


def _speed(steady: Steady) -> str:
    known = steady.samples_per_second
    rate = f"{speed_words(steady.steps_per_second)} steps/s" if known is None else f"{speed_words(known)} samples/s"
    return f"{rate} ({grouped(steady.steps)} steps in {steady.seconds:.1f} s)"
