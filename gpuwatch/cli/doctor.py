"""`gpuwatch doctor`: what gpuwatch can use on this machine, and how to fix what is missing."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from gpuwatch._version import __version__
from gpuwatch.cli.doctor_checks import Check, State
from gpuwatch.cli.doctor_checks.gpu import (
    check_device_nodes,
    check_driver,
    check_nvml_calls,
    check_torch,
    gpu_nodes_present,
)
from gpuwatch.cli.doctor_checks.machine import (
    Terminal,
    check_open_files,
    check_pressure,
    check_quota,
    check_shared_memory,
    check_surroundings,
    check_system,
    check_terminal,
)
from gpuwatch.cli.doctor_checks.runs import check_link, check_other_processes, check_permissions
from gpuwatch.cli.output import ExitCode, check_stdout, write_stdout, write_styled
from gpuwatch.sources.nvml.process import survey
from gpuwatch.text.escape import json_text, printable

_SURVEY_SECONDS = 10.0
_SCHEMA_VERSION = 1
_WIDEST = 110
_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.UNKNOWN: "cyan"}
_STATE_WIDTH = max(len(state.value) for state in State) + 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gpuwatch doctor`."""
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def doctor(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    check_stdout()
    checks = run_checks()
    if arguments.json:
        write_stdout(json_text(as_json(checks), indent=2) + "\n")
    else:
        write_styled(_styled(checks))
    return ExitCode.OK if usable(checks) else ExitCode.CANNOT_MEASURE


def run_checks() -> list[Check]:
    """All checks of this machine, in the order in which they are read: GPUs first, comfort last."""
    on_linux = sys.platform == "linux"
    checks = [check_system()]
    if on_linux:
        checks += [check_surroundings(), check_device_nodes()]
    found = survey(_SURVEY_SECONDS)
    checks += [check_driver(found), check_nvml_calls(found)]
    if on_linux:
        checks += [check_link(), check_permissions(), check_other_processes()]
    checks.append(check_torch(gpu_nodes_present() or bool(found.answers)))
    if on_linux:
        checks += [check_quota(), check_shared_memory(), check_pressure(), check_open_files()]
    return [*checks, check_terminal(Terminal.of_this_process())]


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
    found = ", ".join(counts) or "no problems"
    if usable(checks):
        return f"gpuwatch can measure here; {found}."
    return f"gpuwatch can measure nothing here: no GPU answers and no training run can be linked; {found}."


def _styled(checks: Sequence[Check]) -> Iterator[Text]:
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    for state, line in as_lines(checks, max(60, width)):
        text = Text(printable(line))
        if state is not None:
            text.stylize(_STYLES[state], 0, len(state.value))
        yield text
