from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuwatch.samples import NO_LOADER, LoaderFacts
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    GPU,
    TRAINER,
    at,
    candidate,
    candidates,
    count,
    counts,
    current_line,
    ended,
    gpu_facts,
    line,
    loader,
    phase,
    polls,
    process,
    rank_at,
    run_facts,
    sampled_facts,
    scene,
    steps,
    tallies,
    timeline,
)

LOOP = {"wait": 40, "forward": 25, "backward": 20, "optimizer": 5, "copy": 5, "sync": 5}


def chart(history: Timeline, name: str, start: float, end: float, buckets: int) -> Sequence[float | None]:
    return history.chart(Series(name, TRAINER), at(start), at(end), buckets).mean  # type: ignore[arg-type]


def test_figures_come_from_looks_and_from_the_counter() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP, lines=(line(20, 40),)), counts(60, 8), current_line(60))
    rank = rank_at(history, 60)
    assert rank.stacks is not None
    assert rank.facts.visibility == "sampled"
    assert rank.wait_share == rank.stacks.train_phases["wait"].value == pytest.approx(0.4)
    assert rank.forward_share == pytest.approx(0.25)
    assert rank.backward_share == pytest.approx(0.2)
    assert (rank.optimizer_share, rank.copy_share) == (pytest.approx(0.05), pytest.approx(0.05))
    assert (rank.steps, rank.steps_total) == (pytest.approx(480, abs=8), 480)
    assert rank.stacks.batches_per_second == pytest.approx(8, rel=0.02)
    assert rank.samples_per_second == pytest.approx(8 * 32, rel=0.02)
    assert rank.train_seconds == pytest.approx(60)
    assert rank.window_seconds == pytest.approx(60)
    assert rank.last_step_ns == at(60)
    assert rank.warm
    assert rank.stacks.current_line is not None


def test_what_only_a_hook_can_tell_stays_unknown() -> None:
    rank = rank_at(timeline(sampled_facts(), tallies(60, LOOP), counts(60, 8)), 60)
    assert len(rank.columns.number) == 0
    assert (rank.step_seconds, rank.settled_wait_share, rank.gap_share, rank.wait_cpu_share) == (None,) * 4
    assert (rank.step_p99_session_seconds, rank.epochs) == (None, None)


def test_counter_alone_or_looks_alone_say_what_they_can() -> None:
    only_looks = rank_at(timeline(sampled_facts(), tallies(60, LOOP)), 60)
    assert (only_looks.wait_share, only_looks.steps, only_looks.samples_per_second) == (pytest.approx(0.4), 0, None)
    assert only_looks.stacks is not None and only_looks.stacks.batches_per_second is None
    assert not only_looks.warm
    only_facts = rank_at(timeline(sampled_facts()), 5)
    assert (only_facts.wait_share, only_facts.stacks, only_facts.steps) == (None, None, 0)


def test_loop_that_reads_no_loader_is_not_said_to_wait_for_nothing() -> None:
    rank = rank_at(timeline(sampled_facts(loaders=()), tallies(60, {"forward": 60, "other": 40})), 60)
    assert (rank.wait_share, rank.forward_share) == (None, pytest.approx(0.6))
    assert chart(timeline(sampled_facts(), tallies(60, {"other": 40})), "run.wait_share", 0, 60, 1) == [None]
    fast = timeline(sampled_facts(), counts(60, 8), tallies(60, {"forward": 60, "other": 40}))
    assert rank_at(fast, 60).wait_share == 0.0
    assert chart(fast, "run.wait_share", 0, 60, 1) == [0.0]


@pytest.mark.parametrize("seconds", [60, 2_000], ids=["of samples", "beyond the samples"])
def test_loop_without_a_loader_is_counted_and_its_waits_are_unknown(seconds: int) -> None:
    own = counts(seconds, 8, loader=NO_LOADER)
    history = timeline(sampled_facts(loaders=()), own, tallies(seconds, {"forward": 60, "other": 40}))
    rank = rank_at(history, seconds, window=seconds)
    assert rank.wait_share is None
    assert rank.steps == pytest.approx(8 * seconds, rel=0.02)
    assert chart(history, "run.wait_share", 0, seconds, 1) == [None]
    assert chart(history, "run.step_seconds", 0, seconds, 1) == [pytest.approx(1 / 8, rel=0.05)]


def test_loop_without_a_loader_that_waits_for_a_queue_has_waits_from_the_first_one_on() -> None:
    history = timeline(sampled_facts(loaders=()), counts(60, 8, loader=NO_LOADER), tallies(30, {"forward": 100}))
    history.extend([*tallies(15, LOOP, start=30), *tallies(15, {"forward": 100}, start=45)])
    assert chart(history, "run.wait_share", 0, 60, 4) == [None, None, pytest.approx(0.4), 0.0]


