"""What a snapshot says of GPUs and runs now, hooked and sampled."""

from __future__ import annotations

import pytest

from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import GpuNow, Origin, RunNow, Snapshot
from gpuwatch.samples import CurrentLine, GpuGap, GpuLost
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
    gpu_processes,
    line,
    phase,
    poll,
    polls,
    process,
    ring,
    run_facts,
    sampled_facts,
    steps,
    tallies,
    timeline,
)


def snapshot(history: Timeline, seconds: float, only_pids: frozenset[int] | None = None) -> Snapshot:
    return build_snapshot(
        history,
        now_ns=at(seconds),
        wall_time=0.0,
        origin=Origin("live", "LIVE"),
        evaluation=Evaluation(),
        only_pids=only_pids,
    )


def run(history: Timeline, seconds: float, only_pids: frozenset[int] | None = None) -> RunNow:
    (found,) = snapshot(history, seconds, only_pids).runs
    return found


def gpu(history: Timeline, seconds: float) -> GpuNow:
    (found,) = snapshot(history, seconds).gpus
    return found


def test_run_starts_warms_up_trains_and_ends() -> None:
    history = timeline(run_facts())
    assert run(history, 1).state == "starting"
    history.extend(steps(5))
    assert run(history, 1).state == "warming up"
    history.extend(steps(45, start=0.5, first=6))
    assert run(history, 5.1).state == "training"
    history.add(ended(5.2))
    assert run(history, 6).state == "ended"


@pytest.mark.parametrize(
    ("how", "words"), [("exited", "ended"), ("killed", "ended (killed)"), ("lost", "ended (link lost)")]
)
def test_run_that_ended_says_how(how: str, words: str) -> None:
    history = timeline(run_facts(), steps(50))
    assert run(history, 5).state_words == "training"
    history.add(ended(5.2, how=how))
    assert run(history, 6).state_words == words


def test_run_is_silent_after_ten_usual_steps_but_not_before_five_seconds() -> None:
    quick = timeline(run_facts(), steps(50))
    assert run(quick, 9.9).state == "training"
    assert run(quick, 9.9).pause_seconds is None
    assert run(quick, 10.1).state == "silent"
    slow = timeline(run_facts(), steps(50, period=2.0))
    assert run(slow, 119).state == "training"
    assert run(slow, 121).state == "silent"


@pytest.mark.parametrize(
    ("in_loop", "state"), [(True, "silent"), (False, "not training"), (None, "not training")], ids=str
)
def test_a_run_outside_any_loop_is_not_training_and_its_stack_knows_best(in_loop: bool | None, state: str) -> None:
    history = timeline(run_facts(), steps(50), phase("outside", 5.1, None))
    history.add(CurrentLine(TRAINER, at(59), at(6), "other", "/train.py", 80, "main", in_loop=in_loop))
    assert run(history, 60).state == state
    assert run(history, 80).state == "not training", "a sample that is older than 10 s says nothing of now"


def test_stopped_process_is_stopped_and_not_silent() -> None:
    history = timeline(run_facts(), steps(50), process(20, state="T"))
    assert run(history, 20).state == "stopped"
    history.add(process(21, state="S"))
    assert run(history, 21).state == "silent"


def test_open_phase_says_what_the_run_does_however_long() -> None:
    history = timeline(run_facts(), steps(50), phase("eval", 5.0, None))
    assert run(history, 500).state == "evaluating"
    assert run(history, 500).pause_seconds == 495.0
    history.extend([phase("eval", 5.0, 501.0), phase("checkpoint", 501.0, None)])
    assert run(history, 510).state == "saving"


def test_phase_that_just_ended_counts_until_the_next_step() -> None:
    history = timeline(run_facts(), steps(50), phase("eval", 5.0, 9.0))
    assert run(history, 9.5).state == "evaluating"
    assert run(history, 10.5).state == "silent"
    history.extend(steps(1, start=9.0, first=51))
    assert run(history, 9.2).state == "training"


def test_run_saves_while_one_rank_does_although_the_others_are_silent() -> None:
    history = timeline(
        [run_facts(4711 + rank, group="job", rank=rank) for rank in (0, 1)],
        steps(50),
        steps(50, trainer="4712.1"),
        phase("checkpoint", 5.0, None),
    )
    saving = run(history, 30)
    assert saving.state == "saving"
    assert [rank.state for rank in saving.ranks] == ["saving", "silent"]


def test_process_of_the_job_that_makes_no_steps_does_not_speak_for_it() -> None:
    history = timeline(run_facts(4700, group="job"), run_facts(4711, group="job", rank=0), steps(50))
    assert run(history, 5.1).state == "training"


