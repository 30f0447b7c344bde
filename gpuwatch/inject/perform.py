"""Hands the hook to a running interpreter by its own `sys.remote_exec`: the one place that writes to a target."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpuwatch.inject.plan import CannotInjectError, Plan
from gpuwatch.reader.memory import read_state
from gpuwatch.reader.types import CannotReadError

_SECONDS = 15.0
_HAND_OVER = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"


def script_of(plan: Plan, folder: Path) -> str:
    """What the target runs at its next bytecode, on its main thread.

    It puts sys.path back, is silent whatever happens, and removes itself: removed by us before the target came to it,
    it would print an error there.
    """
    return f"""\
def _install():
    import os, sys
    try:
        sys.path.insert(0, {str(plan.site)!r})
        try:
            import _gpuwatch_hook.api
        finally:
            sys.path.remove({str(plan.site)!r})
        _gpuwatch_hook.api.watch()
    except Exception:
        pass
    for remove, path in ((os.unlink, {str(folder / "install.py")!r}), (os.rmdir, {str(folder)!r})):
        try:
            remove(path)
        except OSError:
            pass
_install()
del _install
"""


def perform(plan: Plan, temporary: Path | None = None) -> None:
    """Has the hook installed; returns once the target has been told, which is before it has done it.

    Args:
        plan: what was shown to the user.
        temporary: where the script lies until the target has run it, in a folder that only its user can enter.

    Raises:
        CannotInjectError: the interpreter refused, or the process has ended since it was planned.
    """
    if not _still_runs(plan):
        raise CannotInjectError(f"process {plan.pid} has ended meanwhile, and nothing was changed: name one that runs")
    folder = Path(tempfile.mkdtemp(prefix="gpuwatch-inject-", dir=temporary))
    script = folder / "install.py"
    script.touch(mode=0o600)
    script.write_text(script_of(plan, folder), encoding="utf-8")
    if os.geteuid() == 0 and plan.uid != 0:
        os.chown(script, plan.uid, plan.gid)
        os.chown(folder, plan.uid, plan.gid)
    refusal = _ask(plan, script) if _is_seen_by(plan, script) else f"it does not see {folder.parent}"
    if refusal:
        shutil.rmtree(folder, ignore_errors=True)
        raise CannotInjectError(f"process {plan.pid} could not be asked to install the hook: {refusal}")


def _still_runs(plan: Plan) -> bool:
    """While the user was asked, its pid may have been given to another process, which nobody has consented for."""
    try:
        return read_state(plan.pid, plan.proc_root)[1] == plan.start_ticks
    except CannotReadError:
        return False


def _is_seen_by(plan: Plan, script: Path) -> bool:
    """Services often have a /tmp of their own, and the target would print that it finds no script."""
    try:
        return script.samefile(plan.proc_root / str(plan.pid) / "root" / script.relative_to("/"))
    except OSError:
        return False


def _ask(plan: Plan, script: Path) -> str | None:
    """Why the interpreter would not; None where it did, or may still."""
    try:
        asked = subprocess.run(
            [plan.interpreter, "-I", "-S", "-c", _HAND_OVER, str(plan.pid), str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return f"{plan.interpreter}: {error.strerror}"
    return asked.stderr.strip().rpartition("\n")[2] or f"exit code {asked.returncode}" if asked.returncode else None
