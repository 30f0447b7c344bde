"""What it takes to report a finding and to clear it; one which fades ends with the newest half of the window."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Finding, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import Rule, RunCase, rule
from gpuwatch.timeline.windows import Scene
from tests.unit.scene_builder import later, rank, run, scene


class Level10And6:
    """A rule that fires at 0.10 and clears below 0.06, on a value that the test sets."""

    def __init__(self) -> None:
        self.value: float | None = 0.0
        self.judged = 0

    def __call__(self, case: RunCase) -> Draft | None:
        self.judged += 1
        if self.value is None or self.value < 0.06:
            return None
        return Draft(
            summary=f"{self.value:.2f} is lost",
            severity=Severity.WARNING,
            level=Level.E3,
            evidence=(Measure("share", self.value, f"{self.value:.2f}"),),
            fires=self.value >= 0.10,
        )


def a_rule(check: Callable[..., Draft | None], **fields: object) -> Rule:
    usual: dict[str, object] = {"family": "data", "subject": "run", "level": Level.E2, "title": "", "page": ""}
    return Rule(id=str(fields.pop("id", "lossy")), check=check, **(usual | fields))  # type: ignore[arg-type]


class Bench:
    """An engine with one rule, and a clock that the test moves."""

    def __init__(self, **fields: object) -> None:
        self.check = Level10And6()
        self.engine = Engine([a_rule(self.check, **fields)])
        self.seconds = 0.0
        self.moment = scene(run(rank()))

    def see(self, value: float | None, *, after: float = 5.0) -> tuple[Finding, ...]:
        self.seconds += after
        self.check.value = value
        return self.engine.evaluate(later(self.moment, self.seconds))

    def see_all(self, *values: float | None) -> tuple[Finding, ...]:
        said: tuple[Finding, ...] = ()
        for value in values:
            said = self.see(value)
        return said


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_evaluation_is_pending_two_in_a_row_fire(bench: Bench) -> None:
    assert bench.see(0.2) == ()
    assert bench.engine.pending == (("lossy", bench.moment.runs[0].id),)
    (finding,) = bench.see(0.2)
    assert (finding.rule, finding.state, finding.run) == ("lossy", "firing", bench.moment.runs[0].id)


def test_an_interruption_starts_the_count_again(bench: Bench) -> None:
    assert bench.see_all(0.2, 0.0, 0.2) == ()
    assert bench.see(0.2) != ()


def test_between_the_thresholds_nothing_starts_and_nothing_ends(bench: Bench) -> None:
    assert bench.see_all(0.08, 0.08, 0.08) == ()
    bench.see_all(0.2, 0.2)
    (finding,) = bench.see_all(*[0.08] * 30)
    assert finding.state == "firing"
    assert finding.summary == "0.08 is lost"


def test_it_clears_after_six_evaluations_below_and_keeps_its_last_words_until_then(bench: Bench) -> None:
    bench.see_all(0.2, 0.3)
    for _ in range(5):
        (finding,) = bench.see(0.0)
        assert (finding.state, finding.summary) == ("clearing", "0.30 is lost")
    assert bench.see(0.0) == ()


def test_a_value_between_the_thresholds_stops_the_clearing(bench: Bench) -> None:
    bench.see_all(0.2, 0.2, *[0.0] * 5)
    assert bench.see(0.07)[0].state == "firing"
    assert bench.see_all(*[0.0] * 5) != ()
    assert bench.see(0.0) == ()


def test_a_finding_stands_for_thirty_seconds_however_fast_its_rule_clears() -> None:
    bench = Bench(clear_after=1)
    bench.see_all(0.2, 0.2)
    assert all(bench.see(0.0) for _ in range(5))
    assert bench.see(0.0) == ()


def test_evaluations_in_quick_succession_are_one_witness(bench: Bench) -> None:
    bench.see(0.2)
    assert bench.see(0.2, after=0.1) == ()
    assert bench.see(0.2, after=0.1) == ()
    assert bench.see(0.2, after=4.8) != ()
    for _ in range(40):
        bench.see(0.0, after=0.1)
    assert bench.see(0.0, after=0.1)[0].state == "clearing"


def test_rare_evaluations_count_as_well(bench: Bench) -> None:
    bench.see(0.2, after=60.0)
    assert bench.see(0.2, after=60.0) != ()


def test_the_beginning_is_when_the_condition_was_first_seen(bench: Bench) -> None:
    first = bench.moment.now_ns + 5_000_000_000
    assert bench.see_all(0.2, 0.2, 0.2)[0].since_ns == first


def test_firing_again_within_ten_minutes_is_the_same_incident(bench: Bench) -> None:
    first = bench.see_all(0.2, 0.2)[0]
    assert bench.see_all(*[0.0] * 20) == ()
    again = bench.see_all(0.2, 0.2)[0]
    assert (again.since_ns, again.incidents) == (first.since_ns, 1)


def test_firing_again_after_ten_minutes_is_a_new_incident(bench: Bench) -> None:
    first = bench.see_all(0.2, 0.2)[0]
    assert bench.see_all(*[0.0] * 140) == ()
    again = bench.see_all(0.2, 0.2)[0]
    assert again.since_ns > first.since_ns
    assert again.incidents == 2


def test_a_borderline_stream_of_one_hour_hardly_flips(bench: Bench) -> None:
    rng = random.Random(7)
    flips, was = 0, False
    for _ in range(720):
        now = bool(bench.see(rng.gauss(0.10, 0.03)))
        flips += now != was
        was = now
    assert flips <= 4


def test_a_run_that_leaves_takes_its_findings_along(bench: Bench) -> None:
    bench.see_all(0.2, 0.2)
    assert bench.engine.evaluate(later(scene(), bench.seconds + 5)) == ()
    assert bench.see(0.2, after=10.0) == ()


def test_a_clock_that_goes_back_starts_afresh(bench: Bench) -> None:
    bench.see_all(0.2, 0.2)
    assert bench.see(0.2, after=-5.0) == ()
    assert bench.see(0.2) != ()


def test_the_same_scenes_give_the_same_findings() -> None:
    values = [random.Random(3).random() / 4 for _ in range(200)]
    first, second = Bench(), Bench()
    assert [first.see(value) for value in values] == [second.see(value) for value in values]


class Promising(Bench):
    """A rule of a run that always fires, with the gain that the test sets: what it brings at least and at most."""

    def __init__(self) -> None:
        super().__init__()

        def check(case: RunCase) -> Draft:
            low, high = self.gain
            return Draft("a loss", Severity.WARNING, Level.E3, (), gain=Gain(low, high))

        self.gain = (1.2, 1.4)
        self.engine = Engine([rule("lossy", family="data", subject="run", level=Level.E2)(check)])

    def promise(self, low: float, high: float) -> Severity:
        self.gain = low, high
        (finding,) = self.see(None)
        return finding.severity


def test_a_warning_whose_gain_is_borderline_does_not_alternate_with_a_note() -> None:
    rng, bench = random.Random(3), Promising()
    bench.see_all(None, None)
    shown = [bench.promise(rng.uniform(1.004, 1.016), rng.uniform(1.08, 1.11)) for _ in range(720)]
    assert sum(one is not other for one, other in pairwise(shown)) <= 1


def test_a_warning_that_may_bring_nothing_becomes_a_note_once_that_lasts() -> None:
    bench = Promising()
    bench.see_all(None, None)
    assert [bench.promise(1.0, 1.2) for _ in range(6)] == [Severity.WARNING] * 5 + [Severity.INFO]
    assert [bench.promise(1.007, 1.1) for _ in range(6)] == [Severity.INFO] * 6
    assert [bench.promise(1.1, 1.2) for _ in range(2)] == [Severity.INFO, Severity.WARNING]


def test_one_that_is_a_note_at_first_fires_as_one() -> None:
    bench = Promising()
    bench.gain = (1.0, 1.2)
    (finding,) = bench.see_all(None, None)
    assert finding.severity is Severity.INFO


def waits(case: RunCase) -> Draft | None:
    share = case.run.critical.wait_share or 0.0
    if share < 0.06:
        return None
    measure = Measure("share", share, f"{share:.2f}")
    return Draft("waits", Severity.WARNING, Level.E3, (measure,), fires=share >= 0.10)


def lossy(*, fades: bool) -> Rule:
    return Rule("lossy", "data", "run", Level.E2, waits, title="", page="", fades=fades)


def minute(share: float, newest_share: float | None, *, newest_steps: int = 100) -> Scene:
    whole = scene(run(rank(step=0.1, wait=0.1 * share)))
    if newest_share is None:
        return whole
    newest = scene(run(rank(step=0.1, wait=0.1 * newest_share, steps=newest_steps)))
    return replace(whole, newest_half=lambda: newest)


def said_for(rule: Rule, ending: Scene, evaluations: int = 12) -> int:
    """How many evaluations a finding lasts once `ending` is all that is seen."""
    engine = Engine([rule])
    lasting = minute(0.5, 0.5)
    for number in range(10):
        assert bool(engine.evaluate(later(lasting, 5.0 * number))) is (number > 0)
    said = [bool(engine.evaluate(later(ending, 50.0 + 5.0 * number))) for number in range(evaluations)]
    assert said == sorted(said, reverse=True)
    return sum(said)


def test_six_evaluations_of_a_clean_newest_half_unsay_it() -> None:
    assert said_for(lossy(fades=True), minute(0.4, 0.0)) == 5


@pytest.mark.parametrize(
    ("rule", "ending"),
    [
        pytest.param(lossy(fades=False), minute(0.4, 0.0), id="a rule of what comes once in a while"),
        pytest.param(lossy(fades=True), minute(0.4, 0.07), id="the newest half lies between the thresholds"),
        pytest.param(lossy(fades=True), minute(0.4, 0.0, newest_steps=20), id="too few steps in it"),
        pytest.param(lossy(fades=True), minute(0.4, None), id="a window too short to be halved"),
    ],
)
def test_else_the_whole_window_counts(rule: Rule, ending: Scene) -> None:
    assert said_for(rule, ending) == 12


def test_the_newest_half_is_not_made_while_nothing_fires() -> None:
    def never() -> Scene:
        raise AssertionError("made in vain")

    engine = Engine([lossy(fades=True)])
    for number in range(3):
        assert engine.evaluate(later(replace(minute(0.0, None), newest_half=never), 5.0 * number)) == ()
