"""What a trial can change without editing the program: settings that the hook applies, the environment, flags."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwatch.trial.changes import TrialError

Value = int | bool | str | None

AS_IT_IS = "as it is"
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
        return " ".join(map(str, self.changes)) or AS_IT_IS

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
        raise TrialError(f"a change is NAME=VALUE, such as num_workers=8, not {text!r}; the command stands behind --")
    if kind == "env" and rest:
        if rest.startswith("GPUWATCH_"):
            raise TrialError(f"{rest} steers gpuwatch itself: a trial needs it for its own")
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
        raise TrialError(f"{twice} is given twice for one arm: a second arm is --arm '...', several values --sweep")
    return Arm(changes)


def _refusal(name: str) -> str:
    flag = f"where the command has a flag for it, --arg {name}=VALUE"
    settings = f"the hook can change {', '.join(SETTINGS)} and env.NAME"
    if name in _NOT_FROM_OUTSIDE:
        return f"{name} cannot be changed by the hook, for {_NOT_FROM_OUTSIDE[name]}: {flag}; {settings}"
    near = difflib.get_close_matches(name, list(SETTINGS), n=1, cutoff=0.5)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} is nothing that the hook can change{meant}; {settings}; {flag}"
