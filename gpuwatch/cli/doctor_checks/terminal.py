"""The terminal that the dashboard would open in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from gpuwatch.cli.doctor_checks.check import Check, Detail, State
from gpuwatch.cli.output import is_terminal

_NAME = "terminal"
_COLUMNS, _ROWS = 80, 24  # the smallest layout of the dashboard


@dataclass(frozen=True, slots=True)
class Terminal:
    """What is known of the terminal."""

    is_terminal: bool
    kind: str
    columns: int
    rows: int
    colors: str | None  # as rich names them: standard, 256, truecolor; None without any
    encoding: str

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Terminal:
        """The one on standard input and output; what is piped elsewhere is asked of the terminal that remains."""
        both = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        stream = next((s for s in (sys.stdout, sys.stderr, sys.stdin) if is_terminal(s)), None)
        size = os.get_terminal_size(stream.fileno()) if stream else os.terminal_size((0, 0))
        colored = stream is not None and not environment.get("NO_COLOR")
        colors = Console(file=stream, force_terminal=True).color_system if colored else None
        encoding = getattr(sys.stdout, "encoding", None) or ""
        return cls(both, environment.get("TERM", ""), size.columns, size.lines, colors, encoding)


def check_terminal(terminal: Terminal) -> Check:
    """Can the dashboard be drawn here, and as it was meant?"""
    details: dict[str, Detail] = {
        "is_terminal": terminal.is_terminal,
        "term": terminal.kind,
        "columns": terminal.columns,
        "rows": terminal.rows,
        "colors": terminal.colors,
        "encoding": terminal.encoding,
    }
    if not terminal.is_terminal:
        return Check(
            _NAME,
            State.UNKNOWN,
            "Input or output is not a terminal here, so `gpuwatch` prints a line per second, not the dashboard.",
            "Run `gpuwatch doctor` directly in a terminal to have it checked; over ssh use `ssh -t`.",
            details,
        )
    about = f"{terminal.columns}x{terminal.rows}, TERM={terminal.kind}"
    if terminal.kind in ("", "dumb", "unknown"):
        sentence = f"The terminal ({about}) says that it cannot place a cursor, so `gpuwatch` prints lines."
        return Check(_NAME, State.WARNING, sentence, "Set TERM to what it is, such as xterm-256color.", details)
    if terminal.columns < _COLUMNS or terminal.rows < _ROWS:
        sentence = f"The terminal ({about}) is smaller than {_COLUMNS}x{_ROWS}, so parts of the dashboard are left out."
        return Check(_NAME, State.WARNING, sentence, "Enlarge the window or choose a smaller font.", details)
    if terminal.encoding.lower().replace("-", "") != "utf8":
        sentence = f"The terminal ({about}) is set to {terminal.encoding or 'no encoding'}: charts are drawn in ASCII."
        return Check(_NAME, State.WARNING, sentence, "Set a UTF-8 locale: `export LC_ALL=C.UTF-8`.", details)
    if terminal.colors is None:
        sentence = f"The terminal ({about}) shows no colours (NO_COLOR or TERM); every status is also a word."
        return Check(_NAME, State.OK, sentence, None, details)
    return Check(_NAME, State.OK, f"The terminal ({about}) has {terminal.colors} colours and UTF-8.", None, details)
