from __future__ import annotations

import pytest

from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import Origin, RunNow, Snapshot
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    TRAINER,
    at,
    candidate,
    candidates,
    count,
    counts,
    ended,
    line,
    phase,
    process,
    run_facts,
    sampled_facts,
    standing,
    steps,
    tallies,
    timeline,
)

LOOP = {
    "wait": 40,
    "start": 2,
    "forward": 20,
    "backward": 20,
    "optimizer": 5,
    "copy": 3,
    "sync": 5,
    "log": 2,
    "other": 3,
}


def snapshot(history: Timeline, seconds: float) -> Snapshot:
    return build_snapshot(
        history, now_ns=at(seconds), wall_time=0.0, origin=Origin("live", "LIVE"), evaluation=Evaluation()
    )


def run(history: Timeline, seconds: float) -> RunNow:
    (found,) = snapshot(history, seconds).runs
    return found


def test_sampled_run_shows_its_figures() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4), standing(60, "wait", since=58))
    now = run(history, 60)
    assert (now.rung, now.state, now.samples) == ("sampled", "training", 6_000)
    assert (now.steps_total, now.last_step_ns) == (240, at(60))
    assert now.batches_per_second == pytest.approx(4, rel=0.02)
    assert now.batches_exact
    assert now.step_seconds == pytest.approx(0.25, rel=0.02)
    assert (now.step_seconds_p50, now.step_seconds_p95) == (None, None)
    assert now.samples_per_second == pytest.approx(128, rel=0.02)
    assert now.wait_share == pytest.approx(0.4)
    assert now.standing is not None and (now.standing.phase, now.standing.since_ns) == ("wait", at(58))
    assert now.how_to_climb == "restart it with `gpuwatch run`"
    (rank,) = now.ranks
    assert (rank.state, rank.steps_total) == ("training", 240)
    assert (rank.step_seconds, rank.wait_share) == (now.step_seconds, now.wait_share)


def test_parts_of_a_sampled_run_are_all_of_its_training_time() -> None:
    history = timeline(
        sampled_facts(), tallies(48, LOOP), tallies(12, {"eval": 50, "save": 50}, start=48), counts(60, 4)
    )
    now = run(history, 60)
    assert now.wait_share == pytest.approx(0.4)
    assert now.start_share == pytest.approx(0.02)
    assert now.sync_share == pytest.approx(0.05)
    assert now.other_share == pytest.approx(0.05)
    assert now.phase_share == pytest.approx(0.2)
    parts = (
        now.wait_share,
        now.start_share,
        now.copy_share,
        now.forward_share,
        now.backward_share,
        now.optimizer_share,
        now.sync_share,
        now.other_share,
    )
    assert sum(part for part in parts if part is not None) == pytest.approx(1.0)


def test_mean_step_leaves_the_evaluation_out() -> None:
    history = timeline(sampled_facts(), tallies(40, LOOP), tallies(20, {"eval": 100}, start=40), counts(40, 4))
    now = run(history, 60)
    assert now.step_seconds == pytest.approx(0.25, rel=0.03)
    assert now.batches_per_second == pytest.approx(4 * 40 / 60, rel=0.03)


def test_hottest_lines_are_named_on_both_rungs() -> None:
    lines = {"lines": (line(20, 30), line(9, 50)), "worker_lines": (line(31, 70, phase="item"),), "worker_samples": 100}
    for history in (
        timeline(sampled_facts(), tallies(60, LOOP, **lines), counts(60, 4)),
        timeline(run_facts(), steps(600, wait=0.05), tallies(60, LOOP, **lines), standing(60, since=58)),
    ):
        now = run(history, 60)
        assert now.top_line is not None and now.top_line.line == 9
        assert now.top_line.share.value == pytest.approx(0.5)


def test_hooked_run_keeps_its_figures_and_says_where_it_stands() -> None:
    exact = run(timeline(run_facts(), steps(600, wait=0.05)), 60)
    now = run(timeline(run_facts(), steps(600, wait=0.05), tallies(60, LOOP), standing(60, "sync")), 60)
    assert (now.rung, now.how_to_climb, now.samples) == ("exact", None, 6_000)
    assert now.standing is not None and now.standing.phase == "sync"
    assert now.wait_share == exact.wait_share
    assert (now.step_seconds_p50, now.steps_total) == (exact.step_seconds_p50, exact.steps_total)
    assert now.step_seconds == pytest.approx(0.1)
    assert (now.sync_share, now.start_share, now.other_share, now.batches_per_second) == (None,) * 4


