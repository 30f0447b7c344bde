"""Which processes below a trainer are its workers, as they come and go, and what each does by its stacks."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from stack_samples import MAIN, SITE, FakeText, Place, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.sources.stacks.classify import Places
from gpuwatch.sources.stacks.schedule import Ration
from gpuwatch.sources.stacks.workers import WorkerClassifier, Workers

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
            self.workers.find(self.now_ns, 20.0)

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


FETCH = SITE + "torch/utils/data/_utils/fetch.py"
WORKER = SITE + "torch/utils/data/_utils/worker.py"
FETCH_TEXT = "data = [self.dataset[idx] for idx in possibly_batched_index]\nreturn self.collate_fn(data)\n"
WORKER_TEXT = "r = index_queue.get(timeout=5)\ndata = fetcher.fetch(index)\ndata_queue.put((idx, data))\n"
# A forked worker still has its parent's stack, the user's training loop in it.
OUTSIDE: tuple[Place, ...] = (
    ("multiprocessing/process.py", "_bootstrap", 314),
    ("torch/utils/data/dataloader.py", "__iter__", 492),
    (MAIN, "train", 88),
)
LOOP: Place = (WORKER, "_worker_loop", 2)
ITEM: Place = (FETCH, "fetch", 1)
COLLATE: Place = (FETCH, "fetch", 2)
FED: tuple[Place, ...] = (("multiprocessing/queues.py", "_feed", 1), ("threading.py", "run", 1))


def reading(*inner: Place, feeder: tuple[Place, ...] = (("threading.py", "wait", 300),)) -> tuple[str, int | None]:
    classifier = WorkerClassifier(Places(), FakeText({FETCH: FETCH_TEXT, WORKER: WORKER_TEXT, MAIN: "\n" * 99}))
    stacks = [stack(*inner, *OUTSIDE), stack(*feeder, *FED, thread=2, is_main=False)]
    found = classifier.read(stacks)
    assert found is not None
    phase, culprit, _ = found
    return phase, culprit.line if culprit is not None else None


@pytest.mark.parametrize(
    ("inner", "phase", "line"),
    [
        ([("PIL/Image.py", "resize", 7), (MAIN, "__getitem__", 40), ITEM, LOOP], "item", 40),
        ([(MAIN, "__next__", 41), ITEM, LOOP], "item", 41),
        ([("torch/utils/data/_utils/collate.py", "default_collate", 7), COLLATE, LOOP], "collate", None),
        ([(MAIN, "pad", 50), COLLATE, LOOP], "collate", 50),
        ([("threading.py", "wait", 7), ("multiprocessing/queues.py", "get", 7), LOOP], "idle", None),
        ([("multiprocessing/queues.py", "put", 7), LOOP], "send", None),
        ([(WORKER, "_worker_loop", 1)], "idle", None),
        ([(WORKER, "_worker_loop", 3)], "send", None),
        ([(WORKER, "is_alive", 50), LOOP], "other", None),
        (
            [("PIL/Image.py", "resize", 70), ("torchvision/datasets/folder.py", "__getitem__", 7), ITEM, LOOP],
            "item",
            70,
        ),
    ],
)
def test_the_phase_of_a_worker_and_its_line(inner: list[Place], phase: str, line: int | None) -> None:
    assert reading(*inner) == (phase, line)


def test_the_calls_in_a_worker_end_at_its_loop() -> None:
    classifier = WorkerClassifier(Places(), FakeText({FETCH: FETCH_TEXT, WORKER: WORKER_TEXT}))
    found = classifier.read([stack((MAIN, "warp", 57), (MAIN, "__getitem__", 40), ITEM, LOOP, *OUTSIDE)])
    assert found is not None
    assert [(call.line, call.callee) for call in found[2]] == [(40, "warp")]
    of_torch = classifier.read([stack(("torch/utils/data/dataset.py", "__getitem__", 7), ITEM, LOOP, *OUTSIDE)])
    assert of_torch is not None and of_torch[2] == ()


@pytest.mark.parametrize(
    ("inner", "phase"),
    [
        (("multiprocessing/queues.py", "get", 7), "idle"),
        ((MAIN, "__getitem__", 40), "item"),
    ],
)
def test_the_hooks_frames_in_a_worker_are_not_its_own(inner: Place, phase: str) -> None:
    hook: Place = (SITE + "gpuwatch/hook/workers.py", "get", 60)
    between: list[Place] = [ITEM] if phase == "item" else []
    assert reading(inner, *between, hook, LOOP)[0] == phase


def test_a_worker_whose_feeder_thread_pickles_sends() -> None:
    waits: list[Place] = [("multiprocessing/queues.py", "get", 7), LOOP]
    pickles: tuple[Place, ...] = (("multiprocessing/reduction.py", "dumps", 51),)
    assert reading(*waits, feeder=pickles) == ("send", None)
    assert reading(*waits) == ("idle", None)


def test_a_worker_that_makes_a_batch_while_another_is_sent_makes_a_batch() -> None:
    pickles: tuple[Place, ...] = (("multiprocessing/reduction.py", "dumps", 51),)
    assert reading((MAIN, "__getitem__", 40), ITEM, LOOP, feeder=pickles) == ("item", 40)


def test_a_process_without_the_workers_loop_is_none() -> None:
    classifier = WorkerClassifier(Places(), FakeText())
    assert not classifier.is_worker([stack((MAIN, "serve", 3))])
    assert classifier.is_worker([stack(LOOP, *OUTSIDE)])
