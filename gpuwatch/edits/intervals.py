"""What is to be done less often: a statement of the user's own loop, or a setting of Hugging Face's or Lightning's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from gpuwatch.diagnosis.finding import IntervalEdit, SettingsEdit
from gpuwatch.edits.follow import SOURCES, Setting, followed, rarer
from gpuwatch.edits.kinds import argument, keyword_changes, only_call
from gpuwatch.edits.workspace import (
    AlreadySoError,
    CannotEditError,
    Change,
    Files,
    Module,
    called,
    calls_in,
    calls_of,
    dotted,
    root,
    stored,
)

_LOGS = frozenset(
    {"print", "pprint", "write", "info", "debug", "warning", "log", "log_dict", "log_metric", "log_metrics", "echo"}
    | {"add_scalar", "add_scalars", "add_histogram", "add_image", "add_text", "set_postfix", "set_description"}
)
_LOGGERS = frozenset({"wandb", "mlflow", "logging", "logger", "log", "writer", "tb", "tensorboard", "console", "tqdm"})
_NO_GRADIENTS = frozenset({"no_grad", "inference_mode"})
_EVALUATES = re.compile(r"(?i)eval|valid|(\A|_)(test|val|save|checkpoint)|checkpoint")
_Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class _Counter:
    loop: _Loop
    name: str


def interval_changes(edit: IntervalEdit, files: Files) -> list[Change]:
    """Puts the statement under an `if` on the loop's counter, or raises the interval that it is under."""
    module, statement = files.statement(edit.file, edit.line)
    by_trainer = trainer_changes(edit, statement, module, files)
    if by_trainer is not None:
        return by_trainer
    if edit.per == "epoch":
        places = list(_places(statement, module, edit))
        under = next((found for place in places if (found := _outer_condition(place, module)) is not None), None)
        statement = places[-1] if under is not None else _out_of_batches(places[-1], module, edit)
    else:
        under = _condition(statement, module)
    if under is not None:
        return _raised(under, edit, module, files)
    counter = _counter(statement, module, edit)
    if edit.per == "step":
        _check_only_logs(statement, module)
    _check_unused(statement, module)
    if edit.per == "step":
        return module.wrapped([statement], f"if {counter.name} % {edit.every} == 0:")
    return module.wrapped([statement], f"if {_at_end_of_every(counter, edit.every, module)}:")


def _at_end_of_every(counter: _Counter, every: int, module: Module) -> str:
    """The condition for every k-th pass and the last one: what was trained after the last k-th would be lost."""
    bounds = counter.loop.iter.args if not isinstance(counter.loop, ast.While) and _is_range(counter.loop.iter) else []
    from_one = len(bounds) == 2 and isinstance(bounds[0], ast.Constant) and bounds[0].value == 1
    passed = counter.name if from_one else f"({counter.name} + 1)"
    condition = f"{passed} % {every} == 0"
    plain = ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.expr_context | ast.operator
    if len(bounds) in (1, 2) and all(isinstance(each, plain) for each in ast.walk(bounds[-1])):
        stop = module.source(bounds[-1])
        condition += f" or {counter.name} + 1 == {stop if not isinstance(bounds[-1], ast.BinOp) else f'({stop})'}"
    return condition


