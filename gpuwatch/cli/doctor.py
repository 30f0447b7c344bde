"""`gpuwatch doctor`: what this machine offers, and the cure for each shortcoming."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gpuwatch._version import __version__
from gpuwatch.cli.doctor_checks import run_checks
from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import check_stdout, is_terminal, write_stdout
from gpuwatch.text.escape import json_text, printable

_SCHEMA_VERSION = 1
_WIDEST = 110
_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.UNKNOWN: "cyan"}
_STATE_WIDTH = max(len(state.value) for state in State) + 2


def doctor(arguments: argparse.Namespace) -> int:
    """Looks at this machine, writes what it found to stdout, and returns the exit code."""
    check_stdout()
    checks = run_checks()
    if arguments.json:
        write_stdout(json_text(as_json(checks), indent=2) + "\n")
    else:
        _print(checks)
    return ExitCode.OK if usable(checks) else ExitCode.CANNOT_MEASURE


def usable(checks: Sequence[Check]) -> bool:
    """Whether anything can be measured: a GPU answers, or a training run can link itself."""
    return any(check.name in ("driver", "link") and check.state in (State.OK, State.WARNING) for check in checks)


def as_json(checks: Sequence[Check]) -> dict[str, object]:
    """The report as plain values."""
    return {
        "schema_version": _SCHEMA_VERSION,
        "gpuwatch": __version__,
        "usable": usable(checks),
        "checks": [
            {
                "check": check.name,
                "state": check.state.value,
                "sentence": check.sentence,
                "cure": check.cure,
                "details": dict(check.details),
                "rows": [list(row) for row in check.rows],
            }
            for check in checks
        ],
    }


def as_lines(checks: Sequence[Check], width: int) -> list[tuple[State | None, str]]:
    """The report as lines; a line that begins a check carries its state, to be coloured."""
    name_width = max(len(check.name) for check in checks) + 2
    indent = " " * (_STATE_WIDTH + name_width)
    lines: list[tuple[State | None, str]] = []
    for check in checks:
        head = f"{check.state.value:<{_STATE_WIDTH}}{check.name:<{name_width}}"
        first, *rest = textwrap.wrap(check.sentence, width, initial_indent=head, subsequent_indent=indent)
        lines.append((check.state, first))
        lines += [(None, line) for line in rest]
        if check.cure:
            cure_indent = indent + " " * len("cure: ")
            cured = textwrap.wrap(
                check.cure,
                width,
                initial_indent=f"{indent}cure: ",
                subsequent_indent=cure_indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += [(None, line) for line in cured]
        lines += [(None, f"  {row}") for row in _table(check.rows)]
    return [*lines, (None, ""), (None, _verdict(checks))]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _verdict(checks: Sequence[Check]) -> str:
    counts = [
        f"{count} {state.value}{'s' if count > 1 and state in (State.WARNING, State.PROBLEM) else ''}"
        for state in State
        if state is not State.OK and (count := sum(check.state is state for check in checks))
    ]
    found = ", ".join(counts) or "nothing to mend"
    if usable(checks):
        return f"gpuwatch can measure here; {found}."
    return f"gpuwatch can measure nothing here: no GPU answers and no training run can be linked; {found}."


def _print(checks: Sequence[Check]) -> None:
    """Plain text where it is read by a program, coloured words where it is read by people."""
    out = io.StringIO()  # by itself a Console ends the process with 1 when its reader is gone
    console = Console(file=out, force_terminal=is_terminal(sys.stdout), soft_wrap=True, highlight=False)
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    for state, line in as_lines(checks, max(60, width)):
        text = Text(printable(line))
        if state is not None:
            text.stylize(_STYLES[state], 0, len(state.value))
        console.print(text)
    write_stdout(out.getvalue(), styled=True)
