r"""Text that is safe to print, in lines and tables. Names, paths and command lines may come from hostile processes.

A terminal obeys escape sequences (`\x1b]0;` sets its title), Markdown shows HTML and links, and bidirectional
controls make a line read as something it is not. All of them are shown as what they are: `\x1b`, `\<`, `\u202e`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Container, Iterable, Sequence
from typing import Any, overload

_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8 (surrogateescape)
_NOT_ASCII = re.compile(r"[^\n -~]+")
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|<(?![ =0-9])|&(?=#?\w+;)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")

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

WIDTH = 100

_LIKENESS = 0.5


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
    """Text as one run of plain Markdown text, also inside a table cell; a backslash, which no reader sees, escapes."""
    return _MARKDOWN.sub(lambda match: f"\\{match.group()}", printable(text))


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


def wrapped(sentence: str, indent: str = "  ") -> list[str]:
    """Its lines, made safe to print: the later ones set in further, and no word, path or option torn apart."""
    return textwrap.wrap(
        printable(sentence),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows with their columns below each other, two blanks apart; the columns in `right` end at one place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (
        [cell.rjust(width) if place in right else cell.ljust(width) for place, (cell, width) in enumerate(pairs)]
        for pairs in (zip(row, widths, strict=True) for row in rows)
    )
    return ["  ".join(row).rstrip() for row in cells]


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]], right: int = 0) -> str:
    """A Markdown table of cells that are escaped already; its last columns, `right` of them, are set to the right."""
    rule = ["---"] * (len(heading) - right) + ["--:"] * right
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *rows))


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """A question in brackets where a known word is near, else nothing."""
    import difflib  # 0.2 MB that only a mistake needs

    words = {word.lstrip("-"): word for word in known}  # the dashes of options make no two of them alike
    near = difflib.get_close_matches(value.lstrip("-"), list(words), n=1, cutoff=_LIKENESS)
    return f" (did you mean {words[near[0]]!r}?)" if near else ""