def _is_range(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and called(node) in {"range", "trange"}


def _places(statement: ast.stmt, module: Module, edit: IntervalEdit) -> Iterator[ast.stmt]:
    """The statement, then the only call of the function it is in, until one is in a loop of its own function.

    A loop inside of a function that only evaluates or saves goes over batches or models, not over epochs.
    """
    seen: set[ast.AST] = set()
    while True:
        yield statement
        function = module.scope(statement)
        in_loop = any(isinstance(each, _Loop) for each in _around(statement, module))
        is_part = isinstance(function, ast.FunctionDef) and _only_evaluates(function)
        if in_loop and not is_part:
            return
        calls = calls_of(function, module) if isinstance(function, ast.FunctionDef) else []
        if len(calls) != 1 or function in seen:
            where = f"line {edit.line} of {edit.file}"
            raise CannotEditError(
                f"{where} is in a function that is called {len(calls)} times"
                if in_loop and is_part
                else f"{where} is in no loop, nor is the only call that leads to it"
            )
        seen.add(function)
        statement = module.statement_of(calls[0])


def _only_evaluates(function: ast.FunctionDef) -> bool:
    names = {called(call) for call in calls_in(function)}
    if "backward" in names:
        return False
    marks = {called(each) if isinstance(each, ast.Call) else (dotted(each) or "") for each in function.decorator_list}
    held = {(mark or "").rpartition(".")[2] for mark in marks} | names
    return not _NO_GRADIENTS.isdisjoint(held) or "eval" in names or bool(_EVALUATES.search(function.name))


def _outer_condition(statement: ast.stmt, module: Module) -> ast.BinOp | None:
    """The `counter % n` of the outermost `if` around the statement that is in a loop and holds no training."""
    found = None
    around = _around(statement, module)
    for place, each in enumerate(around):
        in_loop = any(isinstance(above, _Loop) for above in around[place + 1 :])
        if in_loop and isinstance(each, ast.If) and not any(called(call) == "backward" for call in calls_in(each)):
            found = _remainder(each) or found
    return found


def _out_of_batches(statement: ast.stmt, module: Module, edit: IntervalEdit) -> ast.stmt:
    """The statement of the loop over epochs that holds the place."""
    loops = [each for each in _around(statement, module) if isinstance(each, _Loop)]
    if len(loops) == 1 or _is_range(getattr(loops[0], "iter", loops[0])):
        return statement
    # In a loop over batches: an evaluation is left out as a whole, and what trains as well is not left out at all.
    inside = [each for each in _around(statement, module) if isinstance(each, ast.With) and _without_gradients(each)]
    held_by_one = [each for each in inside if sum(isinstance(above, _Loop) for above in _around(each, module)) == 1]
    if not held_by_one:
        raise CannotEditError(f"line {edit.line} of {edit.file} is in the loop over batches")
    return held_by_one[-1]


def _without_gradients(statement: ast.With) -> bool:
    return any(called(call) in _NO_GRADIENTS for item in statement.items for call in calls_in(item))


def _around(statement: ast.AST, module: Module) -> list[ast.AST]:
    """What holds a statement, up to its function."""
    held: list[ast.AST] = []
    for each in module.ancestors(statement):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            break
        held.append(each)
    return held


def _condition(statement: ast.stmt, module: Module) -> ast.BinOp | None:
    """The `counter % n` of an `if` around the statement, within its loop."""
    for each in _around(statement, module):
        if isinstance(each, _Loop):
            return None
        if isinstance(each, ast.If) and (found := _remainder(each)) is not None:
            return found
    return None


def _remainder(condition: ast.If) -> ast.BinOp | None:
    binary = (node for node in ast.walk(condition.test) if isinstance(node, ast.BinOp))
    return next((node for node in binary if isinstance(node.op, ast.Mod)), None)


def _raised(under: ast.BinOp, edit: IntervalEdit, module: Module, files: Files) -> list[Change]:
    number = under.right
    if edit.times is not None:
        if isinstance(number, ast.Constant) and number.value == edit.every:  # what this edit makes where there is none
            raise AlreadySoError(f"line {number.lineno} of {module.file} already does it only every {edit.every} times")
        return scaled(number, "the interval", edit, module, files)
    if isinstance(number, SOURCES):
        return followed(number, Setting("the interval", str(edit.every)), module, files)
    if not isinstance(number, ast.Constant) or not isinstance(number.value, int):
        raise CannotEditError(f"the interval in line {number.lineno} of {module.file} is computed")
    if number.value >= edit.every:
        raise AlreadySoError(f"line {number.lineno} of {module.file} already does it only every {number.value} times")
    return [module.replaced(number, str(edit.every))]


def _counter(statement: ast.stmt, module: Module, edit: IntervalEdit) -> _Counter:
    loops = [each for each in _around(statement, module) if isinstance(each, _Loop)]
    if not loops:
        raise CannotEditError(f"line {edit.line} of {edit.file} is not in a loop of its function")
    loop = loops[0]
    name = _counted_by_loop(loop) or _own_counter(loop)
    if name is None:
        raise CannotEditError(
            f"the loop in line {loop.lineno} of {module.file} has no counter: for step, batch in enumerate(...)"
        )
    return _Counter(loop, name)


def _counted_by_loop(loop: _Loop) -> str | None:
    """The counter of `for i, x in enumerate(...)` and `for i in range(...)`, unless the body changes it."""
    if isinstance(loop, ast.While) or not isinstance(loop.iter, ast.Call):
        return None
    named = {called(call) for call in calls_in(loop.iter)}
    target: ast.expr = loop.target
    if "enumerate" in named and isinstance(target, ast.Tuple) and called(loop.iter) in {"enumerate", "tqdm", "track"}:
        target = target.elts[0]
    elif called(loop.iter) not in {"range", "trange"} and "range" not in named:
        return None
    if not isinstance(target, ast.Name) or any(target.id in stored(each) for each in loop.body):
        return None
    return target.id


def _own_counter(loop: _Loop) -> str | None:
    """The name that the loop's own body raises by one in every pass, and nothing else in the loop changes."""
    for each in loop.body:
        if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add) and isinstance(each.value, ast.Constant):
            name = dotted(each.target)
            others = sum((root(each.target) or "") in stored(other) for other in loop.body)
            if name is not None and each.value.value == 1 and "." not in name and others == 1:
                return name
    return None


def _check_only_logs(statement: ast.stmt, module: Module) -> None:
    """Raises unless leaving the statement out changes nothing but a log."""
    if any(isinstance(each, ast.Lambda) for each in module.ancestors(statement)):
        raise CannotEditError(f"line {statement.lineno} of {module.file} is in a lambda")
    if isinstance(statement, ast.Assign):
        return
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and (called(call) in _LOGS or root(call.func) in _LOGGERS):
        return
    if isinstance(call, ast.Call) and called(call) == "synchronize":
        raise CannotEditError(
            f"line {statement.lineno} of {module.file} waits for the GPU, and the code after it may rely on that"
        )
    if isinstance(statement, ast.AugAssign):
        name = dotted(statement.target) or "a total"
        raise CannotEditError(f"line {statement.lineno} of {module.file} adds to {name}, which is used outside of it")
    raise CannotEditError(f"line {statement.lineno} of {module.file} may do more than log")


