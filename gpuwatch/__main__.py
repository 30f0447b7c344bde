"""Entry of the `gpuwatch` command and of `python -m gpuwatch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Each command imports only what it needs."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        from gpuwatch.cli.run import run

        return run(arguments[1:])
    from gpuwatch.cli.dispatch import dispatch

    return dispatch(arguments)


if __name__ == "__main__":
    sys.exit(main())
