"""What is followed, through what, and what every step along the way may say or do."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuwatch.edits.follow.command_line import started_with
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.workspace import Origin, Workspace

_FARTHEST = 6
"""Steps from the call to the literal; names that go round in a circle end here, too."""


class SetElsewhereError(CannotEditError):
    """The place was found, and says something else than what the running process has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A keyword that is to have a value; `present` is the running process's, where it is known."""

    name: str
    text: str
    present: str | None = None


@dataclass(frozen=True, slots=True)
class Trail:
    """One value on its way back."""

    setting: Setting
    module: Module
    workspace: Workspace
    origin: Origin
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
        given = started_with(self.origin.command, wanted, others, name)
        if given is not None:
            shown, cure = given
            raise CannotEditError(f"it was started with {shown}: start it with {cure.format(self.setting.text)}")

    def literal(self, node: ast.expr, name: str) -> list[Change]:
        """The change of the literal at the end of the trail."""
        wanted = ast.parse(self.setting.text, mode="eval").body
        if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes):
            raise self.refuse(name, f"is computed in line {node.lineno} of {self.module.file}")
        if ast.dump(node) == ast.dump(wanted):
            raise AlreadySoError(f"{name} is {self.setting.text} in line {node.lineno} of {self.module.file} already")
        present = self.setting.present
        if present is not None and ast.dump(node) != ast.dump(ast.parse(present, mode="eval").body):
            raise SetElsewhereError(
                f"{name} is {self.module.source(node)} in line {node.lineno} of {self.module.file}, but the run has "
                f"{present}: it is set elsewhere"
            )
        return [self.module.replaced(node, self.setting.text)]