def test_window_begins_with_the_loop_and_not_with_the_imports() -> None:
    history = timeline(sampled_facts(), tallies(20, {"other": 100}), counts(40, 8, start=20))
    history.extend(tallies(40, LOOP, start=20))
    rank = rank_at(history, 60)
    assert rank.window_seconds == pytest.approx(40)
    assert (rank.wait_share, rank.train_seconds) == (pytest.approx(0.4), pytest.approx(40))
    assert chart(history, "run.wait_share", 0, 60, 3) == [None, pytest.approx(0.4), pytest.approx(0.4)]


def test_unknown_batch_size_leaves_the_samples_unknown() -> None:
    facts = sampled_facts(loaders=(loader(batch_size=None),))
    rank = rank_at(timeline(facts, tallies(60, LOOP), counts(60, 8)), 60)
    assert (rank.samples_per_second, rank.steps > 0) == (None, True)


def test_evaluation_is_no_training_time() -> None:
    history = timeline(sampled_facts(), tallies(40, LOOP), tallies(20, {"eval": 100}, start=40), counts(40, 8))
    rank = rank_at(history, 60)
    assert rank.train_seconds == pytest.approx(40)
    assert rank.wait_share == pytest.approx(0.4)
    assert rank.stacks is not None
    assert rank.stacks.phases["eval"].value == pytest.approx(1 / 3)
    assert rank.stacks.batches_per_second == pytest.approx(8 * 40 / 60, rel=0.03)
    assert rank.samples_per_second == pytest.approx(8 * 32, rel=0.03)  # of training, as with a hook


