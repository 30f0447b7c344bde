"""A value from a YAML or JSON file of the command line: its scalar is changed in place, nothing is rewritten."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuwatch.edits.module import AlreadySoError, CannotEditError, Change
from gpuwatch.edits.trail import Trail, config_files

_LARGEST_CONFIG = 64 * 1024  # characters; ruamel.yaml reads about 100 kB a second, and it reads a file four times
_MOST_NODES = 20_000  # with each alias counted as all that it repeats
_DEEPEST = 64  # ruamel.yaml calls itself for each level, and its scanner walks all open brackets for each token
_WORDS = {"True": "true", "False": "false", "None": "null"}


def config_changes(name: str, trail: Trail) -> list[Change]:
    """The change of the only key of that name with the running value; none where no file has the key."""
    found: list[tuple[str, int, int, str]] = []
    for path in config_files(trail.files.origin.command):
        text = trail.files.text(path)
        if len(text) > _LARGEST_CONFIG:
            raise CannotEditError(f"{path} is too long to be edited")
        scalars = _in_json(path, text, name) if path.lower().endswith(".json") else _in_yaml(path, text, name)
        found += [(path, start, end, text[start:end]) for start, end in scalars]
    if not found:
        return []
    trail.check_command_line(name)
    wanted = _WORDS.get(trail.setting.text, trail.setting.text)
    present = trail.setting.present
    matching = [each for each in found if present is None or _same(each[3], present)]
    if trail.setting.times is None and not matching and all(_same(each[3], trail.setting.text) for each in found):
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
            raise CannotEditError(f"an earlier fix of this patch changes {name}: apply that first, then look again")
    if _same(old, wanted):
        raise AlreadySoError(f"{name} is {wanted} in {path} already")
    change = Change(path, start, end, wanted)
    text = trail.files.text(path)
    _check(path, text, text[:start] + wanted + text[end:], name)
    return [change]


def _same(written: str, value: str) -> bool:
    return written.strip().lower() == _WORDS.get(value, value).lower()


def _in_json(path: str, text: str, name: str) -> list[tuple[int, int]]:
    _load(path, text)
    pattern = rf"(?<!\\){re.escape(json.dumps(name))}\s*:\s*(-?[\d.]+(?:[eE][+-]?\d+)?|true|false|null)(?=\s*[,}}\]])"
    return [match.span(1) for match in re.finditer(pattern, text)]


def _in_yaml(path: str, text: str, name: str) -> list[tuple[int, int]]:
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    _check_size(path, text)
    with _yaml(path, "rt") as yaml:
        pending = [node for node in [yaml.compose(text)] if node is not None]
    found: dict[int, tuple[int, int]] = {}
    seen: set[int] = set()  # an alias is the same node once more
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                if isinstance(key, ScalarNode) and key.value == name and isinstance(value, ScalarNode):
                    if value.anchor:
                        raise CannotEditError(f"{name} in {path} cannot be changed by itself: other keys repeat it")
                    found[id(value)] = (value.start_mark.index, value.end_mark.index)
                pending.append(value)
        elif isinstance(node, SequenceNode):
            pending.extend(node.value)
    return sorted(found.values())


def _check_size(path: str, text: str) -> None:
    """Counts a YAML document before anything is built of it: nine aliases of nine a level are 249 bytes and 9^9 nodes.

    Raises:
        CannotEditError: it repeats too much, nests too deeply, repeats itself, or is no YAML.
    """
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    nodes = 0
    with _yaml(path, "safe") as yaml:
        for event in yaml.parse(text):
            if isinstance(event, AliasEvent):
                if event.anchor not in sizes:
                    raise CannotEditError(f"{path} repeats a part of itself inside that part, or what is not there")
                nodes += sizes[event.anchor]
            elif isinstance(event, ScalarEvent):
                nodes += 1
                if event.anchor is not None:
                    sizes[event.anchor] = 1
            elif isinstance(event, CollectionStartEvent):
                open_.append((event.anchor, nodes))
                nodes += 1
            elif isinstance(event, CollectionEndEvent):
                anchor, before = open_.pop()
                if anchor is not None:
                    sizes[anchor] = nodes - before
            if len(open_) > _DEEPEST or nodes > _MOST_NODES:
                raise CannotEditError(f"{path} nests too deeply, or repeats too much, to be edited")


@contextmanager
def _yaml(path: str, typ: str) -> Iterator[Any]:
    """A parser of YAML, whose errors are a reason. Imported here: few edits lead to a YAML file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        yield YAML(typ=typ, pure=True)
    except (YAMLError, RecursionError, ValueError) as error:
        raise CannotEditError(f"{path} is not YAML that can be parsed") from error


def _load(path: str, text: str) -> Any:
    if path.lower().endswith(".json"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CannotEditError(f"{path} is not JSON that can be parsed") from error
    with _yaml(path, "safe") as yaml:
        return yaml.load(text)


def _check(path: str, before: str, after: str, name: str) -> None:
    """Raises unless the two differ in exactly one value, under that key."""
    if _differences(_load(path, before), _load(path, after), "") != [name]:
        raise CannotEditError(f"{name} in {path} cannot be changed by itself")


def _differences(one: Any, other: Any, key: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [each for inner in one for each in _differences(one[inner], other[inner], str(inner))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [each for a, b in zip(one, other, strict=True) for each in _differences(a, b, key)]
    return [] if one == other and type(one) is type(other) else [key]
