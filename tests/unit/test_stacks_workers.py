"""Which processes below a trainer are its workers, as they come and go."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from stack_looks import MAIN, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.sources.stacks.schedule import Ration
from gpuwatch.sources.stacks.workers import Workers

TRAINER = 100
SECOND = 1_000_000_000
PAUSE = SECOND // 5


class FakeProcess:
    version = (3, 11)

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.pid, self.start_ticks, self.closed = pid, start_ticks, False

    def main_stack(self) -> Stack | None:
        return stack((MAIN, "serve", 3))

    def stacks(self) -> list[Stack]:
        return [stack((MAIN, "serve", 3))]

    def close(self) -> None:
        self.closed = True

    def state(self, stack: Stack) -> LoaderState | None:
        return None

    def recheck(self, state: LoaderState) -> int | None:
        return None

    def integer(self, frame: Frame, name: str) -> int | None:
        return None


class Tree:
    """A trainer's children in a /proc that is made up."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        self.now_ns = 0
        self.attached: list[int] = []
        self.processes: dict[int, FakeProcess] = {}
        self.denied: set[int] = set()
        self.children: dict[tuple[int, int], list[int]] = {}
        self.booted_ns = 10 * SECOND
        self.cpu_ns = 0
        self.attaching_costs_ns = 0
        self.workers = Workers(
            TRAINER, folder, self._attach, random.Random(0), Ration(0.0125),
            cpu_clock=lambda: self.cpu_ns, since_boot=lambda: self.booted_ns + self.now_ns,
        )  # fmt: skip

    def has(self, *pids: int, of: int = TRAINER, thread: int | None = None) -> None:
        task = self.proc / str(of) / "task" / str(thread or of)
        task.mkdir(parents=True, exist_ok=True)
        (task / "children").write_text(" ".join(map(str, pids)) + " ")

    def process(self, pid: int, name: str = "pt_data_worker", start_ticks: int = 7, command: str = "python") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        words = ["S", "1", *["0"] * 17, str(start_ticks), *["0"] * 20]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(words)}\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0"))

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += PAUSE
            self.workers.look(self.now_ns, 20.0)

    def readable(self) -> list[int]:
        return sorted(worker.pid for worker in self.workers.readable())

    def _attach(self, pid: int, proc_root: Path) -> tuple[FakeProcess, FakeProcess]:
        self.attached.append(pid)
        self.cpu_ns += self.attaching_costs_ns
        if pid in self.denied:
            raise CannotReadError(Reason.PERMISSION, "no")
        words = (self.proc / str(pid) / "stat").read_text().split(") ")[1].split()
        process = self.processes[pid] = FakeProcess(pid, int(words[19]))
        return process, process


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_children_named_as_workers_are_read_until_they_end(tree: Tree) -> None:
    tree.has(201, 202)
    for pid in (201, 202):
        tree.process(pid)
    tree.look()
    assert (tree.readable(), tree.workers.count) == ([201, 202], 2)
    tree.has(202)
    tree.look()
    assert (tree.readable(), tree.workers.count) == ([202], 1)
    assert tree.processes[201].closed


def test_a_pid_that_is_another_process_now_is_attached_to_anew(tree: Tree) -> None:
    tree.has(201)
    tree.process(201, start_ticks=7)
    tree.look()
    first = tree.processes[201]
    tree.process(201, start_ticks=8)
    tree.look(3)
    assert first.closed
    assert [worker.start_ticks for worker in tree.workers.readable()] == [8]


def test_a_child_that_is_no_worker_is_asked_no_more_once_refused(tree: Tree) -> None:
    tree.has(201)
    tree.process(201, name="python")
    tree.look()
    assert tree.workers.count == 0
    tree.workers.refuse(tree.workers.readable()[0])
    tree.look(10)
    assert tree.attached == [201]


def test_workers_of_a_forkserver_are_found_below_it(tree: Tree) -> None:
    tree.has(300)
    tree.process(300, name="python", command="python -c from multiprocessing.forkserver import main")
    tree.has(201, of=300)
    tree.process(201)
    tree.look(2)
    assert tree.readable() == [201]
    assert 300 not in tree.attached


def test_workers_that_another_thread_forked_are_found_within_two_seconds(tree: Tree) -> None:
    tree.has()
    tree.look()
    tree.has(201, thread=150)
    tree.process(201)
    tree.look(11)
    assert tree.readable() == [201]
    tree.look(3)
    assert tree.readable() == [201]


def test_a_worker_that_may_not_be_read_counts_but_is_not_tried_for_ever(tree: Tree) -> None:
    tree.has(201)
    tree.process(201)
    tree.denied = {201}
    tree.look(60)
    assert (tree.readable(), tree.workers.count) == ([], 1)
    assert len(tree.attached) == 5


def test_workers_restarted_again_and_again_cost_few_attachments(tree: Tree) -> None:
    for generation in range(50):  # 10 s of epochs that last 200 ms
        pids = range(1000 + 8 * generation, 1008 + 8 * generation)
        tree.has(*pids)
        for pid in pids:
            tree.process(pid)
        tree.look()
    assert len(tree.attached) <= 24 + 6 * 10


def test_a_worker_is_attached_to_once_it_is_a_tenth_of_a_second_old(tree: Tree) -> None:
    tree.has(201)
    started_ns = tree.booted_ns + PAUSE - SECOND // 20
    tree.process(201, start_ticks=started_ns * os.sysconf("SC_CLK_TCK") // SECOND)
    tree.look()
    assert tree.attached == []
    assert tree.workers.count == 1
    tree.look()
    assert tree.attached == [201]


def test_attaching_that_is_expensive_takes_no_more_than_its_share_of_a_core(tree: Tree) -> None:
    tree.attaching_costs_ns = 40_000_000
    for generation in range(100):  # 20 s
        pids = range(1000 + 4 * generation, 1004 + 4 * generation)
        tree.has(*pids)
        for pid in pids:
            tree.process(pid)
        tree.look()
    assert 100_000_000 <= tree.cpu_ns <= 100_000_000 + 0.0125 * 20 * SECOND + tree.attaching_costs_ns
