"""The verdict: what may be said of each run and of each broken GPU, from findings and figures. Views only word it.

A run is cleared only where the rules had enough to speak, and where its waits for data are measured: no rule about them
can fire elsewhere. A hint that was found early does not change that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpuwatch.diagnosis.advice.sampled import SAMPLES, is_sampled
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.gates import EVALUATION_NS, UNHOOKED_SECONDS, have_spoken
from gpuwatch.monitor.snapshot import STEPLESS, GpuNow, RunNow, RunState, Snapshot
from gpuwatch.numbers import age, grouped
from gpuwatch.samples import Candidate
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.windows import RankWindow, RunWindow

Kind = Literal["fault", "unseen", "unjudged", "unmeasured", "remark", "fine"]
"""`fault`: a warning or worse. `unseen`: neither hook nor stacks show its steps. `unjudged`: too little was seen so
far. `unmeasured`: where its batches come from is not seen. `remark`: only information or hints. `fine`: no finding."""

AT_ITS_END: frozenset[RunState] = STEPLESS | {"stopped"}
"""States that a report of a longer time adds to its verdict."""

DATA_PHASE = (
    'its batches do not come from a DataLoader: put the code that makes them into `with gpuwatch.phase("data"):`'
)

_LOUD = (Severity.CRITICAL, Severity.WARNING)
STEPS_COUNTED = ("exact", "sampled")
"""On these the steps are counted; on the others a count of 0 means unknown."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`finding` is the one to act on first; a run that is not judged or not measured may have a hint too."""

    kind: Kind
    finding: Finding | None = None


def verdict_on(
    window: RunWindow, findings: Iterable[Finding], snapshot: Snapshot, *, was_judged: bool = False
) -> Verdict:
    """The verdict on a run over a window.

    Args:
        window: What is known of it.
        findings: Those of the run.
        snapshot: When it was seen, and since when.
        was_judged: While it was recorded, where the window holds figures and no steps.
    """
    rank = window.critical
    return _verdict(
        findings,
        visibility=rank.facts.visibility,
        is_judged=was_judged or have_spoken(rank, snapshot.time_ns, snapshot.started_ns),
        is_measured=rank.wait_share is not None or rank.gap_share is not None,
    )


def verdict_now(run: RunNow, findings: Iterable[Finding], snapshot: Snapshot) -> Verdict:
    """The verdict on a run of the snapshot; one without a window is judged by its steps and two evaluations."""
    window = window_of(run.id, snapshot)
    if window is not None:
        return verdict_on(window, findings, snapshot)
    return _verdict(
        findings,
        visibility=run.visibility,
        is_judged=run.steps_total >= STEPS and snapshot.time_ns - snapshot.started_ns >= 2 * EVALUATION_NS,
        is_measured=run.wait_share is not None or run.gap_share is not None,
    )


def _verdict(findings: Iterable[Finding], *, visibility: str, is_judged: bool, is_measured: bool) -> Verdict:
    first = min(findings, key=lambda each: (each.behind is not None, each.severity.order), default=None)
    if first is not None and first.severity in _LOUD:
        return Verdict("fault", first)
    if visibility not in STEPS_COUNTED:
        return Verdict("unseen", first)
    if not is_judged:
        return Verdict("unjudged", first)
    if not is_measured:
        return Verdict("unmeasured", first)
    return Verdict("fine" if first is None else "remark", first)


def own_findings(run: RunNow | RunWindow, findings: Iterable[Finding], snapshot: Snapshot) -> list[Finding]:
    """The findings of a run, and those of the GPUs that it uses."""
    if isinstance(run, RunWindow):
        used = set(run.gpu_uuids)
    else:
        used = {gpu.facts.uuid for gpu in snapshot.gpus if _is_of(gpu, run)}
    return [each for each in findings if each.run == run.id or (each.run is None and each.gpu in used)]


def _is_of(gpu: GpuNow, run: RunNow) -> bool:
    """Whether a run uses a GPU. MIG instances have their GPU's index: those with one of its processes are its."""
    if gpu.facts.index not in run.gpu_indices:
        return False
    pids = {rank.facts.pid for rank in run.ranks}
    return gpu.facts.mig_parent is None or any(process.pid in pids for process in gpu.processes or ())


