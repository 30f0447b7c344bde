"""Follows a value from the call to where it is written; what is ambiguous on the way ends in a sentence.

The command line may give it, or a YAML or JSON file of the command line: its scalar is changed in place, nothing is
rewritten.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwatch.edits.config_file import check_change, same, scalars, word
from gpuwatch.edits.workspace import (
    AlreadySoError,
    CannotEditError,
    Change,
    Files,
    Module,
    called,
    calls_in,
    calls_of,
    root,
    stored,
)

_NUMBER_AT_END = re.compile(r"\d+\Z")
_FARTHEST = 6
"""Steps from the call to the literal; names that go round in a circle end here, too."""


_SAME = 0.25
"""What was counted is off by some steps: a run that said 30 had 26 between two saves."""


class SetElsewhereError(CannotEditError):
    """The place was found, and says something else than what the running process has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A keyword to be set; `present` is the running process's, where it is known.

    With `times` the value becomes n times the one written, if that is one of `intervals` (where any is known), and
    `text` says so.
    """

    name: str
    text: str
    present: str | None = None
    times: int | None = None
    intervals: tuple[int, ...] = ()

    def in_place_of(self, written: str, name: str) -> str:
        """The source text that takes the place of what is written for a name."""
        if self.times is None:
            return self.text
        try:
            number = int(written)
        except ValueError as error:
            raise CannotEditError(f"{name} is {written}, which is not a whole number") from error
        if self.intervals and not any(abs(number - seen) <= _SAME * seen for seen in self.intervals):
            raise SetElsewhereError(
                f"{name} is {number}, but the run was seen to have {self.intervals[0]}: it is set elsewhere"
            )
        return str(number * self.times)


def rarer(name: str, times: int, intervals: tuple[int, ...] = ()) -> Setting:
    """An interval to be made n times as long."""
    return Setting(name, f"{times} times as much", None, times, intervals)


@dataclass(frozen=True, slots=True)
class Trail:
    """One value on its way back."""

    setting: Setting
    module: Module
    files: Files
    at_call: Callable[[ast.Call], list[Change] | None] | None = None
    """Takes a call at the end of the trail, where a call is looked for and not a literal."""
    steps: int = 0

    def further(self) -> Trail:
        """The trail one step on."""
        if self.steps >= _FARTHEST:
            raise CannotEditError(f"{self.setting.name} passes through too many names in {self.module.file}")
        return replace(self, steps=self.steps + 1)

    def refuse(self, name: str, why: str) -> CannotEditError:
        """The reason in one form: which name, and what is with it."""
        return CannotEditError(f"{self.setting.name} comes from {name}, which {why}")

    def check_command_line(self, name: str, flags: tuple[str, ...] = (), others: frozenset[str] = frozenset()) -> None:
        """Raises where the process was started with this setting: no file then says what it is."""
        wanted = flags or (f"--{name}", f"--{name.replace('_', '-')}")
        given = started_with(self.files.origin.command, wanted, others, name)
        if given is not None:
            shown, cure = given
            value = self.setting.text
            if self.setting.times is not None and (digits := _NUMBER_AT_END.search(shown)):
                value = self.setting.in_place_of(digits.group(), name)
            raise CannotEditError(f"it was started with {shown}: start it with {cure.format(value)}")

    def _is_changed(self, node: ast.Constant) -> bool:
        return self.files.is_changed(self.module.file, *self.module.span(node))

    def literal(self, node: ast.expr, name: str) -> list[Change]:
        """The change of the literal at the end of the trail."""
        if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes):
            raise self.refuse(name, f"is computed in line {node.lineno} of {self.module.file}")
        text = self.setting.in_place_of(self.module.source(node), name)
        if self.setting.times is not None and self._is_changed(node):
            raise CannotEditError(f"an earlier fix of this patch changes {name}: apply that first, then check again")
        wanted = ast.parse(text, mode="eval").body
        if ast.dump(node) == ast.dump(wanted):
            raise AlreadySoError(f"{name} is {text} in line {node.lineno} of {self.module.file} already")
        present = self.setting.present
        if present is not None and ast.dump(node) != ast.dump(ast.parse(present, mode="eval").body):
            raise SetElsewhereError(
                f"{name} is {self.module.source(node)} in line {node.lineno} of {self.module.file}, but the run has "
                f"{present}: it is set elsewhere"
            )
        return [self.module.replaced(node, text)]


_CONFIG_FILE = re.compile(r"(?i)\.(ya?ml|json)\Z")


def started_with(
    command: Sequence[str], flags: Sequence[str], others: frozenset[str], name: str
) -> tuple[str, str] | None:
    """How a setting was given and how to give another, with `{}` for the value: ("--workers 2", "--workers {}").

    Args:
        command: The arguments, the interpreter first.
        flags: The option's names, "-j" and "--workers"; argparse takes an unambiguous beginning for a long one.
        others: Options of the program that are none of these, though one may begin another.
        name: The setting as Hydra has it: `data.name=value`.
    """
    for index, argument in enumerate(command[1:], start=1):
        option, equals, _ = argument.partition("=")
        if re.fullmatch(rf"(--|\+{{0,2}})([\w/@]+\.)*{re.escape(name)}", option) and equals:
            return argument, f"{option}={{}}"
        if option in flags or _begins(option, flags, others):
            if equals:
                return argument, f"{option}={{}}"
            following = command[index + 1 : index + 2]
            value = "".join(following) if following and not following[0].startswith("-") else ""
            return f"{argument} {value}".rstrip(), f"{argument} {{}}"
        short = next((flag for flag in flags if len(flag) == 2 and argument.startswith(flag)), None)
        if short is not None and not argument.startswith("--"):
            return argument, f"{short} {{}}"
    return None


def config_files(command: Sequence[str]) -> list[str]:
    """The YAML and JSON files among the arguments, `--config=base.yaml` included."""
    values = (argument.rpartition("=")[2] for argument in command[1:])
    return list(dict.fromkeys(value for value in values if _CONFIG_FILE.search(value)))


def _begins(option: str, flags: Sequence[str], others: frozenset[str]) -> bool:
    return (
        bool(others)
        and len(option) > 3
        and option.startswith("--")
        and option not in others
        and any(flag.startswith(option) for flag in flags)
    )


def config_changes(name: str, trail: Trail) -> list[Change]:
    """The change of the only key of that name with the running value; none where no file has the key."""
    found: list[tuple[str, int, int, str]] = []
    for path in config_files(trail.files.origin.command):
        named = [each for each in scalars(path, trail.files.text(path)) if each.key == name]
        if any(each.is_repeated for each in named):
            raise CannotEditError(f"{name} in {path} cannot be changed by itself: other keys repeat it")
        found += [(path, each.start, each.end, each.text) for each in named]
    if not found:
        return []
    trail.check_command_line(name)
    wanted = word(trail.setting.text)
    present = trail.setting.present
    matching = [each for each in found if present is None or same(each[3], present)]
    if trail.setting.times is None and not matching and all(same(each[3], trail.setting.text) for each in found):
        raise AlreadySoError(f"{name} is {wanted} in {found[0][0]} already")
    if len(matching) != 1:
        places = " and ".join(dict.fromkeys(each[0] for each in found))
        raise trail.refuse(
            name, f"{len(matching)} keys of {places} may set" if matching else f"no key of {places} sets"
        )
    path, start, end, old = matching[0]
    if trail.setting.times is not None:
        wanted = trail.setting.in_place_of(old, name)
        if trail.files.is_changed(path, start, end):
            raise CannotEditError(f"an earlier fix of this patch changes {name}: apply that first, then check again")
    if same(old, wanted):
        raise AlreadySoError(f"{name} is {wanted} in {path} already")
    change = Change(path, start, end, wanted)
    text = trail.files.text(path)
    check_change(path, text, text[:start] + wanted + text[end:], name)
    return [change]


SOURCES = ast.Name | ast.Attribute | ast.Subscript
"""Values that come from somewhere else; anything else in a call is changed in the call."""

_PASS_ON = frozenset({"enumerate", "iter", "next", "tqdm", "trange", "track", "islice", "cycle"})
"""Functions that hand on what their first argument gives."""


def followed(value: ast.expr, setting: Setting, module: Module, files: Files) -> list[Change]:
    """The changes where the value comes from: in the same file, or in a config file of the command line."""
    return follow(value, Trail(setting, module, files))


def followed_to_call(
    value: ast.expr,
    at_call: Callable[[ast.Call], list[Change] | None],
    module: Module,
    files: Files,
) -> list[Change]:
    """What `at_call` makes of the call that a value comes from; it gives None for those that it does not want."""
    return follow(value, Trail(Setting("the loader", "None"), module, files, at_call))


def follow(value: ast.expr, trail: Trail) -> list[Change]:
    """The changes one step further along a trail."""
    if isinstance(value, ast.Name):
        return _follow_variable(value, trail.further())
    if isinstance(value, ast.Attribute | ast.Subscript):
        return _follow_member(value, trail.further())
    if isinstance(value, ast.Call) and trail.at_call is not None:
        changes = trail.at_call(value)
        if changes is not None:
            return changes
        if called(value) in _PASS_ON and value.args:
            return follow(value.args[0], trail.further())
    return trail.literal(value, trail.setting.name)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _follow_variable(node: ast.Name, trail: Trail) -> list[Change]:
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
            return _follow_parameter(scope, name, trail)
        bindings = [each for each in _own_nodes(scope) if name in _binds(each)]
        if bindings:
            return _bound(bindings, name, trail)
    raise trail.refuse(name, f"is not set in {module.file}")


def _follow_parameter(function: _Function, name: str, trail: Trail) -> list[Change]:
    """The changes where a function's parameter gets its value."""
    module = trail.module
    option = _decorated_option(function, name)
    if option is not None:
        return _option_default(option, name, trail)
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
        return _option_default(default, name, trail)
    return trail.literal(default, name) if isinstance(default, ast.Constant) else follow(default, trail)