def test_run_lives_while_one_rank_does() -> None:
    history = timeline(
        [run_facts(4711 + rank, group="job", rank=rank) for rank in (0, 1)],
        steps(50),
        steps(50, trainer="4712.1"),
        ended(5.0, "4712.1"),
    )
    living = run(history, 5.1)
    assert living.state == "training"
    assert living.samples_per_second == pytest.approx(320.0)


def test_parts_are_shares_of_training_time_and_pauses_of_all_time() -> None:
    parts = {"copy_seconds": 0.01, "forward_seconds": 0.03, "backward_seconds": 0.03, "optimizer_seconds": 0.005}
    history = timeline(
        run_facts(),
        steps(200, wait=0.02, **parts),
        phase("eval", 20.0, 25.0),
        steps(50, start=25.0, first=201, wait=0.02, **parts),
    )
    now = run(history, 30.05)
    assert now.seconds == pytest.approx(30.0)
    assert now.wait_share == pytest.approx(0.2, rel=0.01)
    assert now.forward_share == pytest.approx(0.3, rel=0.01)
    assert now.phase_share == pytest.approx(5 / 30)
    parts = (
        now.wait_share,
        now.copy_share,
        now.forward_share,
        now.backward_share,
        now.optimizer_share,
    )
    assert sum(part for part in parts if part is not None) <= 1.0
    assert now.step_seconds_p50 == pytest.approx(0.1)
    assert now.samples_per_second == pytest.approx(320.0)


@pytest.mark.parametrize("period", [0.004, 0.0996, 2.7, 13.0])
def test_parts_never_exceed_the_whole(period: float) -> None:
    count = max(20, int(200 / period))
    history = timeline(run_facts(), steps(count, period=period, wait=period * 0.6, forward_seconds=period * 0.4))
    now = run(history, count * period)
    assert now.wait_share is not None and now.forward_share is not None
    assert 0.9 < now.wait_share + now.forward_share <= 1.0 + 1e-9


def test_step_that_is_being_made_does_not_dilute_the_parts() -> None:
    history = timeline(run_facts(), steps(12, period=1.0, wait=0.8))
    assert run(history, 12.9).wait_share == pytest.approx(0.8)


def test_unmeasured_parts_are_unknown() -> None:
    now = run(timeline(run_facts(), steps(50, wait=None, samples=None)), 5)
    assert (now.wait_share, now.copy_share, now.gap_share, now.samples_per_second) == (None, None, None, None)


@pytest.mark.parametrize("count", [100, 300])
def test_waits_are_of_training_time_as_the_findings_say_them(count: int) -> None:
    gaps = [GpuGap(TRAINER, number, 0.03) for number in range(1, count + 1)]
    made = steps(count, wait=0.04)
    seconds = count * 0.1
    after = steps(20, start=seconds + 10, first=count + 1, wait=0.04)
    history = timeline(run_facts(), made, gaps, phase("eval", seconds, seconds + 10), after)
    now = run(history, seconds + 12.05)
    (window,) = history.scene(at(seconds + 12.05), 60.0).runs
    assert now.wait_share == pytest.approx(window.critical.wait_share, rel=0.01) == pytest.approx(0.4, rel=0.01)
    assert now.gap_share == pytest.approx(window.critical.gap_share, rel=0.01) == pytest.approx(0.3, rel=0.01)


def test_ended_run_keeps_its_last_minute_for_ten_minutes() -> None:
    history = timeline(run_facts(), steps(600, wait=0.05), ended(60))
    late = run(history, 500)
    assert (late.state, late.step_seconds_p50) == ("ended", pytest.approx(0.1))
    assert late.wait_share == pytest.approx(0.5, rel=0.02)
    assert snapshot(history, 700).runs == ()


def test_bands_show_each_phase_once_and_no_specks() -> None:
    history = timeline(
        [run_facts(4711 + rank, group="job", rank=rank) for rank in (0, 1)],
        steps(50),
        phase("eval", 5.2, 8.0),
        phase("eval", 5.3, 8.0, trainer="4712.1"),
        [phase("gc", 8 + n, 8.01 + n) for n in range(5)],
        phase("gc", 20.0, 20.5),
        phase("checkpoint", 21.0, None),
    )
    assert [span.kind for span in run(history, 22).phases] == ["eval", "gc", "checkpoint"]


def test_run_without_a_hook_says_how_to_see_more() -> None:
    history = timeline(gpu_facts(), [process(n, command="python train.py") for n in range(5)], gpu_processes(1, 4711))
    outside = run(history, 5, frozenset({4711}))
    assert (outside.visibility, outside.state, outside.title) == ("process", "not hooked", "train.py")
    assert outside.gpu_indices == (0,)
    assert outside.how_to_see_more is not None and "gpuwatch run" in outside.how_to_see_more
    assert (outside.steps_total, outside.wait_share, outside.step_seconds_p50) == (0, None, None)


