"""The loops and scopes of a file, and the lines of statements."""

from __future__ import annotations

import ast

from gpuwatch.sources.syntax_child.protocol import LONGEST_OVER, MOST_NAMES, Loop

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_For = ast.For | ast.AsyncFor
_MOST_COUNTERS = 4
_SHOWING_PROGRESS = frozenset({"tqdm", "track"})
"""Functions that hand on what they are given, and show how far it is."""


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
        counters=_counters(node)[:_MOST_COUNTERS],
    )


def _counters(loop: _For | ast.While) -> tuple[str, ...]:
    """The index of a range or an enumerate, then what the body itself, not a part of it, adds one to."""
    target = None if isinstance(loop, ast.While) else _index_of(loop.target, loop.iter)
    increments = [name for node in ast.walk(loop) if isinstance(node, ast.AugAssign) and (name := _path(node.target))]
    own = [name for statement in _always(loop.body) if (name := _incremented(statement))]
    return (*((target,) if target else ()), *(name for name in own if increments.count(name) == 1))


def _index_of(target: ast.expr, over: ast.expr) -> str | None:
    """The name that counts in `for i in range(n)`, `for i, x in enumerate(xs)` and either of them in a progress bar."""
    while isinstance(over, ast.Call) and _name(over.func) in _SHOWING_PROGRESS and over.args:
        over = over.args[0]
    if not isinstance(over, ast.Call):
        return None
    called = _name(over.func)
    if called in ("range", "trange") and len(over.args) < 3:
        return target.id if isinstance(target, ast.Name) else None
    if called == "enumerate" and isinstance(target, ast.Tuple) and target.elts:
        first = target.elts[0]
        return first.id if isinstance(first, ast.Name) else None
    return None


def _always(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run each time around unless one of them leaves the loop or begins the next round."""
    found: list[ast.stmt] = []
    for statement in body:
        found += _always(statement.body) if isinstance(statement, (ast.With, ast.AsyncWith)) else [statement]
    return found


def _incremented(statement: ast.stmt) -> str | None:
    """What `x += 1` counts with."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
        return None
    one = statement.value
    return _path(statement.target) if isinstance(one, ast.Constant) and one.value == 1 else None


def _path(node: ast.expr) -> str | None:
    """A variable, or an attribute of one, as written."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
