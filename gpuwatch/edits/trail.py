"""One value on its way back to where it is written: what every step may say or do, and what the command line gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.workspace import Files

_NUMBER_AT_END = re.compile(r"\d+\Z")
_FARTHEST = 6
"""Steps from the call to the literal; names that go round in a circle end here, too."""


_SAME = 0.25
"""What was counted is off by some steps: a run that said 30 had 26 between two saves."""


class SetElsewhereError(CannotEditError):
    """The place was found, and says something else than what the running process has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A keyword that is to have a value; `present` is the running process's, where it is known.

    With `times` it is to have so many times what is written, if that is one of `intervals` (where any is known), and
    `text` says so.
    """

    name: str
    text: str
    present: str | None = None
    times: int | None = None
    intervals: tuple[int, ...] = ()

    def in_place_of(self, written: str, name: str) -> str:
        """The source text that takes the place of what is written for a name."""
        if self.times is None:
            return self.text
        try:
            number = int(written)
        except ValueError as error:
            raise CannotEditError(f"{name} is {written}, which is no whole number") from error
        if self.intervals and not any(abs(number - seen) <= _SAME * seen for seen in self.intervals):
            raise SetElsewhereError(
                f"{name} is {number}, but the run was seen to have {self.intervals[0]}: it is set elsewhere"
            )
        return str(number * self.times)


def rarer(name: str, times: int, intervals: tuple[int, ...] = ()) -> Setting:
    """An interval that is to become so many times as long."""
    return Setting(name, f"{times} times as much", None, times, intervals)


@dataclass(frozen=True, slots=True)
class Trail:
    """One value on its way back."""

    setting: Setting
    module: Module
    files: Files
    at_call: Callable[[ast.Call], list[Change] | None] | None = None
    """Takes a call at the end of the trail, where a call is looked for and not a literal."""
    steps: int = 0

    def further(self) -> Trail:
        """The trail one step on."""
        if self.steps >= _FARTHEST:
            raise CannotEditError(f"{self.setting.name} passes through too many names in {self.module.file}")
        return replace(self, steps=self.steps + 1)

    def refuse(self, name: str, why: str) -> CannotEditError:
        """The reason in one form: which name, and what is with it."""
        return CannotEditError(f"{self.setting.name} comes from {name}, which {why}")

    def check_command_line(self, name: str, flags: tuple[str, ...] = (), others: frozenset[str] = frozenset()) -> None:
        """Raises where the process was started with this setting: no file then says what it is."""
        wanted = flags or (f"--{name}", f"--{name.replace('_', '-')}")
        given = started_with(self.files.origin.command, wanted, others, name)
        if given is not None:
            shown, cure = given
            value = self.setting.text
            if self.setting.times is not None and (digits := _NUMBER_AT_END.search(shown)):
                value = self.setting.in_place_of(digits.group(), name)
            raise CannotEditError(f"it was started with {shown}: start it with {cure.format(value)}")

    def _is_changed(self, node: ast.Constant) -> bool:
        return self.files.is_changed(self.module.file, *self.module.span(node))

    def literal(self, node: ast.expr, name: str) -> list[Change]:
        """The change of the literal at the end of the trail."""
        if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes):
            raise self.refuse(name, f"is computed in line {node.lineno} of {self.module.file}")
        text = self.setting.in_place_of(self.module.source(node), name)
        if self.setting.times is not None and self._is_changed(node):
            raise CannotEditError(f"an earlier fix of this patch changes {name}: apply that first, then look again")
        wanted = ast.parse(text, mode="eval").body
        if ast.dump(node) == ast.dump(wanted):
            raise AlreadySoError(f"{name} is {text} in line {node.lineno} of {self.module.file} already")
        present = self.setting.present
        if present is not None and ast.dump(node) != ast.dump(ast.parse(present, mode="eval").body):
            raise SetElsewhereError(
                f"{name} is {self.module.source(node)} in line {node.lineno} of {self.module.file}, but the run has "
                f"{present}: it is set elsewhere"
            )
        return [self.module.replaced(node, text)]


_CONFIG_FILE = re.compile(r"(?i)\.(ya?ml|json)\Z")


def started_with(
    command: Sequence[str], flags: Sequence[str], others: frozenset[str], name: str
) -> tuple[str, str] | None:
    """How a setting was given and how to give another, with `{}` for the value: ("--workers 2", "--workers {}").

    Args:
        command: The arguments, the interpreter first.
        flags: The option's names, "-j" and "--workers"; argparse takes an unambiguous beginning for a long one.
        others: Options of the program that are none of these, though one may begin another.
        name: The setting as Hydra has it: `data.name=value`.
    """
    for index, argument in enumerate(command[1:], start=1):
        option, equals, _ = argument.partition("=")
        if re.fullmatch(rf"(--|\+{{0,2}})([\w/@]+\.)*{re.escape(name)}", option) and equals:
            return argument, f"{option}={{}}"
        if option in flags or _begins(option, flags, others):
            if equals:
                return argument, f"{option}={{}}"
            following = command[index + 1 : index + 2]
            value = "".join(following) if following and not following[0].startswith("-") else ""
            return f"{argument} {value}".rstrip(), f"{argument} {{}}"
        short = next((flag for flag in flags if len(flag) == 2 and argument.startswith(flag)), None)
        if short is not None and not argument.startswith("--"):
            return argument, f"{short} {{}}"
    return None


def config_files(command: Sequence[str]) -> list[str]:
    """The YAML and JSON files among the arguments, `--config=base.yaml` included."""
    values = (argument.rpartition("=")[2] for argument in command[1:])
    return list(dict.fromkeys(value for value in values if _CONFIG_FILE.search(value)))


def _begins(option: str, flags: Sequence[str], others: frozenset[str]) -> bool:
    return (
        bool(others)
        and len(option) > 3
        and option.startswith("--")
        and option not in others
        and any(flag.startswith(option) for flag in flags)
    )
