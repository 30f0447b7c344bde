"""Replaces one DataLoader iterator by another, and waits for a line on stdin while each of the two runs a method."""

import sys

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter


def pause():
    print(flush=True)
    sys.stdin.readline()


class Pausing(DataLoader):
    """Its second iterator is returned after a pause."""

    pauses = False

    def _get_iterator(self):
        iterator = super()._get_iterator()
        if Pausing.pauses:
            pause()
        return iterator


def shut_down(iterator):
    pause()
    original(iterator)


original = _MultiProcessingDataLoaderIter._shutdown_workers
_MultiProcessingDataLoaderIter._shutdown_workers = shut_down


def train():
    loader = Pausing(range(8), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    pause()
    Pausing.pauses = True
    iterator = iter(loader)
    next(iterator)


train()
