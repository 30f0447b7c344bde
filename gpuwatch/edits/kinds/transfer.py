"""`non_blocking=True` for the copies to the GPU in one statement."""

from __future__ import annotations

import ast

import libcst as cst

from gpuwatch.diagnosis.finding import TransferEdit
from gpuwatch.edits.arguments import with_keywords
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.names import dotted
from gpuwatch.edits.workspace import Origin, Workspace

_FLAG = "non_blocking"
_LONGEST_CALL = 2_000


def transfer_changes(edit: TransferEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Adds the keyword to each `.to(device)` and `.cuda()` of the statement that lacks it."""
    module = workspace.module(origin, edit.file)
    statement = module.statement(workspace.line(origin, edit.file, edit.line))
    header = statement.body[0].lineno if isinstance(getattr(statement, "body", None), list) else None  # type: ignore[attr-defined]
    copies = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _copies(node) and (header is None or node.lineno < header)
    ]
    if not copies:
        raise CannotEditError(f"line {edit.line} of {edit.file} holds no .to(device) or .cuda() call")
    lacking = [call for call in copies if not _has_flag(call)]
    if not lacking:
        raise AlreadySoError(f"the copy in line {edit.line} of {edit.file} already has {_FLAG}")
    if any(keyword.arg is None for call in lacking for keyword in call.keywords):
        raise CannotEditError(f"the copy in line {edit.line} of {edit.file} takes its arguments from **")
    return [_added(call, module) for call in lacking]


def _copies(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in {"to", "cuda"}:
        return False
    if call.func.attr == "cuda":
        return dotted(call.func) != "torch.cuda"
    places = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
    return any(not _is_dtype(place) and not _is_cpu(place) for place in places)


def _is_dtype(node: ast.expr) -> bool:
    """Whether it is `torch.float32`, `x.dtype` and the like, which moves nothing."""
    name = dotted(node.func if isinstance(node, ast.Call) else node) or ""
    kinds = ("float", "int", "bool", "half", "double", "long", "bfloat16", "uint8", "short", "complex")
    return name.endswith("dtype") or (name.startswith("torch.") and name.split(".")[1].startswith(kinds))


def _is_cpu(node: ast.expr) -> bool:
    """Whether it leads to the CPU: such a copy that does not block hands out memory that is not written yet."""
    return any(
        (isinstance(each, ast.Constant) and each.value == "cpu")
        or (isinstance(each, ast.Name) and "cpu" in each.id.lower())
        for each in ast.walk(node)
    )


def _has_flag(call: ast.Call) -> bool:
    if any(keyword.arg == _FLAG for keyword in call.keywords):
        return True
    return any(isinstance(arg, ast.Constant) and isinstance(arg.value, bool) for arg in call.args)


def _added(call: ast.Call, module: Module) -> Change:
    """Behind the last argument of the call, and only there: calls of one statement can hold each other."""
    source = module.source(call)
    start, end = module.span(call)
    receiver_end = module.span(call.func)[1] - start
    arguments = source[receiver_end:]
    if len(arguments) > _LONGEST_CALL:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} is too long to be edited")
    try:
        parsed = cst.ensure_type(cst.parse_expression(f"f{arguments}"), cst.Call)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} cannot be edited") from error
    newline = module.newline(call.lineno)
    changed = cst.Module([], default_newline=newline).code_for_node(with_keywords(parsed, "", {_FLAG: "True"}))
    return Change(module.file, start + receiver_end, end, changed[1:])
