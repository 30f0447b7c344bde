"""Options of a command line: argparse's `add_argument`, click's decorators, typer's defaults."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gpuwatch.edits.follow.trail import Trail
from gpuwatch.edits.module import CannotEditError, Change, Module
from gpuwatch.edits.names import called


def options_named(module: Module, name: str) -> list[ast.Call]:
    """The `add_argument` calls whose value argparse stores under a name."""
    return [call for call in _added(module) if destination(call) == name]


def destination(call: ast.Call) -> str | None:
    """The name that an option's value gets: `dest`, else the first long option, else the first one."""
    named = _keyword(call, "dest")
    if named is not None:
        return named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
    strings = _strings(call)
    long = [each for each in strings if each.startswith("--")]
    bare = [each for each in strings if each.isidentifier()]  # click takes the name as it is, too
    chosen = next(iter([*bare, *long, *strings]), None)
    return None if chosen is None else chosen.lstrip("-").split("/")[0].replace("-", "_")


def option_default(
    call: ast.Call, name: str, trail: Trail, follow: Callable[[ast.expr, Trail], list[Change]]
) -> list[Change]:
    """The changes of an option's default, where the process was started without the option."""
    flags = tuple(each for each in _strings(call) if each.startswith("-")) or (f"--{name.replace('_', '-')}",)
    others = frozenset(each for other in _added(trail.module) for each in _strings(other)) - set(flags)
    trail.check_command_line(name, flags, others | {"-"})
    cure = f"start it with {flags[-1]} {trail.setting.text}"
    action = _keyword(call, "action")
    if isinstance(action, ast.Constant) and action.value in {"store_true", "store_false"}:
        cure = f"start it with {flags[-1]}"
        raise CannotEditError(f"{trail.setting.name} comes from the switch {flags[-1]}: {cure}")
    default = _keyword(call, "default")
    if default is None and called(call) in {"Option", "Argument"} and call.args:
        default = call.args[0]
    if default is None or (isinstance(default, ast.Constant) and default.value is ...):
        raise CannotEditError(f"{trail.setting.name} comes from {flags[-1]}, which has no default: {cure}")
    return trail.literal(default, name) if isinstance(default, ast.Constant) else follow(default, trail)


def decorated_option(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.Call | None:
    """The `@click.option` of a parameter."""
    return next(
        (
            each
            for each in function.decorator_list
            if isinstance(each, ast.Call) and called(each) in {"option", "argument"} and destination(each) == name
        ),
        None,
    )


def _added(module: Module) -> list[ast.Call]:
    return [each for each in ast.walk(module.tree) if isinstance(each, ast.Call) and called(each) == "add_argument"]


def _strings(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)