def test_slow_batches_stretch_the_window() -> None:
    slow = timeline(sampled_facts(), [count(n, n // 10) for n in range(601)], tallies(600, LOOP))
    assert rank_at(slow, 600).window_seconds == pytest.approx(300)
    assert rank_at(slow, 600).steps == pytest.approx(30, abs=1)


def test_run_is_warm_after_ten_batches() -> None:
    history = timeline(sampled_facts(), tallies(20, LOOP), counts(9, 1))
    assert not rank_at(history, 9).warm
    history.add(count(10, 10))
    assert rank_at(history, 10).warm


def test_training_loader_is_the_one_whose_counter_grows() -> None:
    facts = sampled_facts(loaders=(loader(), LoaderFacts(2, batch_size=8, role="train"), LoaderFacts(3, role="eval")))
    history = timeline(facts, tallies(10, LOOP), counts(10, 1, loader=2))
    rank = rank_at(history, 10)
    assert rank.train_loader is not None and rank.train_loader.loader == 2
    assert [each.loader for each in rank.eval_loaders] == [3]


def test_hooked_trainer_keeps_its_figures_and_gains_its_stacks() -> None:
    exact = rank_at(timeline(run_facts(), steps(600, wait=0.02)), 60)
    history = timeline(run_facts(), steps(600, wait=0.02), tallies(60, LOOP), current_line(60), counts(60, 8))
    rank = rank_at(history, 60)
    assert rank.stacks is not None
    assert rank.stacks.phases["wait"].value == pytest.approx(0.4)
    assert rank.stacks.batches_per_second is None
    for name in ("wait_share", "steps", "steps_total", "train_seconds", "samples_per_second", "last_step_ns", "warm"):
        assert getattr(rank, name) == getattr(exact, name)
    assert list(rank.columns.period_seconds) == list(exact.columns.period_seconds)
    assert chart(history, "run.wait_share", 0, 60, 6) == pytest.approx([0.2] * 6, rel=0.01)


def test_looks_before_the_first_step_do_not_move_a_hooked_run_back() -> None:
    late = steps(600, start=30)
    without = rank_at(timeline(run_facts(), late), 90, window=120)
    with_looks = rank_at(timeline(run_facts(), tallies(60, LOOP), late), 90, window=120)
    assert with_looks.window_seconds == without.window_seconds == pytest.approx(60)


def test_hook_that_comes_later_takes_over_without_the_estimates() -> None:
    history = timeline(
        sampled_facts(),
        tallies(60, {"wait": 90, "forward": 10}),
        counts(60, 3),
        phase("eval", 20, 25),
        phase("eval", 58, None),
        run_facts(time_ns=at(60)),
    )
    fresh = rank_at(history, 60)
    assert (fresh.facts.visibility, fresh.steps_total, fresh.last_step_ns, fresh.warm) == ("exact", 0, None, False)
    assert (fresh.phases, fresh.open_phase) == ({}, None)
    history.extend([*steps(300, start=60, wait=0.02), phase("eval", 58, 61)])
    rank = rank_at(history, 90)
    assert (rank.steps, rank.steps_total, rank.phases) == (300, 300, {})
    assert rank.wait_share == pytest.approx(0.2)
    assert rank.window_seconds == pytest.approx(30)
    assert rank_at(history, 90, window=3_600).wait_share == pytest.approx(0.2)
    assert chart(history, "run.wait_share", 0, 90, 3) == [None, None, pytest.approx(0.2, rel=0.02)]
    history.add(run_facts(time_ns=at(95)))
    assert rank_at(history, 95).steps_total == 300


def test_stack_source_that_does_not_know_of_the_hook_yet_takes_nothing_away() -> None:
    history = timeline(run_facts(), steps(600), sampled_facts(time_ns=at(30)), counts(60, 3))
    rank = rank_at(history, 60)
    assert (rank.facts.visibility, rank.steps_total) == ("exact", 600)


def test_lost_link_lets_the_stacks_speak() -> None:
    history = timeline(run_facts(), steps(600), ended(60, how="lost"), tallies(5, LOOP, start=60))
    assert rank_at(history, 65).ended == "lost"
    history.extend([sampled_facts(time_ns=at(66)), *tallies(30, LOOP, start=65), *counts(30, 8, start=65)])
    rank = rank_at(history, 95)
    assert (rank.facts.visibility, rank.ended, rank.wait_share) == ("sampled", None, pytest.approx(0.4))
    assert (rank.steps_total, len(rank.columns.number)) == (240, 0)
    history.extend([run_facts(time_ns=at(96)), *steps(10, start=96, first=601)])
    assert rank_at(history, 97).steps_total == 610


def test_stop_is_no_time_of_the_batches() -> None:
    history = timeline(
        sampled_facts(), tallies(30, LOOP), counts(30, 8), [process(n, state="T") for n in range(30, 60)]
    )
    stopped = rank_at(history, 60)
    assert stopped.open_phase is not None and stopped.open_phase.kind == "stopped"
    history.extend([process(60, state="S"), *(count(n, 240) for n in range(31, 61)), *tallies(30, LOOP, start=60)])
    history.extend(count(60 + n, 240 + 8 * n) for n in range(31))
    rank = rank_at(history, 90, window=90)
    assert rank.stacks is not None
    assert rank.stacks.seconds == pytest.approx(60)
    assert rank.stacks.batches_per_second == pytest.approx(8, rel=0.03)


def test_window_beyond_the_looks_is_summed_from_the_buckets() -> None:
    history = timeline(sampled_facts(), counts(2_000, 8))
    history.extend([*tallies(1_000, {"wait": 80, "forward": 20}), *tallies(1_000, {"forward": 100}, start=1_000)])
    rank = rank_at(history, 2_000, window=2_000)
    assert rank.wait_share == pytest.approx(0.4, rel=0.01)
    assert rank.steps == pytest.approx(16_000, rel=0.01)
    assert rank.train_seconds == pytest.approx(2_000, rel=0.01)
    assert rank.samples_per_second == pytest.approx(256, rel=0.01)
    assert rank.stacks is not None and rank.stacks.seconds == pytest.approx(900, rel=0.03)


def test_sampled_run_draws_its_lines() -> None:
    history = timeline(sampled_facts(), counts(60, 8), tallies(30, {"wait": 20, "forward": 80}))
    history.extend(tallies(30, {"wait": 60, "forward": 40}, start=30))
    assert chart(history, "run.wait_share", 0, 60, 2) == [pytest.approx(0.2), pytest.approx(0.6)]
    assert chart(history, "run.samples_per_second", 0, 60, 2) == [pytest.approx(256, rel=0.05)] * 2
    assert chart(history, "run.step_seconds", 0, 60, 2) == [pytest.approx(1 / 8, rel=0.05)] * 2


def test_lines_have_a_gap_where_the_run_evaluates() -> None:
    history = timeline(sampled_facts(), counts(30, 8), [count(60 + n, 240 + 8 * n) for n in range(31)])
    history.extend([*tallies(30, LOOP), *tallies(30, {"eval": 100}, start=30), *tallies(30, LOOP, start=60)])
    for name in ("run.wait_share", "run.step_seconds", "run.samples_per_second"):
        before, during, after = chart(history, name, 0, 90, 3)
        assert before is not None and during is None and after == pytest.approx(before, rel=0.1)


def test_evaluation_of_a_sampled_run_is_no_training_of_its_gpu() -> None:
    history = timeline(
        gpu_facts(),
        sampled_facts(gpu_uuids=(GPU,)),
        polls(range(1, 31), utilization_percent=90.0),
        polls(range(31, 61), utilization_percent=10.0),
        tallies(60, LOOP),
        counts(30, 8),
        phase("eval", 30, 60),
    )
    (window,) = scene(history, 60).gpus
    assert window.utilization is not None and window.utilization.mean == pytest.approx(50)
    assert window.train_utilization is not None and window.train_utilization.mean == pytest.approx(90)


def test_evaluation_pauses_the_gpu_before_the_first_batch_too() -> None:
    history = timeline(
        gpu_facts(),
        sampled_facts(gpu_uuids=(GPU,)),
        polls(range(1, 61), utilization_percent=10.0),
        tallies(60, {"eval": 100}),
        phase("eval", 0, None),
    )
    assert scene(history, 60).gpus[0].train_utilization is None


def test_rank_that_waits_longest_is_the_critical_one_of_a_sampled_job() -> None:
    history = timeline(
        [sampled_facts(4711 + rank, group="job", rank=rank) for rank in (0, 1)],
        tallies(60, {"wait": 10, "forward": 90}),
        tallies(60, {"wait": 50, "forward": 50}, trainer="4712.1"),
        counts(60, 8),
        counts(60, 8, trainer="4712.1"),
    )
    (run,) = scene(history, 60).runs
    assert run.critical.facts.rank == 1
    assert run.samples_per_second == pytest.approx(2 * 256, rel=0.03)


def test_ended_run_keeps_its_last_looks() -> None:
    history = timeline(
        sampled_facts(), tallies(60, LOOP), counts(60, 8), ended(60), tallies(2, {"wait": 100}, start=60)
    )
    rank = rank_at(history, 70)
    assert rank.ended == "exited"
    assert rank.wait_share == pytest.approx(0.4)


def test_run_that_is_no_longer_watched_leaves_the_view_of_everything() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), run_facts(5000))
    assert [run.id for run in scene(history, 64).runs] == [TRAINER, "5000.1"]
    assert [run.id for run in scene(history, 75).runs] == ["5000.1"]
    assert [run.id for run in scene(history, 75, only_pids=frozenset({4711})).runs] == [TRAINER]


def test_launcher_that_was_looked_at_while_it_started_gives_way_to_its_trainers() -> None:
    history = timeline(sampled_facts(4700), sampled_facts(4711), tallies(3, {"other": 100}, trainer="4700.1"))
    history.extend(tallies(60, LOOP))
    assert [run.id for run in scene(history, 60, only_pids=frozenset({4700, 4711})).runs] == [TRAINER]


def test_process_that_cannot_be_read_lives_while_the_host_sees_it() -> None:
    history = timeline(sampled_facts(visibility="process"), [process(n) for n in range(1, 60)])
    (run,) = scene(history, 63).runs
    assert (run.critical.facts.visibility, run.critical.steps, run.critical.wait_share) == ("process", 0, None)
    assert run.critical.window_seconds == pytest.approx(60)
    assert scene(history, 75).runs == ()


def test_only_hooked_trainers_are_looked_at_unasked() -> None:
    history = timeline(sampled_facts(), run_facts(5000))
    assert history.live_trainer_pids() == [5000]
    assert [pid for pid, _ in history.trainer_identities()] == [4711, 5000]


def test_counted_batches_count_for_the_first_evaluation() -> None:
    history = timeline(sampled_facts(), counts(10, 3))
    assert history.trainers_with_steps(30) == {TRAINER}
    assert history.trainers_with_steps(31) == frozenset()


def test_candidates_are_the_newest_that_were_found() -> None:
    history = timeline(candidates(1, candidate(1)), candidates(4, candidate(2), candidate(3)))
    assert [each.pid for each in scene(history, 5).candidates] == [2, 3]


def test_month_of_looks_leaves_the_history_as_large_as_a_day() -> None:
    history = timeline(sampled_facts())
    for day in range(30):
        start = day * 86_400.0
        history.extend(tallies(130, LOOP, start=start, lines=(line(day, 40),)))
        history.extend(counts(130, 8, start=start))
        history.extend([phase("eval", start + n, start + n + 0.5) for n in range(100)])
        history.prune(at(start + 130))
    trainer = history.trainers[TRAINER]
    assert len(trainer.stacks._singles) <= 130
    assert len(trainer.stacks._merged) <= 61
    assert len(trainer.counts._loaders[1].rows) <= 1_100
    assert trainer.tiers.seconds.length <= 7_200 * 1.07
    assert sum(1 for _ in trainer.phases.spans(0)) <= 1_024
    assert trainer.steps_total == 30 * 8 * 130
