"""Names in a module: what a call calls, what was imported under which name, where imports end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpuwatch.edits.module import CannotEditError, Change, Module


def called(call: ast.Call) -> str | None:
    """The last part of what a call calls: `DataLoader` of `torch.utils.data.DataLoader(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def dotted(node: ast.AST) -> str | None:
    """`self.model` for names and their attributes; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def root(node: ast.AST) -> str | None:
    """The name that an expression of attributes, items and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def loaded(node: ast.AST) -> set[str]:
    """The names that are read anywhere in a node."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    """The names that a node binds or changes: assigned, deleted, imported, defined, with an item or attribute set."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            found.add(root(each) or "")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in each.names)
        elif isinstance(each, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and each.name:
            found.add(each.name)
    return found - {""}


def imported_as(module: Module, name: str) -> set[str]:
    """The name itself, and those it was imported under: `from torch.utils.data import DataLoader as Loader`."""
    aliases = (
        alias.asname
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == name and alias.asname
    )
    return {name, *aliases}


def import_missing(module: Module, package: str) -> list[Change]:
    """The import of a package, behind the others, where the module does not have it under its own name."""
    if any(_binds(node, package) for node in module.tree.body):
        return []
    if package in stored(module.tree):
        raise CannotEditError(f"{module.file} uses the name {package} for something else")
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{module.file} does not import {package}")
    return [module.inserted_behind(last, f"import {package}")]


def last_import(module: Module) -> ast.stmt | None:
    """The last import at the head of a module: before its first function, class, loop or condition."""
    last = None
    for node in module.tree.body:
        tried = node.body if isinstance(node, ast.Try) else [node]
        if any(isinstance(each, ast.Import | ast.ImportFrom) for each in tried):
            last = node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While | ast.If):
            break
    return last


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """All calls in a node."""
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def calls_of(function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> list[ast.Call]:
    """The calls of a function in its file; of a method by its name on anything, of a constructor by its class."""
    owner = module.parent(function)
    method = isinstance(owner, ast.ClassDef)
    if isinstance(owner, ast.ClassDef) and function.name == "__init__":
        return [call for call in calls_in(module.tree) if called(call) == owner.name]
    kind = ast.Attribute if method else ast.Name
    return [call for call in calls_in(module.tree) if isinstance(call.func, kind) and called(call) == function.name]


def _binds(node: ast.stmt, package: str) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.asname == package if alias.asname else alias.name.split(".")[0] == package for alias in node.names
    )
