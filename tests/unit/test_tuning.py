"""The search of `gpuwatch tune` over made-up runs: what is tried, what is kept, and when it stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from trial_runs import Silent, facts, run, seen_with

from gpuwatch.diagnosis.finding import CallEdit, Edit, Finding, Fix, Gain, Level, SetupEdit, Severity, TransferEdit
from gpuwatch.trial.changes import Arm, Change, Place, TrialError
from gpuwatch.trial.results import Failure, Judgement, RunResult
from gpuwatch.trial.tuned import TuneResult, document, headline, render_markdown, render_text
from gpuwatch.trial.tuning import Attempt, Candidate, Tuning, advised

WORKERS = CallEdit("DataLoader", "/home/me/train.py", 12, {"num_workers": "4", "persistent_workers": "True"})
PINNED = CallEdit("DataLoader", "/home/me/train.py", 12, {"pin_memory": "True"})
TF32 = SetupEdit("/home/me/train.py", 'torch.set_float32_matmul_precision("high")')


def finding(rule: str, edit: Edit | None, low: float = 1.5, high: float = 2.0, **more: Any) -> Finding:
    fix = Fix("change it", edit=edit) if edit is not None else None
    usual: dict[str, Any] = {"gain": Gain(low, high), "fix": fix, "run": "9.7", "state": "firing", "since_ns": 0}
    return Finding(rule, Severity.WARNING, Level.E2, "it waits", (), **(usual | more))


@dataclass
class FakeRuns:
    """Makes up the speed of each run from its arm."""

    speed: Callable[[Arm], float | None]
    findings: tuple[Finding, ...] = ()
    first: RunResult = field(default_factory=lambda: run(of=facts(device="cuda:0")))
    scatter: float = 0.003
    made: list[str] = field(default_factory=list)
    stop_at: int | None = None
    _random: random.Random = field(default_factory=lambda: random.Random(3))

    def look(self, on_progress: Any) -> tuple[RunResult, tuple[Finding, ...]]:
        return self.first, self.findings

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
        self.made.append(arm.label)
        if self.stop_at == len(self.made):
            return RunResult(place, None, None, interrupted=True)
        speed = self.speed(arm)
        if speed is None:
            return run(place, None, failure=Failure("it was killed by SIGKILL", -9))
        return run(place, speed * self._random.gauss(1.0, self.scatter), of=replace(seen_with(arm), device="cuda:0"))


def tuned(runs: FakeRuns, **settings: Any) -> Tuning:
    tuning = Tuning(["python", "train.py"], {}, **settings)
    tuning.perform(runs, Silent())
    return tuning


def workers_of(arm: Arm) -> int:
    return int(arm.of(frozenset({"num_workers"})).get("num_workers", 0) or 0)


def by_workers(arm: Arm) -> float:
    return 100.0 * min(4, 1 + workers_of(arm))


class TestWhatIsTried:
    def test_settings_that_findings_advise_come_with_the_largest_promise_first(self) -> None:
        found = advised(
            [finding("tf32-off", TF32, 1.1, 1.2), finding("workers-zero", WORKERS, 2.0, 3.0)], only_loader=False
        )
        assert [each.label for each in found] == ["num_workers=4 persistent_workers=true", "tf32=true"]

    def test_a_symptom_that_repeats_the_fix_of_its_cause_is_tried_once_and_as_the_cause(self) -> None:
        (only,) = advised([finding("data-starvation", WORKERS), finding("workers-zero", WORKERS)], only_loader=False)
        assert only.rule == "workers-zero"

    @pytest.mark.parametrize(
        "one",
        [
            finding("no-fix", None),
            finding("later", WORKERS, behind="step-stalled"),
            finding("evaluation", None, fix=Fix("for the evaluation", edit=WORKERS, can_be_tried=False)),
            finding("by-hand", CallEdit("DataLoader", "/home/me/train.py", 12, {"worker_init_fn": "seed"})),
        ],
        ids=lambda each: each.rule,
    )
    def test_what_no_run_can_try_or_that_waits_for_another_is_left_out(self, one: Finding) -> None:
        assert advised([one], only_loader=False) == ()

    def test_thread_counts_are_tried_as_variables_that_the_program_is_started_with(self) -> None:
        crowd = finding("crowd", None, fix=Fix("one thread", environment=(("OPENBLAS_NUM_THREADS", "1"),)))
        assert [each.label for each in advised([crowd], only_loader=False)] == ["env.OPENBLAS_NUM_THREADS=1"]
        assert advised([crowd], only_loader=True) == ()

    def test_only_the_loader_leaves_everything_else_alone(self) -> None:
        found = [finding("tf32-off", TF32), finding("copies", TransferEdit("t.py", 3)), finding("zero", WORKERS)]
        assert [each.rule for each in advised(found, only_loader=True)] == ["zero"]

    def test_what_promises_less_than_counts_is_not_tried(self) -> None:
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS, 1.0, 1.01),))
        assert tuned(runs).attempts == [] and runs.made == []

    def test_autocast_is_advised_in_the_words_of_its_rule_and_never_tried(self) -> None:
        fix, hint = Fix("Run forward and loss under autocast in bfloat16"), "1.0-2.6x for this run"
        runs = FakeRuns(by_workers, (finding("amp-off", None, fix=fix, gain=None, hint=hint),))
        tuning = tuned(runs)
        assert runs.made == [] and "nothing to gain" in headline(TuneResult(tuning, 20.0, None))
        said = f"not tried, because autocast changes numbers (amp-off): {fix.text}; {hint}"
        assert said in render_text(TuneResult(tuning, 20.0, None))
        assert tuned(runs, only_loader=True).notes == []

    def test_what_the_program_does_already_is_not_tried(self) -> None:
        loader = replace(facts().loaders[0], num_workers=4, persistent_workers=True)
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS),), first=run(of=facts(loader)))
        assert tuned(runs).attempts == [] and runs.made == []


class TestWhatIsKept:
    def test_the_faster_setting_is_kept_and_more_workers_are_tried_after_it(self) -> None:
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS),))
        tuning = tuned(runs)
        assert [(each.candidate.label, each.outcome) for each in tuning.attempts] == [
            ("num_workers=4 persistent_workers=true", "kept"),
            ("num_workers=8", "dropped"),
        ]
        assert tuning.kept.label == "num_workers=4 persistent_workers=true"
        assert tuning.is_proved and tuning.total.ratio == pytest.approx(4.0, rel=0.02)

    def test_more_workers_are_tried_on_until_they_bring_nothing(self) -> None:
        runs = FakeRuns(lambda arm: 100.0 * min(30, 1 + workers_of(arm)), (finding("workers-zero", WORKERS),))
        assert workers_of(tuned(runs).kept) == 32

    def test_each_setting_is_tried_on_top_of_what_was_kept(self) -> None:
        def speed(arm: Arm) -> float:
            return by_workers(arm) * (1.2 if Change("pin_memory", True) in arm.changes else 1.0)

        runs = FakeRuns(speed, (finding("workers-zero", WORKERS), finding("pageable", PINNED, 1.1, 1.3)))
        tuning = tuned(runs)
        assert tuning.kept.of(frozenset({"num_workers", "pin_memory"})) == {"num_workers": 4, "pin_memory": True}
        assert tuning.total.ratio == pytest.approx(4.8, rel=0.03)

    def test_runs_alternate_between_the_new_setting_and_what_it_replaces(self) -> None:
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS),))
        tuned(runs)
        new = "num_workers=4 persistent_workers=true"
        assert runs.made[:6] == ["unchanged", new] * 3
        assert runs.made[-2:] == ["unchanged", new]

    def test_a_setting_that_slows_down_gets_one_run(self) -> None:
        runs = FakeRuns(lambda arm: 50.0 if arm.changes else 100.0, (finding("workers-zero", WORKERS),))
        tuning = tuned(runs)
        assert (len(runs.made), tuning.kept.changes) == (2, ())
        assert "dropped: slower in its first run" in render_text(TuneResult(tuning, 20.0, None))

    def test_where_nothing_helps_it_takes_five_runs_and_says_so(self) -> None:
        runs = FakeRuns(lambda arm: 100.0, (finding("workers-zero", WORKERS),))
        tuning = tuned(runs)
        assert tuning.runs_made <= 5 and not tuning.kept.changes
        assert headline(TuneResult(tuning, 20.0, None)).startswith("nothing to gain: nothing that was tried")

    def hints(self, count: int) -> tuple[Finding, ...]:
        """Findings that promise nothing."""
        keywords = ({"pin_memory": "True"}, {"num_workers": "1"}, {"in_order": "False"})
        edits = [CallEdit("DataLoader", "/home/me/train.py", 12, each) for each in keywords]
        return tuple(finding(f"hint-{place}", edit, gain=None) for place, edit in enumerate(edits[:count]))

    def test_where_none_of_several_hints_helps_it_takes_five_runs_too(self) -> None:
        tuning = tuned(FakeRuns(lambda arm: 100.0, self.hints(3)))
        assert tuning.runs_made == 5
        (attempt,) = tuning.attempts
        assert attempt.outcome == "dropped"
        assert attempt.candidate.label == "pin_memory=true num_workers=1 in_order=false"

    @pytest.mark.parametrize("others", [1.0, 0.7], ids=["the others bring nothing", "another one slows it down"])
    def test_of_several_hints_the_one_that_helps_is_found(self, others: float) -> None:
        def speed(arm: Arm) -> float:
            names = {change.name for change in arm.changes}
            return 100.0 * (1.2 if "in_order" in names else 1.0) * (others if "pin_memory" in names else 1.0)

        tuning = tuned(FakeRuns(speed, self.hints(3)))
        assert tuning.kept.label == "in_order=false" and tuning.is_proved
        assert [each.outcome for each in tuning.attempts] == ["dropped", "dropped", "kept"]

    def test_hints_that_fail_together_are_tried_alone(self) -> None:
        tuning = tuned(FakeRuns(lambda arm: None if len(arm.changes) > 1 else 100.0, self.hints(2)))
        assert [each.outcome for each in tuning.attempts] == ["dropped", "dropped"]

    def test_a_change_that_is_plainly_faster_gets_the_runs_that_prove_it(self) -> None:
        rates = iter([14.0, 3.2, 11.0, 9.0, 12.0, 10.0, 13.0])
        runs = FakeRuns(lambda arm: 83.0 if arm.changes else next(rates), (finding("crowd", WORKERS),))
        tuning = tuned(runs)
        assert tuning.attempts[0].outcome == "kept" and tuning.is_proved
        assert tuning.attempts[0].runs in (3, 4, 5)

    def test_what_cannot_be_proved_though_it_is_much_faster_is_not_called_nothing(self) -> None:
        rates = iter([0.2, 60.0] * 9)
        runs = FakeRuns(lambda arm: 83.0 if arm.changes else next(rates), (finding("crowd", WORKERS),))
        text = render_text(TuneResult(tuned(runs), 6.0, None))
        assert "Result: not proved: num_workers=4 persistent_workers=true seems to be" in text
        assert "nothing to gain" not in text

    def test_a_promise_is_tried_by_itself(self) -> None:
        tuning = tuned(FakeRuns(by_workers, (finding("workers-zero", WORKERS), *self.hints(2))))
        assert tuning.attempts[0].candidate.rule == "workers-zero" and tuning.attempts[0].outcome == "kept"

    @pytest.mark.parametrize("scatter", [0.002, 0.01, 0.05])
    def test_a_program_against_itself_seldom_wins(self, scatter: float) -> None:
        wins = 0
        for seed in range(200):
            runs = FakeRuns(lambda arm: 100.0, (finding("workers-zero", WORKERS),), scatter=scatter)
            runs._random = random.Random(seed)
            wins += tuned(runs).is_proved
        assert wins <= 10  # 5% of 200

    def test_where_runs_scatter_too_much_to_show_a_little_it_ends_after_five(self) -> None:
        ended = []
        for seed in range(40):
            runs = FakeRuns(lambda arm: 100.0, (finding("workers-zero", WORKERS),), scatter=0.1)
            runs._random = random.Random(seed)
            ended.append(tuned(runs).runs_made)
        assert sum(made <= 5 for made in ended) >= 36

    @pytest.mark.parametrize(
        ("change", "error", "goes_on"), [(1.05, 0.02, False), (1.05, 0.001, True), (1.3, 0.1, True)]
    )
    def test_runs_that_agree_get_a_third_only_if_their_own_parts_agree_as_well(
        self, change: float, error: float, goes_on: bool
    ) -> None:
        class Unsteady(FakeRuns):
            def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
                made = super().run(arm, at, place, on_progress)
                assert made.steady is not None
                return replace(made, steady=replace(made.steady, error=error))

        runs = Unsteady(lambda arm: 100.0 * change if arm.changes else 100.0, (finding("pageable", PINNED),))
        runs.scatter = 0.0005
        tuning = tuned(runs)
        assert (tuning.runs_made > 5, bool(tuning.kept.changes)) == (goes_on, goes_on)

    def test_no_finding_means_no_run(self) -> None:
        runs = FakeRuns(by_workers)
        tuning = tuned(runs)
        assert (tuning.runs_made, tuning.attempts) == (1, [])
        assert headline(TuneResult(tuning, 20.0, None)).startswith("nothing to gain: no finding")


def test_a_speed_that_scatters_says_how_many_runs_would_show_what_these_hint_at() -> None:
    hint = Judgement("no detectable change", 1.1, detectable=0.15)
    attempt = Attempt(Candidate((Change("num_workers", 4),), "workers-zero"), "dropped", hint, runs=3)
    assert attempt.runs_needed == math.ceil(3 * (math.log(1.15) / math.log(1.1)) ** 2) == 7
    tuning = Tuning(["python", "train.py"], {}, attempts=[attempt])
    assert "; --runs 7 would show 10%" in render_text(TuneResult(tuning, 20.0, None))
    slower = replace(attempt, judgement=replace(hint, ratio=0.97))
    assert slower.runs_needed is None


class TestWhatGoesWrong:
    def test_a_setting_that_fails_costs_only_itself(self) -> None:
        def speed(arm: Arm) -> float | None:
            return None if workers_of(arm) else 100.0 if Change("pin_memory", True) not in arm.changes else 150.0

        runs = FakeRuns(speed, (finding("workers-zero", WORKERS), finding("pageable", PINNED, 1.1, 1.3)))
        tuning = tuned(runs)
        assert [each.outcome for each in tuning.attempts] == ["failed", "kept"]
        assert tuning.attempts[0].reason == "it was killed by SIGKILL"

    def test_a_setting_that_the_program_overrides_is_named(self) -> None:
        class Deaf(FakeRuns):
            def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
                return replace(super().run(arm, at, place, on_progress), facts=facts())

        tuning = tuned(Deaf(by_workers, (finding("workers-zero", WORKERS),)))
        assert tuning.attempts[0].outcome == "did not take effect"
        assert "not built where it was seen" in (tuning.attempts[0].reason or "")

    def test_a_program_that_fails_as_it_is_ends_the_search(self) -> None:
        first = run(-1, None, failure=Failure("it ended with exit code 1", 1, ("boom",)))
        with pytest.raises(TrialError, match="no figure to compare with: it ended with exit code 1"):
            tuned(FakeRuns(by_workers, first=first))
        with pytest.raises(TrialError, match="killed by SIGKILL"):
            tuned(FakeRuns(lambda arm: None, (finding("workers-zero", WORKERS),)))

    @pytest.mark.parametrize("stop_at", range(1, 11))
    def test_interrupted_it_says_what_is_known_so_far(self, stop_at: int) -> None:
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS),), stop_at=stop_at)
        tuning = tuned(runs)
        assert tuning.interrupted and len(runs.made) == stop_at
        assert tuning.is_proved is (stop_at > 6)
        assert "INCOMPLETE: stopped" in headline(TuneResult(tuning, 20.0, None))

    def test_the_budget_ends_it_between_two_runs(self) -> None:
        runs = FakeRuns(by_workers, (finding("workers-zero", WORKERS), finding("pageable", PINNED)))
        tuning = tuned(runs, has_time=lambda: len(runs.made) < 7)
        assert len(runs.made) == 7 and tuning.ran_out
        assert [each.outcome for each in tuning.attempts] == ["kept", "not tried", "not tried"]
        assert "the budget was used up" in headline(TuneResult(tuning, 20.0, None))


class TestResult:
    def result(self) -> TuneResult:
        tuning = tuned(FakeRuns(by_workers, (finding("workers-zero", WORKERS),)))
        return TuneResult(tuning, 20.0, None, b"--- a/train.py\n+++ b/train.py\n", ("start it with --x 1",))

    def test_text_has_what_was_tried_the_factor_and_the_patch(self) -> None:
        text = render_text(self.result())
        assert "num_workers=4 persistent_workers=true" in text and "kept" in text
        assert "Result: num_workers=4 persistent_workers=true: 4.0" in text and "samples/s" in text
        assert "+++ b/train.py" in text and "By hand: start it with --x 1" in text

    def test_markdown_and_json_say_the_same(self) -> None:
        result = self.result()
        content = document(result, "1.0")
        assert content["kept"] == {"num_workers": 4, "persistent_workers": True}
        assert content["total"]["interval"]["low"] < content["total"]["change"] < content["total"]["interval"]["high"]
        assert [each["outcome"] for each in content["attempts"]] == ["kept", "dropped"]
        assert content["attempts"][0]["predicted"] == {"low": 1.5, "high": 2.0}
        assert render_markdown(result).startswith("### gpuwatch tune: num_workers=4")

    def test_what_is_not_proved_is_not_kept_in_the_document(self) -> None:
        tuning = tuned(FakeRuns(lambda arm: 100.0, (finding("workers-zero", WORKERS),)))
        content = document(TuneResult(tuning, 20.0, None), "1.0")
        assert (content["kept"], content["patch"], content["total"]["change"]) == ({}, None, None)
