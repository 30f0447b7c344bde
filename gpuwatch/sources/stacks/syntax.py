"""What is kept of a source file's syntax: its loops, and what each line's statement asks for.

The tree itself is let go: that of a 5 000-line trainer takes 20 MB.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.sources.stacks.statements import Request, request_of

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_For = ast.For | ast.AsyncFor


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` statement: its first line, the last line of its header, and its last line.

    `over` is what a `for` iterates over, as text, and `over_names` the names in it; `calls` are the names of all
    functions that the loop calls.
    """

    first: int
    header_last: int
    last: int
    iterates: bool
    over: str
    over_names: frozenset[str]
    calls: frozenset[str]


class LoopTable:
    """The loops of one file."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self._scopes = [(n.lineno, n.end_lineno or n.lineno) for n in nodes if isinstance(n, _Scope)]
        self._loops = [_loop(node) for node in nodes if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]

    def around(self, number: int) -> Sequence[Loop]:
        """The loops around a line, in the function it belongs to, innermost first."""
        scope = max((first for first, last in self._scopes if first <= number <= last), default=0)
        found = [loop for loop in self._loops if scope <= loop.first <= number <= loop.last]
        return sorted(found, key=lambda loop: -loop.first)


def requests_by_line(tree: ast.Module) -> dict[int, Request]:
    """What the innermost statement at each line asks for, where it asks for anything.

    A statement of several lines asks on each of them; of one with a body, only its header counts.
    """
    statements: dict[int, ast.stmt] = {}
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            first, last = header_lines(node)
            for number in range(first, last + 1):
                if number not in statements or statements[number].lineno <= node.lineno:
                    statements[number] = node
        if not isinstance(node, ast.expr):
            pending.extend(ast.iter_child_nodes(node))
    asked = {id(node): request_of(node) for node in statements.values()}
    return {number: request for number, node in statements.items() if (request := asked[id(node)]) is not None}


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
        over=ast.unparse(over) if over is not None else "",
        over_names=names,
        calls=calls,
    )


def _name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
