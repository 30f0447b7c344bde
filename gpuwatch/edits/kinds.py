"""Most kinds of edits, each as changes of files.

Keywords of calls are changed in place, added where a call lacks them, and followed where their value is a name; so are
`non_blocking=True` for the copies of one statement, and the function that each DataLoader worker runs first. Statements
are put into the program: set once behind the imports, about the model, or around forward and loss.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TypeVar

import libcst as cst

from gpuwatch.diagnosis.finding import (
    AutocastEdit,
    CallEdit,
    KeywordEdit,
    LoopEdit,
    ModelEdit,
    SettingsEdit,
    SetupEdit,
    TransferEdit,
    WorkerInitEdit,
)
from gpuwatch.edits.follow import SOURCES, Setting, Trail, added_to, displays_of, follow, followed_to_call, value_in
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
    imported_as,
    last_import,
    loaded,
    root,
    stored,
)

_LARGEST_CALL = 20_000  # characters: libcst 1.9.0 needs minutes for a sum of 20,000 terms
_SUBCLASSED = frozenset({"TrainingArguments"})
"""Classes whose subclasses take the same settings and keep the name: `Seq2SeqTrainingArguments`."""
_NEED_WORKERS = {"persistent_workers": "{workers} > 0", "prefetch_factor": "{value} if {workers} > 0 else None"}
"""Settings that DataLoader refuses without workers, and how they hold for any number of them (torch 2.13)."""


def call_changes(edit: CallEdit, files: Files) -> list[Change]:
    """Sets the keywords of the call at a line."""
    module = files.module(edit.file)
    line = files.line(edit.file, edit.line)
    names = imported_as(module, edit.call)
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and called(node) in names]
    starting = [call for call in calls if call.lineno == line]
    spanning = [call for call in calls if call.lineno < line <= (call.end_lineno or 0)]
    found = next((some[0] for some in (starting, spanning) if len(some) == 1), None)
    if found is None:
        raise CannotEditError(f"line {edit.line} of {edit.file} does not hold exactly one {edit.call}(...) call")
    return keyword_changes(edit, found, module, files)


def settings_changes(edit: SettingsEdit, files: Files) -> list[Change]:
    """Sets the keywords of the only call of that name, or of a subclass that is named after it."""
    file = edit.file or next((argument for argument in files.origin.command[1:] if argument.endswith(".py")), None)
    if file is None:
        raise CannotEditError(f"the script that calls {edit.call}(...) is not known")
    module = files.module(file)
    flags = " ".join(f"--{name} {value}" for name, value in edit.keywords.items())
    return keyword_changes(edit, only_call(edit.call, module, flags), module, files)


def only_call(name: str, module: Module, flags: str) -> ast.Call:
    """The only call of that name, or of a subclass that is named after it; `flags` would set it on a command line."""
    names = imported_as(module, name)
    kin = name if name in _SUBCLASSED else "\0"
    calls = [node for node in calls_in(module.tree) if (known := called(node) or "") in names or known.endswith(kin)]
    if len(calls) == 1:
        return calls[0]
    if not calls and any(_names_parsed_class(node, name) for node in ast.walk(module.tree)):
        raise CannotEditError(f"{name} is filled from the command line in {module.file}: start it with {flags}")
    raise CannotEditError(f"{module.file} holds {len(calls) or 'no'} {name}(...) call{'s' if calls else ''}")


def loop_changes(edit: LoopEdit, files: Files) -> list[Change]:
    """Sets the keywords of the call that makes what a loop goes over."""
    module, statement = files.statement(edit.file, edit.line)
    names = imported_as(module, edit.call)

    def at_call(call: ast.Call) -> list[Change] | None:
        return keyword_changes(edit, call, module, files) if called(call) in names else None

    loop = statement if isinstance(statement, ast.For | ast.AsyncFor) else None
    nexts = [call for call in calls_in(statement) if called(call) == "next" and call.args] if loop is None else []
    if loop is None and len(nexts) != 1:
        raise CannotEditError(f"line {edit.line} of {edit.file} is not a loop over a loader")
    return followed_to_call(loop.iter if loop is not None else nexts[0], at_call, module, files)


def _names_parsed_class(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and called(node) == "HfArgumentParser"
        and any(isinstance(each, ast.Name) and each.id.endswith(name) for each in ast.walk(node))
    )


def keyword_changes(edit: KeywordEdit, call: ast.Call, module: Module, files: Files) -> list[Change]:
    """Sets the keywords of a call."""
    spread = [each.value for each in call.keywords if each.arg is None]
    if len(spread) > 1 or any(isinstance(arg, ast.Starred) for arg in call.args):
        raise CannotEditError(f"the call takes its arguments from * or **: set {', '.join(edit.keywords)} there")
    displays = displays_of(spread[0], module, edit.present) if spread else []
    own_workers = argument(call, "num_workers", edit.call)
    shared = _shared_with(call, edit.call, module) if isinstance(edit, CallEdit) and edit.is_for_it_alone else set()
    elsewhere: list[Change] = []
    here: dict[str, str] = {}
    missing: dict[str, str] = {}
    done = "the call already has these arguments"
    for name, text in edit.keywords.items():
        value = argument(call, name, edit.call)
        trail = Trail(Setting(name, text, edit.present.get(name)), module, files)
        try:
            if value is None and displays:
                value = value_in(displays, name, module)
                if value is None:
                    (here if own_workers and name in _NEED_WORKERS else missing)[name] = text
                else:
                    elsewhere += follow(value, trail)
            elif isinstance(value, SOURCES) and ast.dump(value) not in shared:
                elsewhere += follow(value, trail)
            else:
                here[name] = text
        except AlreadySoError as error:
            done = str(error)
        except CannotEditError as error:
            others = ", ".join(f"{other}={each}" for other, each in edit.keywords.items() if other != name)
            raise CannotEditError(f"{error}{f'; together with {others}' if others else ''}") from error
    workers = None if "num_workers" in here else own_workers or value_in(displays, "num_workers", module)
    elsewhere += added_to(displays, _for_any_number(missing, workers, module), module)
    here = {
        name: text
        for name, text in _for_any_number(here, workers, module).items()
        if not _says(argument(call, name, edit.call), text)
    }
    changes = [*elsewhere, *([_in_call(call, edit.call, here, module)] if here else [])]
    if not changes:
        raise AlreadySoError(done)
    return changes


def _shared_with(call: ast.Call, of: str, module: Module) -> set[str]:
    """What other calls of the same name are given, by its `ast.dump`."""
    names = imported_as(module, of)
    others = [each for each in calls_in(module.tree) if each is not call and called(each) in names]
    return {ast.dump(value) for each in others for value in (*each.args, *(one.value for one in each.keywords))}


def _for_any_number(keywords: Mapping[str, str], workers: ast.expr | None, module: Module) -> dict[str, str]:
    if not isinstance(workers, SOURCES):
        return dict(keywords)
    source = module.source(workers)
    return {
        name: _NEED_WORKERS[name].format(workers=source, value=text)
        if name in _NEED_WORKERS and text != "False"
        else text
        for name, text in keywords.items()
    }


def _says(value: ast.expr | None, text: str) -> bool:
    return value is not None and ast.dump(value) == ast.dump(ast.parse(text, mode="eval").body)


def _in_call(call: ast.Call, of: str, keywords: Mapping[str, str], module: Module) -> Change:
    return module.replaced(call, _edited(module.source(call), _LARGEST_CALL, call, of, keywords, module))


def _edited(source: str, most: int, call: ast.Call, of: str, keywords: Mapping[str, str], module: Module) -> str:
    """Through libcst, so that formatting stays; the call alone: libcst dies of 3000 nested brackets (SIGSEGV)."""
    if len(source) > most:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} is too long to be edited")
    try:
        changed = with_keywords(cst.ensure_type(cst.parse_expression(source), cst.Call), of, keywords)
        return cst.Module([], default_newline=module.newline(call.lineno)).code_for_node(changed)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} cannot be edited") from error


_POSITIONS: Mapping[str, tuple[str, ...]] = {
    "DataLoader": (
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
    ),
}
"""Parameters that may be given by position, in order (torch 2.13)."""


def argument(call: ast.Call, name: str, of: str) -> ast.expr | None:
    """The value that a call gives for a parameter; `of` is the name of what is called, whatever it was imported as."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    positions = _POSITIONS.get(of, ())
    index = positions.index(name) if name in positions else len(call.args)
    return call.args[index] if index < len(call.args) else None


