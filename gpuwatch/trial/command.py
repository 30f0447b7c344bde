"""An arm's command line, environment and folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwatch.trial.changes import LOADER, Arm, TrialError, Value

Place = tuple[str, int]
"""File and line of the call that builds the training's DataLoader."""

_WITHOUT_COMPILER = {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
"""The second is what versions before the first one read."""


def environment_of(arm: Arm, usual: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment that the arm's processes get, before the hook is put into it.

    Args:
        arm: what it changes.
        usual: the environment without any change.
        folder: where its trainers meet the trial's monitor, and no other.
    """
    changed = {name: str(value) for name, value in arm.below("env.").items()}
    environment = {**usual, **changed, "GPUWATCH_DIR": str(folder)}
    for name in ("GPUWATCH_OVERRIDES", "GPUWATCH_DISABLE"):
        environment.pop(name, None)
    if arm.of(frozenset({"compile"})).get("compile") is False:
        environment.update(_WITHOUT_COMPILER)
    return environment


def overrides_of(arm: Arm, place: Place | None) -> str | None:
    """What the hook is to apply, as it reads it from GPUWATCH_OVERRIDES; None where it has nothing to do.

    Loaders of other lines stay as they are: a patch for the training's loader would not touch them either.
    """
    asked: dict[str, object] = {}
    loader = arm.of(LOADER)
    if loader:
        asked = {"loader": loader, "at": place}
    for name, value in arm.of(frozenset({"tf32", "cudnn_benchmark", "compile", "non_blocking"})).items():
        if name == "tf32":
            asked["float32_matmul_precision"] = "high" if value else "highest"
        elif name != "compile" or value:
            asked[name] = value
    return json.dumps(asked) if asked else None


def command_of(arm: Arm, command: Sequence[str]) -> list[str]:
    """The command with the arm's flags: a flag that is there gets the new value, another one is appended."""
    words = list(command)
    for name, value in arm.below("arg.").items():
        words = _with_flag(words, name, value)
    return words


def _with_flag(words: list[str], name: str, value: Value) -> list[str]:
    spellings = {name, name.replace("-", "_"), name.replace("_", "-")}
    flags = {f"{dashes}{spelling}" for dashes in ("--", "-") for spelling in spellings}
    for place, word in enumerate(words[1:], 1):
        head, equals, _ = word.partition("=")
        if equals and head in flags | spellings:  # --lr=0.1, and lr=0.1 as Hydra takes it
            return [*words[:place], head if value is None else f"{head}={value}", *words[place + 1 :]]
        if word in flags:
            if value is None:
                return words
            has_value = place + 1 < len(words) and not _is_flag(words[place + 1])
            return [*words[: place + 1], str(value), *words[place + 1 + has_value :]]
    return [*words, f"--{name}"] + ([] if value is None else [str(value)])


def _is_flag(word: str) -> bool:
    """Whether a word is a flag rather than a value, which may be a negative number."""
    return word.startswith("-") and not word[1:].replace(".", "", 1).isdigit()


def checked_command(command: Sequence[str]) -> list[str]:
    """The command as it is started.

    Raises:
        TrialError: there is none, or no such program.
    """
    if not command:
        raise TrialError("no command was given; write it behind --: gpuwatch trial num_workers=8 -- python train.py")
    program = command[0]
    if shutil.which(program) is None:
        if program.endswith(".py") and Path(program).is_file():
            raise TrialError(f"{program} is a script, not a command: start it with its interpreter, python {program}")
        if Path(program).is_file():
            raise TrialError(f"{program} is not executable: start it with its interpreter, such as sh {program}")
        raise TrialError(f"{program} is no program that can be started; check its spelling and the environment")
    return list(command)


def for_scratch(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment for another working folder: the program, and the script it runs, by absolute path.

    Nothing else is turned: a folder that is named relatively may be one to write to.
    """
    words = list(command)
    if os.sep in words[0]:
        words[0] = str(Path(words[0]).absolute())
    by_module = "-m" in words[1:3]
    for place, word in enumerate(words[1:], 1):
        if not by_module and word.endswith((".py", ".sh")) and Path(word).is_file():
            words[place] = str(Path(word).absolute())
            break
    # `python -m package` finds its package in the working folder.
    paths = [path for path in (environment.get("PYTHONPATH"), str(Path.cwd()) if by_module else None) if path]
    return words, {**environment, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(environment)
