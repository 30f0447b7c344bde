"""The loader is already as fast as it can hand batches over; more workers would not help.

Means:
    The workers idle, every batch is ready, and the training thread still spends about a millisecond on receiving it.
    With steps of a few milliseconds that is a noticeable share.
Evidence:
    The waits of the steps: half of them between 0.2 and 3 ms, 95% below 5 ms; workers busy less than 20% of the time,
    steps shorter than 20 ms. From outside the mean wait is used instead.
Fires:
    All of that, and 5% or more of the time goes into the handover.
Clears:
    The shape is gone, or the handover takes less than 3%.
Not when:
    The workers are busy: then their number is what counts. Where this holds, workers-too-few is silent.
Causes:
    Data that lies in memory, or a step that is shorter than the transfer of a batch from another process.
Fix:
    No workers where making a batch takes less time than receiving it, else a single one; a larger batch; or data kept
    in GPU memory, if it fits.
Gain:
    A hint. Measured with steps of 5 ms on 2 cores: 6.0-6.5 ms a step without workers, 8.0-13.4 ms with 1 to 8.
Verify:
    Samples per second up.
Source:
    Measured as above.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import loader_fix, place_of
from gpuwatch.diagnosis.advice.sampled import batch_period, enough, is_sampled, rests_on, settled_wait, worker_busy
from gpuwatch.diagnosis.advice.starvation import FLOOR_BUSY_SHARE, FLOOR_WAIT_SECONDS
from gpuwatch.diagnosis.advice.stream import settled
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent, seconds
from gpuwatch.timeline.windows import RankWindow

LEAST_WAIT_SECONDS = 0.0002
STEPS = 30


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time is spent handing over ready batches: reported from here on")
    clear_share: float = threshold(0.03, "until less passes", bounded_by="fire_share")
    step_seconds: float = threshold(0.020, "longer steps hide the handover")
    wait_seconds: float = threshold(0.005, "the 95th percentile of the waits stays below this")


@dataclass(frozen=True, slots=True)
class Handover:
    """A step, and what of it taking a ready batch costs."""

    step_seconds: float
    wait_seconds: float

    @property
    def share(self) -> float:
        """Of the step."""
        return self.wait_seconds / self.step_seconds


@rule("loader-overhead-floor", family="data", subject="run", level=Level.E2, thresholds=Thresholds)
def loader_overhead_floor(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    loader, busy, handover = rank.train_loader, worker_busy(rank), _handover(rank, limits)
    if loader is None or not loader.num_workers or busy is None or handover is None:
        return None
    if busy.value >= FLOOR_BUSY_SHARE or handover.share < limits.clear_share:
        return None
    return Draft(
        summary=(
            f"Receiving a ready batch costs {seconds(handover.wait_seconds)} of a step of "
            f"{seconds(handover.step_seconds)}, and no number of workers makes it faster"
        ),
        severity=Severity.INFO,
        level=rests_on(rank, Level.E2),
        evidence=(
            Measure("wait_seconds", round(handover.wait_seconds, 6), f"a wait takes {seconds(handover.wait_seconds)}"),
            share_measure("worker_busy_share", busy.value, "workers busy"),
            share_measure("handover_share", handover.share, "of a step goes into the handover"),
            Measure("num_workers", loader.num_workers, f"num_workers={loader.num_workers}"),
        ),
        fires=handover.share >= limits.fire_share,
        fix=_fix(rank, handover, busy.value),
        hint="measured with 5 ms steps on 2 cores: 6.0-6.5 ms a step without workers, 8.0-13.4 ms with 1 to 8",
        verify="Samples per second up",
        chart=("run.step_seconds", "run.wait_share"),
    )


def _handover(rank: RankWindow, limits: Thresholds) -> Handover | None:
    """The step and its usual wait where they have the shape of a handover."""
    if is_sampled(rank):
        stacks = enough(rank)
        step = batch_period(stacks) if stacks else None
        if stacks is None or step is None:
            return None
        wait, worst = settled_wait(stacks).value * step, 0.0
    else:
        rows = settled(rank, rank.columns.period_seconds, rank.columns.wait_seconds)
        if len(rows) < STEPS:
            return None
        steps, waits = sorted(row[0] for row in rows), sorted(row[1] for row in rows)
        step, wait, worst = steps[len(steps) // 2], waits[len(waits) // 2], waits[int(0.95 * len(waits))]
    is_short = 0.0 < step < limits.step_seconds
    has_shape = LEAST_WAIT_SECONDS <= wait <= FLOOR_WAIT_SECONDS and worst < limits.wait_seconds
    return Handover(step, wait) if is_short and has_shape else None


def _fix(rank: RankWindow, handover: Handover, busy: float) -> Fix:
    loader = rank.train_loader
    workers = (loader.num_workers if loader else None) or 1
    made = rank.workers.batch_seconds if rank.workers is not None else None
    batch = made if made is not None else busy * workers * handover.step_seconds
    costs = f"making a batch takes about {seconds(batch)}, receiving it {seconds(handover.wait_seconds)}"
    if batch <= handover.wait_seconds:
        keywords = {"num_workers": "0"}
        if loader is not None and loader.persistent_workers:
            keywords["persistent_workers"] = "False"
        if loader is not None and loader.prefetch_factor is not None:
            keywords["prefetch_factor"] = "None"
        return loader_fix(loader, keywords, f"Load without workers: {costs}", 0)
    larger = f"Take a larger batch, so that the handover counts less: {costs}"
    if workers > 1 and busy * workers < 1.0:
        text = f"{larger}; one worker would keep up ({percent(busy * workers)} busy)"
        return loader_fix(loader, {"num_workers": "1"}, text, 1)
    return Fix(larger, None, *place_of(loader))
