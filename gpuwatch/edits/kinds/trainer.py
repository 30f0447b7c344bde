"""Intervals of a library's own loop: settings of Hugging Face's TrainingArguments and of Lightning's Trainer."""

from __future__ import annotations

import ast

from gpuwatch.diagnosis.finding import IntervalEdit, SettingsEdit
from gpuwatch.edits.arguments import argument
from gpuwatch.edits.follow.trail import rarer
from gpuwatch.edits.follow.value import SOURCES, followed
from gpuwatch.edits.kinds.call import keyword_changes, only_call
from gpuwatch.edits.module import CannotEditError, Change, Module
from gpuwatch.edits.names import called, calls_in, dotted
from gpuwatch.edits.workspace import Origin, Workspace

_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
_USUAL_STEPS = 500
"""Of TrainingArguments' logging_steps and save_steps (transformers 4 and 5)."""
_USUAL_LOG_STEPS = 50
"""Of Lightning's log_every_n_steps (2.x)."""
_STRATEGIES = {"log": "logging", "evaluate": "eval", "save": "save"}


def trainer_changes(
    edit: IntervalEdit, statement: ast.stmt, module: Module, workspace: Workspace, origin: Origin
) -> list[Change] | None:
    """The setting of the trainer that the statement starts; None where it starts none."""
    packages = _imported(module)
    for call in calls_in(statement):
        if not isinstance(call.func, ast.Attribute) or not _is_trainer(call.func.value, module):
            continue
        if call.func.attr == "train" and "transformers" in packages:
            return _of_transformers(edit, module, workspace, origin)
        if call.func.attr == "fit" and not _LIGHTNING.isdisjoint(packages):
            return _of_lightning(edit, module, workspace, origin)
    return None


def scaled(
    value: ast.expr, name: str, edit: IntervalEdit, module: Module, workspace: Workspace, origin: Origin
) -> list[Change]:
    """The interval where it is written, so many times as long."""
    if not isinstance(value, ast.Constant | SOURCES):
        raise CannotEditError(f"{name} in line {value.lineno} of {module.file} is computed")
    return followed(value, rarer(name, edit.times or edit.every, edit.present), module, workspace, origin)


def _of_transformers(edit: IntervalEdit, module: Module, workspace: Workspace, origin: Origin) -> list[Change]:
    times, kind = edit.times or edit.every, _STRATEGIES[edit.what]
    call = only_call("TrainingArguments", module, f"{times} times its --{kind}_steps")

    def given(name: str) -> ast.expr | None:
        return argument(call, name, "TrainingArguments")

    if edit.what != "log" and not _is_false(given("load_best_model_at_end")):
        raise CannotEditError(
            f"load_best_model_at_end in line {call.lineno} of {module.file} ties evaluating and saving together"
        )
    old = edit.what == "evaluate" and given("evaluation_strategy") is not None  # its name until transformers 4.46
    strategy, interval = "evaluation_strategy" if old else f"{kind}_strategy", f"{kind}_steps"
    says = _word(given(strategy)) if given(strategy) is not None else "no" if edit.what == "evaluate" else "steps"
    seen = edit.present[0] * times if edit.present else None
    present = given(interval)
    if says == "steps" and present is not None:
        return scaled(present, interval, edit, module, workspace, origin)
    if says == "steps" and (seen is not None or edit.what != "evaluate"):
        settings = {interval: str(_USUAL_STEPS * times if edit.what != "evaluate" else seen)}
    elif says == "epoch" and seen is not None:
        settings = {strategy: '"steps"', interval: str(seen)}
    else:
        raise CannotEditError(f"{strategy} is {says} in the TrainingArguments of {module.file}: set {interval} there")
    return keyword_changes(SettingsEdit("TrainingArguments", module.file, settings), call, module, workspace, origin)


def _of_lightning(edit: IntervalEdit, module: Module, workspace: Workspace, origin: Origin) -> list[Change]:
    times, name = edit.times or edit.every, "ModelCheckpoint" if edit.what == "save" else "Trainer"
    names, usual = {
        "log": (("log_every_n_steps",), _USUAL_LOG_STEPS),
        "evaluate": (("val_check_interval", "check_val_every_n_epoch"), 1),
        "save": (("train_time_interval", "every_n_train_steps", "every_n_epochs"), 1),
    }[edit.what]
    call = only_call(name, module, "")
    for interval in names:
        present = argument(call, interval, name)
        if present is not None and not (isinstance(present, ast.Constant) and present.value is None):
            if interval == "train_time_interval":
                raise CannotEditError(f"line {present.lineno} of {module.file} saves by the clock: raise {interval}")
            return scaled(present, interval, edit, module, workspace, origin)
    settings = SettingsEdit(name, module.file, {names[-1]: str(usual * times)})
    return keyword_changes(settings, call, module, workspace, origin)


def _imported(module: Module) -> set[str]:
    """The packages that the module imports from."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def _is_trainer(receiver: ast.expr, module: Module) -> bool:
    """Whether it is made by a call of something that is called a trainer: `Trainer(...)`, `SFTTrainer(...)`."""
    if isinstance(receiver, ast.Call):
        return (called(receiver) or "").endswith("Trainer")
    name = dotted(receiver)
    return name is not None and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and (called(node.value) or "").endswith("Trainer")
        and name in {dotted(target) for target in node.targets}
        for node in ast.walk(module.tree)
    )


def _is_false(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _word(value: ast.expr | None) -> str:
    """The strategy's name, given as a text or as IntervalStrategy.STEPS."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    return value.attr.lower() if isinstance(value, ast.Attribute) else "computed"
