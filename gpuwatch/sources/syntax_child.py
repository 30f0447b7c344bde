"""The child of `syntax`: answers questions about the syntax of texts in JSON.

It gives the loops and scopes of a file, what its statements ask for, and where a loader was written: only what the text
says without doubt; between two possible calls none is named.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Sequence
from typing import Any, Final

from gpuwatch.sources.limited_child import Parent, limit_cpu
from gpuwatch.sources.syntax import (
    CPU_SECONDS,
    LONGEST_OVER,
    MEMORY_BYTES,
    MOST_NAMES,
    MOST_ROWS,
    QUESTION,
    TABLES,
    WITHOUT_LINE,
    Loop,
    Request,
)


def main() -> None:
    """Ends when nothing is asked for 10 s, and with its parent."""
    parent = Parent(MEMORY_BYTES)
    while (question := parent.receive()) is not None:
        (line,) = QUESTION.unpack_from(question)
        limit_cpu(CPU_SECONDS)
        answer = _answer(question[QUESTION.size :], line)
        limit_cpu(0.0)
        parent.send(json.dumps({**answer, "is_last": parent.is_used_up()}).encode())


def _answer(text: bytes, line: int) -> dict[str, Any]:
    began = time.process_time()
    found: Any = None
    try:
        tree = ast.parse(text.decode("utf-8", "replace"))
        found = _tables(tree) if line == TABLES else loader_line(tree, None if line == WITHOUT_LINE else line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return {"found": found, "cpu_seconds": time.process_time() - began}


def _tables(tree: ast.Module) -> dict[str, Any]:
    requests = requests_by_line(tree)
    return {
        "requests": list(requests.items())[:MOST_ROWS],
        "scopes": scopes_of(tree)[:MOST_ROWS],
        "loops": [loop.as_row() for loop in loops_of(tree, MOST_ROWS)],
    }


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_For = ast.For | ast.AsyncFor
_MOST_COUNTERS = 4
_SHOWING_PROGRESS = frozenset({"tqdm", "track"})
"""Functions that hand on what they are given, and show how far it is."""


def scopes_of(tree: ast.Module) -> list[tuple[int, int]]:
    """The first and last lines of functions and classes."""
    return [(n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, _Scope)]


def loops_of(tree: ast.Module, most: int) -> list[Loop]:
    """The loops of a file, at most this many."""
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


_SYNC: Final = frozenset({"item", "cpu", "tolist", "synchronize", "numpy"})
_COPY: Final = frozenset({"to", "cuda"})
_SAVERS: Final = frozenset({("pickle", "dump"), ("torch", "save"), ("joblib", "dump"), ("np", "save"), ("np", "savez")})
_MODELS: Final = frozenset({"model", "net", "network", "criterion", "loss_fn", "loss_function"})
_FUNCTIONAL: Final = frozenset({"F", "functional"})
_TORCH_OPERATIONS: Final = frozenset(
    {"addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "einsum", "embedding", "layer_norm", "log_softmax"}
    | {"logsumexp", "matmul", "mm", "relu", "scaled_dot_product_attention", "sigmoid", "softmax", "tanh"}
)
_DTYPES: Final = re.compile(r"u?int\d+|b?float\d*|half|double|long|short|bool|complex\d*|dtype|\w*_dtype")


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


def request_of(statement: ast.stmt) -> Request | None:
    """The most expensive thing that the statement asks for; of a compound one, its header does."""
    found: set[Request] = set()
    for node in _header(statement):
        if isinstance(node, ast.Call):
            asked = _request_of_call(node)
            if asked is not None:
                found.add(asked)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("forward")
    order: tuple[Request, ...] = ("sync", "copy", "save", "log", "forward")
    return next((request for request in order if request in found), None)


def _header(statement: ast.stmt) -> list[ast.AST]:
    """All expressions of a statement that are evaluated where it stands."""
    nodes: list[ast.AST] = []
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        nodes.append(node)
        # A nested body has statements of its own, and what a lambda holds is evaluated elsewhere.
        elsewhere = ast.stmt, ast.ExceptHandler, ast.match_case, ast.Lambda
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, elsewhere))
    return nodes


def _request_of_call(call: ast.Call) -> Request | None:
    function = call.func
    if isinstance(function, ast.Name):
        if function.id == "print":
            return "log"
        if function.id == "synchronize":
            return "sync"
        return "forward" if function.id in _MODELS else None
    if not isinstance(function, ast.Attribute):
        return None
    name, owner = function.attr, function.value
    if name in _SYNC:
        return "sync"
    if name in _COPY:
        return None if name == "to" and _only_dtype(call) else "copy"
    module = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    if (module, name) in _SAVERS:
        return "save"
    computes = module in _FUNCTIONAL or (module == "torch" and name in _TORCH_OPERATIONS) or name in _MODELS
    return "forward" if computes else None


def _only_dtype(call: ast.Call) -> bool:
    """Whether a `.to()` names a type and no device: then nothing moves."""
    if any(word.arg != "dtype" for word in call.keywords):
        return False
    return bool(call.args or call.keywords) and all(
        isinstance(argument, ast.Attribute) and _DTYPES.fullmatch(argument.attr) is not None for argument in call.args
    )


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
