"""The monitor's turn: which sources are asked when, what a failure costs, when rules judge and snapshots are shown."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.build import in_order
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Feed, Guard, Monitor, OwnCost, cpu_seconds
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.monitor.wiring import simulated_monitor
from gpuwatch.samples import Sample
from tests.unit.fake_sources import ScriptedJudge, ScriptedSource, finding, monitor, ticks
from tests.unit.sample_builder import SECOND, START_NS, at, gpu_facts, host, poll, run_facts, steps


class FileSource(ScriptedSource):
    """A source that waits for a file."""

    def __init__(self, file: int) -> None:
        super().__init__(name="file")
        self.file = file

    def fileno(self) -> int | None:
        return self.file


def collected(feed: Feed, now_ns: int, *ready: int) -> list[Sample]:
    return [sample for _, samples in feed.collect(now_ns, ready) for sample in samples]


def test_only_sources_that_are_due_or_have_input_are_asked() -> None:
    early, late, file = ScriptedSource([(1, [host(1)])]), ScriptedSource([(9, [host(9)])]), FileSource(7)
    feed = Feed([early, late, file], Guard())
    assert feed.plan(at(0)) == ([7], at(1))
    assert collected(feed, at(1)) == [host(1)]
    assert (len(early.asked_ns), len(late.asked_ns), len(file.asked_ns)) == (1, 0, 0)
    feed.plan(at(2))
    collected(feed, at(2), 7)
    assert len(file.asked_ns) == 1


def test_busy_file_rests_for_a_tenth_of_a_second_once_it_may() -> None:
    source = FileSource(7)
    feed = Feed([source], Guard())
    feed.may_rest = True
    feed.plan(at(0))
    collected(feed, at(0), 7)
    assert feed.plan(at(0.01)) == ([], at(0.1))
    assert feed.plan(at(0.1)) == ([7], None)


def test_nothing_rests_long_before_the_first_screen() -> None:
    feed = Feed([FileSource(7)], Guard())
    feed.plan(at(0))
    collected(feed, at(0), 7)
    assert feed.plan(at(0.001)) == ([7], None)


def test_source_that_is_always_due_cannot_spin() -> None:
    source = ScriptedSource()
    source.due_ns = lambda: at(0)  # type: ignore[method-assign]
    feed = Feed([source], Guard())
    feed.plan(at(1))
    collected(feed, at(1))
    _, due = feed.plan(at(1))
    assert due == at(1.001)


def test_failing_source_is_named_once_in_the_log_and_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()
    broken = ScriptedSource([(20, [host(20)])], failing=[1, 6], name="broken")
    healthy = ScriptedSource([(second, [host(second)]) for second in range(1, 30)])
    feed = Feed([broken, healthy], guard)
    with caplog.at_level(logging.WARNING):
        for second in (1, 2, 3, 6.5):
            feed.plan(at(second))
            assert collected(feed, at(second)), "the healthy source goes on"
    assert len(broken.asked_ns) == 2
    assert len(caplog.records) == 1
    (notice,) = guard.notices
    assert "broken" in notice and "a bug" in notice
    feed.plan(at(20))
    assert host(20) in collected(feed, at(20))
    assert guard.notices == ()


def test_source_whose_plan_fails_is_left_out_for_a_while() -> None:
    guard = Guard()
    source = FileSource(7)
    source.fileno = lambda: 1 // 0  # type: ignore[method-assign, return-value]
    feed = Feed([source], guard)
    assert feed.plan(at(0)) == ([], at(5))
    assert len(guard.notices) == 1
    assert collected(feed, at(1), 7) == []


def test_all_are_closed_although_one_fails() -> None:
    broken, healthy = ScriptedSource(), ScriptedSource()
    broken.close = lambda: 1 // 0  # type: ignore[method-assign, assignment]
    Feed([broken, healthy], Guard()).close()
    assert healthy.closed == 1


def test_what_a_source_cannot_do_is_passed_on() -> None:
    source = ScriptedSource()
    source.problem = "the folder is not yours; remove it"  # type: ignore[attr-defined]
    assert Feed([source, ScriptedSource()], Guard()).problems == ("the folder is not yours; remove it",)


Batches = Sequence[tuple[float, Sequence[Sample]]]


def polling(seconds: int, offset: float = 0.3) -> list[tuple[float, list[Sample]]]:
    first: list[tuple[float, list[Sample]]] = [(offset, [gpu_facts(), poll(offset, utilization_percent=50.0)])]
    return first + [
        (second + offset, [poll(second + offset, utilization_percent=50.0)]) for second in range(1, seconds)
    ]


def test_there_is_a_snapshot_before_anything_was_seen() -> None:
    snapshot = monitor().snapshot()
    assert (snapshot.gpus, snapshot.runs, snapshot.findings, snapshot.scene) == ((), (), (), None)
    assert (snapshot.time_ns, snapshot.started_ns, snapshot.wall_time) == (START_NS, START_NS, 1_000_000.0)
    assert snapshot.origin.label == "SIMULATED test"


class SetClock(VirtualClock):
    """A clock that is set ahead by an hour after 10 s."""

    def wall_time(self) -> float:
        return super().wall_time() + (3600.0 if self.now_ns() >= at(10) else 0.0)


def test_a_snapshot_knows_the_time_of_day_from_before_the_clock_was_set() -> None:
    watch = Monitor([], origin=Origin("simulated", "SIMULATED test"), clock=SetClock(START_NS, 1_000_000.0))
    snapshot = ticks(watch, 30)[-1]
    assert snapshot.wall_time == 1_000_030.0 + 3600
    moments = (START_NS, at(5), at(20), snapshot.time_ns)
    assert [snapshot.wall_time_at(moment) - 1_000_000.0 for moment in moments] == [0.0, 5.0, 3620.0, 3630.0]


def test_first_gpu_data_is_shown_at_once_and_then_every_poll() -> None:
    seen = ticks(monitor(ScriptedSource(polling(10))), 9)
    assert [snapshot.time_ns for snapshot in seen if snapshot.time_ns != at(5)] == [at(n + 0.3) for n in range(9)]
    assert all(snapshot.gpus[0].latest is not None for snapshot in seen)


def test_without_gpus_there_is_a_snapshot_every_second() -> None:
    seen = ticks(monitor(), 5)
    assert [snapshot.time_ns for snapshot in seen] == [at(second) for second in (1, 2, 3, 4, 5)]


def test_snapshots_go_on_when_the_polls_stop() -> None:
    seen = ticks(monitor(ScriptedSource(polling(3))), 10)
    late = [snapshot for snapshot in seen if snapshot.time_ns > at(6)]
    assert len(late) >= 3
    assert {snapshot.gpus[0].status for snapshot in late} == {"stale"}


def test_fast_polls_do_not_mean_more_than_two_snapshots_a_second() -> None:
    fast = [(tenth / 10, [poll(tenth / 10)]) for tenth in range(1, 100)]
    seen = ticks(monitor(ScriptedSource([(0.05, [gpu_facts()]), *fast])), 10)
    assert 18 <= len([snapshot for snapshot in seen if snapshot.time_ns % (5 * SECOND)]) <= 20


def test_rules_are_evaluated_every_five_seconds_over_a_minute() -> None:
    judge = ScriptedJudge()
    seen = ticks(monitor(ScriptedSource(polling(100)), engine=judge), 90)
    assert [scene.now_ns for scene in judge.scenes] == [at(second) for second in range(5, 91, 5)]
    assert [scene.window_seconds for scene in judge.scenes[:3]] == [5.0, 10.0, 15.0]
    assert judge.scenes[-1].window_seconds == 60.0
    assert seen[-1].scene is judge.scenes[-1]


def test_finding_is_shown_with_the_evaluation_that_made_it() -> None:
    seen = ticks(monitor(ScriptedSource(polling(30)), engine=ScriptedJudge()), 20)
    first = next(snapshot for snapshot in seen if snapshot.findings)
    assert first.time_ns == at(10)
    assert first.next_evaluation_seconds == 5.0


def test_thirtieth_step_brings_the_evaluation_forward() -> None:
    judge = ScriptedJudge()
    made = steps(60, start=5.0, period=0.1)
    batches = [(0.0, [run_facts()]), *((5 + (n + 1) * 0.1, [step]) for n, step in enumerate(made))]
    ticks(monitor(ScriptedSource(batches), engine=judge), 15)
    moments = [(scene.now_ns - START_NS) / 1e9 for scene in judge.scenes]
    assert moments[0] == 5.0
    assert 8.0 <= moments[1] <= 8.2  # not at 10
    assert 13.0 <= moments[2] <= 13.2


def test_thirtieth_step_right_after_an_evaluation_waits_a_little() -> None:
    judge = ScriptedJudge()
    batches = [(0.0, [run_facts()]), (5.5, steps(30, start=2.0))]
    ticks(monitor(ScriptedSource(batches), engine=judge), 13)
    assert [(scene.now_ns - START_NS) / 1e9 for scene in judge.scenes] == [5.0, 7.5, 12.5]


def test_failing_rules_are_reported_and_the_rest_goes_on() -> None:
    seen = ticks(monitor(ScriptedSource(polling(20)), engine=ScriptedJudge(failing=True)), 10)
    assert any("diagnosis" in notice for notice in seen[-1].notices)
    assert seen[-1].gpus[0].latest is not None
    assert seen[-1].scene is not None


def test_failing_source_is_reported_and_the_others_go_on() -> None:
    broken = ScriptedSource(failing=[2.0], name="broken")
    watch = monitor(ScriptedSource(polling(20)), broken)
    seen = ticks(watch, 6)
    assert any("broken" in notice for notice in seen[-1].notices)
    assert seen[-1].gpus[0].latest is not None
    assert seen[-1].gpus[0].latest.time_ns > at(5)
    assert ticks(watch, 9)[-1].notices == ()  # asked again, it works


def test_sample_of_an_unknown_kind_costs_only_its_own_batch() -> None:
    odd = ScriptedSource([(1.0, ["no sample"])], name="odd")  # type: ignore[list-item]
    seen = ticks(monitor(ScriptedSource(polling(10)), odd), 5)
    assert len(seen) >= 5
    assert seen[-1].gpus[0].latest is not None
    assert any("odd" in notice for snapshot in seen for notice in snapshot.notices)


def test_failing_view_does_not_stop_the_others() -> None:
    watch = monitor(ScriptedSource(polling(10)))
    seen: list[Snapshot] = []

    def broken(snapshot: Snapshot) -> None:
        raise RuntimeError("the app is gone")

    watch.subscribe(broken)
    watch.subscribe(seen.append)
    watch.run_until(at(5))
    assert len(seen) >= 5


def test_run_until_stops_when_told_by_its_caller_or_from_outside() -> None:
    watch = monitor(ScriptedSource(polling(100)))
    seen: list[Snapshot] = []
    watch.run_until(at(100), on_tick=seen.append, stop=lambda: len(seen) >= 3)
    assert len(seen) == 3
    watch.run_until(at(100), on_tick=lambda snapshot: watch.stop())
    assert watch.snapshot().time_ns < at(10)
    watch.run_until(at(100))
    assert watch.snapshot().time_ns < at(10)


def test_watch_goes_on_where_the_last_one_ended() -> None:
    watch = monitor(ScriptedSource(polling(100)))
    ticks(watch, 10)
    seen = ticks(watch, 20)
    assert seen[0].time_ns > at(9)
    assert watch.final_scene(15).gpus[0].utilization is not None
    assert watch.final_scene(15).now_ns == at(20)


def test_stop_closes_every_source_once_the_watch_has_ended() -> None:
    source = ScriptedSource(polling(100))
    watch = monitor(source)
    watch.run_until(at(100), on_tick=lambda snapshot: watch.stop())
    assert source.closed == 0  # it was told so from within its own turn
    watch.stop()
    watch.stop()
    assert source.closed >= 1


def test_narrowing_follows_a_tree_that_changes() -> None:
    pids = {4711}
    facts: list[Sample] = [run_facts(4711), run_facts(4712)]
    watch = monitor(ScriptedSource([(0.5, facts)]), only_pids=lambda: frozenset(pids))
    assert [run.pid for run in ticks(watch, 3)[-1].runs] == [4711]
    pids.add(4712)
    assert [run.pid for run in ticks(watch, 6)[-1].runs] == [4711, 4712]


def test_month_of_samples_is_pruned_on_the_way() -> None:
    days = [(day * 86_400.0, [host(day * 86_400.0), run_facts(day + 1)]) for day in range(30)]
    watch = monitor(ScriptedSource(days), evaluate_every_seconds=86_400.0)
    for day in range(1, 30):
        watch.run_until(
            at(day * 86_400.0), stop=lambda day=day: watch.snapshot().time_ns > at((day - 1) * 86_400 + 120)
        )  # type: ignore[misc]
        watch._clock.wait((), at(day * 86_400.0))
    assert len(watch.timeline.trainers) <= 3


def test_findings_are_shown_worst_first_and_those_behind_another_last() -> None:
    ordered = in_order(
        [
            finding("hint", Severity.HINT),
            finding("behind", Severity.CRITICAL, behind="worst"),
            finding("warning", Severity.WARNING),
            finding("pending", Severity.CRITICAL, state="pending"),
            finding("worst", Severity.CRITICAL, state="clearing"),
        ]
    )
    assert [each.rule for each in ordered] == ["worst", "warning", "hint", "behind"]


def test_share_is_of_the_last_minute() -> None:
    readings = iter([0.0, 6.0, 6.3, 6.6])
    cost = OwnCost(lambda: next(readings))
    assert cost.share(0) is None
    assert cost.share(60 * SECOND) == pytest.approx(0.1)
    assert cost.share(90 * SECOND) == pytest.approx(0.01)  # the busy start is over a minute old


def test_child_that_ended_does_not_make_the_cost_negative() -> None:
    readings = iter([10.0, 3.0, 3.5])
    cost = OwnCost(lambda: next(readings))
    cost.share(0)
    assert cost.share(5 * SECOND) is None
    assert cost.share(10 * SECOND) == pytest.approx(0.1)


def test_children_count_and_those_that_ended_meanwhile_do_not(tmp_path: Path) -> None:
    alone = cpu_seconds(tmp_path)
    task = tmp_path / "self/task/77"
    task.mkdir(parents=True)
    (task / "children").write_text("501 502 ")
    child = tmp_path / "501"
    child.mkdir()
    ticks = 1_000 * os.sysconf("SC_CLK_TCK")
    (child / "stat").write_text(f"501 (a (strange) name) S {' 0' * 10} {ticks} {ticks} 0 0 0 0 1 0 9 0 0\n")
    assert cpu_seconds(tmp_path) - alone == pytest.approx(2_000, abs=5)


def simulated(seed: int) -> list[Snapshot]:
    watch = simulated_monitor("starved", seed=seed, virtual=True)
    seen: list[Snapshot] = []
    watch.run_until(watch.snapshot().time_ns + 40 * SECOND, on_tick=seen.append)
    watch.stop()
    return seen


def test_simulated_watch_says_so_at_all_times_and_finds_what_is_wrong() -> None:
    seen = simulated(0)
    assert {snapshot.origin.label for snapshot in seen} == {"SIMULATED starved"}
    assert {snapshot.origin.kind for snapshot in seen} == {"simulated"}
    assert "data-starvation" in {finding.rule for finding in seen[-1].findings}
    assert seen[-1].notices == ()


def test_same_seed_gives_the_same_watch() -> None:
    first, second = simulated(3), simulated(3)
    assert first[-1].findings == second[-1].findings
    assert repr(first[-1].scene) == repr(second[-1].scene)
    assert repr(first[-1].scene) != repr(simulated(4)[-1].scene)


def test_demo_opens_with_a_past_and_its_findings() -> None:
    watch = simulated_monitor("starved", history_seconds=60.0)
    watch.run_until(None, stop=lambda: watch.snapshot().time_ns - watch.snapshot().started_ns >= 59 * SECOND)
    watch.stop()
    snapshot = watch.snapshot()
    assert "workers-zero" in {finding.rule for finding in snapshot.findings}
    assert snapshot.runs[0].steps_total > 100
