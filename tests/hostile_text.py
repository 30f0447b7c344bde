"""One corpus of hostile text, put into each free text of samples and snapshots, and what no output may hold."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

MARK = "FORGED"
"""Begins a line in an output only where a name has ended the line before it."""

HOSTILE = (
    f"\x1b]0;title\x07\x1b[2J\x9b31m\x85\x00\x7f\r{MARK} cr\n{MARK} lf\x0b{MARK}\x0c{MARK}\u2028{MARK}\u2029{MARK}"
    "\u202eright\u202c\u2066\u2069\u200e\u200f\u061c\u200b\u200d\ufeff\u00ad\u180e\U000e0041\udcff\ud800"
    "[red]x[/red][@click=app.quit]y[/]{{7*7}}${x}`code``|pipe|</script><script>alert(1)</script>"
    '<img src=x onerror=alert(1)>](http://evil)"\'&lt;]]>--><!--{gpu="1"} %s%n\\x1b'
)

_KEPT = frozenset(
    {"rule", "kind", "severity", "state", "status", "visibility", "role", "after", "behind", "unit", "call"}
)
"""Fields whose values are words of gpuwatch's own."""

_Thing = TypeVar("_Thing")


def poisoned(thing: _Thing) -> _Thing:
    """The same with the corpus behind each free text, the same everywhere: what was equal before is equal still."""
    return typing.cast("_Thing", _poisoned(thing))


def _poisoned(thing: Any) -> Any:
    if isinstance(thing, str):
        return thing + HOSTILE
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        changes = {name: _poisoned(getattr(thing, name)) for name in _free_fields(type(thing))}
        if isinstance(changes.get("code"), str):  # a text of many lines
            changes["code"] = changes["code"].replace("\n", "")
        return dataclasses.replace(thing, **changes)
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return tuple(map(_poisoned, thing))
    if isinstance(thing, list):
        return list(map(_poisoned, thing))
    if isinstance(thing, Mapping):
        return {key: _poisoned(value) for key, value in thing.items()}
    return thing


@cache
def _free_fields(cls: type) -> frozenset[str]:
    hints = typing.get_type_hints(cls)
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.name not in _KEPT and not _is_literal(hints[field.name])
    )


def _is_literal(hint: Any) -> bool:
    return typing.get_origin(hint) is Literal or any(map(_is_literal, typing.get_args(hint)))


def assert_inert(text: str) -> None:
    """Nothing in it steers a terminal, reorders or hides text, or begins a line that gpuwatch has not begun."""
    found = {f"U+{ord(character):04X}" for character in text if not character.isprintable() and character not in "\n\t"}
    assert not found, found
    assert not [line for line in text.split("\n") if line.startswith(MARK)]  # wrapped sentences are indented
    text.encode("utf-8")


def assert_json(text: str) -> None:
    assert text.isascii()
    assert_inert(text)
    json.loads(text)
    assert not re.search(r"\\ud[89ab]..(?!\\ud[c-f]..)", text.replace("\\\\", "")), "a half of a surrogate pair"


def assert_markdown(text: str) -> None:
    assert_inert(text)
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?\n\1$", "", text)
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    outside = re.sub(r"\\\\|\\<", "", outside)  # an escaped sign begins no tag
    assert "<script" not in outside and "<img" not in outside and "](http" not in outside.replace(r"\]", "")
