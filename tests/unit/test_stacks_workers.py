"""Which processes are workers of a trainer, which threads make its batches, and what each does by its stacks."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from stack_samples import CALL, MAIN, NEXT, SITE, FakeText, Place, classifier, frame, frames, loader_state, read, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.sources.stacks.classify import Classifier, Places
from gpuwatch.sources.stacks.loops import Loops
from gpuwatch.sources.stacks.schedule import Ration
from gpuwatch.sources.stacks.tally import StackSample
from gpuwatch.sources.stacks.workers import Feeders, FeederSample, WorkerClassifier, Workers

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


TRAIN = """\
def produce(loader, queue):
    for batch in loader:
        queue.put(batch)

def make(queue):
    while True:
        batch = decode(next_file())
        queue.put(batch)

def heartbeat():
    while True:
        time.sleep(1)

def load(step):
    return decode(step)

def train():
    for step in range(100):
        x = queue.get().to(device)
        model(x).backward()
"""
LIBRARY = """\
class BackgroundGenerator(threading.Thread):
    def run(self):
        for item in self.generator:
            self.queue.put(item)
"""
PREFETCH = f"{SITE}prefetch_generator/__init__.py"
TEXT = FakeText({MAIN: TRAIN, PREFETCH: LIBRARY})
GET: tuple[Place, ...] = (("threading.py", "wait", 300), ("queue.py", "get", 170))
PUT: tuple[Place, ...] = (("threading.py", "wait", 300), ("queue.py", "put", 140))
WAITS: Place = (MAIN, "train", 19)
POOL: tuple[Place, ...] = (
    ("/usr/lib/python3.11/concurrent/futures/thread.py", "run", 58),
    ("/usr/lib/python3.11/concurrent/futures/thread.py", "_worker", 80),
)
FETCHING: Place = ("torch/utils/data/_utils/fetch.py", "fetch", 50)


def thread(number: int, *inner_to_outer: Place) -> Stack:
    return Stack(number, number == 1, tuple(frame(*place) for place in inner_to_outer))


WAITING_TRAINER = thread(1, *GET, WAITS)


class FakeThreads:
    pid, start_ticks, version = 1, 1, (3, 11)

    def __init__(self, *stacks: Stack) -> None:
        self.now = list(stacks)
        self.asked = 0

    def main_stack(self) -> Stack | None:
        return WAITING_TRAINER

    def stacks(self) -> list[Stack]:
        self.asked += 1
        return [WAITING_TRAINER, *self.now]

    def close(self) -> None:
        pass


def feeders(*stacks: Stack) -> Feeders:
    return Feeders(FakeThreads(*stacks), classifier(TEXT), TEXT)


def seen(*stacks: Stack) -> Sequence[FeederSample]:
    found = feeders(*stacks).sample(WAITING_TRAINER, SECOND)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "waiting",
    [
        GET,
        (("/usr/lib/python3.11/concurrent/futures/_base.py", "result", 450),),
        (("multiprocessing/connection.py", "poll", 250), ("multiprocessing/queues.py", "get", 110)),
        (*GET, (PREFETCH, "__next__", 12)),
    ],
)
def test_a_thread_that_waits_for_a_queue_or_a_task_is_handed_something(waiting: tuple[Place, ...]) -> None:
    reading = read(*waiting, WAITS, source=TRAIN)
    assert (reading.phase, reading.handed, reading.waits) == ("other", True, False)


@pytest.mark.parametrize(
    "other",
    [
        (*GET, ("torch/utils/data/dataloader.py", "_try_get_data", 1200), NEXT),  # a loader's own queue
        (*GET, ("wandb/sdk/wandb_run.py", "log", 5)),
        (*GET, (MAIN, "forward", 80), CALL),
        (("torch/serialization.py", "save", 6),),
    ],
)
def test_what_a_loader_a_logger_or_a_model_waits_for_is_no_handover(other: tuple[Place, ...]) -> None:
    assert not read(*other, WAITS, source=TRAIN).handed


def test_a_thread_in_a_loop_that_puts_feeds_the_training() -> None:
    making, reading = (
        thread(2, (MAIN, "decode", 40), (MAIN, "make", 7)),
        thread(3, FETCHING, NEXT, (MAIN, "produce", 2)),
    )
    found = seen(making, reading)
    assert [(look.stack.thread, look.phase) for look in found] == [(2, "make"), (3, "make")]
    culprit = found[0].reading.culprit
    assert culprit is not None and (culprit.function, culprit.line) == ("decode", 40)


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        (thread(2, *PUT, (MAIN, "produce", 3)), "idle"),
        (thread(2, *GET, (MAIN, "make", 7)), "idle"),
        (thread(2, ("selectors.py", "select", 400), NEXT, (MAIN, "produce", 2)), "wait"),  # for worker processes
        (thread(2, FETCHING, NEXT, (PREFETCH, "run", 3)), "make"),
        (thread(2, (MAIN, "load", 15), *POOL), "make"),
    ],
)
def test_what_such_a_thread_does(stack: Stack, phase: str) -> None:
    assert [look.phase for look in seen(stack)] == [phase]


@pytest.mark.parametrize(
    "stack",
    [
        thread(2, (MAIN, "heartbeat", 12)),
        thread(2, ("queue.py", "get", 170), *POOL),  # a pool without a task
        thread(2, ("tqdm/_monitor.py", "run", 60)),
    ],
)
def test_other_threads_do_not(stack: Stack) -> None:
    assert list(seen(stack)) == []


PIN: tuple[Place, ...] = (
    ("torch/utils/data/_utils/pin_memory.py", "do_one_step", 28),
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop", 50),
)


@pytest.mark.parametrize(
    ("inner", "phase"),
    [
        ([("multiprocessing/connection.py", "poll", 250), ("multiprocessing/queues.py", "get", 110)], "pin-idle"),
        ([("multiprocessing/connection.py", "_recv_bytes", 400), ("multiprocessing/queues.py", "get", 112)], "pin"),
        ([("torch/multiprocessing/reductions.py", "rebuild_storage_fd", 5), ("multiprocessing/queues.py", "get", 122)],
         "pin"),
        ([("torch/utils/data/_utils/pin_memory.py", "pin_memory", 55)], "pin"),
        ([(MAIN, "pin_memory", 44), ("torch/utils/data/_utils/pin_memory.py", "pin_memory", 58)], "pin"),
    ],
)  # fmt: skip
def test_the_thread_that_pins_a_loaders_batches_is_busy_but_where_it_waits_for_the_workers(
    inner: list[Place], phase: str
) -> None:
    assert [look.phase for look in seen(thread(2, *inner, *PIN))] == [phase]


def test_they_are_sampled_no_oftener_than_asked_for() -> None:
    found = feeders()
    taken = []
    for now_ns in range(SECOND, SECOND + SECOND // 10, SECOND // 100):
        if found.is_due(now_ns, 20.0, waits=True):
            found.sample(WAITING_TRAINER, now_ns)
            taken.append((now_ns - SECOND) * 100 // SECOND)
    assert taken == [0, 5]


def test_they_are_sampled_while_the_training_computes_only_if_it_waited_lately() -> None:
    found = feeders()
    assert not found.is_due(SECOND, 20.0, waits=False)
    assert found.is_due(2 * SECOND, 20.0, waits=True)
    assert found.is_due(11 * SECOND, 20.0, waits=False)
    assert not found.is_due(13 * SECOND, 20.0, waits=False)


def test_a_task_that_saves_is_a_checkpoint_and_no_batch() -> None:
    found = feeders(thread(2, ("torch/serialization.py", "save", 6), (MAIN, "load", 15), *POOL))
    assert found.sample(WAITING_TRAINER, SECOND) is None
    assert found.waited_for == "save"
    assert feeders(thread(2, (MAIN, "load", 15), *POOL)).waited_for == "wait"


def test_what_the_training_thread_waits_for_is_the_phase_of_its_sample() -> None:
    look = StackSample(SECOND, read(*GET, WAITS, source=TRAIN), None)
    assert look.phase == "other"
    look.handed = "wait"
    assert look.phase == "wait"


def test_a_loader_that_such_a_thread_reads_trains_and_its_batches_count() -> None:
    now = {"count": 5}
    reader: Classifier = classifier(TEXT)
    loops = Loops(reader, TEXT, lambda _: now["count"])
    stack = Stack(2, False, frames(FETCHING, NEXT, (MAIN, "produce", 2)))
    for second, batches in ((1, 3), (2, 5)):
        loops.feed(stack, loader_state(batches, frame_index=2), reader.read(stack.frames), second * SECOND)
    (site,) = loops.named()
    assert (site.reported_role, site.line, site.counter.batches) == ("train", 2, 2)
    now["count"] = 9
    loops.recount(3 * SECOND)
    assert site.counter.batches == 6
