"""Sentences of the screen: the verdict per run, the line to change, how far a figure can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.view import View, key_of
from gpuwatch.diagnosis.finding import CallEdit, Finding, Level, Severity
from gpuwatch.diagnosis.gates import have_spoken
from gpuwatch.monitor.snapshot import GpuNow, RunNow, Snapshot
from gpuwatch.timeline.windows import RunWindow

LEVELS = {
    Level.E0: "hardware counters only",
    Level.E1: "stack samples and /proc",
    Level.E2: "timings from the hook",
    Level.E3: "exact: GPU events, or exact CPU timings",
}

RUNGS = {
    "exact": "exact (hook)",
    "sampled": "sampled (stacks)",
    "proc": "/proc only",
    "hardware": "hardware only",
}


COUNTING_RUNGS = ("exact", "sampled")
"""On these the steps are counted; on the others a count of 0 means unknown."""

START_SECONDS = 5.0
"""How long the driver may take to answer before its silence means that there is none."""

START_COMMAND = "gpuwatch run python train.py"

DATA_PHASE = 'its batches come from no DataLoader: put what makes them into `with gpuwatch.phase("data"):`'


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence about one subject, with what to change; `severity` None means that nothing is wrong."""

    severity: Severity | None
    word: str
    sentence: str
    gain: str = ""
    because: str = ""
    place: str = ""
    change: str = ""
    finding: Finding | None = None


def verdicts(view: View) -> list[Verdict]:
    """One verdict per run and one per broken GPU, worst first; never empty once there is a snapshot."""
    snapshot = view.snapshot
    if snapshot is None or is_starting(snapshot):
        return [Verdict(None, "STARTING", "looking for GPUs and training runs")]
    told = [finding for finding in snapshot.findings if key_of(finding) not in view.snoozed]
    found: list[Verdict] = []
    spoken_for: set[int] = set()
    for run in snapshot.runs:
        own = [finding for finding in told if _concerns(finding, run, snapshot)]
        spoken_for.update(id(finding) for finding in own)
        found.append(_of_run(run, own, snapshot))
    for finding in told:
        loud = finding.severity in (Severity.CRITICAL, Severity.WARNING)
        if id(finding) not in spoken_for and loud and finding.behind is None:
            found.append(_of_finding(finding, snapshot))
    if not snapshot.runs:
        found.append(_without_run(snapshot))
    found += [Verdict(None, "NOTICE", say.escape(notice)) for notice in snapshot.notices]
    return sorted(found, key=_badness)


def is_starting(snapshot: Snapshot) -> bool:
    """Whether it is too early to say that there is nothing to watch: the driver has not answered yet."""
    young = snapshot.time_ns - snapshot.started_ns < START_SECONDS * 1e9
    return young and snapshot.nvml is None and not snapshot.gpus and not snapshot.runs


def _badness(verdict: Verdict) -> int:
    return verdict.severity.order if verdict.severity else len(Severity)


def _concerns(finding: Finding, run: RunNow, snapshot: Snapshot) -> bool:
    if finding.run is not None:
        return finding.run == run.id
    if finding.gpu is None:
        return False
    used = {gpu.facts.uuid for gpu in snapshot.gpus if gpu.facts.index in run.gpu_indices}
    return finding.gpu in used


def _of_run(run: RunNow, findings: list[Finding], snapshot: Snapshot) -> Verdict:
    first = [finding for finding in findings if finding.behind is None] or findings
    loud = [finding for finding in first if finding.severity in (Severity.CRITICAL, Severity.WARNING)]
    if loud:
        return _of_finding(min(loud, key=lambda finding: finding.severity.order), snapshot, run)
    state = _state_sentence(run, snapshot)
    if state is not None:
        return Verdict(None, run.state.upper(), f"{run_name(run)}: {state}", because=run.how_to_climb or "")
    if not first and not _is_judged(run, snapshot):
        return Verdict(None, "WATCHING", f"{run_name(run)}: not judged yet, {_wait_words(run)} so far")
    if _is_blind(run):
        sentence = f"{run_name(run)}: no warning, but {_wait_words(run)} ({believed(run, snapshot)})"
        return Verdict(None, "WATCHING", sentence, because=DATA_PHASE)
    sentence = f"{run_name(run)}: nothing to change, {_wait_words(run)} ({believed(run, snapshot)})"
    if not first:
        return Verdict(None, "OK", sentence)
    hint = first[0]
    return Verdict(
        None,
        "OK",
        sentence,
        gain=gain_words(hint),
        place=place_of(hint),
        change=f"to try: {hint.fix.text if hint.fix else hint.summary}",
        finding=hint,
    )


