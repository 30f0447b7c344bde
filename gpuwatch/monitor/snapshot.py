"""What a view gets once a second: frozen, complete, cheap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.samples import (
    Candidate,
    CurrentLine,
    GpuFacts,
    GpuHealth,
    GpuProcess,
    GpuSample,
    GpuStatus,
    HostSample,
    MachineFacts,
    NvmlState,
    PhaseSpan,
    RunFacts,
)
from gpuwatch.timeline.times import Anchor, wall_time_at
from gpuwatch.timeline.windows import LineShare, Scene

RunState = Literal[
    "starting",
    "warming up",
    "training",
    "evaluating",
    "saving",
    "silent",
    "not training",
    "stopped",
    "ended",
    "not hooked",
    "not linked",
]
"""`silent`: no step for longer than 10 usual ones; `not training`: the same, outside any training loop; `stopped`:
SIGSTOP, process state T."""

STEPLESS: frozenset[RunState] = frozenset({"silent", "not training"})
"""It has made steps, and makes none now."""

STATE_WORDS: dict[RunState, str] = {"silent": "stalled", "saving": "checkpointing"}
"""What a state is called where it is shown, if not by its name."""

ENDS = {"killed": "killed", "lost": "link lost"}
"""How a run ended, worst first, where that says more than that it did. Exit codes are not seen."""


ACCUMULATES = 1.05
"""Batches per step from which on gradients are accumulated: a few odd steps of two batches are not that."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the samples come from. `label` is shown at all times: "LIVE", "SIMULATED starved"."""

    kind: Literal["live", "simulated", "recording"]
    label: str


GpuUse = Literal["busy", "held", "free", "failing", "unknown"]
"""`held`: it does nothing, and processes have it; `free`: none has; `unknown`: its utilization or its processes are."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """A GPU's row. Ages are `snapshot.time_ns - latest.time_ns`."""

    facts: GpuFacts
    status: Literal["live", "stale", "lost", "waiting"]
    status_reason: str | None = None
    status_since_ns: int | None = None
    latest: GpuSample | None = None
    latest_status: GpuStatus | None = None
    latest_health: GpuHealth | None = None
    throttled_by: tuple[str, ...] = ()  # words: "power", "thermal", "power brake", "HW slowdown"
    utilization_mean_percent: float | None = None  # last 60 s
    utilization_sigma_percent: float | None = None
    power_mean_watts: float | None = None  # last 60 s, as the utilization
    idle_since_ns: int | None = None  # it has done nothing since; None while it works, and where that is not known
    idle_when_found: bool = False  # it was idle already when it was first polled: "at least since"

    @property
    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Those on it, the largest first; None where the driver does not say, empty where there is none."""
        known = self.latest_status.processes if self.latest_status is not None else None
        return None if known is None else tuple(sorted(known, key=lambda each: -(each.memory_bytes or 0)))

    @property
    def use(self) -> GpuUse:
        """What it is used for now."""
        if self.status in ("lost", "stale"):
            return "failing"
        if self.idle_since_ns is None:
            known = self.latest is not None and self.latest.utilization_percent is not None
            return "busy" if known else "unknown"
        processes = self.processes
        return "unknown" if processes is None else "held" if processes else "free"


@dataclass(frozen=True, slots=True)
class RankNow:
    """One trainer's line inside its run."""

    trainer: str
    facts: RunFacts
    state: RunState
    steps_total: int
    last_step_ns: int | None
    step_seconds: float | None
    wait_share: float | None
    backward_share: float | None = None  # where ranks meet: a rank's waiting for the others is in it


