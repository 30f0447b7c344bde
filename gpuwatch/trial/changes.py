"""What a trial can change without editing the program, and the command line and environment of each arm.

Settings are applied by the hook; variables and flags are given to the process that is started.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class TrialError(Exception):
    """One sentence with the cause and the cure."""


Value = int | bool | str | None

UNCHANGED = "unchanged"
MOST_ARMS = 16
_LARGEST_COUNT = 1024

_TRUE = frozenset({"true", "on", "yes", "1"})
_FALSE = frozenset({"false", "off", "no", "0"})

_NOT_FROM_OUTSIDE = {
    "batch_size": "a batch size changes what is trained",
    "lr": "a learning rate changes what is trained",
    "amp": "autocast has to stand around the forward pass",
    "autocast": "autocast has to stand around the forward pass",
    "bf16": "autocast has to stand around the forward pass",
    "channels_last": "the layout of a model is given where it is built",
    "fused": "fused is chosen where the optimizer is built",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One setting and its value: `num_workers`, `env.OMP_NUM_THREADS`, `arg.lr`. A flag may have no value."""

    name: str
    value: Value

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.name == PLACEHOLDER:
            return f"batch size {self.value}"
        if self.value is None:
            return f"{self.name}=none" if self.name in SETTINGS else self.name
        return f"{self.name}={str(self.value).lower() if isinstance(self.value, bool) else self.value}"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the program; the first arm of a trial has no changes."""

    changes: tuple[Change, ...] = ()

    @property
    def label(self) -> str:
        """What the result calls it."""
        return " ".join(map(str, self.changes)) or UNCHANGED

    def of(self, names: frozenset[str]) -> dict[str, Value]:
        """The values of some settings."""
        return {change.name: change.value for change in self.changes if change.name in names}

    def below(self, prefix: str) -> dict[str, Value]:
        """The values of all settings of a kind: "env.", "arg."."""
        return {
            change.name.removeprefix(prefix): change.value for change in self.changes if change.name.startswith(prefix)
        }


def _count(least: int) -> Callable[[str, str], Value]:
    def read(name: str, text: str) -> Value:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= _LARGEST_COUNT:
            raise TrialError(f"{name} takes a number from {least} to {_LARGEST_COUNT}, not {text!r}")
        return int(text)

    return read


def _switch(name: str, text: str) -> Value:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise TrialError(f"{name} takes true or false, not {text!r}")
    return word in _TRUE


SETTINGS: dict[str, Callable[[str, str], Value]] = {
    "num_workers": _count(0),
    "pin_memory": _switch,
    "persistent_workers": _switch,
    "prefetch_factor": _count(1),
    "in_order": _switch,
    "non_blocking": _switch,
    "tf32": _switch,
    "cudnn_benchmark": _switch,
    "compile": _switch,
}
LOADER = frozenset({"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "in_order"})
"""Keywords of a DataLoader."""
BATCH_SIZE = "batch_size"
"""A keyword of it that only the search for a batch size sets: it changes what is trained."""
PLACEHOLDER = "{}"
"""Where a command takes the batch size that is searched for."""


def parse_change(text: str) -> Change:
    """`NAME=VALUE`.

    Raises:
        TrialError: it cannot be changed from outside, or not to that.
    """
    name, equals, value = text.partition("=")
    kind, _, rest = name.partition(".")
    if kind == "arg" and rest:
        return Change(name, value if equals else None)
    if not equals:
        raise TrialError(f"a change is NAME=VALUE, such as num_workers=8, not {text!r}; the command comes after --")
    if kind == "env" and rest:
        if rest.startswith("GPUWATCH_"):
            raise TrialError(f"{rest} controls gpuwatch itself: a trial uses it")
        if "\0" in value:
            raise TrialError(f"the value of {rest} holds a NUL, which no environment can")
        return Change(name, value)
    if name not in SETTINGS:
        raise TrialError(_refusal(name))
    return Change(name, SETTINGS[name](name, value))


def parse_argument(text: str) -> Change:
    """What `--arg` takes: `lr=0.1`, or the flag by itself; dashes in front do no harm."""
    name = text.partition("=")[0].lstrip("-")
    if not name:
        raise TrialError(f"--arg takes a flag of the command as NAME=VALUE, such as lr=0.1, not {text!r}")
    return parse_change(f"arg.{text.lstrip('-')}")


def arms_of(
    changes: Sequence[str], sweeps: Sequence[str] = (), arms: Sequence[str] = (), arguments: Sequence[str] = ()
) -> tuple[Arm, ...]:
    """All arms of a trial: the program as it is, one per combination of the sweeps, and those given one by one.

    Changes that are given by themselves belong to every arm of the sweeps.

    Raises:
        TrialError: there is nothing to try, or something that cannot be tried.
    """
    common = (*map(parse_change, changes), *map(parse_argument, arguments))
    swept = [_swept(sweep) for sweep in sweeps]
    found = [(*common, *combination) for combination in itertools.product(*swept)] if common or swept else []
    found += [tuple(map(parse_change, arm.split())) for arm in arms]
    named = [_checked(each) for each in found if each]
    if not named:
        raise TrialError("there is nothing to try: name a change, such as num_workers=8 or --sweep num_workers=0,2,4")
    every = tuple(dict.fromkeys([Arm(), *named]))
    if len(every) > MOST_ARMS:
        raise TrialError(f"{len(every)} arms are more than {MOST_ARMS}: each takes minutes; sweep fewer values")
    return every


def _swept(text: str) -> list[Change]:
    name, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not equals or not words:
        raise TrialError(f"--sweep takes NAME=VALUE,VALUE..., such as num_workers=0,2,4, not {text!r}")
    return [parse_change(f"{name}={word}") for word in words]


def _checked(changes: tuple[Change, ...]) -> Arm:
    names = [change.name for change in changes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TrialError(
            f"{twice} is given twice for one arm: use --arm '...' for a second arm, --sweep for several values"
        )
    return Arm(changes)


def _refusal(name: str) -> str:
    flag = f"where the command has a flag for it, --arg {name}=VALUE"
    settings = f"the hook can change {', '.join(SETTINGS)} and env.NAME"
    if name in _NOT_FROM_OUTSIDE:
        return f"{name} cannot be changed by the hook, for {_NOT_FROM_OUTSIDE[name]}: {flag}; {settings}"
    near = difflib.get_close_matches(name, list(SETTINGS), n=1, cutoff=0.5)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} cannot be changed by the hook{meant}; {settings}; {flag}"


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
    loader = arm.of(LOADER | {BATCH_SIZE})
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
    size = arm.of(frozenset({PLACEHOLDER})).get(PLACEHOLDER)
    words = list(command) if size is None else [word.replace(PLACEHOLDER, str(size)) for word in command]
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
        raise TrialError("no command was given; write it after --: gpuwatch trial num_workers=8 -- python train.py")
    program = command[0]
    if shutil.which(program) is None:
        if program.endswith(".py") and Path(program).is_file():
            raise TrialError(f"{program} is a script, not a command: start it with its interpreter, python {program}")
        if Path(program).is_file():
            raise TrialError(f"{program} is not executable: start it with its interpreter, such as sh {program}")
        raise TrialError(f"{program} is not a program that can be started; check its spelling and the environment")
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