def _is_judged(run: RunNow, snapshot: Snapshot) -> bool:
    """Whether no finding means that there is none; where no window was cut, the run's state alone tells."""
    window = _window_of(run, snapshot)
    return window is None or have_spoken(window.critical, snapshot.time_ns, snapshot.started_ns)


def _is_blind(run: RunNow) -> bool:
    """Whether the batches come from where the hook sees nothing, so that no rule about them can fire."""
    return run.gap_share is None and run.wait_share is None


def _window_of(run: RunNow, snapshot: Snapshot) -> RunWindow | None:
    windows = snapshot.scene.runs if snapshot.scene is not None else ()
    return next((window for window in windows if window.id == run.id), None)


def _wait_words(run: RunNow) -> str:
    if run.gap_share is not None:
        return f"the GPU waits for data {say.share(run.gap_share)} of the time"
    if run.wait_share is not None:
        return f"it waits for data {say.share(run.wait_share)} of the time"
    return "the wait for data is not measured"


def _state_sentence(run: RunNow, snapshot: Snapshot) -> str | None:
    """What keeps a run from a verdict, if anything does."""
    if run.state == "starting":
        return "no training step yet"
    if run.state == "warming up":
        return f"{say.count(run.steps_total)} steps so far, judged once their time is steady"
    if run.state == "silent":
        return f"no step for {_last_step_age(run, snapshot)}"
    if run.state == "stopped":
        return "stopped by a signal (SIGSTOP, Ctrl-Z), not starved"
    if run.state == "ended":
        return f"ended after {say.count(run.steps_total)} steps"
    if run.state == "not hooked":
        return "not hooked, so its steps and waits are not seen"
    return None


def _last_step_age(run: RunNow, snapshot: Snapshot) -> str:
    return "a while" if run.last_step_ns is None else say.age(snapshot.time_ns - run.last_step_ns)


def _of_finding(finding: Finding, snapshot: Snapshot, run: RunNow | None = None) -> Verdict:
    prefix = ""
    if run is not None and run.title not in finding.summary:
        prefix = f"{run_name(run)}: "
    elif run is None and finding.gpu is not None:
        index = gpu_index(finding.gpu, snapshot)
        prefix = "" if index is None or f"GPU {index}" in finding.summary else f"GPU {index}: "
    summary = finding.summary
    if prefix and summary[1:2].islower():
        summary = summary[0].lower() + summary[1:]
    return Verdict(
        severity=finding.severity,
        word=finding.severity.value.upper(),
        sentence=say.escape(prefix + summary),
        gain=gain_words(finding),
        because=say.escape(", ".join(measure.text for measure in finding.evidence[:3])),
        place=place_of(finding),
        change=change_words(finding, snapshot),
        finding=finding,
    )


def _without_run(snapshot: Snapshot) -> Verdict:
    if snapshot.gpus:
        looked = f"no training run with the hook yet; watching {gpu_count(snapshot)}"
        return Verdict(None, "WATCHING", looked, because=f"start one with: {START_COMMAND}")
    return Verdict(None, "NOTHING TO WATCH", "no GPU and no training run on this machine")