def test_hooked_run_needs_no_advice() -> None:
    assert run(timeline(run_facts(), steps(50)), 5).how_to_see_more is None


def test_gpu_shows_its_latest_poll_and_last_minute() -> None:
    drained = [poll(n, utilization_percent=50.0, utilization_ring=ring([10.0, 90.0], n, 0.5)) for n in range(1, 121)]
    now = gpu(timeline(gpu_facts(), drained), 120)
    assert (now.status, now.utilization_mean_percent) == ("live", 50.0)
    assert now.utilization_sigma_percent == pytest.approx(40.0, rel=0.01)
    assert now.latest is not None and now.latest.time_ns == at(120)


def test_gpu_waits_for_its_first_poll_and_then_has_no_figures() -> None:
    now = gpu(timeline(gpu_facts()), 1)
    assert (now.status, now.latest, now.utilization_mean_percent) == ("waiting", None, None)
    assert gpu(timeline(gpu_facts()), 30).status == "stale"


def test_lost_gpu_keeps_its_row() -> None:
    now = gpu(timeline(gpu_facts(), poll(1), GpuLost(at(2), GPU, "fallen off the bus")), 600)
    assert (now.status, now.status_since_ns, now.utilization_mean_percent) == ("lost", at(2), None)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x4, ("power",)),
        (0x20, ("thermal",)),
        (0x48, ("thermal",)),
        (0x8, ("HW slowdown",)),
        (0x88, ("power brake",)),
        (0x24, ("power", "thermal")),
    ],
)
def test_throttling_in_words(mask: int, words: tuple[str, ...]) -> None:
    assert gpu(timeline(gpu_facts(), poll(1, event_reasons=mask)), 1).throttled_by == words


def test_episode_between_two_polls_is_felt_in_the_counter() -> None:
    before = poll(1, event_reasons=0, throttled_hw_thermal_ns=0)
    after = poll(2, event_reasons=0, throttled_hw_thermal_ns=300_000_000)
    calm = poll(3, event_reasons=0, throttled_hw_thermal_ns=300_000_000)
    history = timeline(gpu_facts(), before, after)
    assert gpu(history, 2).throttled_by == ("thermal",)
    history.add(calm)
    assert gpu(history, 3).throttled_by == ()


def test_snapshot_cuts_no_windows() -> None:
    history = timeline(gpu_facts(), polls(range(1, 61), utilization_percent=50.0), run_facts(), steps(600))
    assert snapshot(history, 60).scene is None


@pytest.mark.parametrize("ended_at", [None, 34.0])
def test_what_follows_the_last_step_is_not_said_to_be_computing(ended_at: float | None) -> None:
    history = timeline(run_facts())
    history.extend(steps(300, wait=0.04))
    if ended_at is not None:
        history.add(ended(ended_at, how="lost"))
    found = run(history, 50)
    assert found.state == ("silent" if ended_at is None else "ended")
    assert found.wait_share == pytest.approx(0.4)
    assert found.seconds < 31, "twenty seconds are of no known part"


def test_a_pause_behind_the_last_step_still_counts_when_the_run_has_ended() -> None:
    history = timeline(run_facts())
    history.extend(steps(300, wait=0.04))
    history.extend([phase("checkpoint", 30.0, 40.0), ended(41.0)])
    assert run(history, 50).phase_share == pytest.approx(0.25)


def test_parts_that_are_unseen_in_some_steps_are_shares_of_the_others() -> None:
    history = timeline(run_facts())
    for number in range(1, 201):
        seen = {"wait": 0.04, "backward_seconds": 0.05} if number % 2 else {"wait": None}
        history.extend(steps(1, start=number * 0.1, first=number, **seen))
    found = run(history, 20.2)
    assert found.wait_share == pytest.approx(0.4, rel=0.01)
    assert found.backward_share == pytest.approx(0.5, rel=0.02)


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


def test_sampled_run_shows_its_figures() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4), current_line(60, "wait", since=58))
    now = run(history, 60)
    assert (now.visibility, now.state, now.samples) == ("sampled", "training", 6_000)
    assert (now.steps_total, now.last_step_ns) == (240, at(60))
    assert now.batches_per_second == pytest.approx(4, rel=0.02)
    assert now.batches_exact
    assert now.step_seconds == pytest.approx(0.25, rel=0.02)
    assert (now.step_seconds_p50, now.step_seconds_p95) == (None, None)
    assert now.samples_per_second == pytest.approx(128, rel=0.02)
    assert now.wait_share == pytest.approx(0.4)
    assert now.current_line is not None and (now.current_line.phase, now.current_line.since_ns) == ("wait", at(58))
    assert now.how_to_see_more == "restart it with `gpuwatch run`"
    (rank,) = now.ranks
    assert (rank.state, rank.steps_total) == ("training", 240)
    assert (rank.step_seconds, rank.wait_share) == (now.step_seconds, now.wait_share)


