"""The folder where training processes and monitors meet."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.hook_link.presences import names_its_own
from gpuwatch.sources.hook_link.processes import Processes, folders_elsewhere, rendezvous_path
from gpuwatch.sources.hook_link.rendezvous import Rendezvous, RendezvousError

_NAME = "link"


def check_link(
    environment: Mapping[str, str] = os.environ, user: int | None = None, proc_root: Path = Path("/proc")
) -> Check:
    """Can a monitor listen there? It is tried with a socket that is removed at once."""
    me = os.geteuid() if user is None else user
    path = rendezvous_path(environment, me)
    try:
        folder = Rendezvous.create(path, me)
    except RendezvousError as error:
        return _refused(path, str(error))
    try:
        name = f"doctor-{os.getpid()}-{time.monotonic_ns()}.sock"
        try:
            folder.listen(name, me).close()
        except RendezvousError as error:
            return _refused(path, str(error))
        folder.remove(name)
        processes = Processes(proc_root)
        runs = sum(
            processes.is_alive(run.pid, run.start_ticks) and names_its_own(processes, folder, run.pid)
            for run in folder.presences()
        )
    finally:
        folder.close()
    there = {0: "no run with the hook is there now", 1: "1 run with the hook is there"}
    found = there.get(runs, f"{runs} runs with the hook are there")
    sentence = f"Training runs can link themselves in {path}; {found}."
    elsewhere = folders_elsewhere(environment)
    if elsewhere:
        sentence = (
            f"{sentence[:-1]}; the folder of {' and '.join(elsewhere)} is passed over: it is on no local file system, "
            "and a file server that hangs would hold a step."
        )
    return Check(
        _NAME, State.OK, sentence, None, {"folder": str(path), "runs": runs, "passed_over": " ".join(elsewhere) or None}
    )


def _refused(path: Path, why: str) -> Check:
    """The error's own cure stands behind its last semicolon."""
    cause, _, cure = why.rpartition("; ")
    return Check(
        _NAME,
        State.PROBLEM,
        f"Training runs cannot link themselves: {cause or why}.",
        f"{cure[0].upper()}{cure[1:]}." if cause else "Set GPUWATCH_DIR to a folder of yours, for both sides.",
        {"folder": str(path), "runs": None},
    )
