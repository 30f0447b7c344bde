"""The loop's own code, which is neither loading nor the model, keeps the GPU waiting.

Means:
    Metrics of numpy, pandas or scikit-learn, statistics, simulations, or an optimizer whose parameters or state lie in
    the CPU's memory run on the training thread. While they do, nothing new is launched, and the GPU idles as soon as
    its queue is empty.
Evidence:
    The share of training in which the training thread's stack is in the script's own code, with the line or function
    that most of it is in; and of an optimizer's steps what exceeds 0.1 s each, which is more than launching takes. It
    counts at most as much as the GPU idles without waits for data or logging to explain it.
Fires:
    10% of the time.
Clears:
    Below 6%, in the window or in its newest half.
Not when:
    The GPU is busy in the meantime, for then its queue hides the code. The GPU's use is not known, or the run computes
    on the CPU. A function that makes batches is data-starvation. Evaluation, saving and rare pauses longer than ten
    steps are not part of the loop. A line that takes less than 5 ms of each step may only be launching work. Garbage
    collection that the hook saw is gc-stall.
Causes:
    Metrics in each step, work that could be done ahead of time in a worker or in another process, or an off-loaded
    optimizer.
Fix:
    Run what training does not need every n-th step or once an epoch, and the rest in the DataLoader's workers or in
    another process. Keep an optimizer's state on the GPU where it fits, else use more batches for each of its steps.
Gain:
    At most 1 / (1 - share), if the code can go elsewhere. The lower end leaves out another quarter and what copies
    take, because the GPU's idle time may have other causes; for an optimizer it is half, and nothing where it is fused
    already.
Verify:
    The line's share is down, utilization and samples per second are up.
Source:
    PyTorch tuning guide ("avoid unnecessary CPU-GPU synchronization"); torch 2.13 on two cores: AdamW of 34 million
    parameters took 1.25 s a step, with fused=True 0.18 s.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import optimizer_edit
from gpuwatch.diagnosis.advice.gains import from_share, within_loader
from gpuwatch.diagnosis.advice.lines import HotLine, hottest_of_thread, is_installed, watched, with_interval
from gpuwatch.diagnosis.advice.own_loading import own_loading
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import (
    SAMPLES,
    batch_period,
    enough,
    has_begun,
    is_sampled,
    phase_samples,
    rests_on,
    share_of,
    train_samples,
    trains_on,
)
from gpuwatch.diagnosis.advice.starvation import (
    idle_outside_waits,
    idle_range,
    idle_share,
    starvation_of,
    train_busy_percent,
)
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.rules.launch_bound import OPTIMIZER_LAUNCH_SECONDS
from gpuwatch.diagnosis.rules.optimizer_unfused import FUSED_SINCE
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.timeline.windows import RankWindow, Share, StackWindow

LAUNCHES_SECONDS = 0.005
"""Of each step. A line without a library below it that takes less may launch kernels: 5 ms are 500 of them."""
CERTAIN = 0.75
WAITS_FOR_RANKS = "torch/distributed"
SAVED_BY_FUSING = 0.5
"""Of an optimizer's step on the CPU at least: AdamW of 34 million parameters took 1.25 s, fused 0.18 s (torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of the time the GPU idles while the loop's own code runs: reported from here")
    clear_share: float = threshold(0.06, "until it idles less", bounded_by="fire_share")


@dataclass(frozen=True, slots=True)
class OwnCode:
    """Code that holds the training thread: its share of the training time, and the line, where stacks name it."""

    share: Share
    line: HotLine | None
    steps_optimizer: bool = False


