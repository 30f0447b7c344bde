"""The search of `gpuwatch tune`: tries what the findings of a first run advise, keeps what is proved faster.

One change after another, in the order of the plan, on top of what was kept before. A change is tried in turns with the
settings that it is to replace, and is dropped as soon as its runs leave it no chance. Changes without a promise come
last, first all of them together: where that brings nothing, none of them is tried alone. In the end all that was kept
is compared with the program as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.finding import Finding, Gain
from gpuwatch.statistics import geometric_mean
from gpuwatch.trial.changes import LOADER, Arm, Change, Place, parse_change
from gpuwatch.trial.experiment import OnProgress, already_so, ineffective, loader_place, nothing_to_compare
from gpuwatch.trial.results import Judgement, Metric, RunResult, judge

SLOWER = 0.9
"""After one run each: a change that is so much slower gets no second one. Runs of one program scatter by less."""
LIKELY = 0.5
"""After two runs each: of the change that they can show. A third run hardly proves less than that."""
CERTAIN = 8.0
"""Of the standard error that the parts of four runs give: runs can agree by chance, parts of them hardly. Runs of one
program on two shared cores scattered 4%, and their parts gave 0.9%: among four of them the third pair was made in 0.5%
of cases, and in 3% without this."""
PLAIN = 1.25
"""A third run judges a change so large, whatever the parts of the first two say."""
MORE_RUNS = 2
"""Of each, beyond those that were asked for, where every run with a change is plainly faster than every run without it
and the runs of one of them scatter too much to prove it: with OpenBLAS threads in four workers on two cores, runs made
14, 3 and 11 samples/s, and 83 with one thread in each."""
MOST_WORKERS = 64


NOT_JUDGED = Judgement("-")


class Runs(Protocol):
    """What makes the runs."""

    def look(self, on_progress: OnProgress) -> tuple[RunResult, tuple[Finding, ...]]:
        """A run as it is that does not count, and what the rules find in it."""

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: OnProgress) -> RunResult:
        """One run of an arm."""


class Narrator(Protocol):
    """Reports the progress to the user."""

    def begins(self, arm: Arm, place: int) -> OnProgress:
        """A run begins: place 0 is the first look. Returns what is called about once a second."""

    def ended(self, run: RunResult) -> None:
        """The run that had begun has ended."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Changes that belong together, the rule that advises them, and what it promises."""

    changes: tuple[Change, ...]
    rule: str
    gain: Gain | None = None

    @property
    def label(self) -> str:
        """As on the command line of a trial."""
        return Arm(self.changes).label


