"""Plays the unusual jobs and judges what was said: right, a miss only, or misleading."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin, Snapshot
from tests.scenarios.fixes import CHANGES, REMEDIES
from tests.scenarios.job import Job, Loading
from tests.scenarios.judged import START_NS, WARNED
from tests.scenarios.program import Player
from tests.scenarios.program_stream import ProgramSource
from tests.scenarios.random_jobs import LEAST_GAIN, STARVED_LOSS
from tests.scenarios.score import LOADING
from tests.scenarios.stream import SECOND_NS
from tests.scenarios.unusual import JOBS, Unusual

VIEWS = ("hooked", "no stacks", "attached")
HANGS = frozenset({"step-stalled", "collective-hang"})
OVER_SECONDS = 40.0
"""A hang may be said for so long after its end: what ends it must be seen."""
LEFT_OUT = {
    "checkpoint-stall": "save",
    "eval-stall": "eval",
    "log-stall": "log",
    "loop-code": "code",
    "recompile-storm": "compile",
    "warmup-long": "compile",
}
"""By rule: the kind of acts without which it is tried."""
INTRODUCTION = (
    "## Unusual jobs",
    "",
    "These are simulated scripts that do something else between their steps, for which no rule was written: uploads,",
    "plots, notebooks, mining, compilations, long saves, evaluations of all kinds, reinforcement learning, sweeps,",
    "huge and tiny steps, breakpoints, and real deadlocks. Each is played in three ways: hooked (the real link",
    "derives its steps from the hook's records), hooked with stacks that cannot be read, and attached. A warning",
    "misleads if its change brings less than 1.03x in the same program, or if it reports a hang although nothing",
    "hangs. A job has a miss if a warning that it must get is absent. `python -m tests.scenarios --unusual` plays",
    "them.",
    "",
)

Outcome = Literal["right", "miss", "misleads"]


@dataclass(slots=True)
class Heard:
    """A warning of one rule: the first one, and the newest."""

    first: float
    finding: Finding
    at: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Stream:
    """What came of one job, seen one way."""

    job: str
    view: str
    seed: int
    outcome: Outcome = "right"
    why: list[str] = field(default_factory=list)
    flips: Counter[str] = field(default_factory=Counter)
    hours: float = 0.0


def seed_of(job: Unusual, seed: int) -> str:
    """What seeds everything random in it."""
    return f"unusual {job.id} {seed}"


def seconds_for(
    job: Unusual, seed: int, samples: int, changed: Job, loaders: dict[int, Loading], without: frozenset[str]
) -> float:
    """How long a changed job takes for this many samples."""
    player = Player(changed, job.program, seed_of(job, seed), loaders=loaders, without=without)
    while player.samples < samples and player.ended is None:
        player.advance()
    return player.time


@cache
def base(name: str, seed: int) -> tuple[int, float]:
    """The samples that a job makes while it is played, and when it made the last of them."""
    job = JOBS[name]
    player = Player(job.job, job.program, seed_of(job, seed), loaders=job.loaders)
    made, at = 0, 0.0
    while player.time < job.seconds and player.ended is None:
        player.advance()
        if player.samples > made:
            made, at = player.samples, player.time
    return made, at


def factor(
    job: Unusual,
    seed: int,
    changed: Job,
    loaders: dict[int, Loading],
    without: frozenset[str] = frozenset(),
) -> float:
    """How much faster a job is with a change."""
    samples, at = base(job.id, seed)
    return at / seconds_for(job, seed, samples, changed, loaders, without) if samples else 1.0


def ideal(job: Unusual, seed: int) -> float:
    """How much faster it is with batches that cost nothing."""
    loaders = {number: replace(loading, free=True) for number, loading in job.loaders.items()}
    return factor(job, seed, job.job.ideal(), loaders)


def brought(job: Unusual, seed: int, finding: Finding) -> float | None:
    """What a finding's change brings; None where it cannot be tried."""
    rule = finding.rule
    if rule == "data-starvation":
        return ideal(job, seed)
    if rule in LEFT_OUT:
        return factor(job, seed, job.job, job.loaders, frozenset({LEFT_OUT[rule]}))
    change = CHANGES.get(rule) or REMEDIES.get(rule)
    if change is None:
        return None
    place = finding.fix.line if finding.fix is not None else None
    number = next((number for number in job.loaders if place == 88 + 2 * number), None)
    if number is None:
        changed = change(job.job, finding)
        return None if changed is None else factor(job, seed, changed, job.loaders)
    one = change(replace(job.job, loading=job.loaders[number]), finding)
    return None if one is None else factor(job, seed, job.job, {**job.loaders, number: one.loading})