def _bound(bindings: list[ast.AST], name: str, trail: Trail) -> list[Change]:
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
    return _onward(value, name, trail)


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


_RECORDS = frozenset({"SimpleNamespace", "Namespace", "dict", "EasyDict", "DotMap", "Box"})


def _follow_member(node: ast.Attribute | ast.Subscript, trail: Trail) -> list[Change]:
    """The changes where a member gets its value, in this file or in a config file of the command line."""
    name = node.attr if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = node.slice.value if isinstance(node.slice.value, str) else None
    if name is None:
        raise trail.refuse(trail.module.source(node), "is not a plain name")
    owner = root(node)
    if owner in {"self", "cls"}:
        return _own(node, name, trail)
    try:
        found = _in_file(node, name, owner, trail)
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


def _in_file(node: ast.expr, name: str, owner: str | None, trail: Trail) -> list[Change] | None:
    module = trail.module
    options = _options_named(module, name)
    values = [*_stores(module, name), *_items(module, name, owner), *_fields(module, name)]
    if len(options) + len(values) > 1:
        lines = sorted({each.lineno for each in (*options, *values)})
        raise trail.refuse(module.source(node), f"is set in lines {', '.join(map(str, lines))} of {module.file}")
    if options:
        return _option_default(options[0], name, trail)
    if not values:
        return None
    trail.check_command_line(name)
    return _valued(values[0], name, trail)


