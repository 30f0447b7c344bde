"""Follows a value from the call to where it is written; what is ambiguous on the way ends in a sentence."""

from __future__ import annotations

import ast

from gpuwatch.edits.follow.members import follow_member
from gpuwatch.edits.follow.trail import Setting, Trail
from gpuwatch.edits.follow.variables import follow_variable
from gpuwatch.edits.module import Change, Module
from gpuwatch.edits.workspace import Origin, Workspace

__all__ = ["SOURCES", "Setting", "followed"]

SOURCES = ast.Name | ast.Attribute | ast.Subscript
"""Values that come from somewhere else; anything else in a call is changed in the call."""


def followed(value: ast.expr, setting: Setting, module: Module, workspace: Workspace, origin: Origin) -> list[Change]:
    """The changes where the value comes from: in the same file, or in a config file of the command line."""
    return _follow(value, Trail(setting, module, workspace, origin))


def _follow(value: ast.expr, trail: Trail) -> list[Change]:
    if isinstance(value, ast.Name):
        return follow_variable(value, trail.further(), _follow)
    if isinstance(value, ast.Attribute | ast.Subscript):
        return follow_member(value, trail.further(), _follow)
    return trail.literal(value, trail.setting.name)
