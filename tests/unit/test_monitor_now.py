from __future__ import annotations

import pytest

from gpuwatch.monitor.build import Evaluation, build_snapshot
from gpuwatch.monitor.snapshot import GpuNow, Origin, RunNow, Snapshot
from gpuwatch.samples import GpuGap, GpuLost, Standing
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    GPU,
    TRAINER,
    at,
    ended,
    gpu_facts,
    gpu_processes,
    phase,
    poll,
    polls,
    process,
    ring,
    run_facts,
    steps,
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
    history.add(Standing(TRAINER, at(59), at(6), "other", "/train.py", 80, "main", in_loop=in_loop))
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
    assert (outside.rung, outside.state, outside.title) == ("proc", "not hooked", "train.py")
    assert outside.gpu_indices == (0,)
    assert outside.how_to_climb is not None and "gpuwatch run" in outside.how_to_climb
    assert (outside.steps_total, outside.wait_share, outside.step_seconds_p50) == (0, None, None)


def test_hooked_run_needs_no_advice() -> None:
    assert run(timeline(run_facts(), steps(50)), 5).how_to_climb is None


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
        (0x20, ("heat",)),
        (0x48, ("heat",)),
        (0x8, ("hardware brake",)),
        (0x88, ("hardware brake",)),
        (0x24, ("power", "heat")),
    ],
)
def test_throttling_in_words(mask: int, words: tuple[str, ...]) -> None:
    assert gpu(timeline(gpu_facts(), poll(1, event_reasons=mask)), 1).throttled_by == words


def test_episode_between_two_polls_is_felt_in_the_counter() -> None:
    before = poll(1, event_reasons=0, throttled_hw_thermal_ns=0)
    after = poll(2, event_reasons=0, throttled_hw_thermal_ns=300_000_000)
    calm = poll(3, event_reasons=0, throttled_hw_thermal_ns=300_000_000)
    history = timeline(gpu_facts(), before, after)
    assert gpu(history, 2).throttled_by == ("heat",)
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
