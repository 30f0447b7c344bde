from __future__ import annotations

from pathlib import Path

from gpuwatch.monitor.attached import AttachedTree

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
    tree = AttachedTree(1, lambda: [2, 99], tmp_path, lambda: now[0])
    tree.pids()
    children(tmp_path, 1)
    now[0] = SECOND
    assert tree.pids() == {1, 2}


def test_host_looks_at_the_root_and_the_trainers_below_it(tmp_path: Path) -> None:
    children(tmp_path, 1, 2)
    children(tmp_path, 2)
    tree = AttachedTree(1, lambda: [2, 99], tmp_path, lambda: 0)
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
    trainers: list[int] = []
    children(tmp_path, 1)
    tree = AttachedTree(1, lambda: trainers, tmp_path, lambda: 0)
    assert tree.pids() == {1}
    children(tmp_path, 1, 2, 3)
    assert tree.pids() == {1}
    trainers.append(2)
    assert tree.pids() == {1, 2, 3}
