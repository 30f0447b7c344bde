"""A function that each DataLoader worker runs first, and the keyword that hands it over."""

from __future__ import annotations

import ast

from gpuwatch.diagnosis.finding import CallEdit, WorkerInitEdit
from gpuwatch.edits.kinds.call import call_changes
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change
from gpuwatch.edits.names import import_missing, last_import, loaded, stored
from gpuwatch.edits.workspace import Origin, Workspace

_KEYWORD = "worker_init_fn"


def worker_init_changes(edit: WorkerInitEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Adds the function at the top level (a worker that is spawned imports it) and sets the keyword."""
    module = workspace.module(origin, edit.file)
    if edit.function in stored(module.tree):
        raise AlreadySoError(f"{edit.file} already has {edit.function}()")
    line = workspace.line(origin, edit.file, edit.line)
    for node in ast.walk(module.tree):
        spans = isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
        if spans and isinstance(node, ast.Call) and any(keyword.arg == _KEYWORD for keyword in node.keywords):
            calls = " and ".join(edit.statements)
            raise CannotEditError(
                f"the call in line {edit.line} of {edit.file} already has a {_KEYWORD}: put {calls} there"
            )
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{edit.file} has no imports at its head to put {edit.function}() behind")
    missing = [
        name
        for name in sorted({name for text in edit.statements for name in loaded(ast.parse(text))})
        if import_missing(module, name)
    ]
    body = [f"{module.indent}{text}" for text in edit.statements]
    lines = [*(f"import {name}" for name in missing), "", "", f"def {edit.function}(worker_id):", *body]
    function = module.inserted_behind(last, *lines)
    return [
        function,
        *call_changes(CallEdit("DataLoader", edit.file, edit.line, {_KEYWORD: edit.function}), workspace, origin),
    ]
