"""Words of the screen: runs, processes, recordings, the line to change, how far a figure can be believed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from gpuwatch.dashboard import formatting as say
from gpuwatch.diagnosis.finding import (
    CallEdit,
    Finding,
    KeywordEdit,
    Level,
    PlanStep,
    Severity,
    brings_something,
    plan_words,
)
from gpuwatch.monitor.snapshot import GpuNow, GpuUse, RecordingNow, RunNow, Snapshot
from gpuwatch.monitor.verdict import STEPS_COUNTED, unhooked, window_of
from gpuwatch.numbers import clock, factors, faster
from gpuwatch.samples import Candidate, CurrentLine, GpuProcess
from gpuwatch.timeline.runs import title_of
from gpuwatch.timeline.stacks import hot_line
from gpuwatch.timeline.windows import LineShare, RankWindow


def candidate_name(candidate: Candidate) -> str:
    """How a sentence names a process: its pid to act on, and its script."""
    return f"{candidate.pid} {say.escape(title_of(candidate.command))}"


def candidates_of(snapshot: Snapshot, wanted: str = "") -> tuple[Candidate, ...]:
    """The processes that can be attached to and hold this text, in the order in which they were found worth it."""
    wanted = wanted.casefold()
    return tuple(
        candidate
        for candidate in snapshot.candidates
        if wanted in f"{candidate.pid} {candidate.user} {' '.join(candidate.command)}".casefold()
    )


def gpu_indices(candidate: Candidate, snapshot: Snapshot) -> str:
    """The GPUs that it computes on: "0,1"."""
    used = [gpu.facts for gpu in snapshot.gpus if gpu.facts.uuid in candidate.gpu_uuids]
    return ",".join(facts.label for facts in sorted(used, key=lambda facts: facts.place)) or say.UNKNOWN


def offer(snapshot: Snapshot) -> str:
    """What the user can do about processes that train unseen; empty where there is none, and in a replay."""
    count = len(unhooked(snapshot))
    if not count or snapshot.origin.kind == "recording":
        return ""
    return f"{count} training process{'' if count == 1 else 'es'} not monitored: press a to attach"


def attached_words(snapshot: Snapshot) -> str:
    """Whom the watch is narrowed to: "attached to 4711 train.py"; empty where it is not."""
    pid = snapshot.attached_pid
    if pid is None:
        return ""
    named = [candidate_name(candidate) for candidate in snapshot.candidates if candidate.pid == pid]
    named += [f"{pid} {say.escape(run.title)}" for run in snapshot.runs if pid in (r.facts.pid for r in run.ranks)]
    return f"attached to {named[0] if named else pid}"


LEVELS = {
    Level.E0: "hardware counters only",
    Level.E1: "stack samples and /proc",
    Level.E2: "timings from the hook",
    Level.E3: "exact: GPU events, or exact CPU timings",
}

VISIBILITIES = {
    "exact": "exact (hook)",
    "sampled": "sampled (stacks)",
    "process": "/proc only",
    "hardware": "hardware only",
}

VISIBILITY_MEANINGS = {
    "exact": "the hook times every step and wait: gpuwatch run python train.py, or gpuwatch.watch() in the script",
    "sampled": "its stacks are read from outside, without changing it; shares are given with their error, ±",
    "process": "only what /proc provides: CPU, memory, I/O",
    "hardware": "only what the GPU reports",
}

START_SECONDS = 5.0
"""How long the driver may take to answer before its silence means that there is none."""

SEARCH_SECONDS = (3.0, 30.0)
"""How long at least and at most training runs are looked for before none is said to be here.

