"""What is wrong with a config file, in one sentence with the file, the key, the value and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """A config that cannot be used; its text is the whole sentence."""


def near(value: str, known: Iterable[str]) -> str:
    """A question in brackets where a known word is near, else nothing."""
    found = difflib.get_close_matches(value, list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def shown(value: object) -> str:
    """A value as TOML writes it, cut short: it comes from a file that anybody may have written."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = text.replace("'", '"') if isinstance(value, str) else text
    return text if len(text) <= 60 else f"{text[:57]}..."