def looked_for(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What was looked for where there is nothing to watch, and the ways out."""
    return [
        ("NVIDIA GPUs", no_gpu_reason(snapshot) or "none has answered yet"),
        ("training runs", "none with the hook; those start by themselves on this screen when they come"),
        ("start one", START_COMMAND),
        ("see it all", "gpuwatch demo (a simulated machine, with everything that this screen can show)"),
        ("check this machine", "gpuwatch doctor"),
    ]


def no_gpu_reason(snapshot: Snapshot) -> str | None:
    """Why there is no GPU, where that is known."""
    return say.escape(snapshot.nvml.reason) if snapshot.nvml is not None and snapshot.nvml.reason else None


def gpu_count(snapshot: Snapshot) -> str:
    """How many GPUs: "1 GPU", "8 GPUs"."""
    count = len(snapshot.gpus)
    return f"{count} GPU{'' if count == 1 else 's'}"


def run_name(run: RunNow) -> str:
    """How a sentence names a run: its script, and the pid to act on."""
    return f"{say.escape(run.title)} ({run.pid})"


def gain_words(finding: Finding) -> str:
    """The expected speed-up as factors, or the word hint."""
    if finding.gain is not None:
        return f"{say.factors(finding.gain.low, finding.gain.high)} faster"
    return "hint" if finding.hint is not None or finding.severity is Severity.HINT else ""


def place_of(finding: Finding) -> str:
    """The file's name and line that a fix is about: "train.py:88"."""
    fix = finding.fix
    if fix is None or fix.file is None:
        return ""
    name = say.escape(PurePath(fix.file).name)
    return name if fix.line is None else f"{name}:{fix.line}"


def change_words(finding: Finding, snapshot: Snapshot) -> str:
    """What to write instead of what: "DataLoader: num_workers=4 → 10"."""
    fix = finding.fix
    if fix is None:
        return ""
    if fix.edit is not None:
        old = _live_settings(fix.edit, snapshot)
        changes = ", ".join(
            f"{name}={old[name]} → {value}" if name in old else f"{name}={value}"
            for name, value in fix.edit.keywords.items()
        )
        return say.escape(f"{fix.edit.call}: {changes}")
    if fix.code and "\n" not in fix.code.strip():
        return say.escape(fix.code.strip())
    return say.escape(fix.text)


def fix_to_copy(finding: Finding) -> str | None:
    """What goes to the clipboard: the keywords to set, else the code, else the advice."""
    fix = finding.fix
    if fix is None:
        return None
    if fix.edit is not None:
        return ", ".join(f"{name}={value}" for name, value in fix.edit.keywords.items())
    return fix.code or fix.text


def _live_settings(edit: CallEdit, snapshot: Snapshot) -> dict[str, object]:
    """The settings that an edit replaces, as the hook read them off the loader which that line built."""
    for run in snapshot.runs:
        for rank in run.ranks:
            for loader in rank.facts.loaders:
                if loader.file == edit.file and loader.line == edit.line:
                    known = ((name, getattr(loader, name, None)) for name in edit.keywords)
                    return {name: value for name, value in known if value is not None}
    return {}


def gpu_index(uuid: str, snapshot: Snapshot) -> int | None:
    """The index of a GPU by UUID."""
    return next((gpu.facts.index for gpu in snapshot.gpus if gpu.facts.uuid == uuid), None)


def believed(run: RunNow, snapshot: Snapshot) -> str:
    """Why a run's figures can be believed: "exact, 512 steps"."""
    if run.rung not in COUNTING_RUNGS:
        return f"{RUNGS.get(run.rung, run.rung)}, steps not seen"
    window = _window_of(run, snapshot)
    steps = run.steps_total if window is None else window.critical.steps
    return f"{run.rung}, {say.count(steps)} steps"


def gpus_of(run: RunNow) -> str:
    """The GPUs of a run: "GPU 0", "GPUs 0-7", "CPU"."""
    indices = sorted(run.gpu_indices)
    if not indices:
        return "no GPU"
    if len(indices) == 1:
        return f"GPU {indices[0]}"
    if indices == list(range(indices[0], indices[-1] + 1)):
        return f"GPUs {indices[0]}-{indices[-1]}"
    return "GPUs " + ",".join(map(str, indices))


def status_words(gpu: GpuNow, snapshot: Snapshot) -> str:
    """Why a GPU's row has no live numbers: "LOST since 13:58: fallen off the bus"."""
    word = "WAITING for the first sample" if gpu.status in ("waiting", "live") else gpu.status.upper()
    if gpu.status_since_ns is not None:
        word += f" since {say.since(gpu.status_since_ns, snapshot.time_ns, snapshot.wall_time)}"
    if gpu.status == "stale" and gpu.latest is not None:
        word += f", last reading {say.age(snapshot.time_ns - gpu.latest.time_ns)} ago"
    return f"{word}: {say.escape(gpu.status_reason)}" if gpu.status_reason else word


def short_summary(finding: Finding, snapshot: Snapshot) -> str:
    """The sentence without the run's name, where there is only one run that it can be about."""
    summary = finding.summary
    if len(snapshot.runs) == 1:
        run = snapshot.runs[0]
        for prefix in (f"{run.title} ({run.pid}): ", f"{run.title}: "):
            summary = summary.removeprefix(prefix)
    return say.escape(summary)
