"""Keywords of calls: changed in place, added where a call lacks them, followed where their value is a name.

Also `non_blocking=True` for the copies of one statement, and the function that each DataLoader worker runs first.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeVar

import libcst as cst

from gpuwatch.diagnosis.finding import CallEdit, KeywordEdit, LoopEdit, SettingsEdit, TransferEdit, WorkerInitEdit
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
    stored,
)

_LARGEST_CALL = 20_000  # characters: libcst 1.9.0 needs minutes for a sum of 20 000 terms
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
        raise CannotEditError(f"line {edit.line} of {edit.file} holds no single {edit.call}(...) call")
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
        raise CannotEditError(f"line {edit.line} of {edit.file} is no loop over a loader")
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
            elif isinstance(value, SOURCES):
                elsewhere += follow(value, trail)
            else:
                here[name] = text
        except AlreadySoError as error:
            done = str(error)
        except CannotEditError as error:
            others = ", ".join(f"{other}={each}" for other, each in edit.keywords.items() if other != name)
            raise CannotEditError(f"{error}{f'; together with {others}' if others else ''}") from error
    workers = own_workers or value_in(displays, "num_workers", module)
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