def with_keywords(call: cst.Call, name: str, keywords: Mapping[str, str]) -> cst.Call:
    """The call with its keywords set, in place where it has them."""
    args = list(call.args)
    positions = _POSITIONS.get(name, ())
    for keyword, text in keywords.items():
        value = cst.parse_expression(text)
        at = _index_of(args, keyword, positions)
        if at is None:
            args = _appended(args, call, keyword, value)
        else:
            args[at] = args[at].with_changes(value=value)
    return call.with_changes(args=args)


def _index_of(args: list[cst.Arg], keyword: str, positions: tuple[str, ...]) -> int | None:
    for index, arg in enumerate(args):
        if arg.keyword is None:
            if index < len(positions) and positions[index] == keyword:
                return index
        elif arg.keyword.value == keyword:
            return index
    return None


def _appended(args: list[cst.Arg], call: cst.Call, keyword: str, value: cst.BaseExpression) -> list[cst.Arg]:
    """The arguments with one more, set apart as the others are: on a line of its own where they have theirs."""
    new = cst.Arg(
        keyword=cst.Name(keyword),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not args:
        return [new]
    last = args[-1]
    separator = args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=call.whitespace_before_args)
    space = separator.whitespace_after if isinstance(separator, cst.Comma) else cst.SimpleWhitespace(" ")
    if isinstance(space, cst.SimpleWhitespace):
        space = cst.SimpleWhitespace(space.value or " ")
    else:
        space = space.with_changes(first_line=_first_line(last), empty_lines=[])
    new = new.with_changes(
        comma=_without_comment(last.comma, "whitespace_after"),
        whitespace_after_arg=_without_comment(last, "whitespace_after_arg").whitespace_after_arg,
    )
    before = last.with_changes(comma=cst.Comma(whitespace_after=space), whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*args[:-1], before, new]


