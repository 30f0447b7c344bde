r"""Makes text safe to print. Names, paths and command lines come from other processes and may be hostile.

A terminal obeys escape sequences (`\x1b]0;` sets its title), Markdown shows HTML and links, and bidirectional
controls make a line read as something it is not. All of them are shown as what they are: `\x1b`, `&lt;`, `\u202e`.
"""

from __future__ import annotations

import json
import re
from typing import Any, overload

_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8 (surrogateescape)
_NOT_ASCII = re.compile(r"[^\n -~]+")
_MARKDOWN = re.compile(r"[\\`*\[\]<|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITY = re.compile(r"&(?=#?\w+;)")

_ASCII = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
        "±": "+/-",
        "°": "deg ",
        "×": "x",
        "→": "->",
        "–": "-",
        "≥": ">=",
        "≤": "<=",
        "…": "...",
        "·": "-",
    }
)


def printable(text: str) -> str:
    r"""Text as one line in which each character is seen: all others are shown as their code, `\x1b`, `\u202e`, `\xff`.

    Shown as codes are controls, bidirectional and invisible characters, all blanks but the plain one, characters that
    this Python's Unicode does not know, and bytes that were not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _code(character) for character in text)


def printable_lines(text: str) -> list[str]:
    """The lines of a text, each made safe.

    Only a line feed ends one: whatever else `splitlines` takes for an end would let a name forge a line.
    """
    return [printable(line) for line in text.removesuffix("\n").split("\n")]


def terminal_text(text: str) -> str:
    """A text of many lines as a terminal may have it: line ends and tabs stay, the rest is as `printable` has it."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(part if part in ("\n", "\t") else printable(part) for part in re.split(r"([\n\t])", text))


def json_text(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    r"""JSON in ASCII: `\u009b` keeps the data as it is and steers no terminal; bytes that were not UTF-8 are `\\xff`.

    Raises:
        ValueError: a number is not finite.
    """
    separators = (",", ":") if compact else None
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    text = _SURROGATE.sub(lambda match: f"\\{_code(match.group())}", text)
    return _NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], text)


@overload
def encodable(text: str) -> str: ...


@overload
def encodable(text: str | None) -> str | None: ...


def encodable(text: str | None) -> str | None:
    """Text that any UTF-8 file can hold: only what cannot be encoded is replaced, line breaks stay. None stays None."""
    return None if text is None else _SURROGATE.sub(lambda match: _code(match.group()), text)


def _code(character: str) -> str:
    point = ord(character)
    if 0xDC80 <= point <= 0xDCFF:  # surrogateescape's own range: the byte itself
        point -= 0xDC00
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def markdown(text: str) -> str:
    """Text as one run of plain Markdown text, also inside a table cell."""
    text = _ENTITY.sub("&amp;", printable(text))
    return _MARKDOWN.sub(lambda match: "&lt;" if match.group() == "<" else f"\\{match.group()}", text)


def code_span(text: str) -> str:
    """Text as inline code. A `|` would end a table cell even inside code, so it is escaped there too."""
    text = printable(text).replace("|", "\\|")
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def code_block(text: str, language: str = "") -> str:
    """Text as a fenced block whose fence the text cannot close."""
    lines = printable_lines(text)
    fence = "`" * max(3, _longest_run(text) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def ascii_only(text: str) -> str:
    """Text for an output that takes only ASCII: known glyphs by their look, the rest by their code."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
