r"""Makes text safe to print. Names, paths and command lines come from other processes and may be hostile.

A terminal obeys escape sequences (`\x1b]0;` sets its title), Markdown shows HTML and links, and bidirectional
controls make a line read as something it is not. All of them are shown as what they are: `\x1b`, `&lt;`, `\u202e`.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, line separators, bidirectional controls
    "\ud800-\udfff]"  # bytes that were not UTF-8 (surrogateescape)
)
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
    r"""Text with every control character, and every byte that was not UTF-8, shown as its code: `\x1b`, `\xff`."""

    def code(match: re.Match[str]) -> str:
        point = ord(match.group())
        if 0xDC80 <= point <= 0xDCFF:  # surrogateescape's own range: the byte itself
            point -= 0xDC00
        return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"

    return _UNPRINTABLE.sub(code, text)


def encodable(text: str) -> str:
    """Text that any UTF-8 file can hold: only what cannot be encoded is replaced, line breaks stay."""
    return re.sub("[\ud800-\udfff]", lambda match: printable(match.group()), text)


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
    lines = [printable(line) for line in text.splitlines()]
    fence = "`" * max(3, _longest_run(text) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def ascii_only(text: str) -> str:
    """Text for an output that takes only ASCII: known glyphs by their look, the rest by their code."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
