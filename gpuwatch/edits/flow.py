"""Whether what a statement sets is read elsewhere: how far a value can flow, judged by names alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gpuwatch.edits.module import Module


def use_elsewhere(statement: ast.stmt, module: Module) -> ast.Name | None:
    """A name outside of the statement that may read what the statement set; a name that is set again first does not."""
    names = {
        each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    inside = set(ast.walk(statement))
    scope = module.scope(statement)
    for each in ast.walk(module.tree if isinstance(scope, ast.Lambda) else scope):
        reads = isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id in names
        if reads and each not in inside and isinstance(each, ast.Name) and not _set_anew(each, statement, module):
            return each
    return None


def _set_anew(load: ast.Name, statement: ast.stmt, module: Module) -> bool:
    """Whether the name is set on every way from the statement to where it is read."""
    holders = set(module.ancestors(statement))
    node: ast.stmt = module.statement_of(load)
    while True:
        block = module.block(node)
        before = block[: block.index(node)]
        shared = statement in block or any(each in holders for each in block)
        if shared:
            fence = next(index for index, each in enumerate(block) if each is statement or each in holders)
            before = before[fence + 1 :] if fence < len(before) else before
        if _sets(before, load.id):
            return True
        parent = module.parent(node)
        if shared or not isinstance(parent, ast.stmt) or isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(parent, ast.For | ast.AsyncFor) and node in parent.body and _named(parent.target, load.id):
            return True
        node = parent


def _sets(statements: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(each, ast.Assign) and any(_named(target, name) for target in each.targets) for each in statements
    )


def _named(target: ast.expr, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in ast.walk(target)
    )
