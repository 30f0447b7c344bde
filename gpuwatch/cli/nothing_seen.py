"""Whether there was anything to watch at all; without a GPU and a run there is nothing to report."""

from __future__ import annotations

from gpuwatch.cli.errors import GpuwatchError
from gpuwatch.monitor.snapshot import Snapshot

_PATIENCE_SECONDS = 10.0
"""A run links itself within a second of its start; a driver answers within two, or it does not."""


class NothingSeen:
    """Looks at each snapshot. `patient`: the user asked to wait without an end, so nothing is ever sure.

    Nor is it once something was seen: the only run of a machine without GPUs leaves the screen 10 min after its end.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self.is_sure = False
        self.saw_something = False

    def look(self, snapshot: Snapshot) -> None:
        """Becomes sure once nothing showed up for long enough."""
        waited = (snapshot.time_ns - snapshot.started_ns) / 1e9
        self.saw_something = self.saw_something or not is_empty(snapshot)
        self.is_sure = not self._patient and waited >= _PATIENCE_SECONDS and not self.saw_something

    def refuse(self, snapshot: Snapshot) -> None:
        """Raises what says that nothing could be measured, if that is so."""
        if is_empty(snapshot) and not self.saw_something:
            raise GpuwatchError(explanation(snapshot))


def is_empty(snapshot: Snapshot) -> bool:
    """Neither a GPU nor a run."""
    return not snapshot.gpus and not snapshot.runs


def explanation(snapshot: Snapshot) -> str:
    """What was looked for, and how to get going."""
    nvml = snapshot.nvml
    reason = (nvml.reason or f"NVML is {nvml.status}") if nvml else "the driver has not answered yet"
    many = sum(each.rung != "exact" for each in snapshot.candidates)
    trains = "1 process trains" if many == 1 else f"{many} processes train"
    others = f"{trains} here without it (`gpuwatch --attach` lists); " if many else ""
    others += "".join(f"{notice.rstrip('.')}; " for notice in snapshot.notices)
    return (
        f"nothing to measure: no GPU ({reason.rstrip('.')}) and no training run with the hook; {others}"
        "start the training with `gpuwatch run python train.py`, see `gpuwatch doctor`, or try `gpuwatch demo`"
    )
