"""Sentences and tables as lines of a text."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Sequence

from gpuwatch.text.escape import printable

WIDTH = 100


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
