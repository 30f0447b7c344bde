"""Random jobs without labels: each finding is checked by applying its fix and playing the job again.

A job is starved if an ideal loader makes it faster, a warning is deserved if its fix does, and a promise is kept if the
fix brings what was promised.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from tests.scenarios.job import Computing, Host, Job, Loading, Pause
from tests.scenarios.judged import WARNED, Judged, Promise
from tests.scenarios.scenario import ATTACHED, Scenario, draw
from tests.scenarios.score import GAIN_TOLERANCE, LOADING
from tests.scenarios.truth import truth_of

STARVED_LOSS = 0.12
"""The rules' threshold is 0.10: jobs between FED_LOSS and this may be called either way."""
FED_LOSS = 0.05
LEAST_GAIN = 1.03
"""A warning whose change brings less than this is undeserved."""
RANGE_SLACK = 0.02
"""The replay's own noise: the truth is inside a range if it lies within 2% of it."""
LEAST_SECONDS = 240
NAMES_LOADING = LOADING | {"thread-oversubscription"}
"""Warnings that find a starved job: the threads of its workers take more from it by late launches than by waits."""
INTRODUCTION = (
    "## Random jobs",
    "",
    "These jobs have no labels: steps of 10 ms to 5 s, 0 to 128 workers on 2 to 64 cores, storage, other programs,",
    "pauses and CPU quotas are drawn at random. The change that each finding proposes is made, and the job is played",
    "again. A job is starved if an ideal loader saves 12% of its time. A warning is undeserved, and a cause wrong,",
    "if its change brings less than 1.03x.",
    "`python -m tests.scenarios --random N` plays N of them.",
    "",
)
RANKS = (1, 1, 1, 1, 1, 1, 2, 4, 8)
PAUSE_KINDS = ("eval", "checkpoint", "gc", "log", "compile")


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _host(rng: random.Random) -> Host:
    cores = rng.choice((2, 4, 8, 8, 16, 16, 32, 64))
    foreign = 0.3 if rng.random() < 0.75 else rng.uniform(0.1, 1.2) * cores
    quota = max(1.0, round(cores * rng.uniform(0.2, 0.8))) if rng.random() < 0.12 else None
    return Host(cores=cores, quota=quota, foreign_cores=foreign, disk_streams=_log_uniform(rng, 2.0, 32.0))


def _loading(rng: random.Random, cores: int, gpu_seconds: float) -> Loading:
    workers = rng.choice((0, 0, 1, 2, 3, 4, 6, 8, 12, 16))
    if rng.random() < 0.2:
        workers = rng.choice((cores, 2 * cores))
    load = _log_uniform(rng, 0.1, 4.0)
    seconds = load * gpu_seconds * max(1, min(workers, cores))
    io_share = rng.choice((0.0, 0.0, rng.uniform(0.1, 0.6), rng.uniform(0.6, 0.98)))
    has_slow = workers > 0 and rng.random() < 0.15
    return Loading(
        workers=workers,
        cpu_seconds=seconds * (1.0 - io_share),
        io_seconds=seconds * io_share,
        spread=_log_uniform(rng, 0.03, 0.6),
        slow_share=_log_uniform(rng, 0.003, 0.05) if has_slow else 0.0,
        slow_times=_log_uniform(rng, 5.0, 60.0) if has_slow else 1.0,
        prefetch=rng.choice((2, 2, 2, 1, 4, 8)),
        persistent=rng.random() < 0.7,
        pinned=rng.random() < 0.85,
        batch_size=rng.choice((8, 16, 32, 64, 128, 256)),
        batch_bytes=round(_log_uniform(rng, 5e5, 1e8)),
        batches_per_epoch=round(_log_uniform(rng, 30, 1000)) if rng.random() < 0.35 else 100_000,
        start_seconds=_log_uniform(rng, 0.03, 1.0),
        threads=cores if workers > 1 and rng.random() < 0.08 else 1,
    )


def _pauses(rng: random.Random, step_seconds: float) -> tuple[Pause, ...]:
    pauses = []
    for kind in PAUSE_KINDS:
        if rng.random() >= 0.08:
            continue
        every = round(_log_uniform(rng, 20, 300))
        seconds = _log_uniform(rng, 0.005, 0.3) * every * step_seconds
        if kind == "eval":
            pauses.append(Pause("eval", seconds, every_steps=every, gpu_share=rng.uniform(0.1, 0.95), batches=20))
        else:
            pauses.append(Pause(kind, seconds, every_steps=every))  # type: ignore[arg-type]
    return tuple(pauses)


def random_job(_: Job, rng: random.Random) -> Job:
    """A job of which nothing is given: steps of 10 ms to 5 s, on 2 to 64 cores, with 0 to 128 workers.

    Every third has several ranks, on a machine with as many cores for each of them.
    """
    host = _host(rng)
    gpu_seconds = _log_uniform(rng, 0.01, 4.0)
    computing = Computing(
        gpu_seconds=gpu_seconds,
        launch_seconds=gpu_seconds * _log_uniform(rng, 0.03, 1.3 if rng.random() < 0.2 else 0.6),
        spread=_log_uniform(rng, 0.005, 0.2),
        asks=rng.random() < 0.35,
        intensity=rng.uniform(0.4, 1.0),
        tensor_percent=rng.uniform(2.0, 60.0),
    )
    job = Job(_loading(rng, host.cores, gpu_seconds), computing, host, _pauses(rng, gpu_seconds))
    ranks = rng.choice(RANKS)
    quota = None if host.quota is None else host.quota * ranks
    return replace(job, ranks=ranks).with_host(cores=host.cores * ranks, quota=quota)


