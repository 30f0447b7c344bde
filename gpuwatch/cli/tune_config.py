"""`gpuwatch tune config FILE`: an optimized copy of a configuration."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from gpuwatch.cli.arguments import parse
from gpuwatch.cli.config import apply_config
from gpuwatch.cli.output import ExitCode, GpuwatchError, OutputFile, say, write_stdout
from gpuwatch.cli.report import observed
from gpuwatch.edits.config_file import LARGEST
from gpuwatch.edits.tuned_config import Wish, tuned_config, wishes_of
from gpuwatch.edits.workspace import CannotEditError
from gpuwatch.sources.host.machine import Cgroups
from gpuwatch.sources.host.source import affinity_core_count

_WATCHED_SECONDS = 60.0
_MOST_SOURCES = 500


def tune_config(name: str, output: str | None, *, attach: str | None, recording: str | None) -> int:
    """Writes the copy to `output`, or stdout; what changed and what did not is said on stderr.

    Raises:
        GpuwatchError: the file cannot be read, or nothing can be made of it.
    """
    text = _text(name)
    if output is not None and Path(output).resolve() == Path(name).resolve():
        raise GpuwatchError(f"{name} stays as it is: give another file with -o")
    write = write_stdout if output in (None, "-") else OutputFile(str(output)).write
    wishes: list[Wish] = []
    advice: list[str] = []
    cores = _cores() if attach is None and recording is None else None
    if cores is None:
        live = ("--attach", str(attach), "--duration", f"{_WATCHED_SECONDS:g}")
        arguments = parse(["report", *(live if recording is None else (recording,))])
        apply_config(arguments)
        wishes, advice = wishes_of(observed(arguments).snapshot.findings)
    try:
        found = tuned_config(name, text, wishes, cores, _sources(Path(name)))
    except CannotEditError as error:
        raise GpuwatchError(f"{error}: nothing is changed") from error
    write(found.text.encode("utf-8"))
    for sentence in found.changed:
        say(f"gpuwatch: {sentence}")
    for sentence in (*found.left, *advice):
        say(f"gpuwatch: left to you: {sentence}")
    if not found.changed:
        say(f"gpuwatch: nothing to change in {name}")
    if cores is not None:
        say("gpuwatch: only this machine was looked at; --attach PID or --recording FILE brings what a run shows")
    return ExitCode.OK


def _text(name: str) -> str:
    path = Path(name)
    if path.suffix.lower() not in (".yaml", ".yml", ".json", ".toml"):
        raise GpuwatchError(f"{name} is no .yaml, .json or .toml file: give a training's configuration")
    with path.open("rb") as file:
        data = file.read(4 * LARGEST + 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GpuwatchError(f"{name} is not UTF-8 text: give a training's configuration") from error


def _sources(config: Path) -> dict[str, str]:
    """The Python files below the working folder, or next to the configuration, that may read it."""
    folders = dict.fromkeys([Path.cwd(), config.resolve().parent])
    found: dict[str, str] = {}
    for folder in folders:
        for path in islice(folder.rglob("*.py"), _MOST_SOURCES):
            if "site-packages" in path.parts or path.resolve() in {Path(each).resolve() for each in found}:
                continue
            try:
                found[os.path.relpath(path)] = path.read_bytes()[: 4 * LARGEST].decode("utf-8", "replace")
            except OSError:
                continue
    return found


def _cores() -> int:
    """That a process started here may use."""
    allowed = affinity_core_count(0) or os.cpu_count() or 1
    quota = Cgroups(Path("/proc"), Path("/sys/fs/cgroup")).cpu_limit("self").quota_cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))
