"""What the monitor watches: process trees over made-up /proc folders, attaching, and what is recorded of a tree."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from gpuwatch.monitor.recorder import RecordedPart
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.monitor.wiring import AttachedTree, Focus
from gpuwatch.samples import ProcessSample, RunFacts, Sample, TrainerEnded
from gpuwatch.timeline.timeline import Timeline
from tests.unit.fake_sources import ScriptedJudge, ScriptedSource, monitor, ticks
from tests.unit.sample_builder import at, counts, ended, run_facts, sampled_facts, steps, tallies, timeline

SECOND = 1_000_000_000


def stat(proc: Path, pid: int, start_ticks: int = 77) -> None:
    fields = ["S", "1", *["0"] * 17, str(start_ticks), "0", "0"]
    (proc / f"{pid}").mkdir(parents=True, exist_ok=True)
    (proc / f"{pid}/stat").write_text(f"{pid} (python3) {' '.join(fields)}\n")


def children(proc: Path, pid: int, *below: int) -> None:
    stat(proc, pid)
    folder = proc / f"{pid}/task/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "children").write_text(" ".join(map(str, below)))


def test_tree_grows_with_its_children_at_most_once_a_second(tmp_path: Path) -> None:
    now = [0]
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    tree = AttachedTree(1, tuple, tmp_path, lambda: now[0])
    assert tree.pids() == {1, 2}
    children(tmp_path, 2, 3)
    children(tmp_path, 3)
    assert tree.pids() == {1, 2}
    now[0] = SECOND
    assert tree.pids() == {1, 2, 3}


def test_trainer_that_ended_stays_in_the_tree_and_a_worker_does_not(tmp_path: Path) -> None:
    now = [0]
    children(tmp_path, 1, 2, 3)
    children(tmp_path, 2)
    children(tmp_path, 3)
    tree = AttachedTree(1, lambda: [(2, 77), (99, 77)], tmp_path, lambda: now[0])
    tree.pids()
    children(tmp_path, 1)
    now[0] = SECOND
    assert tree.pids() == {1, 2}


def test_host_looks_at_the_root_and_the_trainers_below_it(tmp_path: Path) -> None:
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    tree = AttachedTree(1, lambda: [(2, 77), (99, 77)], tmp_path, lambda: 0)
    assert tree.targets([2, 99]) == [1, 2]
    assert tree.targets([1]) == [1]


def test_dead_root_is_a_tree_of_itself(tmp_path: Path) -> None:
    assert AttachedTree(1, tuple, tmp_path, lambda: 0).pids() == {1}


def test_a_process_that_is_given_a_dead_roots_pid_is_not_followed(tmp_path: Path) -> None:
    now = [0]
    tree = AttachedTree(1, tuple, tmp_path, lambda: now[0], list)
    assert tree.targets([]) == []
    children(tmp_path, 1, 2)
    now[0] = SECOND
    assert (tree.pids(), tree.targets([2]), tree.trainers()) == ({1}, [], [])


def test_a_new_trainer_has_the_tree_walked_at_once(tmp_path: Path) -> None:
    trainers: list[tuple[int, int]] = []
    children(tmp_path, 1)
    tree = AttachedTree(1, lambda: trainers, tmp_path, lambda: 0)
    assert tree.pids() == {1}
    children(tmp_path, 1, 2, 3)
    assert tree.pids() == {1}
    trainers.append((2, 77))
    assert tree.pids() == {1, 2, 3}


def test_a_run_that_is_given_an_ended_ranks_pid_is_not_of_the_tree(tmp_path: Path) -> None:
    now, trainers = [0], [(2, 77)]
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    tree = AttachedTree(1, lambda: trainers, tmp_path, lambda: now[0])
    assert tree.pids().holds(2, 77)
    children(tmp_path, 1)
    stat(tmp_path, 2, start_ticks=99)  # somebody else's, below no process of the tree
    trainers.append((2, 99))
    now[0] = SECOND
    found = tree.pids()
    assert found == {1, 2}, "the rank that ended stays"
    assert found.holds(2, 77)
    assert not found.holds(2, 99)


def test_a_rank_that_is_started_again_under_the_same_pid_is_of_the_tree(tmp_path: Path) -> None:
    now, trainers = [0], [(2, 77)]
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    tree = AttachedTree(1, lambda: trainers, tmp_path, lambda: now[0])
    tree.pids()
    stat(tmp_path, 2, start_ticks=99)
    trainers.append((2, 99))
    now[0] = SECOND
    assert tree.pids().holds(2, 99)


def test_a_process_that_is_given_a_dead_roots_pid_is_not_shown(tmp_path: Path) -> None:
    now, trainers = [0], [(1, 77)]
    children(tmp_path, 1)
    tree = AttachedTree(1, lambda: trainers, tmp_path, lambda: now[0])
    assert tree.pids().holds(1, 77)
    stat(tmp_path, 1, start_ticks=99)
    trainers.append((1, 99))
    now[0] = SECOND
    assert not tree.pids().holds(1, 99)


def test_focus_scene_and_recording_leave_out_the_run_with_the_reused_pid(tmp_path: Path) -> None:
    history = Timeline(started_ns=0)
    history.add(RunFacts(SECOND, "2.77", 2, 77, ("python", "mine.py")))
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    clock = [0]
    focus = Focus(history, tmp_path, lambda: clock[0], lambda pids: [])
    focus.attach(1)
    assert focus.hooked() == [2]
    history.add(TrainerEnded("2.77", 2 * SECOND, "exited"))
    children(tmp_path, 1)
    stat(tmp_path, 2, start_ticks=99)
    clock[0] = 5 * SECOND
    theirs = RunFacts(5 * SECOND, "2.99", 2, 99, ("python", "theirs.py"))
    history.add(theirs)
    assert focus.hooked() == []
    chosen = focus.pids()
    assert [run.title for run in history.scene(6 * SECOND, 10.0, only_pids=chosen).runs] == ["mine.py"]
    assert list(RecordedPart(history, focus.pids).of([theirs], 6 * SECOND)) == []
    process = ProcessSample(time_ns=6 * SECOND, pid=2, start_ticks=99, command="theirs")
    history.add(process)
    history.trainers.clear()
    assert [run.id for run in history.runs(6 * SECOND, 10 * SECOND, chosen)] == []


LOOP = {"wait": 40, "forward": 60}


def python(proc: Path, pid: int) -> None:
    (proc / f"{pid}").mkdir(parents=True, exist_ok=True)
    (proc / f"{pid}/exe").symlink_to("/usr/bin/python3.11")
    (proc / f"{pid}/cmdline").write_bytes(b"python3\0train.py\0")


class Judged:
    """Says which pids of a tree train, and counts how often it is asked."""

    def __init__(self, *training: int) -> None:
        self.training = set(training)
        self.asked = 0

    def __call__(self, pids: Collection[int]) -> list[int]:
        self.asked += 1
        return sorted(self.training & set(pids))


def tree(proc: Path, judged: Judged, now: list[int] | None = None, trainers: Collection[int] = ()) -> AttachedTree:
    clock = now if now is not None else [0]
    return AttachedTree(1, lambda: trainers, proc, lambda: clock[0], judged)


def test_trainers_of_the_tree_are_looked_for_once_a_second(tmp_path: Path) -> None:
    now, judged = [0], Judged(2, 9)
    children(tmp_path, 1, 2, 3)
    attached = tree(tmp_path, judged, now)
    assert [attached.trainers() for _ in range(5)] == [[2]] * 5
    assert judged.asked == 1
    now[0] = SECOND
    judged.training.add(3)
    assert attached.trainers() == [2, 3]


def test_root_that_still_imports_is_looked_at_until_somebody_trains(tmp_path: Path) -> None:
    now, judged = [0], Judged()
    children(tmp_path, 1, 2)
    python(tmp_path, 1)
    attached = tree(tmp_path, judged, now)
    assert attached.trainers() == [1]
    now[0] += SECOND
    judged.training = {2}
    assert attached.trainers() == [2]
    now[0] += 10 * SECOND
    judged.training = set()
    assert attached.trainers() == []


def test_trainer_that_is_gone_is_named_until_its_end_was_seen(tmp_path: Path) -> None:
    now, judged = [0], Judged(2, 3)
    children(tmp_path, 1, 2, 3)
    attached = tree(tmp_path, judged, now)
    assert attached.trainers() == [2, 3]
    judged.training = {3}
    now[0] = 4 * SECOND
    assert attached.trainers() == [2, 3]
    now[0] = 6 * SECOND
    assert attached.trainers() == [3]


def test_root_that_is_no_python_is_not_looked_at(tmp_path: Path) -> None:
    children(tmp_path, 1)
    assert tree(tmp_path, Judged()).trainers() == []


def test_pid_of_the_root_that_is_given_away_is_not_followed(tmp_path: Path) -> None:
    now, judged = [0], Judged(1, 2)
    children(tmp_path, 1, 2)
    stat(tmp_path, 1, 77)
    attached = tree(tmp_path, judged, now, trainers=[1])
    assert (attached.pids(), attached.trainers(), attached.targets([1])) == ({1, 2}, [1, 2], [1])
    stat(tmp_path, 1, 99)
    now[0] = SECOND
    assert attached.trainers() == [1, 2]  # until their ends were seen
    now[0] = 7 * SECOND
    assert attached.trainers() == []
    assert 2 not in attached.pids()
    assert 1 in attached.pids()
    assert attached.targets([]) == []


@pytest.fixture
def focus(tmp_path: Path) -> Focus:
    """Over pid 1 with the trainers 2 (hooked) and 3 below it, and 4 elsewhere."""
    children(tmp_path, 1, 2, 3)
    history = timeline(run_facts(2), run_facts(4), sampled_facts(3))
    return Focus(history, tmp_path, lambda: 0, lambda pids: sorted({2, 3} & set(pids)))


def test_everything_means_every_hooked_trainer_and_no_other(focus: Focus) -> None:
    assert (focus.attached_pid, focus.pids()) == (None, None)
    assert (focus.hooked(), focus.unhooked(), focus.host_targets()) == ([2, 4], [], [2, 4])


def test_attached_means_the_tree_with_those_that_have_no_hook(focus: Focus) -> None:
    focus.attach(1)
    assert (focus.attached_pid, focus.pids()) == (1, {1, 2, 3})
    assert (focus.hooked(), focus.unhooked(), focus.host_targets()) == ([2], [3], [1, 2, 3])
    focus.attach(None)
    assert (focus.attached_pid, focus.pids(), focus.unhooked()) == (None, None, [])


def test_trainer_that_is_hooked_by_now_is_no_longer_unhooked(tmp_path: Path) -> None:
    children(tmp_path, 1, 3)
    history = timeline(sampled_facts(3))
    focus = Focus(history, tmp_path, lambda: 0, lambda pids: sorted({3} & set(pids)))
    focus.attach(1)
    assert (focus.hooked(), focus.unhooked()) == ([], [3])
    history.add(run_facts(3))
    assert (focus.hooked(), focus.unhooked()) == ([3], [])
    history.add(ended(9, "3.1", how="lost"))
    assert (focus.hooked(), focus.unhooked()) == ([], [3])


class FakeFocus:
    """A focus over pids as they are."""

    def __init__(self) -> None:
        self.attached_pid: int | None = None

    def attach(self, pid: int | None) -> None:
        self.attached_pid = pid

    def pids(self) -> frozenset[int] | None:
        return None if self.attached_pid is None else frozenset({self.attached_pid})


def two_runs(seconds: int) -> list[tuple[float, list[Sample]]]:
    first: list[Sample] = [run_facts(4711), sampled_facts(4712)]
    looks = tallies(seconds, LOOP, trainer="4712.1")
    readings = counts(seconds, 4, trainer="4712.1")
    made = steps(seconds * 10)
    batches: list[tuple[float, list[Sample]]] = [(0.0, first)]
    return batches + [
        (second + 1.0, [looks[second], readings[second + 1], *made[second * 10 : second * 10 + 10]])
        for second in range(seconds)
    ]


def test_attaching_and_detaching_turn_the_views_at_once() -> None:
    watch = monitor(ScriptedSource(two_runs(60)), focus=FakeFocus())
    assert {run.pid for run in ticks(watch, 5.5)[-1].runs} == {4711, 4712}
    watch.attach(4712)
    seen = ticks(watch, 5.7)
    assert [(snapshot.attached_pid, [run.pid for run in snapshot.runs]) for snapshot in seen] == [(4712, [4712])]
    watch.attach(None)
    (wide,) = ticks(watch, 5.9)
    assert (wide.attached_pid, {run.pid for run in wide.runs}) == (None, {4711, 4712})


def test_findings_of_before_are_gone_until_the_rules_have_seen_the_new_choice() -> None:
    judge = ScriptedJudge()
    watch = monitor(ScriptedSource(two_runs(60)), focus=FakeFocus(), engine=judge)
    watch.run_until(at(60), stop=lambda: len(judge.scenes) == 4)
    assert watch.snapshot().findings != ()
    judged_ns = watch.snapshot().time_ns
    watch.attach(4712)
    seen: list[Snapshot] = []
    watch.run_until(judged_ns + 4 * SECOND, on_tick=seen.append)
    assert seen[0].findings == () and seen[0].scene is None
    assert len(judge.scenes) == 5
    assert [run.ranks[0].facts.pid for run in judge.scenes[-1].runs] == [4712]
    assert judge.scenes[-1].now_ns == judged_ns + 5 * SECOND // 2
    assert seen[-1].scene is judge.scenes[-1]


def test_any_thread_may_attach() -> None:
    watch = monitor(ScriptedSource(two_runs(60)), focus=FakeFocus())
    ticks(watch, 5)
    threads = [threading.Thread(target=watch.attach, args=(pid,)) for pid in (4711, 4711, 4711)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ticks(watch, 6)[-1].attached_pid == 4711


def test_made_up_machine_has_nothing_to_attach_to() -> None:
    with pytest.raises(ValueError, match="SIMULATED test"):
        monitor().attach(4711)