@rule(
    "loop-code",
    family="launch",
    subject="run",
    level=Level.E1,
    after=("data-starvation",),
    behind=("data-starvation",),
    needs_gpu=True,
    fades=True,
    thresholds=Thresholds,
)
def loop_code(case: RunCase, limits: Thresholds) -> Draft | None:
    rank, idle = case.run.critical, _idle(case)
    if trains_on(case) != "cuda" or idle is None or (is_sampled(rank) and not has_begun(rank)):
        return None
    code = max(_codes(case), key=lambda each: each.share.value, default=None)
    if code is None:
        return None
    share = min(code.share.value, idle.value)
    if share < limits.clear_share:
        return None
    busy = train_busy_percent(case)
    return Draft(
        summary=f"The GPU idles {percent(share)} of the time while {_what(code)}",
        severity=Severity.WARNING,
        level=rests_on(rank, Level.E2) if code.steps_optimizer else Level.E1,
        evidence=(
            share_measure("own_code_idle_share", share, "GPU idle meanwhile at most"),
            _taken(rank, code),
            *((code.line.measure("hot_line", "that"),) if code.line is not None else ()),
            Measure("utilization_percent", None if busy is None else round(busy, 1), f"GPU {busy or 0.0:.0f}% busy"),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(case, code),
        gain=_gain(case, code, idle),
        ruled_out=(
            RuledOut("waiting for data", f"the GPU idles {percent(idle.value)} of the time without it"),
            *idle_rivals(case, "waiting for data", "launches"),
        ),
        verify="The line's share is down, utilization and samples per second are up",
        chart=("gpu.utilization_percent", "run.samples_per_second"),
    )


def _idle(case: RunCase) -> Share | None:
    """The GPU's idle time that no wait for data explains, as a share of training; a run may read no loader at all."""
    rank, busy, starvation = case.run.critical, train_busy_percent(case), starvation_of(case)
    if busy is None or own_loading(case) is not None:
        return None
    if starvation is not None:
        idle = idle_outside_waits(rank, starvation, busy)
        low, high = idle_range(case, starvation) or (idle, idle)
        return Share(idle, low, high)
    return idle_share(case) if rank.train_loader is None else None


def _codes(case: RunCase) -> list[OwnCode]:
    rank = case.run.critical
    return [code for code in (_loop(rank), _optimizer(rank)) if code is not None]


def _loop(rank: RankWindow) -> OwnCode | None:
    """The script's own code in its loop, as samples of its stack show it."""
    stacks = enough(rank)
    line = hottest_of_thread(stacks, "other")
    if stacks is None or line is None or (line.leaf or "").startswith(WAITS_FOR_RANKS):
        return None
    collecting = rank.phases["gc"].share if "gc" in rank.phases and not is_sampled(rank) else 0.0
    apart = round(stacks.samples * min(1.0, rank.aside_seconds / stacks.seconds))
    samples = train_samples(stacks) - apart
    if samples < SAMPLES:
        return None
    share = share_of(phase_samples(stacks, "other") - apart - round(stacks.samples * collecting), samples)
    return OwnCode(share, line) if _computes(rank, stacks, line, share) else None


def _computes(rank: RankWindow, stacks: StackWindow, line: HotLine, share: Share) -> bool:
    """Whether the line is none of those that launch kernels."""
    period = _period_seconds(rank, stacks)
    is_of_library = line.leaf is not None and not line.leaf.startswith("torch/")
    return is_of_library or period is None or line.share.value * share.value * period >= LAUNCHES_SECONDS


def _optimizer(rank: RankWindow) -> OwnCode | None:
    """What an optimizer's steps take beyond their launches: it computes on the CPU."""
    stacks = rank.stacks
    period = _period_seconds(rank, stacks)
    if is_sampled(rank):
        seen = enough(rank)
        taken = share_of(phase_samples(seen, "optimizer"), train_samples(seen)) if seen is not None else None
    else:
        known = rank.optimizer_share
        taken = Share(known, known, known) if known is not None else None
    if taken is None or not period:
        return None
    launching = OPTIMIZER_LAUNCH_SECONDS / period
    share = Share(*(max(0.0, value - launching) for value in (taken.value, taken.low, taken.high)))
    return OwnCode(share, hottest_of_thread(stacks, "optimizer"), steps_optimizer=True) if share.value > 0.0 else None


def _period_seconds(rank: RankWindow, stacks: StackWindow | None) -> float | None:
    """Training seconds of a step; from outside of a batch, which is no more."""
    if is_sampled(rank):
        return batch_period(stacks) if stacks is not None else None
    return rank.train_seconds / rank.steps if rank.steps else None


def _what(code: OwnCode) -> str:
    where = f" ({code.line.place})" if code.line is not None else ""
    if code.steps_optimizer:
        return f"the optimizer computes on the CPU{where}"
    return f"the training thread runs the loop's own code{where}"


def _taken(rank: RankWindow, code: OwnCode) -> Measure:
    name, what = ("optimizer_share", "steps of the optimizer take") if code.steps_optimizer else ("other_share", "")
    stacks = rank.stacks
    if code.steps_optimizer and (stacks is None or not is_sampled(rank)):
        return share_measure(name, code.share.value, f"{what}, beyond 0.1 s each,")
    assert stacks is not None
    beyond = f"{what} beyond 0.1 s each" if what else "the loop's own code takes"
    text = f"{beyond} {with_interval(code.share)} of training {watched(stacks)}"
    return Measure(name, round(code.share.value, 4), text)


def _gain(case: RunCase, code: OwnCode, idle: Share) -> Gain:
    rank = case.run.critical
    certain = max(0.0, min(code.share.low, idle.low) - (rank.copy_share or 0.0))
    if code.steps_optimizer:
        certain *= SAVED_BY_FUSING if _may_fuse(rank) else 0.0
    else:
        certain *= CERTAIN
    possible = from_share(certain, min(code.share.high, idle.high), "if it can be done elsewhere or more rarely")
    return within_loader(case, possible)


def _may_fuse(rank: RankWindow) -> bool:
    model = rank.facts.model
    return model.optimizer in FUSED_SINCE and model.optimizer_fused is False


def _fix(case: RunCase, code: OwnCode) -> Fix:
    line, rank = code.line, case.run.critical
    file, number = (line.file, line.line) if line is not None else (None, None)
    if not code.steps_optimizer:
        where = f" at {line.words}" if line is not None and not is_installed(line) else ""
        return Fix(
            text=(
                f"Run what training does not need of the code{where} (metrics, statistics) every 100th step or once an "
                "epoch, and keep its input on the GPU until then. Prepare what each step needs in the DataLoader's "
                "workers or in another process, while the GPU computes"
            ),
            code="if step % 100 == 0:\n    metric.update(outputs.detach().cpu().numpy())",
            file=file,
            line=number,
        )
    fused = "give it fused=True, which makes Adam, AdamW and SGD about 7 times as fast on the CPU (torch 2.13), "
    return Fix(
        text=(
            "Keep parameters and the optimizer's state on the GPU if they fit; else "
            f"{fused if _may_fuse(rank) else ''}let more batches make one step, or use an optimizer made for the CPU "
            "(DeepSpeedCPUAdam)"
        ),
        code="model.to(device)\noptimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        file=file,
        line=number,
        edit=optimizer_edit(rank.facts.model, fused="True") if _may_fuse(rank) else None,
    )
