"""An autocast region around forward and loss; the backward stays outside, as torch's AMP documentation wants it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gpuwatch.diagnosis.finding import AutocastEdit
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.names import called, calls_in, dotted, import_missing, loaded, root, stored
from gpuwatch.edits.workspace import Origin, Workspace

_SHOWS_MODEL = frozenset(
    {"parameters", "named_parameters", "train", "eval", "state_dict", "load_state_dict", "zero_grad"}
)
_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "DDP", "compile", "FullyShardedDataParallel", "FSDP"})
_NOT_INSIDE = frozenset({"backward", "step", "clip_grad_norm_", "clip_grad_value_"})
_ELSEWHERE = {
    "accelerator": 'mixed_precision="bf16" in Accelerator(...)',
    "fabric": 'precision="bf16-mixed" in Fabric(...)',
    "manual_backward": 'precision="bf16-mixed" in Trainer(...)',
}
_Open = ast.If | ast.With | ast.AsyncWith | ast.Try


def autocast_changes(edit: AutocastEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Wraps the statements that lead from the model's call to the loss."""
    module = workspace.module(origin, edit.file)
    line = workspace.line(origin, edit.file, edit.line)
    backward = module.statement(line)
    _check_not_there(module, backward)
    loss = _loss(backward, edit)
    block, index, needed = _block_with_loss(backward, loss, module, edit)
    first, last = _region(block[:index], needed, _models(module), edit)
    region = block[first : last + 1]
    for statement in region:
        _check_inside(statement, module)
    header = f'with torch.autocast(device_type="{edit.device_type}", dtype={edit.dtype}):'
    return [*import_missing(module, "torch"), *module.wrapped(region, header)]


def _check_not_there(module: Module, backward: ast.stmt) -> None:
    for call in calls_in(module.tree):
        if called(call) in {"autocast", "custom_fwd"}:
            raise AlreadySoError(f"line {call.lineno} of {module.file} already has {module.source(call)}")
        if called(call) == "GradScaler":
            raise CannotEditError(f"line {call.lineno} of {module.file} already scales gradients for 16 bits")


def _loss(backward: ast.stmt, edit: AutocastEdit) -> set[str]:
    """The names that the backward pass starts from."""
    calls = [call for call in calls_in(backward) if (called(call) or "").endswith("backward")]
    if len(calls) != 1 or not isinstance(backward, ast.Expr) or not isinstance(calls[0].func, ast.Attribute):
        raise CannotEditError(f"line {edit.line} of {edit.file} is no statement of one backward() call")
    owner = (dotted(calls[0].func) or "").split(".")
    for part, cure in _ELSEWHERE.items():
        if part in owner:
            raise CannotEditError(f"the precision of line {edit.line} of {edit.file} is set by {cure}")
    return loaded(calls[0].func.value)


def _block_with_loss(
    backward: ast.stmt, loss: set[str], module: Module, edit: AutocastEdit
) -> tuple[Sequence[ast.stmt], int, set[str]]:
    """The block that makes the loss: the backward's own, or one around it that only conditions lie between."""
    statement = backward
    while True:
        block = module.block(statement)
        index = block.index(statement)
        if any(stored(each) & loss for each in block[:index]):
            return block, index, loss
        above = module.parent(statement)
        if not isinstance(above, _Open):
            raise CannotEditError(f"the loss of line {edit.line} of {edit.file} is not made in the same block")
        statement = above


def _region(before: Sequence[ast.stmt], needed: set[str], models: set[str], edit: AutocastEdit) -> tuple[int, int]:
    """First and last statement of those that lead from a call of the model to the loss."""
    needed = set(needed)
    used: list[int] = []
    forward = None
    for index in range(len(before) - 1, -1, -1):
        statement = before[index]
        if not stored(statement) & needed:
            continue
        used.append(index)
        needed |= loaded(statement)
        if any(_calls_model(call, models) for call in calls_in(statement)):
            forward = index
    if forward is None:
        raise CannotEditError(f"the call of the model is not in the block before line {edit.line} of {edit.file}")
    return forward, max(used)


def _models(module: Module) -> set[str]:
    """What the file treats as models: asked for parameters, set to train, wrapped for data parallel training."""
    found: set[str] = set()
    for call in calls_in(module.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _SHOWS_MODEL:
            found.add(dotted(call.func.value) or "")
        if called(call) in _WRAPPERS and call.args:
            found.add(dotted(call.args[0]) or "")
    return {name for name in found if name and "optim" not in name.lower() and "sched" not in name.lower()}


def _calls_model(call: ast.Call, models: set[str]) -> bool:
    name = dotted(call.func)
    return name is not None and (
        name in models or (name.rpartition(".")[0] in models and name.rpartition(".")[2] == "forward")
    )


def _check_inside(statement: ast.stmt, module: Module) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and called(node) in _NOT_INSIDE:
            raise CannotEditError(f"line {node.lineno} of {module.file} trains between forward and loss")
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom | ast.Break | ast.FunctionDef | ast.ClassDef):
            raise CannotEditError(f"line {node.lineno} of {module.file} leaves the way from forward to loss")
        if isinstance(node, ast.Call) and root(node) is None and isinstance(node.func, ast.Lambda):
            raise CannotEditError(f"line {node.lineno} of {module.file} calls a lambda")
