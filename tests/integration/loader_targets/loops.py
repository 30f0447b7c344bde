"""Loops over DataLoaders in every shape, by a target that writes down each batch with the time it came.

Usage: loops.py LOG WORKERS PERSISTENT STEP_SECONDS EPOCHS SHAPE...

A line of the log: monotonic nanoseconds, shape, loader, and the batches that the loader has yielded in this epoch;
"begin" and "end" stand around a shape. Runs on Python 3.8 and later, with torch or with a stand-in.
"""

import itertools
import sys
import time
from pathlib import Path

from pacing import Pace
from torch.utils.data.dataloader import DataLoader

SMALL, LARGE = 5, 12  # batches per epoch


class TrainSet(list):
    pass


class EvalSet(list):
    pass


class Log:
    def __init__(self, path, shape):
        self.file = Path(path).open("a", buffering=1)  # noqa: SIM115 - open as long as the target lives
        self.shape = shape

    def write(self, loader, batches):
        self.file.write(f"{time.monotonic_ns()} {self.shape} {loader} {batches}\n")


def step():
    PACE.step()


def plain(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        batches = iter(range(1, LARGE + 1))
        for _batch in train:
            log.write("TrainSet", next(batches))
            step()


def enumerated(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for index, _batch in enumerate(train, 1):
            log.write("TrainSet", index)
            step()


def zipped(log, train, evaluation):
    """One step advances both; evaluation is the shorter one."""
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, (_a, _b) in enumerate(zip(train, evaluation), 1):  # noqa: B905 - strict is new in 3.10
            log.write("TrainSet", count)
            step()


def sliced(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(itertools.islice(train, LARGE - 2), 1):
            log.write("TrainSet", count)
            step()


class Bar:
    """As a progress bar goes over a loader: by a generator."""

    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        for item in self.iterable:  # noqa: UP028 - as the bars do it
            yield item


def ahead(loader):
    """As accelerate goes over a loader: a generator with the iterator in a variable, one batch ahead."""
    iterator = iter(loader)
    current = next(iterator)
    while True:
        try:
            following = next(iterator)
        except StopIteration:
            yield current
            break
        yield current
        current = following


def generated(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(Bar(train), 1):
            log.write("TrainSet", count)
            step()


def prefetched(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(Bar(ahead(train)), 2):
            log.write("TrainSet", min(count, LARGE))
            step()


def evaluate(log, evaluation):
    log.write("EvalSet", 0)
    for count, _batch in enumerate(evaluation, 1):
        log.write("EvalSet", count)
        step()


def nested(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(train, 1):
            log.write("TrainSet", count)
            step()
            if count % 5 == 0:
                evaluate(log, evaluation)


def inlined(log, train, evaluation):
    """A loop inside a loop of the same function."""
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(train, 1):
            log.write("TrainSet", count)
            step()
            if count % 5 == 0:
                log.write("EvalSet", 0)
                for evaluated, _batch in enumerate(evaluation, 1):
                    log.write("EvalSet", evaluated)
                    step()


def by_turns(log, train, evaluation):
    """Two iterators in variables, as generator and discriminator have them."""
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        log.write("EvalSet", 0)
        first, second = iter(train), iter(evaluation)
        for count in range(1, SMALL + 1):
            next(first)
            log.write("TrainSet", count)
            step()
            next(second)
            log.write("EvalSet", count)
            step()


class Fetcher:
    """As Lightning goes over a loader: the iterator is an attribute."""

    def __init__(self, loader):
        self.iterator = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.iterator)


def fetched(log, train, evaluation):
    for _ in range(EPOCHS):
        log.write("TrainSet", 0)
        for count, _batch in enumerate(Fetcher(train), 1):
            log.write("TrainSet", count)
            step()


SHAPES = {
    function.__name__: function
    for function in (plain, enumerated, zipped, sliced, generated, prefetched, nested, inlined, by_turns, fetched)
}

if __name__ == "__main__":
    PATH, WORKERS, PERSISTENT = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "yes"
    PACE, EPOCHS = Pace(PATH, float(sys.argv[4])), int(sys.argv[5])
    options = {"num_workers": WORKERS, "persistent_workers": PERSISTENT and WORKERS > 0}
    for name in sys.argv[6:]:
        train_loader = DataLoader(TrainSet(range(LARGE * 4)), batch_size=4, **options)
        eval_loader = DataLoader(EvalSet(range(SMALL * 2)), batch_size=2, **options)
        shape_log = Log(PATH, name)
        shape_log.write("begin", 0)
        SHAPES[name](shape_log, train_loader, eval_loader)
        shape_log.write("end", 0)
