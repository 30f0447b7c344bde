"""`gpuwatch tune`: from what the findings advise to the settings that are proved faster, as one patch."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuwatch import __version__
from gpuwatch.cli.arguments import add_output, number, parse
from gpuwatch.cli.config import apply_config
from gpuwatch.cli.output import ExitCode, GpuwatchError, OutputFile, append_step_summary, output_to, say, write_stdout
from gpuwatch.cli.report import observed
from gpuwatch.cli.run import inherited_environment
from gpuwatch.cli.trial import (
    TrialProgress,
    add_runs,
    check_hook,
    enough_of,
    make_runs,
    positive,
    say_where_it_writes,
    whole,
)
from gpuwatch.edits.config_file import LARGEST as LARGEST_CONFIG
from gpuwatch.edits.source import read_source
from gpuwatch.edits.tuned_config import tuned_config, wishes_of
from gpuwatch.edits.workspace import CannotEditError
from gpuwatch.numbers import duration_words
from gpuwatch.report.build import verdict
from gpuwatch.report.observation import Observation
from gpuwatch.sources.host.machine import Cgroups
from gpuwatch.sources.host.source import affinity_core_count
from gpuwatch.text import json_text
from gpuwatch.trial import batch_size
from gpuwatch.trial.batch_size import SizeSearch
from gpuwatch.trial.changes import Arm, TrialError, checked_command
from gpuwatch.trial.render import patch_of
from gpuwatch.trial.results import RunResult, Steady
from gpuwatch.trial.tuned import MOST_RUNS, TuneResult, document, render_markdown, render_text
from gpuwatch.trial.tuning import Tuning
from gpuwatch.tune import LARGEST

_BUDGET_SECONDS = 1200.0
_WATCHED_SECONDS = 60.0
_MOST_SOURCES = 500
_MOST_ENTRIES = 20_000
_LONGEST_SOURCE = 4 * LARGEST_CONFIG  # bytes
_LIBRARIES = frozenset({"site-packages", "node_modules", "__pycache__"})
_EXAMPLES = """\
examples:
  gpuwatch tune -- python train.py
  gpuwatch tune loader --budget 10m -- python train.py --epochs 1
  gpuwatch tune --format md -o tuned.md -- python train.py
  gpuwatch tune batch-size -- python train.py
  gpuwatch tune config train.yaml -o tuned.yaml --attach 4711
  gpuwatch tune batch-size --memory 8G --seconds 10 -- python train.py --batch-size {}

It tries what the findings of a first run advise and the hook can set: num_workers, prefetch_factor,
persistent_workers, pin_memory, in_order, non_blocking, tf32, cudnn_benchmark, compile; and the thread counts of
libraries, by variables such as OMP_NUM_THREADS. It never changes what is trained: batch size, learning rate and
precision stay yours. `tune batch-size` searches for the smallest batch size that is as fast as any that fits into
memory; what it changes for the optimization, it says.

