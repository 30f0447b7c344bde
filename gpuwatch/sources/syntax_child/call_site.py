"""Where a loader was written, found in the text of the file whose loop reads it.

Only what the text says without doubt: between two possible calls none is named.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

_LOADERS: Final = frozenset({"DataLoader", "StatefulDataLoader"})
_PASSED_THROUGH: Final = frozenset(
    {"enumerate", "tqdm", "trange", "iter", "zip", "islice", "track", "cycle", "prepare"}
)
_DEPTH: Final = 4
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def loader_line(tree: ast.Module, loop_line: int | None) -> int | None:
    """The line of the `DataLoader(...)` call that the loop at `loop_line` reads; None where it is not sure.

    Args:
        tree: Of the file.
        loop_line: Where the loop or the call of next() stands; None where it stands in another file.
    """
    if loop_line is not None:
        scopes = _scopes_at(tree, loop_line)
        read = _what_is_read(scopes[-1], loop_line)
        if read is not None:
            found = {call.lineno for call in _calls_behind(read, scopes, tree, _DEPTH)}
            if found:
                return found.pop() if len(found) == 1 else None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_loader_call(node)]
    return calls[0].lineno if len(calls) == 1 else None


def _what_is_read(scope: ast.AST, line: int) -> ast.expr | None:
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.AsyncFor)) and node.lineno == line:
            return node.iter
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call) and _called(node) == "next" and node.args]
    return next((call.args[0] for call in calls if call.lineno <= line <= (call.end_lineno or line)), None)


def _calls_behind(read: ast.expr, scopes: Sequence[ast.AST], tree: ast.Module, depth: int) -> list[ast.expr]:
    """The loader calls that an expression may come from."""
    if depth == 0:
        return []
    if _is_loader_call(read):
        return [read]
    if isinstance(read, ast.Call):
        name = _called(read)
        if name in _PASSED_THROUGH:
            return [c for argument in read.args for c in _calls_behind(_plain(argument), scopes, tree, depth)]
        made_by = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return _returned([function for function in made_by if function.name == name], tree, depth - 1)
    if isinstance(read, ast.Attribute):
        return _from_assignments(tree, ast.unparse(read), [tree], tree, depth)
    if not isinstance(read, ast.Name):
        return []
    for index in range(len(scopes) - 1, -1, -1):
        scope = scopes[index]
        if found := _from_assignments(scope, read.id, scopes[: index + 1], tree, depth):
            return found
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and read.id in _parameters(scope):
            return _from_callers(scope, read.id, tree, depth - 1)
    return []


def _from_assignments(
    scope: ast.AST, name: str, scopes: Sequence[ast.AST], tree: ast.Module, depth: int
) -> list[ast.expr]:
    found: list[ast.expr] = []
    for node in _own_nodes(scope) if scope is not tree or "." not in name else ast.walk(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        value = getattr(node, "value", None)
        for target in targets:
            if value is not None and (part := _part_named(target, value, name)) is not None:
                itself = isinstance(part, ast.Name) and part.id == name
                found += [] if itself else _calls_behind(part, scopes, tree, depth - 1)
    return found


def _part_named(target: ast.expr, value: ast.expr, name: str) -> ast.expr | None:
    """The part of an assigned value that a name gets: `a, b = x, y` and `a, b = prepare(x, y)` are taken apart."""
    if ast.unparse(target) == name:
        return value
    if isinstance(target, ast.Tuple):
        names = [ast.unparse(element) for element in target.elts]
        if isinstance(value, ast.Call) and _called(value) == "prepare":
            value = ast.Tuple(elts=value.args)
        if name in names and isinstance(value, ast.Tuple) and len(value.elts) == len(names):
            part = value.elts[names.index(name)]
            return None if isinstance(part, ast.Name) and part.id == name else part
    return None


def _from_callers(function: _Function, parameter: str, tree: ast.Module, depth: int) -> list[ast.expr]:
    """What the calls of a function in the same file hand over for a parameter."""
    position = _parameters(function).index(parameter)
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == function.name:
            skipped = 1 if isinstance(node.func, ast.Attribute) and _parameters(function)[0] == "self" else 0
            named = next((word.value for word in node.keywords if word.arg == parameter), None)
            place = position - skipped
            handed = named or (node.args[place] if 0 <= place < len(node.args) else None)
            if handed is not None:
                found += _calls_behind(handed, _scopes_at(tree, node.lineno), tree, depth)
    return found


def _returned(functions: Sequence[_Function], tree: ast.Module, depth: int) -> list[ast.expr]:
    found: list[ast.expr] = []
    for function in functions:
        for node in _own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                found += _calls_behind(node.value, _scopes_at(tree, node.lineno), tree, depth)
    return found


def _scopes_at(tree: ast.Module, line: int) -> list[ast.AST]:
    """The module and the functions around a line, outermost first."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    around = [node for node in functions if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return [tree, *sorted(around, key=lambda node: node.lineno)]


def _own_nodes(scope: ast.AST) -> list[ast.AST]:
    """The nodes of a scope, without those of functions within it."""
    found: list[ast.AST] = []
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))
    return found


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _plain(argument: ast.expr) -> ast.expr:
    return argument.value if isinstance(argument, ast.Starred) else argument


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_loader_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) in _LOADERS
