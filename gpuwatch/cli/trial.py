"""`gpuwatch trial`: proves a change by running the training with and without it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gpuwatch._version import __version__
from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import OutputFile, check_stdout, say, write_stdout
from gpuwatch.cli.run import flag_that_ignores_the_environment, hooked_environment, inherited_environment
from gpuwatch.cli.step_summary import append_step_summary
from gpuwatch.cli.stopping import StopSignals
from gpuwatch.cli.trial_progress import TrialProgress
from gpuwatch.edits.source import read_source
from gpuwatch.text.escape import json_text
from gpuwatch.trial.changes import TrialError, arms_of, checked_command
from gpuwatch.trial.experiment import Experiment
from gpuwatch.trial.patch import ArmPatch, patch_of
from gpuwatch.trial.render import document, render_markdown, render_text
from gpuwatch.trial.results import TrialResult, remarks
from gpuwatch.trial.runner import Enough, Runner, Stopping

DEFAULT_SECONDS = 20.0


def trial(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        arms = arms_of(arguments.changes, arguments.sweep, arguments.arm, arguments.arg)
        command = checked_command(arguments.command_line)
    except TrialError as error:
        raise GpuwatchError(str(error)) from error
    _check_hook(command)
    output = None if arguments.output in (None, "-") else OutputFile(arguments.output)
    if output is None:
        check_stdout()
    seconds = None if arguments.steps else arguments.seconds or DEFAULT_SECONDS
    enough = Enough(seconds, arguments.steps, arguments.patience)
    environment = inherited_environment()
    experiment = Experiment(arms, arguments.runs, arguments.min_effect, command, environment)
    if not arguments.scratch:
        say("gpuwatch: each run writes its checkpoints and logs where the program always does; --scratch: elsewhere")
    _perform(experiment, command, environment, enough, scratch=arguments.scratch)
    result = _result(experiment, command, enough, scratch=arguments.scratch)
    if arguments.format == "json":
        text = json_text(document(result, __version__), indent=2) + "\n"
    else:
        text = render_markdown(result) if arguments.format == "md" else render_text(result)
    if output is None:
        write_stdout(text)
    else:
        output.write(text)
    append_step_summary([render_markdown(result)])
    return _exit_code(result, arguments.fail_if)


def _check_hook(command: list[str]) -> None:
    """Refuses what would run without the hook, which makes the changes and counts the steps."""
    if sys.platform != "linux":
        raise GpuwatchError("a trial measures through the hook's link, which there is on Linux only")
    ignored = flag_that_ignores_the_environment(command)
    if ignored:
        raise GpuwatchError(
            f"{command[0]} {ignored} ignores PYTHONPATH, so it would run without the hook: leave it out"
        )


def _perform(
    experiment: Experiment, command: list[str], environment: dict[str, str], enough: Enough, *, scratch: bool
) -> None:
    stopping, progress = Stopping(), TrialProgress()
    with (
        StopSignals(stopping),
        Runner(command, environment, hooked_environment, enough, scratch, stopping) as runner,
    ):
        try:
            experiment.perform(runner, progress)
        except TrialError as error:
            hint = "; with --scratch it runs in an empty folder: name its data by absolute paths" if scratch else ""
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
    if result.best is not None and experiment.look is not None:
        patch = patch_of(result.best.arm, experiment.look, Path.cwd(), read_source)
    return replace(result, patch=patch.data, by_hand=patch.by_hand)


def _exit_code(result: TrialResult, fail_if: str | None) -> int:
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if not result.compares:
        return ExitCode.CANNOT_MEASURE
    verdicts = {each.judgement.verdict for each in result.arms[1:]}
    fails = (fail_if == "slower" and "slower" in verdicts) or (fail_if == "not-faster" and "faster" not in verdicts)
    return ExitCode.FINDINGS if fails else ExitCode.OK
