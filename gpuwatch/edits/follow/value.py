"""Follows a value from the call to where it is written; what is ambiguous on the way ends in a sentence."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gpuwatch.edits.follow.members import follow_member
from gpuwatch.edits.follow.trail import Setting, Trail
from gpuwatch.edits.follow.variables import follow_variable
from gpuwatch.edits.module import Change, Module
from gpuwatch.edits.names import called
from gpuwatch.edits.workspace import Origin, Workspace

__all__ = ["SOURCES", "Setting", "follow", "followed", "followed_to_call"]

SOURCES = ast.Name | ast.Attribute | ast.Subscript
"""Values that come from somewhere else; anything else in a call is changed in the call."""

_PASS_ON = frozenset({"enumerate", "iter", "next", "tqdm", "trange", "track", "islice", "cycle"})
"""Functions that hand on what their first argument gives."""


def followed(value: ast.expr, setting: Setting, module: Module, workspace: Workspace, origin: Origin) -> list[Change]:
    """The changes where the value comes from: in the same file, or in a config file of the command line."""
    return follow(value, Trail(setting, module, workspace, origin))


def followed_to_call(
    value: ast.expr,
    at_call: Callable[[ast.Call], list[Change] | None],
    module: Module,
    workspace: Workspace,
    origin: Origin,
) -> list[Change]:
    """What `at_call` makes of the call that a value comes from; it gives None for those that it does not want."""
    return follow(value, Trail(Setting("the loader", "None"), module, workspace, origin, at_call))


def follow(value: ast.expr, trail: Trail) -> list[Change]:
    """The changes one step further along a trail."""
    if isinstance(value, ast.Name):
        return follow_variable(value, trail.further(), follow)
    if isinstance(value, ast.Attribute | ast.Subscript):
        return follow_member(value, trail.further(), follow)
    if isinstance(value, ast.Call) and trail.at_call is not None:
        changes = trail.at_call(value)
        if changes is not None:
            return changes
        if called(value) in _PASS_ON and value.args:
            return follow(value.args[0], trail.further())
    return trail.literal(value, trail.setting.name)
