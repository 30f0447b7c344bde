"""What samples of a stack tell of a run, and how sure they are of it.

A share of n samples has a 95% interval of about +-2 sqrt(p (1 - p) / n): with 600 of them 10% means 7.8 to 12.7%.
So no 10% threshold is decided on fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gpuwatch.diagnosis.finding import Level
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import RankWindow, Share, StackWindow, wilson

SAMPLES = 600
WORKER_SAMPLES = 200
"""For thresholds of 30% and more: 30% is then 24 to 37%."""
WATCHED_SECONDS = 55.0
"""Steps so slow that a minute holds few of them are judged by time: a window of 60 s is rarely covered to its edges."""
NOT_TRAINING = ("eval", "save", "compile")

NO_SHARE = Share(0.0, 0.0, 0.0)


def share_of(hits: int, samples: int) -> Share:
    """The share of `hits` with its interval: anything at all where nothing was seen."""
    return wilson(min(max(hits, 0), samples), samples) if samples > 0 else Share(0.0, 0.0, 1.0)


def is_sampled(rank: RankWindow) -> bool:
    """Whether stacks are all that tells of this rank's steps: no hook is in it."""
    return rank.facts.visibility == "sampled"


def who_waits(rank: RankWindow) -> str:
    """The subject of a sentence about waits: a loop over a loader that nothing is trained in is no training."""
    facts, seen = rank.facts, enough(rank)
    if is_sampled(rank):
        trains = seen is None or phase_samples(seen, "backward", "optimizer") > 0
    else:
        trains = facts.torch is None or facts.device is not None or facts.model.backward_line is not None
    return "Training" if trains else "The loop"


def has_begun(rank: RankWindow) -> bool:
    """Whether a run that is seen from outside has taken a batch or computed anything yet, as its samples show it."""
    stacks = rank.stacks
    computing = share_in(stacks.phases, "forward", "backward", "optimizer") if stacks is not None else 1.0
    return rank.steps_total > 0 or computing > 0.0


def rests_on(rank: RankWindow, at_most: Level) -> Level:
    """The evidence of figures that the hook gives where there is one, and stacks where there is none."""
    return min(Level.E1, at_most) if is_sampled(rank) else at_most


def enough(rank: RankWindow) -> StackWindow | None:
    """The rank's stacks where they hold enough samples to decide on a share of a few percent."""
    stacks = rank.stacks
    return stacks if stacks is not None and stacks.samples >= SAMPLES else None


def share_in(shares: Mapping[str, Share], *names: str) -> float:
    """What these phases take together; one that was never seen takes nothing."""
    return sum(shares.get(name, NO_SHARE).value for name in names)


def train_share(stacks: StackWindow) -> float:
    """The part of the watched time that is training: without evaluation, saving and compiling."""
    return max(0.0, 1.0 - share_in(stacks.phases, *NOT_TRAINING))


def train_samples(stacks: StackWindow) -> int:
    """Samples that fell into training."""
    return round(stacks.samples * train_share(stacks))


def phase_samples(stacks: StackWindow, *names: str) -> int:
    """Samples of the training thread in these phases."""
    return round(stacks.samples * share_in(stacks.phases, *names))


def settled_wait(stacks: StackWindow, unended_seconds: float = 0.0) -> Share:
    """Waits for batches as a share of the training time, but for what an epoch's first batches wait longer.

    `unended_seconds` are those of a wait that has not ended. They are taken off as time: a thread that stands still is
    sampled twice as often as one that trains.
    """
    first = round(stacks.samples * (stacks.first_wait_share or 0.0))
    hits, samples = phase_samples(stacks, "wait") - first, train_samples(stacks)
    if unended_seconds <= 0.0 or not stacks.waits:
        return share_of(hits, samples)
    train, waited = (max(0.0, sum(column) - unended_seconds) for column in zip(*stacks.waits, strict=True))
    samples = settled_samples(stacks, unended_seconds)
    return share_of(round(samples * waited / train) if train else 0, samples)


def settled_samples(stacks: StackWindow, unended_seconds: float) -> int:
    """Samples of training outside a wait that has not ended."""
    train = sum(seconds for seconds, _ in stacks.waits) if unended_seconds > 0.0 else 0.0
    left = max(0.0, 1.0 - unended_seconds / train) if train > 0.0 else 1.0
    return round(train_samples(stacks) * left)


def unended_wait_seconds(rank: RankWindow) -> float:
    """The wait that the training thread is in: it may never end, so the hook does not count it either.

    It began after the last batch at the earliest. A thread that waits nearly always is seen on one line for many.
    """
    stacks, last_ns = rank.stacks, rank.last_step_ns
    current_line = stacks.current_line if stacks is not None else None
    if current_line is None or current_line.phase != "wait" or last_ns is None:
        return 0.0
    return max(0.0, (current_line.time_ns - max(current_line.since_ns, last_ns)) / 1e9)


def epoch_start_share(stacks: StackWindow) -> float:
    """The starts of epochs as a share of the training time: workers that start, and longer first waits."""
    count = train_samples(stacks)
    lost = stacks.samples * (share_in(stacks.phases, "start") + (stacks.first_wait_share or 0.0))
    return min(1.0, lost / count) if count else 0.0


def batch_period(stacks: StackWindow) -> float | None:
    """Training seconds per batch; None where no batches were counted. The rate is over phases too, so they go."""
    rate = stacks.batches_per_second
    return train_share(stacks) / rate if rate else None


def worker_busy(rank: RankWindow) -> Share | None:
    """The share of training time in which a worker of the training loader makes batches: its own word, else its stacks.

    While the run evaluates or saves, workers fill their queue and idle, whatever their pace.
    """
    known = rank.workers.busy_share if rank.workers else None
    if known is not None:
        return Share(known, known, known)
    load = worker_load(rank)
    training = train_share(rank.stacks) if rank.stacks else 0.0
    return None if load is None or training <= 0.0 else _scaled(load, 1.0 / training)


def worker_load(rank: RankWindow) -> Share | None:
    """Seconds that each worker of the training loader is busy per second, phases included; None on too few samples.

    An evaluation loader's workers are sampled too, and between epochs there are none unless they persist: what all
    samples saw is divided by the number that the training loader has.
    """
    stacks, count = rank.stacks, rank.train_loader.num_workers if rank.train_loader else None
    if stacks is None or not count or stacks.worker_samples < WORKER_SAMPLES:
        return None
    alive = stacks.workers if stacks.workers_mean is None else stacks.workers_mean
    return _scaled(share_of(busy_worker_samples(stacks), stacks.worker_samples), alive / count)


def _scaled(share: Share, factor: float) -> Share:
    return Share(*(min(1.0, factor * value) for value in (share.value, share.low, share.high)))


def busy_worker_samples(stacks: StackWindow) -> int:
    """Samples of workers that did something."""
    return round(stacks.worker_samples * (1.0 - share_in(stacks.worker_phases, "idle")))


def trains_on(case: RunCase) -> Literal["cuda", "cpu"] | None:
    """Where the run computes. Where no hook has seen it, that shows in the GPUs it holds, or in a machine without."""
    facts, nvml = case.run.critical.facts, case.scene.quality.nvml
    if facts.device in ("cuda", "cpu"):
        return "cuda" if facts.device == "cuda" else "cpu"
    if facts.gpu_uuids or case.gpus:
        return "cuda"
    return "cpu" if nvml is not None and nvml.status == "absent" else None
