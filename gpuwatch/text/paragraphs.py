"""Sentences as lines of a plain text."""

from __future__ import annotations

import textwrap

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