def test_a_loader_that_makes_nothing_gives_no_samples_and_not_an_unknown_rate() -> None:
    history = timeline(sampled_facts(), tallies(60, {"wait": 100}), [count(second, 9) for second in range(61)])
    assert run(history, 60).samples_per_second == 0.0


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


def test_hottest_lines_are_named_of_hooked_and_of_sampled_runs() -> None:
    lines = {"lines": (line(20, 30), line(9, 50)), "worker_lines": (line(31, 70, phase="item"),), "worker_samples": 100}
    for history in (
        timeline(sampled_facts(), tallies(60, LOOP, **lines), counts(60, 4)),
        timeline(run_facts(), steps(600, wait=0.05), tallies(60, LOOP, **lines), current_line(60, since=58)),
    ):
        now = run(history, 60)
        assert now.top_line is not None and now.top_line.line == 9
        assert now.top_line.share.value == pytest.approx(0.5)


def test_hooked_run_keeps_its_figures_and_says_where_it_stands() -> None:
    exact = run(timeline(run_facts(), steps(600, wait=0.05)), 60)
    now = run(timeline(run_facts(), steps(600, wait=0.05), tallies(60, LOOP), current_line(60, "sync")), 60)
    assert (now.visibility, now.how_to_see_more, now.samples) == ("exact", None, 6_000)
    assert now.current_line is not None and now.current_line.phase == "sync"
    assert now.wait_share == exact.wait_share
    assert (now.step_seconds_p50, now.steps_total) == (exact.step_seconds_p50, exact.steps_total)
    assert now.step_seconds == pytest.approx(0.1)
    assert (now.sync_share, now.start_share, now.other_share, now.batches_per_second) == (None,) * 4


def test_hooked_run_without_stacks_stands_nowhere() -> None:
    now = run(timeline(run_facts(), steps(600)), 60)
    assert (now.current_line, now.top_line, now.samples) == (None, None, 0)


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
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4), current_line(60, phase_now))
    assert run(history, 60.5).state == state
    assert run(history, 63).state == "training"


def test_loop_without_a_loader_trains_although_nothing_counts_its_steps() -> None:
    history = timeline(sampled_facts(loaders=()), tallies(60, {"forward": 60, "backward": 40}))
    now = run(history, 60)
    assert (now.state, now.steps_total, now.step_seconds, now.batches_per_second) == ("training", 0, None, None)
    assert now.forward_share == pytest.approx(0.6)


def test_process_whose_stacks_cannot_be_read_says_how_to_see_more() -> None:
    history = timeline(
        sampled_facts(visibility="process", how_to_see_more="run gpuwatch as root"), [process(n) for n in range(60)]
    )
    now = run(history, 60)
    assert (now.visibility, now.state, now.how_to_see_more) == ("process", "not hooked", "run gpuwatch as root")
    assert (now.samples, now.wait_share, now.current_line) == (0, None, None)


def test_sampled_run_without_a_hint_of_its_own_says_the_usual_one() -> None:
    now = run(timeline(sampled_facts(how_to_see_more=None), tallies(5, LOOP)), 5)
    assert now.how_to_see_more is not None and "gpuwatch run" in now.how_to_see_more


def test_counts_that_are_estimates_say_so() -> None:
    history = timeline(sampled_facts(), tallies(60, LOOP), counts(60, 4, exact=False))
    assert not run(history, 60).batches_exact


def test_run_of_hooked_and_unhooked_ranks_is_seen_as_well_as_the_one_that_waits() -> None:
    history = timeline(
        run_facts(4711, group="job", rank=0),
        sampled_facts(4712, group="job", rank=1),
        steps(600, wait=0.01),
        tallies(60, {"wait": 50, "forward": 50}, trainer="4712.1"),
        counts(60, 10, trainer="4712.1"),
    )
    now = run(history, 60)
    assert (now.visibility, now.wait_share) == ("sampled", pytest.approx(0.5))
    assert [rank.facts.visibility for rank in now.ranks] == ["exact", "sampled"]
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
    assert (now.id, now.visibility, now.how_to_see_more, now.steps_total) == (TRAINER, "exact", None, 50)