Outcome = Literal["kept", "dropped", "did not take effect", "failed", "not tried"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of a candidate; the judgement is against what was kept before it."""

    candidate: Candidate
    outcome: Outcome
    judgement: Judgement = NOT_JUDGED
    reason: str | None = None  # why it failed, had no effect or was not tried
    runs: int = 0  # with it, that count

    @property
    def runs_needed(self) -> int | None:
        """How many runs of each would show what these hint at, four times of five; None where they hint at nothing.

        What a number of runs can show falls with its square root.
        """
        ratio, detectable = self.judgement.ratio, self.judgement.detectable
        if self.judgement.verdict != "no detectable change" or not detectable or ratio is None or ratio <= 1.0:
            return None
        return math.ceil(self.runs * (math.log1p(detectable) / math.log(ratio)) ** 2)


def advised(findings: Sequence[Finding], *, only_loader: bool) -> tuple[Candidate, ...]:
    """What the findings of a run advise and a trial can set, in the order of the plan; first what brings most.

    A finding that comes after another one waits for its turn: the first run of that change shows whether it is left.
    """
    found: dict[tuple[Change, ...], Candidate] = {}
    for finding in findings:
        settings = finding.fix.trial_settings if finding.fix is not None and finding.behind is None else None
        if settings is None or (only_loader and not settings.keys() <= LOADER):
            continue
        changes = tuple(parse_change(f"{name}={value}") for name, value in settings.items())
        # The symptom repeats the fix of its cause, and comes before it.
        found[changes] = Candidate(changes, finding.rule, finding.gain)
    return tuple(sorted(found.values(), key=lambda each: -(middle(each.gain) if each.gain else 1.0)))


def not_tried(findings: Sequence[Finding]) -> list[str]:
    """What the findings advise and no search may set, in the rule's own words: autocast changes numbers."""
    return [
        f"not tried, because autocast changes numbers ({each.rule}): {each.fix.text}; {each.hint}"
        for each in findings
        if each.rule == "amp-off" and each.fix is not None
    ]


@dataclass(slots=True)
class Tuning:
    """The search.

    Args:
        command: the program as it is.
        environment: its usual one.
        runs_per_arm: how often what is kept is run, at least.
        min_effect: the least change that counts, 0.02 for 2%.
        only_loader: whether only settings of the DataLoader are tried.
        has_time: whether one more run fits into the budget.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    runs_per_arm: int = 3
    min_effect: float = 0.02
    only_loader: bool = False
    has_time: Callable[[], bool] = lambda: True
    first: RunResult | None = None
    kept: Arm = field(default_factory=Arm)
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    ran_out: bool = False
    _runs: dict[Arm, list[RunResult]] = field(default_factory=dict)
    _made: int = 0

    def perform(self, runs: Runs, narrator: Narrator) -> None:
        """Makes the runs, up to the end, the end of the budget or the user's wish.

        Raises:
            TrialError: the program as it is gives no figure.
        """
        self.first, findings = runs.look(narrator.begins(Arm(), 0))
        narrator.ended(self.first)
        if self.first.interrupted:
            self.interrupted = True
            return
        if self.first.failure is not None:
            raise nothing_to_compare(self.first.failure)
        if not self.only_loader:
            self.notes += not_tried(findings)
        found = advised(findings, only_loader=self.only_loader)
        self._try([each for each in found if each.gain is not None], runs, narrator)
        hinted = [each for each in found if each.gain is None and not self._is_so(each)]
        if not self._bring_nothing(hinted, runs, narrator):
            self._try(hinted, runs, narrator)
        if self.kept.changes:
            self._close(runs, narrator)

    def _try(self, waiting: list[Candidate], runs: Runs, narrator: Narrator) -> None:
        """One after another, each on top of what was kept before."""
        while waiting and not self.interrupted:
            candidate = waiting.pop(0)
            if candidate.gain is not None and candidate.gain.high < 1.0 + self.min_effect:
                continue
            attempt = self._tried(candidate, runs, narrator)
            if attempt is None:
                continue
            self.attempts.append(attempt)
            if attempt.outcome == "kept":
                waiting[:0] = self._further(candidate)

    def _bring_nothing(self, hinted: Sequence[Candidate], runs: Runs, narrator: Narrator) -> bool:
        """Whether several changes together make no difference: two runs in place of two for each.

        Where they slow the program down, or one of them fails, another one may still help.
        """
        if len(hinted) < 2:
            return False
        before = self.kept
        changes = {change.name: change for each in reversed(hinted) for change in each.changes}
        together = Candidate(tuple(changes.values())[::-1], ", ".join(dict.fromkeys(each.rule for each in hinted)))
        attempt = self._tried(together, runs, narrator)
        self.kept = before
        ratio = attempt.judgement.ratio if attempt is not None else None
        if attempt is None or attempt.outcome != "dropped" or ratio is None or ratio < SLOWER:
            return False
        self.attempts.append(attempt)
        return True

    @property
    def metric(self) -> Metric:
        """What speeds are compared in."""
        counted = [run for runs in self._runs.values() for run in runs if run.counts]
        unknown = any(run.steady is not None and run.steady.samples_per_second is None for run in counted)
        return "steps_per_second" if unknown else "samples_per_second"

    @property
    def total(self) -> Judgement:
        """All that was kept against the program as it is."""
        if not self.kept.changes:
            return NOT_JUDGED
        return self._judged(Arm(), self.kept)

    @property
    def is_proved(self) -> bool:
        """Whether all that was kept is faster together than the program as it is."""
        return self.total.verdict == "faster"

    @property
    def runs_made(self) -> int:
        """All of them, the first look included."""
        return self._made + (self.first is not None)

    def _tried(self, candidate: Candidate, runs: Runs, narrator: Narrator) -> Attempt | None:
        """None where the program does it already."""
        assert self.first is not None
        if self._is_so(candidate):
            return None
        arm = _on_top(self.kept, candidate.changes)
        for turn in range(self.runs_per_arm + MORE_RUNS):
            if turn >= self.runs_per_arm and (self._is_proved(arm) or not self._is_plainly_faster(arm)):
                break
            for each in (self.kept, arm):
                while len(self._runs.get(each, ())) <= turn:
                    run = self._run(each, runs, narrator)
                    if run is None or (run.failure is not None and each is not arm):
                        return Attempt(candidate, "not tried", self._judged(self.kept, arm), self._why_not())
                    if run.failure is not None:
                        return Attempt(candidate, "failed", reason=run.failure.reason)
                    missing = ineffective(Arm(candidate.changes), run) if each is arm else ()
                    if missing and len(missing) == len(candidate.changes):
                        return Attempt(candidate, "did not take effect", reason=missing[0][1])
            if self._is_hopeless(arm):
                break
        judgement = self._judged(self.kept, arm)
        count = len(self.rates(arm))
        if judgement.verdict == "faster" and (least := self._least(arm)) > (judgement.ratio or 1.0) and count == 2:
            # The interval of four runs that agree by chance leaves out what their parts do not.
            judgement = replace(judgement, verdict="no detectable change", interval=None, detectable=least - 1.0)
        if judgement.verdict != "faster":
            return Attempt(candidate, "dropped", judgement, runs=count)
        self.kept = arm
        return Attempt(candidate, "kept", judgement, runs=count)

    def _is_so(self, candidate: Candidate) -> bool:
        kept = {change.name for change in self.kept.changes}
        if all(change in self.kept.changes for change in candidate.changes):
            return True
        left = tuple(change for change in candidate.changes if change.name not in kept)
        assert self.first is not None
        is_so = already_so(Arm(left), self.first, self.command, self.environment)
        return is_so and len(left) == len(candidate.changes)

    def _run(self, arm: Arm, runs: Runs, narrator: Narrator) -> RunResult | None:
        """One more of an arm; None where there is no time for it, or the user has ended it."""
        assert self.first is not None
        if self.interrupted or not self.has_time():
            self.ran_out = self.ran_out or not self.interrupted
            return None
        run = runs.run(arm, loader_place(self.first), self._made, narrator.begins(arm, self._made + 1))
        narrator.ended(run)
        self._made += 1
        if run.interrupted:
            self.interrupted = True
            return None
        if run.failure is not None and not arm.changes and not self.rates(arm):
            raise nothing_to_compare(run.failure)
        self._runs.setdefault(arm, []).append(run)
        return run

    def _why_not(self) -> str:
        if self.interrupted:
            return "stopped"
        return "the budget was used up" if self.ran_out else "what it was to be compared with failed"

    def _is_proved(self, arm: Arm) -> bool:
        return self._judged(self.kept, arm).verdict == "faster"

    def _is_plainly_faster(self, arm: Arm) -> bool:
        """Whether each of several runs with the change is plainly faster than each without it."""
        before, after = self.rates(self.kept), self.rates(arm)
        return len(after) > 1 and min(after) > PLAIN * max(before)

    def _is_hopeless(self, arm: Arm) -> bool:
        if self._is_plainly_faster(arm):
            return False
        before, after = self.rates(self.kept), self.rates(arm)
        first, second = geometric_mean(before), geometric_mean(after)
        if first is None or second is None:
            return True
        if len(after) == 1:
            return second < first * SLOWER
        return second < first * self._least(arm)

    def _least(self, arm: Arm) -> float:
        """The factor from which on an arm that was run twice is run again."""
        judgement = self._judged(self.kept, arm)
        unsteady = min(PLAIN - 1.0, math.expm1(CERTAIN * math.hypot(self._error(self.kept), self._error(arm))))
        return 1.0 + max(self.min_effect, LIKELY * (judgement.detectable or 0.0), unsteady)

    def _error(self, arm: Arm) -> float:
        """The standard error of an arm's mean speed as a share, as far as the parts of its runs show it."""
        found = [run.steady.error or 0.0 for run in self._runs.get(arm, ()) if run.counts and run.steady is not None]
        return math.hypot(*found) / max(1, len(found))

    def _further(self, candidate: Candidate) -> Iterator[Candidate]:
        """Twice as many workers as those that were kept: the advice comes of what one batch takes with today's."""
        count = next((change.value for change in candidate.changes if change.name == "num_workers"), None)
        if isinstance(count, int) and 0 < 2 * count <= MOST_WORKERS:
            yield Candidate((Change("num_workers", 2 * count),), candidate.rule)

    def _close(self, runs: Runs, narrator: Narrator) -> None:
        """One more run of both: what drifted while settings were tried is in the scatter, not in the factor."""
        for arm in (Arm(), self.kept):
            self._run(arm, runs, narrator)

    def rates(self, arm: Arm) -> list[float]:
        """The speed of each run of an arm that counts."""
        found = [getattr(run.steady, self.metric) for run in self._runs.get(arm, ()) if run.counts]
        return [rate for rate in found if rate is not None]

    def _judged(self, before: Arm, after: Arm) -> Judgement:
        (judgement,) = judge(self.rates(before), [self.rates(after)], self.min_effect)
        return judgement


def _on_top(arm: Arm, changes: tuple[Change, ...]) -> Arm:
    names = {change.name for change in changes}
    return Arm((*(each for each in arm.changes if each.name not in names), *changes))
