from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.monitor.build import in_order
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.samples import Sample
from tests.unit.fake_sources import ScriptedJudge, ScriptedSource, finding, monitor, ticks
from tests.unit.sample_builder import SECOND, START_NS, at, gpu_facts, host, poll, run_facts, steps

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
