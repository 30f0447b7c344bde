"""What a DataLoader worker does, by its stacks."""

from __future__ import annotations

import pytest
from stack_looks import MAIN, SITE, FakeText, Place, stack

from gpuwatch.sources.stacks.classify import Places
from gpuwatch.sources.stacks.workers import WorkerClassifier

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
