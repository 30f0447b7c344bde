"""Alerts for somebody who does not look at the screen: critical findings, hangs, and the ends of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.snapshot import RunNow, Snapshot

HANGS = frozenset({"step-stalled", "collective-hang"})
"""Rules whose findings are alerts whatever their severity: a run that makes no steps costs the same at night."""
RUN_ENDED = "run-ended"
_ENDS = {"killed": "was killed", "lost": "is gone: its link ended without a word"}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `rule` is "run-ended" for the end of a run, else that of the finding."""

    rule: str
    severity: Literal["critical", "warning", "hint", "info"]
    sentence: str
    run: str | None  # the title of its run, "train.py"
    pid: int | None
    gpu: str | None  # as the GPU's row names it
    origin: str  # "LIVE", "SIMULATED starved"

    @property
    def subject(self) -> str:
        """What it is about: "train.py (4711)", "GPU 3"."""
        if self.run is not None:
            return f"{self.run} ({self.pid})"
        return "this machine" if self.gpu is None else f"GPU {self.gpu}"


class Alerts:
    """Takes each snapshot, and gives what is new in it.

    A finding is one alert for as long as it lasts, and another when it comes back. Runs that had ended before the
    first snapshot are none.
    """

    def __init__(self) -> None:
        self._alerted: set[tuple[str, str | None, str | None]] = set()
        self._living: set[str] = set()

    def take(self, snapshot: Snapshot) -> list[Alert]:
        """What has come since the snapshot before."""
        runs = {run.id: run for run in snapshot.runs}
        gpus = {gpu.facts.uuid: gpu.facts.label for gpu in snapshot.gpus}
        found: list[Alert] = []
        self._alerted &= {(each.rule, each.run, each.gpu) for each in snapshot.findings}
        for each in snapshot.findings:
            key = (each.rule, each.run, each.gpu)
            is_urgent = each.severity is Severity.CRITICAL or each.rule in HANGS
            run = runs.get(each.run or "")
            if not is_urgent or each.behind is not None or key in self._alerted or (run and run.state == "ended"):
                continue
            self._alerted.add(key)
            found.append(
                Alert(
                    each.rule,
                    each.severity.value,
                    each.summary,
                    None if run is None else run.title,
                    None if run is None else run.pid,
                    gpus.get(each.gpu or ""),
                    snapshot.origin.label,
                )
            )
        for run in snapshot.runs:
            if run.state != "ended":
                self._living.add(run.id)
            elif run.id in self._living:
                self._living.discard(run.id)
                found.append(_end_of(run, snapshot.origin.label))
        return found


def _end_of(run: RunNow, origin: str) -> Alert:
    word = "step" if run.steps_total == 1 else "steps"
    counted = f" after {run.steps_total:,} {word}" if run.steps_total else ""
    is_bad = run.ended in _ENDS
    sentence = f"the run {_ENDS.get(run.ended or '', 'ended')}{counted}"
    return Alert(RUN_ENDED, "warning" if is_bad else "info", sentence, run.title, run.pid, None, origin)
