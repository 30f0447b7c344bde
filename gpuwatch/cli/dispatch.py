"""From parsed arguments to a command, and from its failures to a sentence and an exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.exit_codes import ExitCode
from gpuwatch.cli.output import PipeClosedError, abandon_stdout, flush_stdout, say


def dispatch(argv: Sequence[str]) -> int:
    """Runs the command that `argv` names; whatever happens ends in an exit code, never in a traceback."""
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
    except Exception as error:  # noqa: BLE001 - the outermost boundary: a bug is told in one sentence as well
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
    from gpuwatch.cli.arguments import ANY_PROCESS, parse

    arguments = parse(argv)
    if arguments.command in ("dashboard", "report", "watch", "record"):
        from gpuwatch.cli.config_options import apply_config

        apply_config(arguments)
    match arguments.command:
        case "report":
            from gpuwatch.cli.report import report

            return report(arguments)
        case "watch":
            from gpuwatch.cli.watch import watch

            return watch(arguments)
        case "demo":
            from gpuwatch.cli.demo import demo

            return demo(arguments.scenario)
        case "explain":
            from gpuwatch.cli.explain import explain

            return explain(arguments.rule)
        case "config":
            from gpuwatch.cli.config import config

            return config(arguments)
        case "doctor":
            from gpuwatch.cli.doctor import doctor

            return doctor(json=arguments.json)
        case "record":
            from gpuwatch.cli.record import record

            return record(arguments)
        case "replay":
            from gpuwatch.cli.replay import replay

            return replay(arguments)
        case "trial":
            from gpuwatch.cli.trial import trial

            return trial(arguments)
        case "compare":
            from gpuwatch.cli.compare import compare

            return compare(arguments)
        case "export":
            from gpuwatch.cli.export import export

            return export(arguments)
        case "stacks":
            from gpuwatch.cli.stacks import stacks

            return stacks(arguments)
        case _ if arguments.attach == ANY_PROCESS:
            from gpuwatch.cli.candidates import list_candidates

            return list_candidates()
        case _:
            from gpuwatch.cli.dashboard import dashboard

            return dashboard(arguments)