def play(name: str, view: str, seed: int) -> Stream:
    """Plays and judges one stream."""
    job = JOBS[name]
    stream = Stream(name, view, seed, hours=job.seconds / 3600.0)
    source = ProgramSource(
        job.job,
        job.program,
        seed_of(job, seed),
        START_NS,
        loaders=job.loaders,
        hooked=view != "attached",
        stacks=view != "no stacks",
        infers=job.infers,
        optimizer=job.optimizer,
    )
    monitor = Monitor([source], origin=Origin("simulated", name), clock=VirtualClock(START_NS), engine=Engine())
    heard: dict[str, Heard] = {}
    causes: Counter[str] = Counter()
    before: dict[str, str] = {}

    def take(snapshot: Snapshot) -> None:
        second = (snapshot.time_ns - START_NS) / SECOND_NS
        present = {finding.rule: finding.severity.value for finding in snapshot.findings}
        for rule in present.keys() | before.keys():
            stream.flips[rule] += present.get(rule) != before.get(rule)
        before.clear()
        before.update(present)
        for finding in snapshot.findings:
            if finding.severity.value not in WARNED or finding.state != "firing":
                continue
            one = heard.setdefault(finding.rule, Heard(second, finding))
            one.finding = finding
            one.at.append(second)
            if finding.rule == "data-starvation":
                named = {measure.name: measure.value for measure in finding.evidence}.get("cause")
                causes[str(named)] += 1

    try:
        monitor.run_until(START_NS + job.seconds * SECOND_NS, on_tick=take)
    finally:
        monitor.stop()
    _judge(stream, job, heard, causes, source.player)
    return stream


def _judge(stream: Stream, job: Unusual, heard: dict[str, Heard], causes: Counter[str], player: Player) -> None:
    wrong: list[str] = []
    for rule, one in heard.items():
        said = f"{rule} at {one.first:.0f} s: {one.finding.summary}"
        if rule in HANGS:
            still = player.stood_still
            if any(not any(start <= at <= end + OVER_SECONDS for start, end in still) for at in one.at):
                wrong.append(f"{said} (nothing hangs)")
            continue
        if rule in job.true:
            continue
        gain = brought(job, stream.seed, one.finding)
        if gain is None:
            wrong.append(f"{said} (not so)")
        elif gain < LEAST_GAIN:
            wrong.append(f"{said} (its change brings {gain:.2f}x)")
    cause = causes.most_common(1)[0][0] if causes else None
    if cause in heard and any(line.startswith(f"{cause} ") for line in wrong):
        wrong.append(f"cause {cause}")
    missed = [f"{rule} was not reported" for rule in sorted(job.must - heard.keys())]
    if not player.stood_still and not LOADING & (heard.keys() | job.must):
        lost = 1.0 - 1.0 / ideal(job, stream.seed)
        if lost >= STARVED_LOSS:
            missed.append(f"batches cost {lost:.0%} of its time, and nothing was reported")
    stream.why = wrong + missed
    stream.outcome = "misleads" if wrong else "miss" if missed else "right"


def play_one(one: tuple[str, str, int]) -> Stream:
    """The same for a pool of processes."""
    return play(*one)


def play_all(names: Iterable[str], seeds: Sequence[int], jobs: int, views: Sequence[str] = VIEWS) -> list[Stream]:
    """Plays jobs in this many processes."""
    streams = [(name, view, seed) for name in names for view in views for seed in seeds]
    if jobs <= 1:
        return [play_one(one) for one in streams]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(play_one, streams))


def in_page(document: str, section: str) -> str:
    """The document with this section instead of the one it has, or at its end."""
    before, _, rest = document.partition(INTRODUCTION[0])
    _, heading, after = rest.partition("\n## ")
    return f"{before.rstrip()}\n\n{section.rstrip()}\n" + (f"\n## {after}" if heading else "")


def section_of(document: str) -> str:
    """This section of the document."""
    _, title, rest = document.partition(INTRODUCTION[0])
    return title + rest.partition("\n## ")[0]


def page(streams: Sequence[Stream]) -> str:
    """The section of docs/diagnosis-accuracy.md."""
    return "\n".join((*INTRODUCTION, *lines_of(streams))) + "\n"


def lines_of(streams: Sequence[Stream]) -> list[str]:
    """The table, and each stream that was not right."""
    by_view = {view: [one for one in streams if one.view == view] for view in VIEWS}

    def count(found: Sequence[Stream]) -> str:
        outcomes = Counter(one.outcome for one in found)
        return " | ".join(str(outcomes[name]) for name in ("right", "miss", "misleads"))  # type: ignore[index]

    names = list(dict.fromkeys(one.job for one in streams))
    flips: Counter[str] = Counter()
    for one in streams:
        flips.update(one.flips)
    hours = sum(one.hours for one in streams)
    worst = ", ".join(f"{rule} {count / hours:.1f}" for rule, count in flips.most_common(5))
    cells = {"right": "yes", "miss": "misses", "misleads": "**misleads**"}
    rows = []
    for name in names:
        found = [
            ", ".join(dict.fromkeys(cells[one.outcome] for one in by_view[view] if one.job == name)) or "-"
            for view in VIEWS
        ]
        rows.append(f"| {JOBS[name].title} | {' | '.join(found)} |")
    return [
        f"{len(names)} jobs, {len(streams)} streams, {hours:.0f} simulated hours. How often a finding appears, ends or",
        f"changes its severity, per simulated hour, for the five worst rules: {worst or 'never'}.",
        "",
        "| how it is seen | right | misses only | misleads |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {view} | {count(found)} |" for view, found in by_view.items()),
        f"| all | {count(streams)} |",
        "",
        "| job | hooked | hooked, no stacks | attached |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        *(f"- {one.job}, {one.view}, seed {one.seed}: {why}" for one in streams for why in one.why),
    ]
