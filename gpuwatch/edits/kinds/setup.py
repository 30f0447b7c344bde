"""A statement that runs once, behind the imports at the head of a file."""

from __future__ import annotations

import ast

from gpuwatch.diagnosis.finding import SetupEdit
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change
from gpuwatch.edits.names import dotted, import_missing, last_import, root
from gpuwatch.edits.workspace import Origin, Workspace


def setup_changes(edit: SetupEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Inserts the statement, or changes the one that makes the same call with other arguments."""
    module = workspace.module(origin, edit.file)
    wanted = ast.parse(edit.statement).body[0]
    same = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr | ast.Assign) and _subject(node) == _subject(wanted)
    ]
    if any(ast.dump(node) == ast.dump(wanted) for node in same):
        raise AlreadySoError(f"{edit.file} already has {edit.statement}")
    if len(same) == 1:
        module.lines_of(same[0], same[0])
        return [module.replaced(same[0], edit.statement)]
    if same:
        lines = ", ".join(str(node.lineno) for node in same)
        raise CannotEditError(f"{edit.file} sets {_subject(wanted)} in lines {lines}")
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{edit.file} has no imports at its head to put {edit.statement} behind")
    package = root(wanted.value if isinstance(wanted, ast.Expr) else wanted.targets[0]) or ""  # type: ignore[attr-defined]
    missing = [f"import {package}"] if import_missing(module, package) else []
    return [module.inserted_behind(last, *missing, "", edit.statement)]


def _subject(node: ast.stmt) -> str | None:
    """What a statement sets: the function it calls, or the attribute it assigns to."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return dotted(node.value.func)
    return dotted(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