def other_faults(findings: Iterable[Finding], own: Iterable[Finding]) -> list[Finding]:
    """The faults that are of no run: of a GPU or the machine, each with its cause rather than what follows of it."""
    known = {id(each) for each in own}
    return [each for each in findings if id(each) not in known and each.severity in _LOUD and each.behind is None]


def window_of(run_id: str | None, snapshot: Snapshot) -> RunWindow | None:
    """The window that the rules judged of a run."""
    windows = snapshot.scene.runs if snapshot.scene is not None else ()
    return next((window for window in windows if window.id == run_id), None)


def unhooked(snapshot: Snapshot) -> tuple[Candidate, ...]:
    """The processes that train without a hook and are not watched yet."""
    seen = {rank.facts.pid for run in snapshot.runs for rank in run.ranks if rank.facts.visibility in STEPS_COUNTED}
    return tuple(
        candidate
        for candidate in snapshot.candidates
        if candidate.visibility != "exact" and candidate.pid not in seen and candidate.pid != snapshot.attached_pid
    )


def still_needed(rank: RankWindow, snapshot: Snapshot) -> str:
    """What was seen of a run that is not judged yet, and what is needed: "12 steps in 60 s; 30 after the ..."."""
    after = f"and then {2 * EVALUATION_NS / 1e9:.0f} s more"
    if not is_sampled(rank):
        seconds = (snapshot.time_ns - snapshot.started_ns) / 1e9
        return f"{grouped(rank.steps)} steps in {seconds:.0f} s; {STEPS} needed after the warm-up, {after}"
    stacks = rank.stacks
    samples, seconds = (stacks.samples, stacks.seconds) if stacks is not None else (0, 0.0)
    had = f"{grouped(samples)} stack samples"
    if rank.steps_total or rank.train_loader is not None:
        had += f" and {grouped(rank.steps)} batches in {seconds:.0f} s"
        return f"{had}; {SAMPLES} samples and {STEPS} batches needed, {after}"
    return f"{had} in {seconds:.0f} s; {SAMPLES} samples and {UNHOOKED_SECONDS:.0f} s needed, {after}"


def state_sentence(run: RunNow, snapshot: Snapshot) -> str | None:
    """What a run does instead of training, if it does not train, evaluate or save."""
    made = "batches" if run.visibility == "sampled" else "steps"
    since_last = "a while" if run.last_step_ns is None else age(snapshot.time_ns - run.last_step_ns)
    match run.state:
        case "starting":
            return "no training step yet"
        case "warming up":
            return f"{grouped(run.steps_total)} {made} so far; analysed once step time stabilises"
        case "silent":
            return f"no step for {since_last}"
        case "not training":
            return f"no training loop is running, last step {since_last} ago"
        case "stopped":
            return "stopped by a signal (SIGSTOP or Ctrl-Z), not starved"
        case "ended" if run.visibility not in STEPS_COUNTED:
            return "ended; its steps were not seen"
        case "ended" if run.visibility == "sampled" and not run.steps_total:
            return "ended; its batches were not counted"
        case "ended":
            return f"ended after {grouped(run.steps_total)} {made}"
        case "not hooked":
            return "not hooked, so its steps and waits are not seen"
        case "not linked":
            return run.how_to_see_more or "hooked, but not linked to this gpuwatch"
    return None


def named(title: str, pid: int, summary: str, *, has_ended: bool = False) -> str:
    """A finding's sentence with the run's name before it: several runs may be of one script, and a line is no name."""
    name = f"{title} ({pid})"
    if summary.startswith(name):
        return summary
    if summary.startswith(f"{title} "):
        return name + summary.removeprefix(title)
    return f"{name}{', ended' if has_ended else ''}: {decapitalized(summary)}"


def decapitalized(summary: str) -> str:
    """A sentence as it goes on behind a name: "GPU 0 ..." keeps its capitals."""
    return summary[0].lower() + summary[1:] if summary[1:2].islower() else summary