exit codes: 0 done, also with nothing to gain; 2 nothing could be measured; 130 interrupted, with what is known so far.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gpuwatch tune`."""
    parser.usage = (
        "gpuwatch tune [loader | batch-size] [OPTION ...] -- COMMAND...\n"
        "       gpuwatch tune config FILE [-o FILE] [--attach PID | --recording FILE]"
    )
    parser.description = (
        "Runs COMMAND once as it is, then tries the settings that its findings advise, each in fresh processes\n"
        "in turns with what was best before, keeps what is proved faster, and ends with one patch.\n"
        "The hook applies the settings; no file is edited unless --yes-apply asks for it."
    )
    parser.epilog = _EXAMPLES
    parser.set_defaults(command_line=[])
    parser.add_argument(
        "what",
        nargs="?",
        metavar="loader | batch-size | config",
        help="only the settings of the training's DataLoader; its batch size; or a copy of a configuration",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="with config: a .yaml, .json or .toml file")
    parser.add_argument(
        "--budget", type=positive, default=_BUDGET_SECONDS, metavar="TIME", help="such as 20m or 2h (default 20m)"
    )
    parser.add_argument("--runs", type=_runs, default=3, metavar="N", help="runs of what is kept, 2-20 (default 3)")
    add_runs(parser)
    parser.add_argument(
        "--yes-apply", action="store_true", help="apply the patch, in a git work tree without uncommitted changes"
    )
    sizes = parser.add_argument_group("batch-size")
    sizes.add_argument("--start", type=_size, metavar="N", help="the first size (default: the program's, or 8 for {})")
    sizes.add_argument("--most", type=_size, default=LARGEST, metavar="N", help="the largest size")
    sizes.add_argument(
        "--memory", type=_memory, metavar="SIZE", help="the memory of this machine that a run may take, such as 8G"
    )
    sizes.add_argument(
        "--target-utilization", type=_percent, metavar="PERCENT", help="the smallest size that keeps GPUs so busy"
    )
    config = parser.add_argument_group("config").add_mutually_exclusive_group()
    config.add_argument("--attach", metavar="PID", help="change what a minute of this run gives a reason for")
    config.add_argument("--recording", metavar="FILE", help="or what a recording of it does")
    parser.add_argument("--format", choices=("text", "json", "md"), default="text", help="default text")
    add_output(parser)


def tune(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.what not in (None, "loader", "batch-size", "config"):
        raise GpuwatchError(
            f"{arguments.what} is none of loader, batch-size and config; the command comes after --: "
            "gpuwatch tune -- python train.py"
        )
    if arguments.what == "config":
        return _tune_config(arguments)
    if arguments.attach is not None or arguments.recording is not None:
        raise GpuwatchError("--attach and --recording are for `gpuwatch tune config FILE`")
    if arguments.file is not None:
        raise GpuwatchError(f"write `--` before the command: gpuwatch tune -- {arguments.file} ...")
    try:
        command = checked_command(arguments.command_line)
    except TrialError as error:
        raise GpuwatchError(str(error).replace("gpuwatch trial num_workers=8", "gpuwatch tune")) from error
    check_hook(command)
    if arguments.what == "batch-size":
        return _tune_batch_size(arguments, command)
    if arguments.yes_apply:
        _check_work_tree()
    write, enough = output_to(arguments.output), enough_of(arguments)
    say_where_it_writes(arguments)
    environment, progress = inherited_environment(), _Progress(arguments.budget)
    tuning = Tuning(
        command,
        environment,
        runs_per_arm=arguments.runs,
        min_effect=arguments.min_effect,
        only_loader=arguments.what == "loader",
        has_time=progress.has_time,
    )
    make_runs(
        lambda runner: tuning.perform(runner, progress),
        command,
        environment,
        enough,
        progress,
        scratch=arguments.scratch,
    )
    result = TuneResult(tuning, enough.seconds, enough.steps)
    if tuning.is_proved and tuning.first is not None:
        patch = patch_of(tuning.kept, tuning.first, Path.cwd(), read_source)
        result = replace(result, patch=patch.data, by_hand=patch.by_hand)
    if arguments.format == "json":
        text = json_text(document(result, __version__), indent=2) + "\n"
    else:
        text = render_markdown(result) if arguments.format == "md" else render_text(result)
    write(text)
    append_step_summary(lambda: [render_markdown(result)])
    if arguments.yes_apply and not tuning.interrupted:
        _apply(result.patch)
    return ExitCode.INTERRUPTED if tuning.interrupted else ExitCode.OK


def _tune_config(arguments: argparse.Namespace) -> int:
    if arguments.file is None or arguments.command_line:
        raise GpuwatchError("name the configuration and no command: gpuwatch tune config train.yaml --attach PID")
    if arguments.yes_apply or arguments.format != "text":
        raise GpuwatchError("a configuration is copied, so --yes-apply and --format have no meaning: give -o FILE")
    return _tuned_copy(arguments.file, arguments.output, attach=arguments.attach, recording=arguments.recording)


def _tuned_copy(name: str, output: str | None, *, attach: str | None, recording: str | None) -> int:
    """Writes the copy to `output`, or stdout; what changed and what did not is said on stderr.

    Raises:
        GpuwatchError: the file cannot be read, or nothing can be made of it.
    """
    text = _text(name)
    if output is not None and Path(output).resolve() == Path(name).resolve():
        raise GpuwatchError(f"{name} stays as it is: give another file with -o")
    write = write_stdout if output in (None, "-") else OutputFile(str(output)).write
    seen: Observation | None = None
    if attach is not None or recording is not None:
        live = ("--attach", str(attach), "--duration", f"{_WATCHED_SECONDS:g}")
        arguments = parse(["report", *(live if recording is None else (recording,))])
        apply_config(arguments)
        seen = observed(arguments)
    wishes, advice = wishes_of(seen.snapshot.findings) if seen is not None else ([], [])
    sources, are_all = _sources(Path(name))
    cores = _cores() if seen is None else None
    try:
        found = tuned_config(name, text, wishes, cores, sources, are_all_sources=are_all, has_gpu=_has_gpu())
    except CannotEditError as error:
        raise GpuwatchError(f"{error}: nothing is changed") from error
    write(found.text.encode("utf-8"))
    for sentence in found.changed:
        say(f"gpuwatch: {sentence}")
    for sentence in (*found.left, *advice):
        say(f"gpuwatch: left to you: {sentence}")
    if not found.changed:
        say(f"gpuwatch: nothing is changed in {name}")
    if seen is None:
        say("gpuwatch: only this machine was looked at; --attach PID or --recording FILE brings what a run shows")
        return ExitCode.OK
    for line in verdict(seen):
        if not found.changed or not line.judged:
            say(f"gpuwatch: {line.sentence}")
    return ExitCode.INTERRUPTED if seen.interrupted else ExitCode.OK


def _text(name: str) -> str:
    path = Path(name)
    if path.suffix.lower() not in (".yaml", ".yml", ".json", ".toml"):
        raise GpuwatchError(f"{name} is no .yaml, .json or .toml file: give a training's configuration")
    if path.exists() and not path.is_file():
        raise GpuwatchError(f"{name} is not a file: give a training's configuration")
    with path.open("rb") as file:
        data = file.read(4 * LARGEST_CONFIG + 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) > 4 * LARGEST_CONFIG:
            raise GpuwatchError(f"{name} is too long to be edited: nothing is changed") from error
        raise GpuwatchError(f"{name} is not UTF-8 text: give a training's configuration") from error


def _sources(config: Path) -> tuple[dict[str, str], bool]:
    """The Python files below the working folder, or next to the configuration, that may read it; whether that is all.

    Libraries, hidden folders and links to folders are left out; folders of data may hold millions of files.
    """
    pending = list(dict.fromkeys([Path.cwd().resolve(), config.resolve().parent]))
    found: dict[str, str] = {}
    visited: set[Path] = set()
    is_all = True
    entries_left = _MOST_ENTRIES
    while pending:
        folder = pending.pop(0)
        if folder in visited:
            continue
        visited.add(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    entries_left -= 1
                    if entries_left < 0 or len(found) >= _MOST_SOURCES:
                        return found, False
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith(".") and entry.name not in _LIBRARIES:
                            pending.append(Path(entry.path))
                    elif entry.name.endswith(".py") and entry.is_file():
                        with Path(entry.path).open("rb") as file:
                            found[os.path.relpath(entry.path)] = file.read(_LONGEST_SOURCE).decode("utf-8", "replace")
                            is_all = is_all and not file.read(1)
        except OSError:
            is_all = False
    return found, is_all


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/dev", name).exists() for name in ("dxg", "kfd"))


def _cores() -> int:
    """That a process started here may use."""
    allowed = affinity_core_count(0) or os.cpu_count() or 1
    quota = Cgroups(Path("/proc"), Path("/sys/fs/cgroup")).cpu_limit("self").quota_cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _tune_batch_size(arguments: argparse.Namespace, command: list[str]) -> int:
    if arguments.yes_apply:
        raise GpuwatchError("a batch size changes what is trained: without --yes-apply it is found, and yours to set")
    write, enough = output_to(arguments.output), enough_of(arguments)
    enough = replace(enough, host_bytes=math.inf if arguments.memory is None else arguments.memory)
    say_where_it_writes(arguments)
    progress = _Progress(arguments.budget)
    search = SizeSearch(
        command,
        start=arguments.start,
        most=arguments.most,
        budget_bytes=arguments.memory,
        target_percent=arguments.target_utilization,
        has_time=progress.has_time,
    )
    make_runs(
        lambda runner: search.perform(runner, progress),
        command,
        inherited_environment(),
        enough,
        progress,
        scratch=arguments.scratch,
    )
    if arguments.format == "json":
        text = json_text(batch_size.document(search, __version__), indent=2) + "\n"
    else:
        as_markdown = arguments.format == "md"
        text = batch_size.render_markdown(search) if as_markdown else batch_size.render_text(search)
    write(text)
    append_step_summary(lambda: [batch_size.render_markdown(search)])
    if search.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if search.recommended is not None else ExitCode.CANNOT_MEASURE


def _runs(text: str) -> int:
    return whole(text, 2, MOST_RUNS, "runs")


def _size(text: str) -> int:
    return whole(text, 1, LARGEST, "samples")


def _percent(text: str) -> float:
    value = number(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"a utilization is above 0 and at most 100%, not {text!r}")
    return value


_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _memory(text: str) -> float:
    unit = _BYTES.get(text[-1:].upper())
    if unit is None or not 0 < number(text[:-1]) * unit < 1 << 50:
        raise argparse.ArgumentTypeError(f"memory is given with its unit, such as 500M or 8G, not {text!r}")
    return number(text[:-1]) * unit


class _Progress(TrialProgress):
    """A line per run, with what is left of the budget; a run that may outlast it is not begun."""

    def __init__(self, budget_seconds: float) -> None:
        super().__init__()
        self._ends = time.monotonic() + budget_seconds
        self._began = 0.0
        self._longest_seconds = 0.0

    def has_time(self) -> bool:
        """Whether one more run fits in, if it takes as long as the longest so far."""
        return time.monotonic() + self._longest_seconds <= self._ends

    def begins(self, arm: Arm, place: int, of: int | str = "") -> Callable[[Steady | None], None]:
        """A run begins."""
        self._began = time.monotonic()
        left_seconds = max(0.0, self._ends - self._began)
        return super().begins(arm, place, of or f"{duration_words(left_seconds)} left")

    def ended(self, run: RunResult) -> None:
        """The run has ended."""
        self._longest_seconds = max(self._longest_seconds, time.monotonic() - self._began)
        super().ended(run)


def _check_work_tree() -> None:
    """Refuses to apply a patch where it would mix with the user's own changes."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    if status.returncode:
        raise GpuwatchError(
            "--yes-apply needs a git work tree, so that the change can be undone: run it in one, or leave it out"
        )
    if status.stdout.strip():
        raise GpuwatchError("--yes-apply needs a git work tree without changes: commit or stash them first")


def _apply(patch: bytes) -> None:
    if not patch:
        say("gpuwatch: there is no patch to apply")
        return
    done = _git("apply", "-", content=patch)
    if done.returncode:
        raise GpuwatchError(f"the patch does not apply: {done.stderr.decode(errors='replace').strip()}")
    say("gpuwatch: the patch is applied; `git diff` shows it, `git checkout .` takes it back")


def _git(*words: str, content: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *words], input=content, capture_output=True, check=False)
    except FileNotFoundError:
        raise GpuwatchError("--yes-apply needs git, which is not installed: leave it out, and apply by hand") from None
