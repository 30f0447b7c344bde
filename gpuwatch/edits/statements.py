"""Statements put into the user's program: set once behind the imports, about the model, or around forward and loss."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gpuwatch.diagnosis.finding import AutocastEdit, ModelEdit, SetupEdit
from gpuwatch.edits.workspace import (
    AlreadySoError,
    CannotEditError,
    Change,
    Files,
    Module,
    called,
    calls_in,
    dotted,
    import_missing,
    last_import,
    loaded,
    root,
    stored,
)


def setup_changes(edit: SetupEdit, files: Files) -> list[Change]:
    """Inserts the statement, or changes the one that makes the same call with other arguments."""
    module = files.module(edit.file)
    wanted = ast.parse(edit.statement).body[0]
    same = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr | ast.Assign) and _subject(node) == _subject(wanted)
    ]
    if any(ast.dump(node) == ast.dump(wanted) for node in same):
        raise AlreadySoError(f"{edit.file} already has {edit.statement}")
    if len(same) == 1:
        module.lines_of(same[0], same[0])
        return [module.replaced(same[0], edit.statement)]
    if same:
        lines = ", ".join(str(node.lineno) for node in same)
        raise CannotEditError(f"{edit.file} sets {_subject(wanted)} in lines {lines}")
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{edit.file} has no imports at its head to put {edit.statement} after")
    package = root(wanted.value if isinstance(wanted, ast.Expr) else wanted.targets[0]) or ""  # type: ignore[attr-defined]
    missing = [f"import {package}"] if import_missing(module, package) else []
    return [module.inserted_behind(last, *missing, "", edit.statement)]


def _subject(node: ast.stmt) -> str | None:
    """What a statement sets: the function it calls, or the attribute it assigns to."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return dotted(node.value.func)
    return dotted(node.targets[0]) if isinstance(node, ast.Assign) and len(node.targets) == 1 else None


def model_changes(edit: ModelEdit, files: Files) -> list[Change]:
    """Inserts the statement where the model has its name, with the import that it needs."""
    module, statement = files.statement(edit.file, edit.line)
    model = _model_of_optimizer(statement, module)
    before = model is not None
    if model is None:
        model = _made_model(statement, edit)
    code = edit.statement.replace("{model}", model)
    wanted = ast.parse(code).body[0]
    if any(_does(node, wanted, model) for node in ast.walk(module.tree)):
        raise AlreadySoError(f"{edit.file} already has {code}")
    if isinstance(wanted, ast.Assign):
        _check_rebinding(model, statement, module)
    imports = import_missing(module, "torch") if "torch" in loaded(wanted) else []
    place = module.inserted_before(statement, code) if before else module.inserted_behind(statement, code)
    return [*imports, place]


def _model_of_optimizer(statement: ast.stmt, module: Module) -> str | None:
    """`model` of `SGD(model.parameters())`; None where the statement reads no model's parameters."""
    names = {
        dotted(node.func.value) or "?"
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"parameters", "named_parameters"}
    }
    if not names:
        return None
    if len(names) > 1 or names & {"?", "self"}:
        raise CannotEditError(
            f"the optimizer in line {statement.lineno} of {module.file} has no single model's parameters"
        )
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        raise CannotEditError(f"line {statement.lineno} of {module.file} builds the optimizer in a larger statement")
    return names.pop()


def _made_model(statement: ast.stmt, edit: ModelEdit) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    name = dotted(target) if target is not None else None
    if name is None or not isinstance(getattr(statement, "value", None), ast.Call):
        raise CannotEditError(f"line {edit.line} of {edit.file} neither makes a model nor an optimizer of one")
    return name


def _does(node: ast.AST, wanted: ast.stmt, model: str) -> bool:
    """Whether a node does what the wanted statement does; compiled with another mode is compiled, too."""
    call = wanted.value if isinstance(wanted, ast.Expr | ast.Assign) else None
    if not isinstance(node, ast.Call) or not isinstance(call, ast.Call):
        return False
    if called(call) == "compile":
        return dotted(node.func) in {"torch.compile", f"{model}.compile"}
    keywords = {ast.dump(each) for each in node.keywords}
    same = called(node) == called(call) and {ast.dump(each) for each in call.keywords} <= keywords
    return ast.dump(node) == ast.dump(call) or (same and bool(call.keywords))


def _check_rebinding(model: str, statement: ast.stmt, module: Module) -> None:
    """A name can be given a new value only where it lives: elsewhere the training would keep the old one."""
    if "." in model:
        return
    scope = module.scope(statement)
    names = {name for each in getattr(scope, "body", []) if isinstance(each, ast.stmt) for name in _names_set(each)}
    if model not in names:
        raise CannotEditError(
            f"{model} is made outside of the function around line {statement.lineno} of {module.file}"
        )


def _names_set(statement: ast.stmt) -> set[str]:
    inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return set() if isinstance(statement, inner) else stored(statement)


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


def autocast_changes(edit: AutocastEdit, files: Files) -> list[Change]:
    """Wraps the statements that lead from the model's call to the loss."""
    module, backward = files.statement(edit.file, edit.line)
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
