"""Holds DataLoader iterators of many settings, one after the other, and says what each is.

A line on stdout describes the loader that is now looped over; a line on stdin asks for the next.
"""

import json
import sys
from itertools import chain

from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler


class Numbers(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __len__(self):
        return 30

    def __iter__(self):
        return iter(range(30))


class Repeating:
    """Goes over a batch sampler without end, as Ultralytics has it."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def loaders():
    numbers = list(range(50))
    yield DataLoader(numbers, batch_size=8)
    yield DataLoader(numbers, batch_size=8, drop_last=True, shuffle=True)
    yield DataLoader(numbers, batch_size=None)
    yield DataLoader(Numbers(), batch_size=7, num_workers=2, prefetch_factor=3, persistent_workers=True)
    yield DataLoader(Subset(Numbers(), range(21)), batch_size=4)
    yield DataLoader(Subset(Numbers(), list(range(21))), batch_size=4)
    yield DataLoader(ConcatDataset([Numbers(), Numbers()]), batch_size=9)
    yield DataLoader(numbers, batch_sampler=BatchSampler(SequentialSampler(numbers), 6, drop_last=True))
    yield DataLoader(numbers, batch_size=3, sampler=WeightedRandomSampler([1.0] * 50, 20))
    yield DataLoader(numbers, batch_size=3, sampler=RandomSampler(numbers, replacement=True, num_samples=31))
    yield DataLoader(numbers, batch_size=3, sampler=DistributedSampler(Numbers(), num_replicas=3, rank=1))
    endless = DataLoader(numbers, batch_size=5)
    object.__setattr__(endless, "batch_sampler", Repeating(endless.batch_sampler))
    yield endless
    yield DataLoader(Stream(), batch_size=4)
    yield DataLoader(Stream(), batch_size=4, num_workers=2)


def describe(loader, iterator):
    try:
        batches = len(loader)
    except TypeError:
        batches = None
    return {
        "type_name": type(iterator).__name__,
        "num_workers": iterator._num_workers,
        "batch_size": getattr(loader.batch_sampler, "batch_size", loader.batch_size),
        "pin_memory": iterator._pin_memory,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": iterator._persistent_workers,
        "drop_last": getattr(loader.batch_sampler, "drop_last", loader.drop_last),
        "dataset": type(loader.dataset).__name__,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "batches_per_epoch": batches,
        "loader": id(iterator._index_sampler),
    }


def main():
    for loader in loaders():
        iterator = iter(loader)
        for _ in chain((next(iterator),), iterator):
            print(json.dumps(describe(loader, iterator)), flush=True)
            if not sys.stdin.readline():
                return
            break
        del iterator


main()