def _check_unused(statement: ast.stmt, module: Module) -> None:
    """Raises where leaving the statement out would be felt elsewhere: by what it sets, or by where it goes on."""
    loops = [each for each in ast.walk(statement) if isinstance(each, _Loop)]
    steered = {each for loop in loops for each in ast.walk(loop)}
    for each in ast.walk(statement):
        if isinstance(each, ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            raise CannotEditError(f"line {each.lineno} of {module.file} keeps its result")
        leaves = isinstance(each, ast.Return | ast.Yield | ast.YieldFrom | ast.Await)
        if leaves or (isinstance(each, ast.Break | ast.Continue) and each not in steered):
            raise CannotEditError(f"line {statement.lineno} of {module.file} controls its loop")
    use = use_elsewhere(statement, module)
    if use is not None:
        raise CannotEditError(f"line {use.lineno} of {module.file} uses {use.id} from line {statement.lineno}")


_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
_USUAL_STEPS = 500
"""Of TrainingArguments' logging_steps and save_steps (transformers 4 and 5)."""
_USUAL_LOG_STEPS = 50
"""Of Lightning's log_every_n_steps (2.x)."""
_STRATEGIES = {"log": "logging", "evaluate": "eval", "save": "save"}


def trainer_changes(edit: IntervalEdit, statement: ast.stmt, module: Module, files: Files) -> list[Change] | None:
    """The setting of the trainer that the statement starts; None where it starts none."""
    packages = _imported(module)
    for call in calls_in(statement):
        if not isinstance(call.func, ast.Attribute) or not _is_trainer(call.func.value, module):
            continue
        if call.func.attr == "train" and "transformers" in packages:
            return _of_transformers(edit, module, files)
        if call.func.attr == "fit" and not _LIGHTNING.isdisjoint(packages):
            return _of_lightning(edit, module, files)
    return None


def scaled(value: ast.expr, name: str, edit: IntervalEdit, module: Module, files: Files) -> list[Change]:
    """The interval where it is written, n times as long."""
    if not isinstance(value, ast.Constant | SOURCES):
        raise CannotEditError(f"{name} in line {value.lineno} of {module.file} is computed")
    return followed(value, rarer(name, edit.times or edit.every, edit.present), module, files)


def _of_transformers(edit: IntervalEdit, module: Module, files: Files) -> list[Change]:
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
        return scaled(present, interval, edit, module, files)
    if says == "steps" and (seen is not None or edit.what != "evaluate"):
        settings = {interval: str(_USUAL_STEPS * times if edit.what != "evaluate" else seen)}
    elif says == "epoch" and seen is not None:
        settings = {strategy: '"steps"', interval: str(seen)}
    else:
        raise CannotEditError(f"{strategy} is {says} in the TrainingArguments of {module.file}: set {interval} there")
    return keyword_changes(SettingsEdit("TrainingArguments", module.file, settings), call, module, files)


def _of_lightning(edit: IntervalEdit, module: Module, files: Files) -> list[Change]:
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
                raise CannotEditError(
                    f"line {present.lineno} of {module.file} saves at time intervals: raise {interval}"
                )
            return scaled(present, interval, edit, module, files)
    settings = SettingsEdit(name, module.file, {names[-1]: str(usual * times)})
    return keyword_changes(settings, call, module, files)


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


def use_elsewhere(statement: ast.stmt, module: Module) -> ast.Name | None:
    """A name outside of the statement that may read what the statement set; a name that is set again first does not."""
    names = {
        each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    inside = set(ast.walk(statement))
    scope = module.scope(statement)
    for each in ast.walk(module.tree if isinstance(scope, ast.Lambda) else scope):
        reads = isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.id in names
        if reads and each not in inside and isinstance(each, ast.Name) and not _is_set_again(each, statement, module):
            return each
    return None


def _is_set_again(load: ast.Name, statement: ast.stmt, module: Module) -> bool:
    """Whether the name is set on every way from the statement to where it is read."""
    holders = set(module.ancestors(statement))
    node: ast.stmt = module.statement_of(load)
    while True:
        block = module.block(node)
        before = block[: block.index(node)]
        shared = statement in block or any(each in holders for each in block)
        if shared:
            fence = next(index for index, each in enumerate(block) if each is statement or each in holders)
            before = before[fence + 1 :] if fence < len(before) else before
        if _sets(before, load.id):
            return True
        parent = module.parent(node)
        if shared or not isinstance(parent, ast.stmt) or isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(parent, ast.For | ast.AsyncFor) and node in parent.body and _named(parent.target, load.id):
            return True
        node = parent


def _sets(statements: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(each, ast.Assign) and any(_named(target, name) for target in each.targets) for each in statements
    )


def _named(target: ast.expr, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in ast.walk(target)
    )