A hooked run that is in the middle of a long step is known after 2 s and a poll, by the file that it left; the search of
all processes takes as long as the machine is loaded, and may fail.
"""

START_COMMAND = "gpuwatch run python train.py"


def is_starting(snapshot: Snapshot) -> bool:
    """Whether it is too early to say that there is nothing to watch: the driver or the search has not answered yet."""
    if snapshot.gpus or snapshot.runs:
        return False
    waits_for_driver = snapshot.nvml is None and _age_seconds(snapshot) < START_SECONDS
    return waits_for_driver or is_searching(snapshot)


def is_searching(snapshot: Snapshot) -> bool:
    """Whether it is too early to say that no training runs here."""
    if snapshot.runs or snapshot.candidates or snapshot.origin.kind != "live":
        return False
    least, most = SEARCH_SECONDS
    return _age_seconds(snapshot) < (most if not snapshot.searched else least)


def _age_seconds(snapshot: Snapshot) -> float:
    return (snapshot.time_ns - snapshot.started_ns) / 1e9


def looked_for(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What was looked for where there is nothing to watch, and the ways out."""
    return [
        ("NVIDIA GPUs", no_gpu_reason(snapshot) or "none has answered yet"),
        ("training runs", "none with the hook; they appear here as soon as they start"),
        *((("without a hook", unseen),) if (unseen := offer(snapshot)) else ()),
        ("start one", START_COMMAND),
        ("see it all", "gpuwatch demo (a simulated machine)"),
        ("check this machine", "gpuwatch doctor"),
    ]


def no_gpu_reason(snapshot: Snapshot) -> str | None:
    """Why there is no GPU, where that is known."""
    return say.escape(snapshot.nvml.reason) if snapshot.nvml is not None and snapshot.nvml.reason else None


USE_WORDS: dict[GpuUse, str] = {
    "failing": "failing",
    "busy": "busy",
    "held": "idle but held",
    "free": "free",
    "unknown": "unknown",
}
"""How GPUs are counted, by what they are used for, in this order."""


def process_words(process: GpuProcess, gpu: GpuNow, snapshot: Snapshot) -> dict[str, str]:
    """A process by the titles of its fields."""
    status = gpu.latest_status
    age_seconds = process.age_seconds
    if age_seconds is not None and status is not None:
        age_seconds += max(0, snapshot.time_ns - status.time_ns) / 1e9
    command = process.command or ("" if process.pid is not None else "host pid: not visible here")
    return {
        "pid": str(process.pid if process.pid is not None else process.host_pid),
        "user": say.escape(process.user or say.UNKNOWN),
        "holds": say.byte_size(process.memory_bytes),
        "time": say.UNKNOWN if age_seconds is None else say.runtime(age_seconds),
        "command": say.script_line(command.split(" ")) if command else say.UNKNOWN,
    }


def gpu_count(snapshot: Snapshot) -> str:
    """How many GPUs: "1 GPU", "8 GPUs"."""
    count = sum(1 for gpu in snapshot.gpus if gpu.facts.mig_parent is None)
    parts = len(snapshot.gpus) - count
    instances = f", {parts} MIG instance{'' if parts == 1 else 's'}" if parts else ""
    return f"{count} GPU{'' if count == 1 else 's'}{instances}"


def run_name(run: RunNow) -> str:
    """How a sentence names a run: its script, and the pid to act on."""
    return f"{say.escape(run.title)} ({run.pid})"


def gain_words(finding: Finding) -> str:
    """The expected speed-up as factors, or the word hint."""
    if finding.gain is not None:
        return faster(finding.gain.low, finding.gain.high)
    return "hint" if finding.hint is not None or finding.severity is Severity.HINT else ""


def plan_sentence(plan: PlanStep) -> str:
    """Where a fix stands among those of its run, as a sentence."""
    then, together = plan.then, plan.together
    words = plan_words(plan.number, plan.of, (then.low, then.high), (together.low, together.high))
    return f"{words[0].upper()}{words[1:]}."


def brings_words(finding: Finding) -> str:
    """The same for a list of several: what it brings once those of the run's plan before it are done."""
    plan = finding.plan
    if plan is None or plan.number == 1:
        return gain_words(finding)
    return f"then {factors(plan.then.low, plan.then.high)}" if brings_something(plan.then.high) else "then nothing"


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
    if isinstance(fix.edit, KeywordEdit):
        old = _live_settings(fix.edit, snapshot) if isinstance(fix.edit, CallEdit) else fix.edit.present
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
    if isinstance(fix.edit, KeywordEdit):
        return ", ".join(f"{name}={value}" for name, value in fix.edit.keywords.items())
    return fix.code or fix.text


def _live_settings(edit: CallEdit, snapshot: Snapshot) -> Mapping[str, object]:
    """The settings that an edit replaces, as the hook read them off the loader which that line built."""
    for run in snapshot.runs:
        for rank in run.ranks:
            for loader in rank.facts.loaders:
                if loader.file == edit.file and loader.line == edit.line:
                    known = ((name, getattr(loader, name, None)) for name in edit.keywords)
                    return {name: value for name, value in known if value is not None}
    return {}


