"""`--inject`: says what would be done to the process, asks, and does it."""

from __future__ import annotations

import sys

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.cli.output import say
from gpuwatch.inject.perform import perform
from gpuwatch.inject.plan import CannotInjectError, Plan, plan_for


def inject(pid: int, *, yes: bool) -> None:
    """Installs the hook in a running process, with the user's consent.

    Args:
        pid: the process.
        yes: whether consent was given on the command line.

    Raises:
        GpuwatchError: it cannot be done there, or the user would rather not.
    """
    try:
        plan = plan_for(pid)
        say(_what_it_does(plan))
        if not yes:
            _ask()
        perform(plan)
    except CannotInjectError as error:
        raise GpuwatchError(f"--inject: {error}") from error
    say(f"The hook takes effect at the next line that process {pid} runs on its main thread.")


def _what_it_does(plan: Plan) -> str:
    return (
        f"--inject writes to process {plan.pid} (Python {plan.version[0]}.{plan.version[1]}): its interpreter runs a "
        f"script, as by sys.remote_exec, that imports the hook from {plan.site} and calls watch(). From then on the "
        "process times its loaders and optimizers, as under `gpuwatch run`, and the hook stays until it ends."
    )


def _ask() -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise GpuwatchError("--inject asks before it writes to a process, and stdin is no terminal: add --yes")
    sys.stderr.write("Install it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise GpuwatchError("--inject was not confirmed, and nothing was changed")
