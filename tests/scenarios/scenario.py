"""A labelled situation: a job, what must be found in it, what may be, and when a perturbed draw still deserves that."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.scenarios.job import Job, perturbed
from tests.scenarios.truth import Truth, truth_of

STARVED = 0.12
"""Lost to the loading, in truth, where a scenario is to be found starved: the threshold is 0.10."""
FED = 0.04
CLEARING_SECONDS = 120
"""Played on behind the end of the trouble, for the first seeds: so long a rule has to say that it is over."""
CLEARING_SEEDS = 8
CLEARED_WITHIN_SECONDS = 60.0
STAYING = frozenset(
    {
        "ecc-or-remap",
        "hw-slowdown",
        "metrics-limited",
        "pageable-transfer",
        "recompile-storm",
        "thermal-throttle",
        "xid-error",
    }
)
"""Rules that by their definition end minutes after their cause, at a restart, or with a setting of the script."""
DRAWS = 60
UNLABELLED_STEPS, MOST_UNLABELLED_SECONDS = 80, 900
ATTACHED = "attached-"
"""Before the name of a scenario that is played without a hook."""
LOW = frozenset({"low-util", "util-fluctuation", "periodic-dips"})
"""What a GPU that idles for any reason may be called in addition to the reason."""

Holds = Callable[[Truth], bool]


def is_starved(truth: Truth) -> bool:
    """Loading costs more than the rules' threshold."""
    return truth.data_loss >= STARVED


def is_fed(truth: Truth) -> bool:
    """Loading costs next to nothing, and the GPU is busy."""
    return truth.data_loss <= FED and truth.in_step_idle <= 0.06


def is_anything(truth: Truth) -> bool:
    """The label does not hang on the loading."""
    return truth.data_loss <= FED


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of the suite.

    `never` are rules that would be wrong at any severity, `onset` the second at which it begins, `deadline` the
    seconds from there (or from the 30th step, if that is later) within which a rule has to have fired, `cause` what
    data-starvation is to name.
    """

    id: str
    title: str
    job: Job
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    cause: str | None = None
    seconds: int = 120
    onset: float = 0.0
    deadline: float = 90.0
    deadlines: Mapping[str, float] = field(default_factory=dict)
    holds: Holds = is_fed
    fixed: bool = False  # its parameters are drawn by itself, not perturbed
    hooked: bool = True  # else it is attached to: seen by its stacks, its loaders' counters and /proc
    make: Callable[[Job, random.Random], Job] | None = None
    every: int = 1  # played for one seed in n: 8 where a stream lasts an hour
    unlabelled: bool = False  # nothing is to be found: every finding's change is tried instead

    @property
    def stream(self) -> str:
        """What it is called with a hook: the same draws are seen from outside."""
        return self.id.removeprefix(ATTACHED)

    def is_played(self, seed: int) -> bool:
        """Whether this seed is one of its."""
        return seed % self.every in ({1, 2} if self.every > 2 else {0, 1})

    def ends(self, seed: int) -> frozenset[str]:
        """What has to be unsaid when the trouble passes, where that is played for this seed."""
        return self.must - STAYING if seed <= CLEARING_SEEDS else frozenset()

    @property
    def healthy(self) -> bool:
        """Whether no warning may be said of it; of the borderline one some may."""
        return self.stream.startswith("H") and "data-starvation" not in self.may


@dataclass(frozen=True, slots=True)
class Draw:
    """A scenario's job for one seed. `tried`: draws whose truth did not deserve the label come before it."""

    scenario: Scenario
    seed: int
    job: Job
    truth: Truth
    tried: int

    @property
    def name(self) -> str:
        """What seeds everything random in it."""
        return f"{self.scenario.stream} {self.seed}"

    @property
    def seconds(self) -> int:
        """How long it is played: an unlabelled job as long as 80 steps take behind its first batch, within bounds."""
        if not self.scenario.unlabelled:
            return self.scenario.seconds
        loading = self.job.loading
        first_batch = (loading.cpu_seconds + loading.io_seconds) * max(1.0, loading.workers / self.job.host.cores)
        steps = UNLABELLED_STEPS * loading.batch_size / self.truth.samples_per_second
        return round(min(max(self.scenario.seconds, first_batch + steps), MOST_UNLABELLED_SECONDS))


@cache
def _drawn(scenario_id: str, seed: int) -> Draw:
    from tests.scenarios.attached import EVERY
    from tests.scenarios.random_jobs import RANDOM

    scenario = RANDOM.get(scenario_id) or EVERY[scenario_id]
    rng = random.Random(f"{scenario.stream} {seed} parameters")
    for tried in range(DRAWS):
        job = scenario.job if scenario.fixed else perturbed(scenario.job, rng)
        if scenario.make is not None:
            job = scenario.make(job, rng)
        truth = truth_of(job, f"{scenario.stream} {seed}")
        if scenario.holds(truth):
            return Draw(scenario, seed, job, truth, tried)
    raise RuntimeError(f"{scenario.id}, seed {seed}: none of {DRAWS} draws deserves its label")


def draw(scenario: Scenario, seed: int) -> Draw:
    """The job of one seed: each physical quantity off by up to 30%, drawn anew until the label is true of it.

    Raises:
        RuntimeError: the label is true of none of 60 draws.
    """
    return _drawn(scenario.id, seed)
