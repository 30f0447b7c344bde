"""The values of a YAML, JSON or TOML file with their places, so that one can be changed and nothing else.

The file is never written from what was parsed: comments, order, anchors and quotes stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gpuwatch.edits.workspace import CannotEditError

LARGEST = 64 * 1024
"""Characters: ruamel.yaml reads about 100 kB a second, and it reads a file four times."""
_MOST_NODES = 20_000  # with each alias counted as all that it repeats
_DEEPEST = 64  # ruamel.yaml calls itself for each level, and its scanner walks all open brackets for each token
_WORDS = {"True": "true", "False": "false", "None": "null"}
_SPOKEN = {"yes": "true", "on": "true", "no": "false", "off": "false"}  # unquoted in YAML 1.1, which PyYAML reads


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: its keys from the outermost inwards, and where it is written, without anchor and tag."""

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
        return list(_in_json(text))
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
            raise CannotEditError(f"{path} is not JSON that can be parsed: {error}") from error
    if kind == "toml":
        return _load_toml(path, text)
    with _yaml(path, "safe") as yaml:
        return yaml.load(text)


def same(written: str, value: str) -> bool:
    """Whether a value of a file is the one that Python writes so."""
    said = written.strip().lower()
    return _SPOKEN.get(said, said) == word(value).lower()


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
    line_end = _LINE_END.search(changed, at.start)
    end = len(changed) if line_end is None else line_end.start()
    commented = f"{changed[:end]}  # {comment}{changed[end:]}"
    try:
        check_change(path, text, commented, at.key)
    except CannotEditError:  # the line ends inside of something
        return changed
    return commented


_LINE_END = re.compile(r"[\r\n]")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def _in_json(text: str) -> Iterator[Scalar]:
    """The values of a text that is JSON."""
    keys: list[str | None] = []  # of each open bracket; None in a list and before the first key
    name = previous = ""
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token in "{[":
            keys.append(None)
        elif token in "}]":
            keys.pop()
        elif token == ":":
            keys[-1] = json.loads(name)
        elif previous == ":":
            yield Scalar(tuple(key for key in keys if key is not None), *match.span(), token)
        elif token != ",":
            name = token
        previous = token


def _without_doubles(path: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise CannotEditError(f"{path} has {double} twice in one section: remove one of them")
    return found


_TOML_HEAD = re.compile(r"\[+\s*([^\]#]+?)\s*\]+\s*(?:#.*)?\Z")
_TOML_PAIR = r"\s*([\w.-]+|\"[^\"]+\")\s*=\s*([\w.+-]+|\"[^\"\\]*\"|'[^']*')\s*"
_TOML_LINE = re.compile(rf"{_TOML_PAIR}(?:#.*)?\Z")
_TOML_TABLE = re.compile(r"\s*([\w.-]+)\s*=\s*\{([^{}]*)\}\s*(?:#.*)?\Z")
_TOML_ITEM = re.compile(rf"(?<=[{{,]){_TOML_PAIR}(?=,|\Z)")


def _toml_keys(written: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^\s.]+", written))


def _is_in(content: Any, keys: Sequence[str]) -> bool:
    """Whether there is such a value: a text of several lines may hold what only looks like one."""
    if not keys:
        return True
    if isinstance(content, list):
        return any(_is_in(each, keys) for each in content)
    return isinstance(content, dict) and keys[0] in content and _is_in(content[keys[0]], keys[1:])


def _in_toml(text: str) -> Iterator[Scalar]:
    """What stands on a line of its own, or in a table on one line."""
    section: tuple[str, ...] = ()
    start = 0
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        head, match = _TOML_HEAD.match(bare.strip()), _TOML_LINE.match(bare)
        if head is not None:
            section = _toml_keys(head[1])
        elif match is not None:
            yield Scalar((*section, *_toml_keys(match[1])), start + match.start(2), start + match.end(2), match[2])
        elif (table := _TOML_TABLE.match(bare)) is not None:
            for item in _TOML_ITEM.finditer(bare, *table.span(2)):
                keys = (*section, *_toml_keys(table[1]), *_toml_keys(item[1]))
                yield Scalar(keys, start + item.start(2), start + item.end(2), item[2])
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
    pending: list[tuple[tuple[str, ...], frozenset[int], Node]] = [((), frozenset(), root)] if root is not None else []
    found: list[tuple[frozenset[int], Scalar]] = []
    seen: set[int] = set()
    repeated: set[int] = set()  # an alias is the same node once more
    while pending:
        keys, inside, node = pending.pop()
        if id(node) in seen:
            repeated.add(id(node))
            continue
        seen.add(id(node))
        inside |= {id(node)}
        if isinstance(node, MappingNode):
            for key, value in node.value:
                inner = (*keys, str(key.value)) if isinstance(key, ScalarNode) else keys
                if isinstance(key, ScalarNode) and isinstance(value, ScalarNode) and id(value) not in seen:
                    end = value.end_mark.index
                    start = _PROPERTIES.match(text, value.start_mark.index, end).end()  # type: ignore[union-attr]
                    found.append((inside | {id(value)}, Scalar(inner, start, end, text[start:end])))
                pending.append((inner, inside, value))
        elif isinstance(node, SequenceNode):
            pending.extend((keys, inside, each) for each in node.value)
    marked = [replace(each, is_repeated=bool(within & repeated)) for within, each in found]
    return sorted(marked, key=lambda each: each.start)


_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""What may stand before a value: an anchor, a tag."""


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
    from ruamel.yaml.error import YAMLError

    try:
        yaml = YAML(typ=typ, pure=True)
        yaml.composer.warn_double_anchors = False
        yield yaml
    except DuplicateKeyError as error:
        name = str(error.problem or "").partition('"')[2].partition('"')[0]
        raise CannotEditError(f"{path} has {name or 'a key'} twice in one section: remove one of them") from error
    except (YAMLError, RecursionError, ValueError, TypeError) as error:  # a list as a key is a TypeError
        raise CannotEditError(f"{path} {_yaml_problem(error)}") from error


def _yaml_problem(error: Exception) -> str:
    from ruamel.yaml.constructor import ConstructorError
    from ruamel.yaml.error import MarkedYAMLError

    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return "is not YAML that can be parsed"
    where = f"line {error.problem_mark.line + 1}"
    problem = str(error.problem)
    if "another document" in problem:
        return f"holds several documents, the second from {where} on: give a file with one"
    if "\\t" in problem:
        return f"is not YAML that can be parsed ({where}): indent with spaces in place of the tab"
    if isinstance(error, ConstructorError):
        return f"holds what only its own program can read ({where}): {problem}"
    return f"is not YAML that can be parsed ({where})"


def _differences(one: Any, other: Any, key: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [each for inner in one for each in _differences(one[inner], other[inner], str(inner))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [each for a, b in zip(one, other, strict=True) for each in _differences(a, b, key)]
    return [] if one == other and type(one) is type(other) else [key]
