"""From parsed arguments to a command, and from its failures to a sentence and an exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from importlib import import_module

from gpuwatch.cli.output import (
    ExitCode,
    GpuwatchError,
    PipeClosedError,
    abandon_stdout,
    flush_stderr,
    flush_stdout,
    say,
)

_CONFIGURED = ("dashboard", "exporter", "record", "replay", "report", "watch")
"""Commands that run the rules, and so take their settings from the config."""


def dispatch(argv: Sequence[str]) -> int:
    """Runs the command that `argv` names; whatever happens ends in an exit code, never in a traceback."""
    try:
        return _exit_code(argv)
    finally:
        flush_stderr()


def _exit_code(argv: Sequence[str]) -> int:
    try:
        code = _run(argv)
        flush_stdout()
    except GpuwatchError as error:
        say(f"gpuwatch: {error}")
        return ExitCode.CANNOT_MEASURE
    except SystemExit as end:  # argparse, after --help and --version
        return _flushed(end.code if isinstance(end.code, int) else ExitCode.OK)
    except (BrokenPipeError, PipeClosedError):
        abandon_stdout()
        return ExitCode.OK
    except OSError as error:
        abandon_stdout()
        say(f"gpuwatch: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}")
        return ExitCode.CANNOT_MEASURE
    except KeyboardInterrupt:
        abandon_stdout()
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost boundary: a bug is reported in one sentence as well
        if os.environ.get("GPUWATCH_TRACEBACK"):
            say(traceback.format_exc())
        say(
            f"gpuwatch: internal error, {type(error).__name__}: {error}; "
            "run it again with GPUWATCH_TRACEBACK=1 and report what it prints"
        )
        return ExitCode.CANNOT_MEASURE
    return code


def _flushed(code: int) -> int:
    """The code, after what is buffered has gone out or has been given up."""
    try:
        flush_stdout()
    except OSError:
        abandon_stdout()
    return code


def _run(argv: Sequence[str]) -> int:
    """Each command is the function of its name in the module of its name; no other command is imported."""
    from gpuwatch.cli.arguments import ANY_PROCESS, parse

    arguments = parse(argv)
    if arguments.command in _CONFIGURED:
        from gpuwatch.cli.config import apply_config

        apply_config(arguments)
    if arguments.command == "dashboard" and arguments.attach == ANY_PROCESS:
        from gpuwatch.cli.attach import list_candidates

        return list_candidates()
    command = getattr(import_module(f"gpuwatch.cli.{arguments.command}"), arguments.command)
    code: int = command(arguments)
    return code
