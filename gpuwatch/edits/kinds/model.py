"""A statement about the model: compiled, or in another memory format, before the optimizer is built from it."""

from __future__ import annotations

import ast

from gpuwatch.diagnosis.finding import ModelEdit
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.names import called, dotted, import_missing, loaded, stored
from gpuwatch.edits.workspace import Origin, Workspace


def model_changes(edit: ModelEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Inserts the statement where the model has its name, with the import that it needs."""
    module = workspace.module(origin, edit.file)
    statement = module.statement(workspace.line(origin, edit.file, edit.line))
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
