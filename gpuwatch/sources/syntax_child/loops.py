"""The loops and scopes of a file, and the lines of statements."""

from __future__ import annotations

import ast

from gpuwatch.sources.syntax_child.protocol import LONGEST_OVER, MOST_NAMES, Loop

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_For = ast.For | ast.AsyncFor


def scopes_of(tree: ast.Module) -> list[tuple[int, int]]:
    """The first and last lines of functions and classes."""
    return [(n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, _Scope)]


def loops_of(tree: ast.Module, most: int) -> list[Loop]:
    """The loops of a file, at most so many."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    return [_loop(node) for node in nodes[:most]]


def header_lines(statement: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, without the body of a compound one."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return statement.lineno, statement.end_lineno or statement.lineno
    first = body[0]
    start = getattr(first, "lineno", None) or first.pattern.lineno
    decorators = [decorator.lineno for decorator in getattr(first, "decorator_list", ())]
    last = max(statement.lineno, min([start, *decorators]) - 1)
    return statement.lineno, last


def _loop(node: _For | ast.While) -> Loop:
    first, header_last = header_lines(node)
    calls = frozenset(
        name for call in ast.walk(node) if isinstance(call, ast.Call) and (name := _name(call.func)) is not None
    )
    over = None if isinstance(node, ast.While) else node.iter
    names = frozenset(name for part in ast.walk(over) if (name := _name(part)) is not None) if over else frozenset()
    return Loop(
        first=first,
        header_last=header_last,
        last=node.end_lineno or first,
        iterates=over is not None,
        over=ast.unparse(over)[:LONGEST_OVER] if over is not None else "",
        over_names=frozenset(sorted(names)[:MOST_NAMES]),
        calls=frozenset(sorted(calls)[:MOST_NAMES]),
    )


def _name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
