from __future__ import annotations

from pathlib import Path

from gpuwatch.monitor.focus import AttachedTree, Focus
from gpuwatch.monitor.recorder import RecordedPart
from gpuwatch.samples import ProcessSample, RunFacts, TrainerEnded
from gpuwatch.timeline.timeline import Timeline

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
