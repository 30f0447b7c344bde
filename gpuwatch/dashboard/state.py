"""What the dashboard remembers of how it was left: theme, zoom, order of the GPUs and of the processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gpuwatch.config import ConfigError, parsed, user_file

FILE_NAME = "state.toml"


@dataclass(slots=True)
class State:
    """Chosen by keys, kept from one session to the next; a value that means nothing is as if it was not there."""

    theme: str = ""
    window_seconds: int = 0
    gpu_order: str = ""
    process_order: str = ""
    process_order_inverted: bool = False


def _file(environ: Mapping[str, str]) -> Path | None:
    config = user_file(environ)
    return None if config is None else config.with_name(FILE_NAME)


def load(environ: Mapping[str, str] = os.environ) -> State:
    """What was remembered; a missing or broken file is one in which nothing was."""
    file = _file(environ)
    if file is None:
        return State()
    try:
        found = parsed(file.read_bytes(), file)
    except (OSError, ConfigError):
        return State()
    kinds = {each.name: type(getattr(State(), each.name)) for each in fields(State)}
    return State(**{name: value for name, value in found.items() if type(value) is kinds.get(name)})


def save(state: State, environ: Mapping[str, str] = os.environ) -> None:
    """Replaces the file as a whole; where that cannot be done nothing is remembered, and nobody is bothered."""
    file = _file(environ)
    if file is None:
        return
    # Strings, whole numbers and booleans are written alike in JSON and TOML.
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in asdict(state).items())
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(f"# What the dashboard remembers; delete it to start over.\n{text}", encoding="utf-8")
        partial.replace(file)