def _valued(value: ast.expr, name: str, trail: Trail) -> list[Change]:
    if isinstance(value, ast.Call) and called(value) in {"field", "Field"}:
        default = next((each.value for each in value.keywords if each.arg == "default"), None)
        value = default or next(iter(value.args), value)
    return trail.literal(value, name) if isinstance(value, ast.Constant) else _onward(value, name, trail)


def _onward(value: ast.expr, name: str, trail: Trail) -> list[Change]:
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) or trail.at_call is not None:
        return follow(value, trail)
    raise trail.refuse(name, f"is computed in line {value.lineno} of {trail.module.file}")


def _own(node: ast.expr, name: str, trail: Trail) -> list[Change]:
    """A member of the object itself: set once in its class, a class attribute, or one of Lightning's `hparams`."""
    module = trail.module
    owner = next((each for each in module.ancestors(node) if isinstance(each, ast.ClassDef)), None)
    if owner is None:
        raise trail.refuse(module.source(node), "is outside of a class")
    inner = node.value if isinstance(node, ast.Attribute | ast.Subscript) else node
    if isinstance(inner, ast.Attribute) and inner.attr == "hparams":
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                return _follow_parameter(method, name, trail)
    if not isinstance(inner, ast.Name):
        raise trail.refuse(module.source(node), "belongs to an object made elsewhere")
    values = [each for each in _stores(module, name, owner) if each is not None] + _in_body(owner, name)
    if len(values) != 1:
        how = f"is set {len(values)} times in its class" if values else "is not set in its class"
        raise trail.refuse(module.source(node), how)
    return _valued(values[0], name, trail)


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


def _options_named(module: Module, name: str) -> list[ast.Call]:
    """The `add_argument` calls whose value argparse stores under a name."""
    return [call for call in _added_options(module) if _destination(call) == name]


def _destination(call: ast.Call) -> str | None:
    """The name that an option's value gets: `dest`, else the first long option, else the first one."""
    named = _keyword(call, "dest")
    if named is not None:
        return named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
    strings = _strings(call)
    long = [each for each in strings if each.startswith("--")]
    bare = [each for each in strings if each.isidentifier()]  # click takes the name as it is, too
    chosen = next(iter([*bare, *long, *strings]), None)
    return None if chosen is None else chosen.lstrip("-").split("/")[0].replace("-", "_")


def _option_default(call: ast.Call, name: str, trail: Trail) -> list[Change]:
    """The changes of an option's default, where the process was started without the option."""
    flags = tuple(each for each in _strings(call) if each.startswith("-")) or (f"--{name.replace('_', '-')}",)
    others = frozenset(each for other in _added_options(trail.module) for each in _strings(other)) - set(flags)
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


def _decorated_option(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.Call | None:
    """The `@click.option` of a parameter."""
    return next(
        (
            each
            for each in function.decorator_list
            if isinstance(each, ast.Call) and called(each) in {"option", "argument"} and _destination(each) == name
        ),
        None,
    )


def _added_options(module: Module) -> list[ast.Call]:
    return [each for each in ast.walk(module.tree) if isinstance(each, ast.Call) and called(each) == "add_argument"]


def _strings(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


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
    made = _assigned_display(value, module)
    for call in calls_in(module.tree):
        if called(call) == "update" and isinstance(call.func, ast.Attribute) and _is(call.func.value, value):
            for argument in call.args:
                displays = [argument] if isinstance(argument, ast.Dict) else _assigned_display(argument, module)
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
    """The changes that add keys: to the display that has `num_workers`, else to the first one."""
    with_workers = [each for each in displays if any(key == "num_workers" for key, _ in _pairs(each))]
    return _with_keys((with_workers or displays)[0], keywords, module) if keywords else []


def _assigned_display(value: ast.expr, module: Module) -> list[ast.Dict]:
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


def _with_keys(display: ast.Dict, keywords: Mapping[str, str], module: Module) -> list[Change]:
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
