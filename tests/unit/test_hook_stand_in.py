"""What `gpuwatch.loader` hands out in the place of the program's own iterable."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from gpuwatch.hook import api
from gpuwatch.hook.loaders import LoaderEntry


class Pipeline:
    """An iterable without a length, with a setting that its iterators read."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 2)


def watched(iterable: object) -> api.WatchedIterable:
    return api.WatchedIterable(iterable, LoaderEntry(1, None))  # type: ignore[arg-type]


def test_an_iterable_without_a_length_is_as_true_as_before() -> None:
    assert watched(Pipeline())
    assert not watched([])
    with pytest.raises(TypeError):
        len(watched(Pipeline()))


def test_a_torch_that_another_thread_still_imports_is_not_asked_for_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("torch", "torch.utils.data.dataloader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(api.pulse, "awake", True)
    monkeypatch.setattr(api, "append", lambda record: None)
    monkeypatch.setattr(api, "watch_once", lambda: None)
    assert list(api.loader([[1], [2]])) == [[1], [2]]


def test_a_setting_reaches_the_iterable_itself() -> None:
    pipeline = Pipeline()
    stand_in = watched(pipeline)
    stand_in.epoch = 3
    assert pipeline.epoch == stand_in.epoch == 3
    assert list(stand_in) == [3, 3]


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_one_of_the_iterable_alone(copied: object) -> None:
    batches = [[1], [2]]
    found = copied(watched(batches))  # type: ignore[operator]
    assert type(found) is list
    assert found == batches
    assert found is not batches
    again = copied(iter(watched(batches)))  # type: ignore[operator]
    assert list(again) == batches
