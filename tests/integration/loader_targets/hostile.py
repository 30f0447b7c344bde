"""Loops over things that look like a DataLoader's iterator and are none, or are broken ones.

A line on stdout names the case that now stands in a loop and the count that may be read of it, or "unknown"; a line
on stdin asks for the next. Runs on Python 3.8 and later, with torch or with a stand-in.
"""

import sys

from torch.utils.data.dataloader import DataLoader, _SingleProcessDataLoaderIter

LOADER = DataLoader(list(range(40)), batch_size=4)


class Liar:
    """Claims a name, and nothing behind it is right."""

    def __init__(self, count):
        self._num_yielded = count
        self._dataset = self._index_sampler = None

    def __iter__(self):
        return self

    def __next__(self):
        return self


Liar.__name__ = Liar.__qualname__ = "_SingleProcessDataLoaderIter"
Base = type("_BaseDataLoaderIter", (), {"__module__": "elsewhere"})
METHODS = {name: vars(Liar)[name] for name in ("__init__", "__iter__", "__next__")}
LiarWithBase = type("_SingleProcessDataLoaderIter", (Base,), dict(METHODS))
Named = type("enumerate", (), dict(METHODS))


class Keeping(dict):
    pass


class Hidden(_SingleProcessDataLoaderIter):
    @property
    def _num_yielded(self):
        return 5

    @_num_yielded.setter
    def _num_yielded(self, value):
        pass


class Circle:
    """An iterator that keeps itself."""

    def __init__(self):
        self.inner = self

    def __iter__(self):
        return self

    def __next__(self):
        return self


def changed(change):
    iterator = iter(LOADER)
    next(iterator)
    change(iterator)
    return iterator


def set_count(value):
    return lambda iterator: setattr(iterator, "_num_yielded", value)


def many(iterator):
    for index in range(300):
        setattr(iterator, f"attribute_{index}", index)


def kept_in_a_dict_of_its_own_class(iterator):
    iterator.__dict__ = Keeping(vars(iterator))


def emptied(iterator):
    vars(iterator).clear()


def cases():
    yield "a class that only has the name", Liar(17), "unknown"
    yield "a class whose base only has the name", LiarWithBase(17), "unknown"
    yield "a class that is called enumerate", Named(17), "unknown"
    yield "an iterator that keeps itself", Circle(), "unknown"
    yield "no int", changed(set_count("12")), "unknown"
    yield "None", changed(set_count(None)), "unknown"
    yield "a float", changed(set_count(12.0)), "unknown"
    yield "a bool", changed(set_count(True)), "unknown"
    yield "a negative count", changed(set_count(-3)), "unknown"
    yield "a huge count", changed(set_count(1 << 5000)), "unknown"
    yield "a count of two digits", changed(set_count(1 << 40)), str(1 << 40)
    yield "a deleted count", changed(lambda iterator: delattr(iterator, "_num_yielded")), "unknown"
    yield "a count hidden by a property", Hidden(LOADER), "unknown"
    yield "no attributes", changed(emptied), "unknown"
    yield "hundreds of attributes", changed(many), "1"
    yield "a dict of another class", changed(kept_in_a_dict_of_its_own_class), "1"


def stand(name, held, count):
    """Stands still with the iterator in a variable."""
    print(f"{name}|{count}", flush=True)
    return sys.stdin.readline()


for case in cases():
    if not stand(*case):
        break