@dataclass(frozen=True, slots=True)
class RunNow:
    """A run's panel, over the last `seconds`.

    `phase_share` is what pauses take of all that time; the other shares are of training time, as findings give them.
    The parts of the bar add up to at most 1: wait, copy, forward, backward, optimizer; of a sampled run start, sync
    and other too. There steps are batches, and `samples` says how many samples of the training thread the shares
    rest on.
    """

    id: str
    title: str
    pid: int
    command: tuple[str, ...]
    visibility: str
    state: RunState
    ranks: tuple[RankNow, ...]
    gpu_indices: tuple[int, ...]
    seconds: float
    steps_total: int
    last_step_ns: int | None
    step_seconds_p50: float | None = None
    step_seconds_p95: float | None = None
    samples_per_second: float | None = None
    batches_per_step: float | None = None  # over 1 where gradients are accumulated
    wait_share: float | None = None
    gap_share: float | None = None
    copy_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    phase_share: float | None = None
    start_share: float | None = None  # in iter() of the training loader: its workers start
    sync_share: float | None = None  # on lines that ask for a number or the device
    other_share: float | None = None  # of the user's own Python and its logging
    step_seconds: float | None = None  # mean training seconds per step, wherever it is known
    batches_per_second: float | None = None  # counted from outside, over training and phases alike
    batches_of_loader: bool = True  # else iterations of a loop without one
    batches_exact: bool = True  # read from the loader's own counter; else entries into next(), which miss short ones
    pause_seconds: float | None = None  # how long the pause lasts that its state is of
    samples: int = 0  # stack samples of the training thread
    current_line: CurrentLine | None = None  # the line at which the training thread is, wherever stacks are read
    top_line: LineShare | None = None  # of the training thread: the line of the user's code that was seen most
    phases: tuple[PhaseSpan, ...] = ()  # of the raw history, for the bands
    how_to_see_more: str | None = None  # one line, where visibility is not "exact"
    ended_ns: int | None = None  # when the last of its ranks ended
    ended: str | None = None  # "exited", "killed", "lost": the worst of its ranks, once all have ended

    @property
    def own_seconds(self) -> tuple[float | None, ...]:
        """What each rank does itself in a step: without what its backward is longer than the shortest one of all.

        Ranks meet in backward, so the first to arrive waits there for the last: steps are equally long, work is not.
        """
        known = [
            rank.step_seconds * rank.backward_share
            for rank in self.ranks
            if rank.step_seconds is not None and rank.backward_share is not None
        ]
        if len(known) < len(self.ranks):
            return (None,) * len(self.ranks)
        least = min(known)
        return tuple((rank.step_seconds or 0.0) - (own - least) for rank, own in zip(self.ranks, known, strict=True))

    @property
    def step_names(self) -> tuple[str, str]:
        """What one step of it is, and many: from outside batches are counted, of a loop without a loader iterations."""
        if self.visibility != "sampled":
            return "step", "steps"
        return ("batch", "batches") if self.batches_of_loader else ("iteration", "iterations")

    @property
    def state_words(self) -> str:
        """The state as a screen says it, with what is known of the end: "ended (killed)"."""
        if self.state == "ended" and self.ended in ENDS:
            return f"{self.state} ({ENDS[self.ended]})"
        return STATE_WORDS.get(self.state, self.state)


@dataclass(frozen=True, slots=True)
class RecordingNow:
    """The recording that is being written. `problem` is one sentence: why nothing can be written now, or ever again."""

    path: Path
    seconds: float
    bytes: int
    problem: str | None = None
    note: str | None = None  # what is unusual about the place, such as a network's file system
    is_over: bool = False  # by itself: nothing is written any more, whatever happens


@dataclass(frozen=True, slots=True)
class ReplayMark:
    """A stretch of a recording in which a finding was active."""

    start_ns: int
    end_ns: int
    severity: Severity


@dataclass(frozen=True, slots=True)
class ReplayNow:
    """The position of a replay in its recording. `jumps` counts the seeks: after one, charts start over."""

    start_ns: int
    end_ns: int
    speed: float = 1.0
    state: Literal["playing", "paused", "ended"] = "playing"
    jumps: int = 0
    marks: tuple[ReplayMark, ...] = ()
    is_growing: bool = False  # the recording is still being written


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of everything at `time_ns`; `scene` and `findings` are of the last evaluation."""

    time_ns: int
    wall_time: float
    started_ns: int
    origin: Origin
    machine: MachineFacts | None
    nvml: NvmlState | None
    host: HostSample | None
    gpus: tuple[GpuNow, ...]
    runs: tuple[RunNow, ...]
    findings: tuple[Finding, ...]  # worst first, firing and clearing; those `behind` another last
    scene: Scene | None
    next_evaluation_seconds: float | None = None
    candidates: tuple[Candidate, ...] = ()  # all of this machine that train, hooked ones first, whatever is attached to
    searched: bool = True  # whether all processes have been read once
    attached_pid: int | None = None  # the root of the process tree that the watch is narrowed to
    notices: tuple[str, ...] = ()  # sentences about gpuwatch itself, such as a source that failed
    recording: RecordingNow | None = None
    replay: ReplayNow | None = None
    wall_anchors: tuple[Anchor, ...] = ()  # empty where the clock on the wall is not known to have jumped

    def wall_time_at(self, time_ns: int) -> float:
        """Seconds since the epoch at a moment, as the clock on the wall showed them then."""
        return wall_time_at(self.wall_anchors or ((self.time_ns, self.wall_time),), time_ns)
