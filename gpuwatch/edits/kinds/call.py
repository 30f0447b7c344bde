"""Keywords of a call: changed in place, added where the call lacks them, followed where their value is a name."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import libcst as cst

from gpuwatch.diagnosis.finding import CallEdit, KeywordEdit, LoopEdit, SettingsEdit
from gpuwatch.edits.arguments import argument, with_keywords
from gpuwatch.edits.follow.mappings import added_to, displays_of, value_in
from gpuwatch.edits.follow.trail import Setting, Trail
from gpuwatch.edits.follow.value import SOURCES, follow, followed_to_call
from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change, Module
from gpuwatch.edits.names import called, calls_in, imported_as
from gpuwatch.edits.workspace import Origin, Workspace

_LARGEST_CALL = 20_000  # characters: libcst 1.9.0 needs minutes for a sum of 20 000 terms
_SUBCLASSED = frozenset({"TrainingArguments"})
"""Classes whose subclasses take the same settings and keep the name: `Seq2SeqTrainingArguments`."""
_NEED_WORKERS = {"persistent_workers": "{workers} > 0", "prefetch_factor": "{value} if {workers} > 0 else None"}
"""Settings that DataLoader refuses without workers, and how they hold for any number of them (torch 2.13)."""


def call_changes(edit: CallEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Sets the keywords of the call at a line."""
    module = workspace.module(origin, edit.file)
    line = workspace.line(origin, edit.file, edit.line)
    names = imported_as(module, edit.call)
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and called(node) in names]
    starting = [call for call in calls if call.lineno == line]
    spanning = [call for call in calls if call.lineno < line <= (call.end_lineno or 0)]
    found = next((some[0] for some in (starting, spanning) if len(some) == 1), None)
    if found is None:
        raise CannotEditError(f"line {edit.line} of {edit.file} holds no single {edit.call}(...) call")
    return keyword_changes(edit, found, module, workspace, origin)


def settings_changes(edit: SettingsEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Sets the keywords of the only call of that name, or of a subclass that is named after it."""
    file = edit.file or next((argument for argument in origin.command[1:] if argument.endswith(".py")), None)
    if file is None:
        raise CannotEditError(f"the script that calls {edit.call}(...) is not known")
    module = workspace.module(origin, file)
    flags = " ".join(f"--{name} {value}" for name, value in edit.keywords.items())
    return keyword_changes(edit, only_call(edit.call, module, flags), module, workspace, origin)


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


def loop_changes(edit: LoopEdit, workspace: Workspace, origin: Origin) -> list[Change]:
    """Sets the keywords of the call that makes what a loop goes over."""
    module = workspace.module(origin, edit.file)
    statement = module.statement(workspace.line(origin, edit.file, edit.line))
    names = imported_as(module, edit.call)

    def at_call(call: ast.Call) -> list[Change] | None:
        return keyword_changes(edit, call, module, workspace, origin) if called(call) in names else None

    loop = statement if isinstance(statement, ast.For | ast.AsyncFor) else None
    nexts = [call for call in calls_in(statement) if called(call) == "next" and call.args] if loop is None else []
    if loop is None and len(nexts) != 1:
        raise CannotEditError(f"line {edit.line} of {edit.file} is no loop over a loader")
    return followed_to_call(loop.iter if loop is not None else nexts[0], at_call, module, workspace, origin)


def _names_parsed_class(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and called(node) == "HfArgumentParser"
        and any(isinstance(each, ast.Name) and each.id.endswith(name) for each in ast.walk(node))
    )


def keyword_changes(
    edit: KeywordEdit, call: ast.Call, module: Module, workspace: Workspace, origin: Origin
) -> list[Change]:
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
        trail = Trail(Setting(name, text, edit.present.get(name)), module, workspace, origin)
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
            raise CannotEditError(f"{error}{f'; with {others} beside it' if others else ''}") from error
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
    """Through libcst, so that formatting stays; the call alone: libcst dies of 3000 nested brackets (SIGSEGV)."""
    source = module.source(call)
    if len(source) > _LARGEST_CALL:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} is too long to be edited")
    try:
        parsed = cst.ensure_type(cst.parse_expression(source), cst.Call)
        changed = with_keywords(parsed, of, keywords)
        return module.replaced(call, cst.Module([], default_newline=module.newline(call.lineno)).code_for_node(changed))
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotEditError(f"the call in line {call.lineno} of {module.file} cannot be edited") from error
