"""What is wrong with a config file, in one sentence with the file, the key, the value and what is allowed."""

from __future__ import annotations


class ConfigError(Exception):
    """A config that cannot be used; its text is the whole sentence."""


def shown(value: object) -> str:
    """A value as TOML writes it, cut short: it comes from a file that anybody may have written."""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    text = text.replace("'", '"') if isinstance(value, str) else text
    return text if len(text) <= 60 else f"{text[:57]}..."