def _scenario(prefix: str) -> Scenario:
    return Scenario(
        f"{prefix}random",
        "everything is drawn",
        Job(),
        seconds=LEAST_SECONDS,
        fixed=True,
        make=random_job,
        holds=lambda truth: True,
        hooked=not prefix,
        unlabelled=True,
    )


RANDOM: Mapping[str, Scenario] = {scenario.id: scenario for scenario in (_scenario(""), _scenario(ATTACHED))}


@dataclass(slots=True)
class RandomScore:
    """All random jobs, seen one way."""

    jobs: int = 0
    starved: int = 0
    found: int = 0
    warnings: int = 0
    causes: int = 0
    unnamed: int = 0
    right_causes: int = 0
    promises: list[tuple[Judged, Promise]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    undeserved: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    found_by_step: Counter[str] = field(default_factory=Counter)
    starved_by_step: Counter[str] = field(default_factory=Counter)

    @property
    def centred(self) -> int:
        """Promises whose middle is near the truth."""
        return sum(_is_near(one) for _, one in self.promises)

    @property
    def inside(self) -> int:
        """Promises whose range holds the truth."""
        return sum(
            one.low * (1.0 - RANGE_SLACK) <= one.real <= one.high * (1.0 + RANGE_SLACK) for _, one in self.promises
        )


def _is_near(promise: Promise) -> bool:
    return abs(math.sqrt(promise.low * promise.high) / promise.real - 1.0) <= GAIN_TOLERANCE


def _step_class(seconds: float) -> str:
    return "under 1 s" if seconds < 1.0 else "1 to 2 s" if seconds < 2.0 else "over 2 s"


def scored_random(results: Iterable[Judged]) -> RandomScore:
    """Adds up what was said of random jobs, against what their changes bring."""
    score = RandomScore()
    for judged in results:
        drawn = draw(RANDOM[judged.scenario], judged.seed)
        truth = truth_of(drawn.job, drawn.name)
        step = _step_class(drawn.job.loading.batch_size / truth.samples_per_second)
        score.jobs += 1
        warned = {rule: said for rule, said in judged.said.items() if said.severity in WARNED}
        starved = {rule: said for rule, said in warned.items() if rule in NAMES_LOADING}
        if truth.data_loss >= STARVED_LOSS:
            score.starved += 1
            score.starved_by_step[step] += 1
            if starved:
                score.found += 1
                score.found_by_step[step] += 1
                score.delays.append(min(said.first for said in starved.values()))
            else:
                score.missed.append(f"job {judged.seed}: {truth.data_loss:.0%} lost, steps {step}")
        for rule, said in warned.items():
            brought = judged.brought.get(rule)
            if brought is None:
                continue
            score.warnings += 1
            if brought < LEAST_GAIN:
                score.undeserved.append(f"job {judged.seed}: {rule} brings {brought:.2f}x: {said.summary}")
        if "data-starvation" in warned and truth.data_loss >= FED_LOSS:
            if judged.cause is None:
                score.unnamed += 1
            elif (brought := judged.brought.get(judged.cause)) is not None:
                score.causes += 1
                if brought >= LEAST_GAIN:
                    score.right_causes += 1
                else:
                    score.wrong.append(f"job {judged.seed}: {judged.cause} brings {brought:.2f}x")
        score.promises += [(judged, promise) for promise in judged.promises]
    return score


def page(hooked: RandomScore, attached: RandomScore) -> str:
    """The section of docs/diagnosis-accuracy.md."""
    return "\n".join((*INTRODUCTION, *lines_of("Hooked", hooked), "", *lines_of("Attached", attached))) + "\n"


def lines_of(title: str, score: RandomScore) -> list[str]:
    """What was right, and each job that was not."""

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"

    by_step = ", ".join(
        f"{step} {share(score.found_by_step[step], count)}" for step, count in sorted(score.starved_by_step.items())
    )
    by_rule: dict[str, list[tuple[Judged, Promise]]] = {}
    for judged, promise in score.promises:
        by_rule.setdefault(promise.rule, []).append((judged, promise))
    parts = {rule: RandomScore(promises=promises) for rule, promises in sorted(by_rule.items())}
    failed = (("missed", score.missed), ("undeserved", score.undeserved), ("wrong cause", score.wrong))
    return [
        f"### {title}",
        "",
        f"- {score.jobs} jobs, {score.starved} starved: found {share(score.found, score.starved)}, "
        f"{median(score.delays or [0.0]):.0f} s after their start (median); by mean step time {by_step}",
        f"- undeserved warnings: {share(len(score.undeserved), score.warnings)}",
        f"- right cause: {share(score.right_causes, score.causes)}; no cause named in {score.unnamed}",
        f"- middle of the promised range within 15% of the real gain: {share(score.centred, len(score.promises))}; "
        f"real gain inside the range: {share(score.inside, len(score.promises))}",
        "",
        "| rule | promises | real gain in range | middle within 15% |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {rule} | {len(part.promises)} | {part.inside} | {part.centred} |" for rule, part in parts.items()),
        "",
        *(f"- {name}: {one}" for name, found in failed for one in found),
        *(
            f"- promise: job {judged.seed}: {one.rule} {one.low:.2f}-{one.high:.2f}x, real {one.real:.2f}x"
            for judged, one in score.promises
            if not _is_near(one)
        ),
    ]
