"""A value that is an attribute or an item: `args.workers`, `self.workers`, `config["workers"]`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gpuwatch.edits.follow.config import config_changes
from gpuwatch.edits.follow.options import option_default, options_named
from gpuwatch.edits.follow.trail import SetElsewhereError, Trail
from gpuwatch.edits.follow.variables import follow_parameter
from gpuwatch.edits.module import Change, Module
from gpuwatch.edits.names import called, root

Follow = Callable[[ast.expr, Trail], list[Change]]
_RECORDS = frozenset({"SimpleNamespace", "Namespace", "dict", "EasyDict", "DotMap", "Box"})


def follow_member(node: ast.Attribute | ast.Subscript, trail: Trail, follow: Follow) -> list[Change]:
    """The changes where a member gets its value, in this file or in a config file of the command line."""
    name = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = node.slice.value if isinstance(node.slice.value, str) else None
    if name is None:
        raise trail.refuse(trail.module.source(node), "is not a plain name")
    owner = root(node)
    if owner in {"self", "cls"}:
        return _own(node, name, trail, follow)
    try:
        found = _in_file(node, name, owner, trail, follow)
    except SetElsewhereError:
        found = None
        if not (changes := config_changes(name, trail)):
            raise
        return changes
    if found is not None:
        return found
    if changes := config_changes(name, trail):
        return changes
    raise trail.refuse(
        trail.module.source(node), f"is not set in {trail.module.file} or a config file it was started with"
    )


def _in_file(node: ast.expr, name: str, owner: str | None, trail: Trail, follow: Follow) -> list[Change] | None:
    module = trail.module
    options = options_named(module, name)
    values = [*_stores(module, name), *_items(module, name, owner), *_fields(module, name)]
    if len(options) + len(values) > 1:
        lines = sorted({each.lineno for each in (*options, *values)})
        raise trail.refuse(module.source(node), f"is set in lines {', '.join(map(str, lines))} of {module.file}")
    if options:
        return option_default(options[0], name, trail, follow)
    if not values:
        return None
    trail.check_command_line(name)
    return _valued(values[0], name, trail, follow)


def _valued(value: ast.expr, name: str, trail: Trail, follow: Follow) -> list[Change]:
    if isinstance(value, ast.Call) and called(value) in {"field", "Field"}:
        default = next((each.value for each in value.keywords if each.arg == "default"), None)
        value = default or next(iter(value.args), value)
    return trail.literal(value, name) if isinstance(value, ast.Constant) else _onward(value, name, trail, follow)


def _onward(value: ast.expr, name: str, trail: Trail, follow: Follow) -> list[Change]:
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) or trail.at_call is not None:
        return follow(value, trail)
    raise trail.refuse(name, f"is computed in line {value.lineno} of {trail.module.file}")


def _own(node: ast.expr, name: str, trail: Trail, follow: Follow) -> list[Change]:
    """A member of the object itself: set once in its class, a class attribute, or one of Lightning's `hparams`."""
    module = trail.module
    owner = next((each for each in module.ancestors(node) if isinstance(each, ast.ClassDef)), None)
    if owner is None:
        raise trail.refuse(module.source(node), "stands outside of a class")
    inner = node.value if isinstance(node, ast.Attribute | ast.Subscript) else node
    if isinstance(inner, ast.Attribute) and inner.attr == "hparams":
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                return follow_parameter(method, name, trail, follow)
    if not isinstance(inner, ast.Name):
        raise trail.refuse(module.source(node), "belongs to an object made elsewhere")
    values = [each for each in _stores(module, name, owner) if each is not None] + _in_body(owner, name)
    if len(values) != 1:
        how = f"is set {len(values)} times in its class" if values else "is not set in its class"
        raise trail.refuse(module.source(node), how)
    return _valued(values[0], name, trail, follow)


def _stores(module: Module, name: str, inside: ast.AST | None = None) -> list[ast.expr]:
    """What is assigned to a member of that name of anything; the target itself where no plain value is."""
    found: list[ast.expr] = []
    for each in ast.walk(inside or module.tree):
        target_is = isinstance(each, ast.Attribute) and each.attr == name
        item_is = isinstance(each, ast.Subscript) and _is_text(each.slice, name)
        if (target_is or item_is) and isinstance(each, ast.Attribute | ast.Subscript):
            if isinstance(each.ctx, ast.Load) or (inside is None and root(each) == "self"):
                continue
            parent = module.parent(each)
            plain = isinstance(parent, ast.AnnAssign) or (isinstance(parent, ast.Assign) and len(parent.targets) == 1)
            value = parent.value if plain and isinstance(parent, ast.Assign | ast.AnnAssign) else None
            found.append(each if value is None else value)
    return found


def _items(module: Module, name: str, owner: str | None) -> list[ast.expr]:
    """The values of that name in the record that the owner is: `cfg = dict(workers=4)`, `cfg = {"workers": 4}`.

    A keyword of the class that has the field counts as well, and takes the place of the field's default.
    """
    classes = {each.name for each in ast.walk(module.tree) if isinstance(each, ast.ClassDef) and _in_body(each, name)}
    found: list[ast.expr] = []
    for each in ast.walk(module.tree):
        if isinstance(each, ast.Call) and called(each) in classes:
            found += [keyword.value for keyword in each.keywords if keyword.arg == name]
        elif isinstance(each, ast.Assign) and any(root(target) == owner for target in each.targets):
            for inner in ast.walk(each.value):
                if isinstance(inner, ast.Call) and called(inner) in _RECORDS:
                    found += [keyword.value for keyword in inner.keywords if keyword.arg == name]
                elif isinstance(inner, ast.Dict):
                    pairs = zip(inner.keys, inner.values, strict=True)
                    found += [value for key, value in pairs if key is not None and _is_text(key, name)]
    return found


def _fields(module: Module, name: str) -> list[ast.expr]:
    """The defaults of fields of that name, of classes to which nothing in the file gives the field."""
    classes = [each for each in ast.walk(module.tree) if isinstance(each, ast.ClassDef) and _in_body(each, name)]
    given = {
        called(each)
        for each in ast.walk(module.tree)
        if isinstance(each, ast.Call) and any(keyword.arg == name for keyword in each.keywords)
    }
    return [value for each in classes if each.name not in given for value in _in_body(each, name)]


def _in_body(owner: ast.ClassDef, name: str) -> list[ast.expr]:
    found: list[ast.expr] = []
    for each in owner.body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            found += [each.value for target in targets if isinstance(target, ast.Name) and target.id == name]
    return found


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
