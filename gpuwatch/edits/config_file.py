"""The values of a YAML, JSON or TOML file with their places, so that one can be changed and nothing else.

The file is never written from what was parsed: comments, order, anchors and quotes stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpuwatch.edits.workspace import CannotEditError

LARGEST = 64 * 1024
"""Characters: ruamel.yaml reads about 100 kB a second, and it reads a file four times."""
_MOST_NODES = 20_000  # with each alias counted as all that it repeats
_DEEPEST = 64  # ruamel.yaml calls itself for each level, and its scanner walks all open brackets for each token
_WORDS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: its keys from the outermost inwards, as far as the format shows them, and where it is written."""

    keys: tuple[str, ...]
    start: int
    end: int
    text: str
    is_repeated: bool = False  # other keys repeat it by an alias

    @property
    def key(self) -> str:
        """The innermost."""
        return self.keys[-1]


def scalars(path: str, text: str) -> list[Scalar]:
    """The numbers, words and truth values of a file, in their order.

    Raises:
        CannotEditError: it is too long, too deep, or not what its name says.
    """
    if len(text) > LARGEST:
        raise CannotEditError(f"{path} is too long to be edited")
    kind = path.lower().rpartition(".")[2]
    if kind == "json":
        load(path, text)
        return [Scalar((match[1],), *match.span(2), match[2]) for match in _JSON.finditer(text)]
    if kind == "toml":
        content = load(path, text)
        return [each for each in _in_toml(text) if _is_in(content, each.keys)]
    return _in_yaml(path, text)


def load(path: str, text: str) -> Any:
    """What a program reads from the file.

    Raises:
        CannotEditError: it is not what its name says.
    """
    kind = path.lower().rpartition(".")[2]
    if kind == "json":
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _without_doubles(path, pairs))
        except (ValueError, RecursionError) as error:
            raise CannotEditError(f"{path} is not JSON that can be parsed") from error
    if kind == "toml":
        return _load_toml(path, text)
    with _yaml(path, "safe") as yaml:
        return yaml.load(text)


def same(written: str, value: str) -> bool:
    """Whether a value of a file is the one that Python writes so."""
    return written.strip().lower() == word(value).lower()


def word(value: str) -> str:
    """True as these files write it."""
    return _WORDS.get(value, value)


def check_change(path: str, before: str, after: str, name: str) -> None:
    """Raises unless the two differ in exactly one value, under that key."""
    if _differences(load(path, before), load(path, after), "") != [name]:
        raise CannotEditError(f"{name} in {path} cannot be changed by itself")


def with_value(path: str, text: str, at: Scalar, value: str, comment: str | None = None) -> str:
    """The text with another value, and a comment at the end of its line where the format has comments.

    Raises:
        CannotEditError: it cannot be changed by itself.
    """
    if at.is_repeated:
        raise CannotEditError(f"{at.key} in {path} cannot be changed by itself: other keys repeat it")
    changed = text[: at.start] + value + text[at.end :]
    check_change(path, text, changed, at.key)
    if comment is None or path.lower().endswith(".json"):
        return changed
    end = changed.find("\n", at.start)
    end = len(changed) if end < 0 else end - changed[:end].endswith("\r")
    commented = f"{changed[:end]}  # {comment}{changed[end:]}"
    try:
        check_change(path, text, commented, at.key)
    except CannotEditError:  # the line ends inside of something
        return changed
    return commented


_JSON = re.compile(
    r"(?<!\\)\"((?:[^\"\\]|\\.)*)\"\s*:\s*(-?[\d.]+(?:[eE][+-]?\d+)?|true|false|null)(?=\s*[,}\]])"
)  # a quote inside of a string has a backslash before it


def _without_doubles(path: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise CannotEditError(f"{path} has {double} twice in one section: remove one of them")
    return found


_TOML_HEAD = re.compile(r"\[+\s*([^\]#]+?)\s*\]+\s*(?:#.*)?\Z")
_TOML_LINE = re.compile(r"\s*([\w.-]+|\"[^\"]+\")\s*=\s*([\w.+-]+|\"[^\"\\]*\"|'[^']*')\s*(?:#.*)?\Z")


def _is_in(content: Any, keys: Sequence[str]) -> bool:
    """Whether there is such a value: a text of several lines may hold what only looks like one."""
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            return False
        content = content[key]
    return True


def _in_toml(text: str) -> Iterator[Scalar]:
    """What stands on a line of its own."""
    section: tuple[str, ...] = ()
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        head, match = _TOML_HEAD.match(bare.strip()), _TOML_LINE.match(bare)
        if head is not None:
            section = tuple(part.strip(" \"'") for part in head[1].split("."))
        elif match is not None:
            keys = tuple(part.strip("\"'") for part in match[1].split("."))
            yield Scalar((*section, *keys), start + match.start(2), start + match.end(2), match[2])
        start += len(line)


def _load_toml(path: str, text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotEditError(f"{path} is not TOML that can be parsed: {error}") from error


def _in_yaml(path: str, text: str) -> list[Scalar]:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

    _check_size(path, text)
    with _yaml(path, "rt") as yaml:
        root = yaml.compose(text)
    pending: list[tuple[tuple[str, ...], Node]] = [((), root)] if root is not None else []
    found: list[Scalar] = []
    seen: set[int] = set()  # an alias is the same node once more
    while pending:
        keys, node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                inner = (*keys, str(key.value)) if isinstance(key, ScalarNode) else keys
                if isinstance(key, ScalarNode) and isinstance(value, ScalarNode):
                    start, end = value.start_mark.index, value.end_mark.index
                    found.append(Scalar(inner, start, end, text[start:end], bool(value.anchor)))
                pending.append((inner, value))
        elif isinstance(node, SequenceNode):
            pending.extend((keys, each) for each in node.value)
    return sorted(found, key=lambda each: each.start)


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
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yield YAML(typ=typ, pure=True)
    except DuplicateKeyError as error:
        name = str(error.problem or "").partition('"')[2].partition('"')[0]
        raise CannotEditError(f"{path} has {name or 'a key'} twice in one section: remove one of them") from error
    except (YAMLError, RecursionError, ValueError) as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise CannotEditError(f"{path} is not YAML that can be parsed{line}") from error


def _differences(one: Any, other: Any, key: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [each for inner in one for each in _differences(one[inner], other[inner], str(inner))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [each for a, b in zip(one, other, strict=True) for each in _differences(a, b, key)]
    return [] if one == other and type(one) is type(other) else [key]
