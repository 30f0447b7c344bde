"""What one run did in a window, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwatch.samples import LoaderFacts, PhaseSpan, RunFacts
from gpuwatch.timeline.windows.gpu import Stats
from gpuwatch.timeline.windows.process import MemoryTotals, ProcessTotals, WorkerTotals
from gpuwatch.timeline.windows.stacks import StackWindow
from gpuwatch.timeline.windows.steps import EpochTotals, Pace, PhaseTotals, Recompiles, StepColumns


@dataclass(frozen=True, slots=True)
class RankWindow:
    """One trainer over the window."""

    trainer: str
    facts: RunFacts
    window_seconds: float
    train_seconds: float
    steps: int  # in the window
    steps_total: int
    warm: bool  # 10 steps done and the last five within 20 % of the five before
    columns: StepColumns
    step_seconds: Stats | None = None  # training periods
    step_p99_session_seconds: float | None = None
    wait_share: float | None = None
    wait_seconds: float | None = None  # mean of the steps in which it is known
    settled_wait_share: float | None = None  # over settled steps only
    gap_share: float | None = None  # GPU idle by event pairs, settled steps only
    copy_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    wait_cpu_share: float | None = None  # CPU seconds per second of wait, where sampled
    samples_per_second: float | None = None
    batches_per_step: float | None = None  # over 1 where gradients are accumulated
    last_step_ns: int | None = None
    open_phase: PhaseSpan | None = None
    outside: bool = False  # no training loop runs
    phases: Mapping[str, PhaseTotals] = field(default_factory=dict)
    phase_spans: Sequence[tuple[str, int, int]] = ()  # kind, start and end, at most the newest 512 of the window
    train_loader: LoaderFacts | None = None
    eval_loaders: tuple[LoaderFacts, ...] = ()
    workers: WorkerTotals | None = None
    process: ProcessTotals | None = None
    memory: MemoryTotals | None = None
    epochs: EpochTotals | None = None
    ended: str | None = None  # "exited", "killed", "lost"
    dropped_records: int = 0
    pace: Pace | None = None  # whole session
    recompiles: Recompiles | None = None  # None before the 100th step
    stacks: StackWindow | None = None  # where they can be read; beside the hook's figures, where there is a hook
    watched_seconds: float | None = None  # since its first step, from outside since it is looked at
    lasting_wait_share: float | None = None  # settled steps of up to five minutes; None without a hook
    lasting_gap_share: float | None = None


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One run: its ranks over the window. `critical` is the rank with the largest wait: all wait for it."""

    id: str
    title: str  # the script's name, as a user would say it
    ranks: tuple[RankWindow, ...]
    critical: RankWindow
    gpu_uuids: tuple[str, ...] = ()
    samples_per_second: float | None = None  # of all ranks
    usual_power_watts: Mapping[str, float] = field(default_factory=dict)
    """GPU UUID -> median power while this run made steps; what a hang is compared with."""