def test_hooked_run_without_stacks_stands_nowhere() -> None:
    now = run(timeline(run_facts(), steps(600)), 60)
    assert (now.standing, now.top_line, now.samples) == (None, None, 0)


def test_state_follows_the_batches_and_the_phases() -> None:
    history = timeline(sampled_facts(), tallies(2, {"other": 100}))
    assert run(history, 2).state == "starting"
    history.extend([*tallies(10, LOOP, start=2), *counts(8, 1, start=2)])
    assert run(history, 10).state == "warming up"
    history.add(count(12, 12))
    assert run(history, 12).state == "training"
    history.add(phase("eval", 12, None))
    assert run(history, 15).state == "evaluating"
    history.extend([phase("eval", 12, 16), phase("checkpoint", 16, None)])
    assert run(history, 17).state == "saving"
    history.extend([phase("checkpoint", 16, 18), count(19, 13)])
    assert run(history, 19.5).state == "training"
    history.extend(tallies(20, LOOP, start=12))
    assert run(history, 28).state == "training"
    assert run(history, 32).state == "silent"
    history.add(process(33, state="T"))
    assert run(history, 33).state == "stopped"
    history.add(ended(34, how="killed"))
    assert run(history, 35).state_words == "ended (killed)"


@pytest.mark.parametrize(("phase_now", "state"), [("eval", "evaluating"), ("save", "saving"), ("forward", "training")])
def test_last_look_says_what_a_run_does_while_it_is_fresh(phase_now: str, state: str) -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4), standing(60, phase_now))
    assert run(history, 60.5).state == state
    assert run(history, 63).state == "training"


def test_loop_without_a_loader_trains_although_nothing_counts_its_steps() -> None:
    history = timeline(sampled_facts(loaders=()), tallies(60, {"forward": 60, "backward": 40}))
    now = run(history, 60)
    assert (now.state, now.steps_total, now.step_seconds, now.batches_per_second) == ("training", 0, None, None)
    assert now.forward_share == pytest.approx(0.6)


def test_process_whose_stacks_cannot_be_read_says_how_to_see_more() -> None:
    history = timeline(sampled_facts(rung="proc", climb="run gpuwatch as root"), [process(n) for n in range(60)])
    now = run(history, 60)
    assert (now.rung, now.state, now.how_to_climb) == ("proc", "not hooked", "run gpuwatch as root")
    assert (now.samples, now.wait_share, now.standing) == (0, None, None)


def test_sampled_rung_without_a_word_of_its_own_says_the_usual_one() -> None:
    now = run(timeline(sampled_facts(climb=None), tallies(5, LOOP)), 5)
    assert now.how_to_climb is not None and "gpuwatch run" in now.how_to_climb


def test_counts_that_are_estimates_say_so() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4, exact=False))
    assert not run(history, 60).batches_exact


def test_run_of_hooked_and_unhooked_ranks_says_the_rung_of_the_one_that_waits() -> None:
    history = timeline(
        run_facts(4711, group="job", rank=0),
        sampled_facts(4712, group="job", rank=1),
        steps(600, wait=0.01),
        tallies(60, {"wait": 50, "forward": 50}, trainer="4712.1"),
        counts(60, 10, trainer="4712.1"),
    )
    now = run(history, 60)
    assert (now.rung, now.wait_share) == ("sampled", pytest.approx(0.5))
    assert [rank.facts.rung for rank in now.ranks] == ["exact", "sampled"]
    assert now.samples_per_second == pytest.approx(2 * 320, rel=0.03)


def test_findings_and_panel_say_the_same_share() -> None:
    history = timeline(sampled_facts(), tallies(45, LOOP), tallies(15, {"eval": 100}, start=45), counts(45, 4))
    (window,) = history.scene(at(60), 60.0).runs
    now = run(history, 60)
    assert (now.wait_share, now.samples_per_second) == (window.critical.wait_share, window.samples_per_second)


def test_snapshot_lists_who_could_be_attached_to() -> None:
    seen = snapshot(timeline(candidates(1, candidate(4711), candidate(4712))), 2)
    assert [each.pid for each in seen.candidates] == [4711, 4712]
    assert seen.attached_pid is None


def test_id_of_a_run_stays_when_its_hook_comes() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4))
    assert run(history, 60).id == TRAINER
    history.extend([run_facts(time_ns=at(61)), *steps(50, start=61)])
    now = run(history, 66)
    assert (now.id, now.rung, now.how_to_climb, now.steps_total) == (TRAINER, "exact", None, 50)