def gpu_label(uuid: str, snapshot: Snapshot) -> str | None:
    """What a GPU of that UUID is called: "0", of a MIG instance "0:1"."""
    return next((gpu.facts.label for gpu in snapshot.gpus if gpu.facts.uuid == uuid), None)


def believed(run: RunNow, snapshot: Snapshot) -> str:
    """Why a run's figures can be believed: "exact, 512 steps"."""
    if run.visibility not in STEPS_COUNTED:
        return f"{VISIBILITIES.get(run.visibility, run.visibility)}, steps not seen"
    window = window_of(run.id, snapshot)
    steps = run.steps_total if window is None else window.critical.steps
    if run.visibility == "sampled":
        samples = run.samples if window is None or window.critical.stacks is None else window.critical.stacks.samples
        return f"sampled, {say.count(samples)} samples, {say.count(steps)} batches"
    return f"{run.visibility}, {say.count(steps)} steps"


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
        word += f" since {say.since(snapshot.wall_time_at(gpu.status_since_ns), snapshot.wall_time)}"
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


AVOIDABLE = ("sync", "log", "copy")
"""What the training thread does besides waiting that a change of one line can take away."""


@dataclass(frozen=True, slots=True)
class CostlyLine:
    """A line, and what its share is of: the training thread's time, or the workers' busy time."""

    line: LineShare
    of: str


def costly_line(rank: RankWindow, notable: float) -> CostlyLine | None:
    """The line that makes the batches slow where waits cost; else one that asks, logs or copies as much."""
    stacks = rank.stacks
    if stacks is None:
        return None
    if rank.wait_share is not None and rank.wait_share >= notable:
        found = hot_line(rank)
        if found is None:
            return None
        return CostlyLine(found.line, "of the workers' time" if found.where == "workers" else "of the time")
    avoidable = (line for line in stacks.lines if line.phase in AVOIDABLE and line.share.value >= notable)
    top = max(avoidable, key=lambda line: line.samples, default=None)
    return CostlyLine(top, "of the time") if top is not None else None


def current_line_of(run: RunNow, snapshot: Snapshot) -> CurrentLine | None:
    """Where the run's training thread stands, as far as stacks are read."""
    if run.current_line is not None:
        return run.current_line
    window = window_of(run.id, snapshot)
    return window.critical.stacks.current_line if window is not None and window.critical.stacks is not None else None


def current_line_words(current_line: CurrentLine) -> str:
    """Where and for how long: "at train.py:140 for 3 min", in which no sample saw it elsewhere."""
    return (
        f"at {place(current_line.file, current_line.line)} for {say.age(current_line.time_ns - current_line.since_ns)}"
    )


def line_place(line: LineShare) -> str:
    """Its file's name and number."""
    return place(line.file, line.line)


def place(file: str, line: int) -> str:
    """A file's name and a line: "train.py:88"."""
    return f"{say.escape(PurePath(file).name)}:{line}"


def recording_badge(recording: RecordingNow) -> str:
    """What the top bar says: "REC 00:12 3.1 MiB"."""
    if recording.problem is not None:
        return "NOT RECORDING"
    return f"REC {clock(recording.seconds, minutes=2)} {size(recording.bytes)}"


def recorded_words(recording: RecordingNow, verb: str = "Recorded") -> str:
    """What has become of one that was ended: its file, length and size, and what is missing of it."""
    words = f"{verb} {clock(recording.seconds)} into {say.escape(str(recording.path))}"
    words += f" ({size(recording.bytes)})"
    return f"{words}. {say.escape(recording.problem).rstrip('.')}" if recording.problem else words


def size(count: int) -> str:
    """Bytes of a file that grows slowly: "3.1 MiB"."""
    mebibytes = count / 2**20
    return f"{mebibytes:.1f} MiB" if 1 <= mebibytes < 1000 else say.byte_size(count)


def day_and_time(wall_time: float) -> str:
    """A recorded moment in local time, with its day: "20 Nov 14:03:27"."""
    return time.strftime("%d %b %H:%M:%S", time.localtime(wall_time))
