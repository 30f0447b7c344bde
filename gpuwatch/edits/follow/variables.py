"""A value that is a name: assigned once, or a parameter with its default or its one caller."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from gpuwatch.edits.follow.options import decorated_option, option_default
from gpuwatch.edits.follow.trail import Trail
from gpuwatch.edits.module import Change, Module
from gpuwatch.edits.names import called, calls_in, calls_of, stored

Follow = Callable[[ast.expr, Trail], list[Change]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def follow_variable(node: ast.Name, trail: Trail, follow: Follow) -> list[Change]:
    """The changes where a name gets its value."""
    module, name = trail.module, node.id
    if any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in ast.walk(module.tree)):
        raise trail.refuse(name, "functions set from inside (global)")
    for scope in _visible_scopes(node, module):
        if isinstance(scope, ast.Lambda):
            if name in _parameters(scope.args):
                raise trail.refuse(name, "is a lambda's parameter")
            continue
        if isinstance(scope, _Function) and name in _parameters(scope.args):
            return follow_parameter(scope, name, trail, follow)
        bindings = [each for each in _own_nodes(scope) if name in _binds(each)]
        if bindings:
            return _assigned(bindings, name, trail, follow)
    raise trail.refuse(name, f"is not set in {module.file}")


def follow_parameter(function: _Function, name: str, trail: Trail, follow: Follow) -> list[Change]:
    """The changes where a function's parameter gets its value."""
    module = trail.module
    option = decorated_option(function, name)
    if option is not None:
        return option_default(option, name, trail, follow)
    calls = calls_of(function, module)
    given = [_given(call, function, name, module) for call in calls]
    if "?" in given:
        raise trail.refuse(name, f"a caller of {function.name}() gives by * or **")
    values = [each for each in given if isinstance(each, ast.expr)]
    if values:
        if len(values) < len(calls) or len({ast.dump(each) for each in values}) > 1:
            raise trail.refuse(name, f"{len(calls)} callers of {function.name}() give differently")
        return follow(values[0], trail)
    default = _default(function, name)
    if default is None or not (calls or _is_command(function, module) or function.name == "__init__"):
        raise trail.refuse(name, f"the callers of {function.name}() give")
    trail.check_command_line(name)
    if isinstance(default, ast.Call) and called(default) in {"Option", "Argument"}:
        return option_default(default, name, trail, follow)
    return trail.literal(default, name) if isinstance(default, ast.Constant) else follow(default, trail)


def _assigned(bindings: list[ast.AST], name: str, trail: Trail, follow: Follow) -> list[Change]:
    values = {ast.dump(each.value) for each in bindings if isinstance(each, ast.Assign | ast.AnnAssign) and each.value}
    if trail.at_call is not None and len(values) == 1:
        bindings = bindings[:1]
    if len(bindings) > 1:
        lines = sorted({getattr(each, "lineno", 0) for each in bindings})
        raise trail.refuse(name, f"is set in lines {', '.join(map(str, lines))} of {trail.module.file}")
    binding = bindings[0]
    if isinstance(binding, ast.ImportFrom):
        raise trail.refuse(name, f"is imported from {binding.module or '.'}")
    value = binding.value if isinstance(binding, ast.Assign | ast.AnnAssign) else None
    plain = isinstance(binding, ast.AnnAssign) or (
        isinstance(binding, ast.Assign) and len(binding.targets) == 1 and isinstance(binding.targets[0], ast.Name)
    )
    if value is None or not plain:
        raise trail.refuse(name, f"is computed in line {getattr(binding, 'lineno', 0)} of {trail.module.file}")
    if isinstance(value, ast.Constant):
        trail.check_command_line(name)
        return trail.literal(value, name)
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) or trail.at_call is not None:
        return follow(value, trail)
    raise trail.refuse(name, f"is computed in line {value.lineno} of {trail.module.file}")


def _visible_scopes(node: ast.AST, module: Module) -> Iterator[ast.AST]:
    """The scopes that a name is looked up in; a class's only by its own body's statements."""
    scope = module.scope(node)
    while True:
        yield scope
        if isinstance(scope, ast.Module):
            return
        scope = module.scope(scope)
        while isinstance(scope, ast.ClassDef):
            scope = module.scope(scope)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope that are not in another one; functions and classes themselves are."""
    pending = list(getattr(scope, "body", []))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))


def _binds(node: ast.AST) -> set[str]:
    """The names that this very node binds, not those that statements inside of it do."""
    if isinstance(node, ast.Assign):
        return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.AsyncFor | ast.comprehension):
        return {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        return {each.id for each in ast.walk(node.optional_vars) if isinstance(each, ast.Name)}
    if isinstance(node, ast.Delete):
        return {each.id for each in node.targets if isinstance(each, ast.Name)}
    if isinstance(node, _Function | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom | ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
        return stored(node) if not isinstance(node, ast.ExceptHandler) else {node.name or ""}
    return set()


def _parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [each.arg for each in every if each is not None]


def _default(function: _Function, name: str) -> ast.expr | None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
    found = {each.arg: value for each, value in pairs}
    found |= {each.arg: value for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value}
    return found.get(name)


def _is_command(function: _Function, module: Module) -> bool:
    """Whether a library calls it for the user: `@app.command()`, `typer.run(main)`, `fire.Fire(main)`."""
    passed = (arg for call in calls_in(module.tree) for arg in call.args)
    return any(isinstance(arg, ast.Name) and arg.id == function.name for arg in passed) or any(
        "command" in ast.dump(each) for each in function.decorator_list
    )


def _given(call: ast.Call, function: _Function, name: str, module: Module) -> ast.expr | str | None:
    """What a call gives for a parameter; "?" where * or ** may."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return "?"
    positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(module.parent(function), ast.ClassDef):
        positional = positional[1:]
    index = positional.index(name) if name in positional else len(call.args)
    return call.args[index] if index < len(call.args) else None
