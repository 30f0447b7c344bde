"""Threads that make batches for the training thread, as they are found while it waits for one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from stack_samples import CALL, MAIN, NEXT, SITE, FakeText, Place, classifier, frame, frames, loader_state, read

from gpuwatch.reader.stacks import Stack
from gpuwatch.sources.stacks.classify import Classifier
from gpuwatch.sources.stacks.loops import Loops
from gpuwatch.sources.stacks.tally import StackSample
from gpuwatch.sources.stacks.workers import Feeders, FeederSample

SECOND = 1_000_000_000
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
FETCH: Place = ("torch/utils/data/_utils/fetch.py", "fetch", 50)


def thread(number: int, *inner_to_outer: Place) -> Stack:
    return Stack(number, number == 1, tuple(frame(*place) for place in inner_to_outer))


TRAINER = thread(1, *GET, WAITS)


class FakeProcess:
    pid, start_ticks, version = 1, 1, (3, 11)

    def __init__(self, *stacks: Stack) -> None:
        self.now = list(stacks)
        self.asked = 0

    def main_stack(self) -> Stack | None:
        return TRAINER

    def stacks(self) -> list[Stack]:
        self.asked += 1
        return [TRAINER, *self.now]

    def close(self) -> None:
        pass


def feeders(*stacks: Stack) -> Feeders:
    return Feeders(FakeProcess(*stacks), classifier(TEXT), TEXT)


def seen(*stacks: Stack) -> Sequence[FeederSample]:
    found = feeders(*stacks).sample(TRAINER, SECOND)
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
    making, reading = thread(2, (MAIN, "decode", 40), (MAIN, "make", 7)), thread(3, FETCH, NEXT, (MAIN, "produce", 2))
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
        (thread(2, FETCH, NEXT, (PREFETCH, "run", 3)), "make"),
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
            found.sample(TRAINER, now_ns)
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
    assert found.sample(TRAINER, SECOND) is None
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
    stack = Stack(2, False, frames(FETCH, NEXT, (MAIN, "produce", 2)))
    for second, batches in ((1, 3), (2, 5)):
        loops.feed(stack, loader_state(batches, frame_index=2), reader.read(stack.frames), second * SECOND)
    (site,) = loops.named()
    assert (site.reported_role, site.line, site.counter.batches) == ("train", 2, 2)
    now["count"] = 9
    loops.recount(3 * SECOND)
    assert site.counter.batches == 6
