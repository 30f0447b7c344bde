"""The course of a trial over made-up runs: turns, arms that end early, what took effect, and the verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trial_runs import LOADER_FACTS, FakeRuns, Silent, facts, run, seen_with

from gpuwatch.trial.changes import Arm, TrialError, arms_of
from gpuwatch.trial.experiment import Experiment, already_so, ineffective
from gpuwatch.trial.results import ArmResult, Failure, RunResult, Thermal, remarks

COMMAND = ["python", "train.py", "--lr", "0.1"]
WOBBLE = (0.0, 0.4, -0.3, 0.2, -0.1, 0.3, -0.4, 0.1)


def experiment(*changes: str, runs: int = 3, **more: list[str]) -> Experiment:
    return Experiment(arms_of(list(changes), **more), runs, 0.02, COMMAND, {"OMP_NUM_THREADS": "4"})


def by_workers(arm: Arm, place: int) -> RunResult:
    speed = 100.0 * (1 + arm.of(frozenset({"num_workers"})).get("num_workers", 0))  # type: ignore[operator]
    return run(speed=speed + WOBBLE[place % len(WOBBLE)], of=seen_with(arm))


def performed(trial: Experiment, runs: FakeRuns) -> tuple[ArmResult, ...]:
    trial.perform(runs, Silent())
    return trial.results()[1]


def test_arms_take_turns_there_and_back() -> None:
    runs = FakeRuns(by_workers)
    performed(experiment(sweeps=["num_workers=1,2"]), runs)
    there = ["unchanged", "num_workers=1", "num_workers=2"]
    assert runs.made == [*there, *there[::-1], *there]


def test_the_line_that_was_seen_is_where_the_hook_changes_the_loader() -> None:
    runs = FakeRuns(by_workers)
    performed(experiment("num_workers=2"), runs)
    assert set(runs.places) == {("/home/me/train.py", 12)}


def test_an_arm_that_is_how_the_program_is_already_is_the_first_one() -> None:
    runs = FakeRuns(by_workers)
    trial = experiment(sweeps=["num_workers=0,2"])
    arms = performed(trial, runs)
    assert [each.arm.label for each in arms] == ["unchanged", "num_workers=2"]
    assert "num_workers=0 is what the program does already" in trial.notes[0]


def test_nothing_but_what_is_so_already_ends_the_trial() -> None:
    with pytest.raises(TrialError, match="nothing to compare: the program already does num_workers=0"):
        performed(experiment("num_workers=0"), FakeRuns(by_workers))


def test_the_faster_arm_is_called_faster_and_the_best() -> None:
    first, one, two = performed(experiment(sweeps=["num_workers=1,2"]), FakeRuns(by_workers))
    assert (first.judgement.verdict, one.judgement.verdict, two.judgement.verdict) == ("-", "faster", "faster")
    assert two.judgement.ratio == pytest.approx(3.0, rel=0.01)


def test_an_arm_that_fails_is_not_run_again_and_the_others_go_on() -> None:
    failure = Failure("it ended with exit code 1", 1, ("RuntimeError: no",))

    def make(arm: Arm, place: int) -> RunResult:
        return run(speed=None, failure=failure) if "num_workers=2" in arm.label else by_workers(arm, place)

    runs = FakeRuns(make)
    _, one, two = performed(experiment(sweeps=["num_workers=1,2"]), runs)
    assert runs.made.count("num_workers=2") == 1 and runs.made.count("num_workers=1") == 3
    assert (one.judgement.verdict, two.judgement.verdict) == ("faster", "failed")
    assert two.failure is failure


def test_a_program_that_does_not_train_ends_the_trial_with_its_last_lines() -> None:
    failing = run(speed=None, failure=Failure("it ended with exit code 3", 3, ("KeyError: 'data'",)))
    with pytest.raises(TrialError, match=r"gives no figure to compare with: it ended with exit code 3(.|\n)*KeyError"):
        performed(experiment("num_workers=2"), FakeRuns(by_workers, failing))


def test_a_change_that_did_not_take_effect_is_never_called_no_difference() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        return run(speed=100.0 + WOBBLE[place], of=facts())  # the loader stays as it was

    runs = FakeRuns(make)
    _, arm = performed(experiment("num_workers=2"), runs)
    assert arm.judgement.verdict == "did not take effect"
    assert arm.judgement.ratio is None
    assert arm.ineffective[0].startswith("num_workers=2 did not take effect: ")
    assert runs.made.count("num_workers=2") == 1


def test_an_arm_of_which_a_part_took_effect_is_measured_and_says_which_did_not() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        seen = by_workers(arm, place)
        return seen if seen.facts is None else replace(seen, facts=replace(seen.facts, device="cpu"))

    _, arm = performed(experiment("num_workers=2", "tf32=true"), FakeRuns(make))
    assert arm.judgement.verdict == "faster"
    assert arm.ineffective == ("tf32=true did not take effect: it trained on the CPU",)


def test_the_users_wish_ends_it_with_what_is_known() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        return replace(by_workers(arm, place), interrupted=place == 4)

    trial = experiment("num_workers=2")
    first, arm = performed(trial, FakeRuns(make))
    assert trial.interrupted
    assert (len(first.rates("samples_per_second")), len(arm.rates("samples_per_second"))) == (2, 2)
    assert arm.judgement.verdict == "faster"


@pytest.mark.parametrize(
    ("change", "seen", "reason"),
    [
        ("num_workers=2", facts(None), "no DataLoader was read in training"),
        ("num_workers=2", facts(), "not built where it was seen"),
        ("prefetch_factor=4", facts(overrides=("prefetch_factor",)), "there are no workers"),
        ("pin_memory=true", seen_with(arms_of(["pin_memory=true"])[1]), "it trained on the CPU, which pins nothing"),
        ("in_order=false", facts(replace(LOADER_FACTS, in_order=None), overrides=("in_order",)), "no such setting"),
        ("compile=true", facts(), "nothing was compiled"),
        ("tf32=true", facts(device="cuda"), "the program sets it to another value"),
        ("non_blocking=true", facts(device="cuda"), "no copy of pinned memory"),
        ("env.OMP_NUM_THREADS=1", facts(), None),
        ("env.OMP_NUM_THREADS=1", replace(facts(), torch_threads=1), None),
        ("env.OMP_NUM_THREADS=1", replace(facts(), torch_threads=4), "the program sets torch to 4 threads itself"),
        ("num_workers=2", seen_with(arms_of(["num_workers=2"])[1]), None),
    ],
)
def test_what_a_run_says_decides_whether_a_change_took_effect(change: str, seen: object, reason: str | None) -> None:
    missing = ineffective(arms_of([change])[1], run(of=seen))  # type: ignore[arg-type]
    if reason is None:
        assert missing == ()
    else:
        assert reason in missing[0][1]


@pytest.mark.parametrize(
    ("change", "so"),
    [
        ("num_workers=0", True),
        ("num_workers=1", False),
        ("tf32=false", True),
        ("tf32=true", False),
        ("cudnn_benchmark=false", True),
        ("compile=false", True),
        ("env.OMP_NUM_THREADS=4", True),
        ("env.OMP_NUM_THREADS=2", False),
        ("arg.lr=0.1", True),
        ("arg.lr=0.2", False),
        ("non_blocking=true", False),
    ],
)
def test_what_the_program_does_already_is_known_from_the_look(change: str, so: bool) -> None:
    assert already_so(arms_of([change])[1], run(), COMMAND, {"OMP_NUM_THREADS": "4"}) is so


def test_steps_are_compared_where_samples_are_not_known() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        seen = by_workers(arm, place)
        assert seen.steady is not None
        return replace(seen, steady=replace(seen.steady, samples_per_second=None))

    trial = experiment("num_workers=2")
    trial.perform(FakeRuns(make), Silent())
    metric, arms = trial.results()
    assert metric == "steps_per_second" and arms[1].judgement.verdict == "faster"
    assert "steps per second are compared" in remarks(arms, metric)[0]


def test_conditions_that_were_not_alike_are_said() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        changed = bool(arm.changes)
        seen = seen_with(arm)
        seen = replace(seen, loaders=tuple(replace(each, batches_per_epoch=None) for each in seen.loaders))
        return run(speed=100.0, of=seen, celsius=66.0 if changed else 61.0, batch_size=32 if changed else 16)

    arms = performed(experiment("num_workers=2"), FakeRuns(make))
    said = " ".join(remarks(arms, "samples_per_second"))
    assert "batch sizes differ (16 with unchanged, 32 with num_workers=2)" in said
    assert "61 °C with unchanged, 66 °C with num_workers=2" in said
    assert "get_worker_info()" in said


def test_a_dataset_that_is_known_to_be_map_style_need_not_split_its_items() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        seen = seen_with(arm)
        known = (replace(each, iterable=False, batches_per_epoch=None) for each in seen.loaders)
        return run(speed=100.0, of=replace(seen, loaders=tuple(known)))

    arms = performed(experiment("num_workers=2"), FakeRuns(make))
    assert "get_worker_info()" not in " ".join(remarks(arms, "samples_per_second"))


def test_clocks_that_heat_slowed_down_are_said_and_alike_ones_are_not() -> None:
    def make(arm: Arm, place: int) -> RunResult:
        seen = run(speed=100.0 + WOBBLE[place], of=seen_with(arm), celsius=61.0)
        hot = Thermal(62.0, 20, 5, ("thermal",))
        return replace(seen, thermal=hot) if arm.changes and place == 1 else seen

    arms = performed(experiment("num_workers=2"), FakeRuns(make))
    assert remarks(arms, "samples_per_second") == ["the GPU was throttled (thermal) in 1 of 3 runs with num_workers=2"]
