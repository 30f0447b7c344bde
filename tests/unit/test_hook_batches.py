"""The sample count of a batch: read where it is certain, unknown where it is not."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest

from gpuwatch.hook import waits
from gpuwatch.hook.loaders import UNKNOWN_SIZE, LoaderEntry, describe_batch, item_shapes, learn_measure
from gpuwatch.hook.waits import Iteration


class Tensor:
    """As much of a tensor as a batch is measured by."""

    dtype = "torch.float32"

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return f"Tensor{self.shape}"

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    def element_size(self) -> int:
        return 4


class Encoding(UserDict[str, Any]):
    """Like transformers' BatchEncoding."""


class Guarded:
    """A user's batch that must not be touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"touched {name}")


class Images:
    """A batch type of a program's own, which computes what it is asked for."""

    def __init__(self, size: int) -> None:
        self.names = ["a"] * 3
        self.pixels = Tensor(size, 3, 5, 5)

    def __len__(self) -> int:
        raise AssertionError("asked for its length")

    @property
    def batch_size(self) -> int:
        raise AssertionError("asked for its size")


class Store:
    """As PyTorch Geometric's: a mapping of tensors over all nodes, and the number of graphs."""

    def __init__(self, graphs: int) -> None:
        self._num_graphs = graphs
        self._mapping = {"x": Tensor(graphs * 17, 9), "batch": Tensor(graphs * 17)}


class Graphs:
    """As its batch, which holds such a store."""

    def __init__(self, graphs: int) -> None:
        self._store = Store(graphs)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"touched {name}")


Pair = namedtuple("Pair", "images labels")


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        (Tensor(8, 3), 8, 8),
        ([Tensor(8, 3), Tensor(8)], 8, 8),
        (Pair(Tensor(8, 3), Tensor(8)), 8, 8),
        ({"image": Tensor(8, 3), "label": Tensor(8)}, 8, 8),
        (Encoding(input_ids=Tensor(8, 128)), 8, 8),
        ({"index": Tensor(), "image": Tensor(8, 3)}, 8, 8),
        ([[Tensor(3, 5, 5)] * 8, [Tensor(4)] * 8], 8, 8),
        ([Tensor(3, 5, 5)] * 8, 8, 8),
        ([Tensor(64, 3), Tensor(64)], None, 64),
        ([Tensor(3, 5, 5), Tensor(3, 5, 5)], None, UNKNOWN_SIZE),
        ([Tensor(3, 5, 5), Tensor()], None, UNKNOWN_SIZE),
        (Tensor(3, 5, 5), None, UNKNOWN_SIZE),
        (Tensor(3, 5, 5), 8, UNKNOWN_SIZE),
        (Images(8), 8, 8),
        (Graphs(8), 8, 8),
        (({"ids": Tensor(8, 128)}, {"labels": [Tensor(8)]}), 8, 8),
        ((Tensor(3, 5), {"inner": {"deeper": {"ids": Tensor(8)}}}), 8, UNKNOWN_SIZE),
        (Graphs(8), None, UNKNOWN_SIZE),
        ([], 8, UNKNOWN_SIZE),
        (Guarded(), 8, UNKNOWN_SIZE),
        (7, 8, UNKNOWN_SIZE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (Images, Graphs, Guarded)) else str(value),
)
def test_samples_of_a_batch(batch: Any, batch_size: int | None, samples: int) -> None:
    assert learn_measure(batch, batch_size, Tensor)(batch) == samples


def test_a_smaller_last_batch_is_measured_and_another_kind_is_unknown() -> None:
    measure = learn_measure([Tensor(8, 3), Tensor(8)], 8, Tensor)
    assert measure([Tensor(5, 3), Tensor(5)]) == 5
    assert measure([]) == UNKNOWN_SIZE
    assert measure(Guarded()) == UNKNOWN_SIZE
    assert measure([7]) == UNKNOWN_SIZE


def test_a_smaller_last_batch_of_objects_is_measured() -> None:
    assert learn_measure(Graphs(8), 8, Tensor)(Graphs(5)) == 5
    assert learn_measure(Images(8), 8, Tensor)(Images(5)) == 5
    assert learn_measure(Graphs(8), 8, Tensor)(Guarded()) == UNKNOWN_SIZE
    assert describe_batch(Graphs(8), Tensor)[0] == 8 * 17 * 10 * 4


def test_a_batch_is_described_by_its_tensors() -> None:
    batch = {"image": Tensor(8, 3), "nested": [Tensor(8), (Tensor(2, 2), "text")]}
    assert describe_batch(batch, Tensor) == ((24 + 8 + 4) * 4, "float32[8,3], float32[8], float32[2,2]")
    assert describe_batch([Tensor(1)] * 6, Tensor) == (24, ", ".join(["float32[1]"] * 4) + ", ...")
    assert describe_batch(Guarded(), Tensor) == (None, None)


def test_items_have_the_same_shapes_in_a_smaller_last_batch() -> None:
    whole, last = (Tensor(32, 3, 8), Tensor(32)), (Tensor(5, 3, 8), Tensor(5))
    assert item_shapes(whole, Tensor) == item_shapes(last, Tensor) == ((3, 8), ())
    assert item_shapes((Tensor(32, 3, 9), Tensor(32)), Tensor) != item_shapes(whole, Tensor)
    assert item_shapes("no tensor", Tensor) is None


def test_a_look_counts_shapes_once_and_leaves_the_measure_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_tensor", Tensor)
    entry = LoaderEntry(1, None)
    iteration = Iteration(entry)
    iteration.refresh()
    assert entry.inspected == 0, "nothing was learned yet"
    entry.measure = iteration.measure = lambda batch: 7
    for length in (16, 32, 16):
        iteration.refresh()
        assert iteration.measure(Tensor(7, length)) == 7
        assert iteration.measure is entry.measure
    assert (entry.inspected, len(entry.shapes)) == (3, 2)


def test_a_batch_that_cannot_be_looked_at_still_has_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Tensor):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("no shape")

    monkeypatch.setattr(waits, "_tensor", Broken)
    entry = LoaderEntry(1, None)
    iteration = Iteration(entry)
    entry.measure = lambda batch: 3
    iteration.refresh()
    assert iteration.measure(Broken()) == 3
    assert entry.inspected == 0
