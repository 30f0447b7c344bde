"""What a statement of the user's own asks torch for, by the calls that are written in it.

C functions leave no frame: while `.item()` waits for the device, the innermost frame is the line that called it.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from gpuwatch.sources.syntax_child.loops import header_lines
from gpuwatch.sources.syntax_child.protocol import Request

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