def _first_line(last: cst.Arg) -> cst.TrailingWhitespace:
    """The rest of the line behind the argument: its comment stays with it."""
    behind = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    return behind.first_line if isinstance(behind, cst.ParenthesizedWhitespace) else cst.TrailingWhitespace()


_Node = TypeVar("_Node", cst.Arg, cst.Comma | cst.MaybeSentinel)


def _without_comment(node: _Node, field: str) -> _Node:
    space = getattr(node, field, None)
    if not isinstance(space, cst.ParenthesizedWhitespace) or isinstance(node, cst.MaybeSentinel):
        return node
    return node.with_changes(**{field: space.with_changes(first_line=cst.TrailingWhitespace())})


_FLAG = "non_blocking"
_LONGEST_CALL = 2_000


def transfer_changes(edit: TransferEdit, files: Files) -> list[Change]:
    """Adds the keyword to each `.to(device)` and `.cuda()` of the statement that lacks it."""
    module, statement = files.statement(edit.file, edit.line)
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
    return [_with_flag(call, module) for call in lacking]


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


def _with_flag(call: ast.Call, module: Module) -> Change:
    """Behind the last argument of the call, and only there: calls of one statement can hold each other."""
    start, end = module.span(call.func)[1], module.span(call)[1]
    changed = _edited(f"f{module.text[start:end]}", _LONGEST_CALL, call, "", {_FLAG: "True"}, module)
    return Change(module.file, start, end, changed[1:])


_INIT_KEYWORD = "worker_init_fn"


def worker_init_changes(edit: WorkerInitEdit, files: Files) -> list[Change]:
    """Adds the function at the top level (a worker that is spawned imports it) and sets the keyword."""
    module = files.module(edit.file)
    if edit.function in stored(module.tree):
        raise AlreadySoError(f"{edit.file} already has {edit.function}()")
    line = files.line(edit.file, edit.line)
    for node in ast.walk(module.tree):
        spans = isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
        if spans and isinstance(node, ast.Call) and any(keyword.arg == _INIT_KEYWORD for keyword in node.keywords):
            calls = " and ".join(edit.statements)
            raise CannotEditError(
                f"the call in line {edit.line} of {edit.file} already has a {_INIT_KEYWORD}: put {calls} there"
            )
    last = last_import(module)
    if last is None:
        raise CannotEditError(f"{edit.file} has no imports at its head to put {edit.function}() after")
    missing = [
        name
        for name in sorted({name for text in edit.statements for name in loaded(ast.parse(text))})
        if import_missing(module, name)
    ]
    body = [f"{module.indent}{text}" for text in edit.statements]
    lines = [*(f"import {name}" for name in missing), "", "", f"def {edit.function}(worker_id):", *body]
    function = module.inserted_behind(last, *lines)
    return [
        function,
        *call_changes(CallEdit("DataLoader", edit.file, edit.line, {_INIT_KEYWORD: edit.function}), files),
    ]


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
    _check_not_there(module)
    loss = _loss(backward, edit)
    block, index, needed = _block_with_loss(backward, loss, module, edit)
    first, last = _region(block[:index], needed, _models(module), edit)
    region = block[first : last + 1]
    for statement in region:
        _check_inside(statement, module)
    header = f'with torch.autocast(device_type="{edit.device_type}", dtype={edit.dtype}):'
    return [*import_missing(module, "torch"), *module.wrapped(region, header)]


def _check_not_there(module: Module) -> None:
    for call in calls_in(module.tree):
        if called(call) in {"autocast", "custom_fwd"}:
            raise AlreadySoError(f"line {call.lineno} of {module.file} already has {module.source(call)}")
        if called(call) == "GradScaler":
            raise CannotEditError(f"line {call.lineno} of {module.file} already scales gradients for 16 bits")


def _loss(backward: ast.stmt, edit: AutocastEdit) -> set[str]:
    """The names that the backward pass starts from."""
    calls = [call for call in calls_in(backward) if (called(call) or "").endswith("backward")]
    if len(calls) != 1 or not isinstance(backward, ast.Expr) or not isinstance(calls[0].func, ast.Attribute):
        raise CannotEditError(f"line {edit.line} of {edit.file} is not a statement of one backward() call")
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
