"""The GPU finishes its small kernels faster than Python can start new ones.

Means:
    Each operation of the model costs the CPU some microseconds to launch. With small tensors the GPU is done before
    the next launch arrives, so it idles inside the step although data is there.
Evidence:
    L = 1 - utilization - S: idle time in training that no wait for data explains, nor logging where stacks can be read,
    with a training thread that keeps a core busy on a machine that has cores to spare. Time in which that thread copies
    batches to the GPU, spins until the GPU is done (.item()) or runs the script's own code does not count: launches
    cost at most the time that the model and its optimizer take. Of an optimizer's step 0.1 s counts: one that takes
    longer computes on the CPU.
Fires:
    L of 15% or more and a main thread that uses at least 0.85 core.
Clears:
    L below 8%.
Not when:
    The wait for data is not known (then only low-util is reported); the cores are under pressure, so the thread could
    not run; evaluation, checkpoints and other phases.
Causes:
    Many tiny kernels (an eager optimizer, loops over tensors), much Python per step (hooks, logging), or a batch too
    small for the GPU.
Fix:
    torch.compile(model, mode="reduce-overhead") (CUDA graphs), a fused optimizer, a larger batch, fewer Python
    loops.
Gain:
    At most 1 / (1 - L). nanoGPT on A100: 250 ms a step became 135 ms compiled (1.85x).
Verify:
    L below 8% and samples per second up.
Source:
    TensorFlow profiler (kernel launch above 3 and 15%), PyTorch tuning guide, nanoGPT's README.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.rivals import idle_rivals, rivals
from gpuwatch.diagnosis.advice.sampled import is_sampled, share_in, trains_on
from gpuwatch.diagnosis.advice.starvation import idle_outside_waits, starvation_of, train_busy_percent
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.samples import StackPhase
from gpuwatch.timeline.windows import RankWindow

LAUNCHING: tuple[StackPhase, ...] = ("forward", "backward", "optimizer")
OPTIMIZER_LAUNCH_SECONDS = 0.1
"""What launching an optimizer's step takes at most: 12 kernels of 6 us for each of 1400 tensors. One that takes longer
computes on the CPU."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.15, "of the time the GPU idles within steps: reported from here on")
    clear_share: float = threshold(0.08, "until it idles less", bounded_by="fire_share")
    thread_cores: float = threshold(0.85, "of one core that the launching thread uses, at least", most=1.0)
    pressure_percent: float = threshold(20.0, "CPU pressure, which is another explanation")
    run_delay_share: float = threshold(0.05, "of its time waiting for a core, which is another explanation")


@rule(
    "launch-bound",
    family="launch",
    subject="run",
    level=Level.E2,
    after=("data-starvation",),
    behind=("data-starvation",),
    needs_gpu=True,
    fades=True,
    thresholds=Thresholds,
)
def launch_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    starvation, busy = starvation_of(case), train_busy_percent(case)
    thread = _launching_cores(rank)
    if trains_on(case) != "cuda" or starvation is None or busy is None or thread is None:
        return None
    idle = idle_outside_waits(rank, starvation, busy) - _silent_share(case)
    idle = min(idle, _launching_share(rank))
    pressure = case.host.pressure_cpu_percent if case.host else None
    delay = rank.process.run_delay_share if rank.process else None
    crowded = (pressure or 0.0) >= limits.pressure_percent or (delay or 0.0) >= limits.run_delay_share
    if idle < limits.clear_share or thread < limits.thread_cores or crowded:
        return None
    compiled = rank.facts.model.compiled
    return Draft(
        summary=f"The GPU idles {percent(idle)} of the time inside steps, waiting for Python to launch its kernels",
        severity=Severity.WARNING,
        level=min(starvation.level, Level.E2),
        evidence=(
            share_measure("in_step_idle_share", idle, "GPU idle inside steps"),
            Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy in training"),
            share_measure("starvation_share", starvation.share, "of which waits for data explain"),
            Measure("main_thread_cores", round(thread, 2), f"the training thread uses {thread:.2f} of a core"),
        ),
        fires=idle >= limits.fire_share,
        fix=_fix(case, compiled),
        hint=f"at most {without(idle):.1f}x; nanoGPT on A100 gained 1.85x from compiling",
        ruled_out=(
            RuledOut("waiting for data", f"that explains {percent(starvation.share)}"),
            *((RuledOut("a crowded CPU", f"CPU pressure {pressure:.0f}%"),) if pressure is not None else ()),
            *rivals(case, "storage", "quota", "cpu"),
            *idle_rivals(case, "waiting for data", "phases", "transfer", "launches"),
        ),
        verify="Utilization in training up, idle inside steps below 8%, samples per second up",
        chart=("gpu.utilization_percent", "gpu.power_watts", "run.step_seconds"),
    )


def _launching_cores(rank: RankWindow) -> float | None:
    """Cores of the training thread, less what is no launching: copies, logging, and spinning until the GPU is done."""
    cores = rank.process.main_thread_cores if rank.process else None
    if cores is None:
        return None
    copying = _share_of(rank, "copy") or rank.copy_share or 0.0
    return cores - copying - _share_of(rank, "sync") - _share_of(rank, "log")


def _launching_share(rank: RankWindow) -> float:
    """Share of the window that the thread spends in what launches kernels: forward, backward and optimizer."""
    if is_sampled(rank):
        stacks = rank.stacks
        if stacks is None:
            return 0.0
        forward, backward, optimizer = (share_in(stacks.phases, phase) for phase in LAUNCHING)
        steps_per_second = stacks.batches_per_second
    else:
        if rank.forward_share is None or rank.backward_share is None or rank.optimizer_share is None:
            return 1.0
        paused = sum(total.seconds for total in rank.phases.values())
        trained = min(1.0, rank.train_seconds / max(rank.window_seconds - paused, 1e-9))
        shares = rank.forward_share, rank.backward_share, rank.optimizer_share
        forward, backward, optimizer = (share * trained for share in shares)
        steps_per_second = rank.steps / rank.train_seconds * trained if rank.train_seconds else None
    if steps_per_second:
        optimizer = min(optimizer, OPTIMIZER_LAUNCH_SECONDS * steps_per_second)
    return forward + backward + optimizer


def _silent_share(case: RunCase) -> float:
    """Share of the window behind the last step, beyond a slow one: what the thread does there is no step yet.

    From outside the samples of the stack show what it does.
    """
    rank = case.run.critical
    if is_sampled(rank) or rank.last_step_ns is None or rank.window_seconds <= 0.0:
        return 0.0
    silence = (case.now_ns - rank.last_step_ns) / 1e9 - (rank.step_p99_session_seconds or 0.0)
    return min(1.0, max(0.0, silence) / rank.window_seconds)


def _share_of(rank: RankWindow, phase: StackPhase) -> float:
    """What the stacks say of a phase, however few they are yet: it only speaks against this rule."""
    return share_in(rank.stacks.phases, phase) if rank.stacks is not None else 0.0


def _fix(case: RunCase, compiled: bool | None) -> Fix:
    model = case.run.critical.facts.model
    if compiled:
        return Fix(
            text="The model is compiled already: let it use CUDA graphs, take a larger batch, or fuse the optimizer",
            code='model = torch.compile(model, mode="reduce-overhead")',
            file=model.backward_file,
            line=model.backward_line,
        )
    return Fix(
        text="Compile the model with CUDA graphs, so that one launch starts many kernels; a larger batch helps too",
        code='model = torch.compile(model, mode="reduce-overhead")',
        file=model.backward_file,
        line=model.backward_line,
    )
