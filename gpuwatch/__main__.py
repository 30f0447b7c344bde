"""Entry of the `gpuwatch` command and of `python -m gpuwatch`."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself is 1 ms of every start
import sys
from collections.abc import Sequence

_INTERRUPTED = 130
"""ExitCode.INTERRUPTED, written out: its import could be interrupted as well."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Each command imports only what it needs."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["run"]:
            from gpuwatch.cli.run import run

            return run(arguments[1:])
        from gpuwatch.cli.dispatch import dispatch

        return dispatch(arguments)
    except KeyboardInterrupt:  # during the imports: a command that has begun ends itself
        return _INTERRUPTED
    finally:
        if argv is None:  # the process ends, and a second Ctrl-C would only take its exit code
            _signal.signal(_signal.SIGINT, _signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
