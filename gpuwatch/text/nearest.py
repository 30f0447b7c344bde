"""What a mistyped word may have been meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_LIKENESS = 0.5


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """A question in brackets where a known word is near, else nothing."""
    import difflib  # 0.2 MB that only a mistake needs

    near = difflib.get_close_matches(value, list(known), n=1, cutoff=_LIKENESS)
    return f" (did you mean {near[0]!r}?)" if near else ""
