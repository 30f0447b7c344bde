"""Keywords that a call takes from a dictionary: `DataLoader(data, **kwargs)`, as PyTorch's own examples write it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from gpuwatch.edits.module import CannotEditError, Change, Module
from gpuwatch.edits.names import called, calls_in

_CONDITIONS = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.Match)
_REST = re.compile(r"[ \t]*(,?)[ \t]*(#[^\r\n]*)?(\r\n|\r|\n)")


def displays_of(value: ast.expr, module: Module, present: Mapping[str, str]) -> list[ast.Dict]:
    """The dictionary displays that a `**value` is made of: assigned once, and what it is updated with.

    An update under a condition is left out where it says otherwise than `present`, what the running process has: that
    branch was not taken, and a key added to it would change nothing.

    Raises:
        CannotEditError: something else goes into it as well.
    """
    if isinstance(value, ast.Dict):
        return [value]
    if not isinstance(value, ast.Name):
        raise CannotEditError(f"line {value.lineno} of {module.file} takes arguments from {module.source(value)}")
    made = _assigned(value, module)
    for call in calls_in(module.tree):
        if called(call) == "update" and isinstance(call.func, ast.Attribute) and _is(call.func.value, value):
            for argument in call.args:
                displays = [argument] if isinstance(argument, ast.Dict) else _assigned(argument, module)
                is_sure = not any(isinstance(each, _CONDITIONS) for each in module.ancestors(call))
                made += [each for each in displays if is_sure or not _says_otherwise(each, present)]
    if any(
        isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is(node.value, value)
        for node in ast.walk(module.tree)
    ):
        raise CannotEditError(f"items of {value.id} are set one by one in {module.file}")
    return made


def value_in(displays: list[ast.Dict], name: str, module: Module) -> ast.expr | None:
    """The value that the displays have for a key."""
    found = [value for display in displays for key, value in _pairs(display) if key == name]
    if len(found) > 1:
        raise CannotEditError(f"{len(found)} dictionaries of {module.file} set {name}")
    return found[0] if found else None


def added_to(displays: list[ast.Dict], keywords: Mapping[str, str], module: Module) -> list[Change]:
    """The changes that add keys: beside `num_workers` where a display has that, else to the first one."""
    beside = [each for each in displays if any(key == "num_workers" for key, _ in _pairs(each))]
    return _added((beside or displays)[0], keywords, module) if keywords else []


def _assigned(value: ast.expr, module: Module) -> list[ast.Dict]:
    name = value.id if isinstance(value, ast.Name) else None
    stores = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]
    parent = module.parent(stores[0]) if len(stores) == 1 else None
    if not isinstance(parent, ast.Assign) or not isinstance(parent.value, ast.Dict):
        raise CannotEditError(f"{module.source(value)} is not one dictionary written in {module.file}")
    if any(key is None for key in parent.value.keys):
        raise CannotEditError(f"{module.source(value)} takes items from ** in line {parent.lineno} of {module.file}")
    return [parent.value]


def _says_otherwise(display: ast.Dict, present: Mapping[str, str]) -> bool:
    return any(
        isinstance(key, str)
        and key in present
        and isinstance(value, ast.Constant)
        and ast.dump(value) != ast.dump(ast.parse(present[key], mode="eval").body)
        for key, value in _pairs(display)
    )


def _pairs(display: ast.Dict) -> list[tuple[object, ast.expr]]:
    pairs = zip(display.keys, display.values, strict=True)
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]


def _is(node: ast.expr, name: ast.Name) -> bool:
    return isinstance(node, ast.Name) and node.id == name.id


def _added(display: ast.Dict, keywords: Mapping[str, str], module: Module) -> list[Change]:
    """The keys as new last ones, on lines of their own where the last one has that."""
    key = display.keys[-1] if display.keys else None
    if key is None:
        items = ", ".join(f'"{name}": {text}' for name, text in keywords.items())
        return [module.replaced(display, f"{{{items}}}")]
    quote = module.source(key)[:1]
    quote = quote if quote in ("'", '"') else '"'
    items_apart = [f"{quote}{name}{quote}: {text}" for name, text in keywords.items()]
    start, end = module.span(key)[0], module.span(display.values[-1])[1]
    before = module.text[module.line_start(key.lineno) : start]
    if before.strip() or key.lineno == display.lineno:
        return [Change(module.file, end, end, "".join(f", {item}" for item in items_apart))]
    newline = module.newline(key.lineno)
    rest = _REST.match(module.text, end)
    if rest is None:
        return [Change(module.file, end, end, "".join(f",{newline}{before}{item}" for item in items_apart))]
    lines = f",{newline}".join(f"{before}{item}" for item in items_apart)
    comma = [] if rest.group(1) else [Change(module.file, end, end, ",")]
    return [*comma, Change(module.file, rest.end(), rest.end(), f"{lines}{rest.group(1)}{newline}")]
