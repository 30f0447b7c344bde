"""Counts of DataLoader iterators on every Python, by targets that write down their own batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.interpreters import Python, each
from tests.integration.loader_watch import Shape, looping, place, shapes

SHAPES = ("plain", "enumerated", "zipped", "sliced", "generated", "prefetched", "fetched")
SHAPES += ("nested", "inlined", "by_turns")
OF_WORKERS = ("enumerated", "zipped", "nested", "by_turns")
BOTH = {"TrainSet", "EvalSet"}
LOADERS = {name: BOTH if name in ("nested", "inlined", "by_turns") else {"TrainSet"} for name in SHAPES}


def check(shape: Shape) -> None:
    assert not shape.wrong(), f"{shape.name}: {shape.wrong()[:5]}"
    assert shape.loaders() == LOADERS[shape.name], shape.name
    assert shape.seen() > 0.9, f"{shape.name}: {shape.seen()}"
    if shape.name in ("nested", "inlined"):
        assert shape.misled() < 0.1, f"{shape.name}: {shape.misled()}"
    for loader in LOADERS[shape.name]:
        counted, epochs = shape.counted(loader)
        unused = epochs if shape.name == "zipped" else 0  # drawn before the shorter loader's end was found
        assert counted <= shape.truth(loader) + 1 + unused, f"{shape.name}: batches of {loader} were invented"


@pytest.mark.parametrize("workers", ["no workers", "persistent workers"])
@pytest.mark.parametrize("python", each())
def test_each_count_read_is_one_that_the_loader_had(python: Python, workers: str, tmp_path: Path) -> None:
    # What the loop does with an iterator is read the same way whoever makes its batches.
    settings, names = (("0", "no"), SHAPES) if workers == "no workers" else (("2", "yes"), OF_WORKERS)
    with place(python, tmp_path) as here:
        log = here.folder / "log"
        command = here.command("loops.py", here.inside(log), *settings, "0.006", "2", *names)
        with looping(log, command, here.environment) as watch:
            found = shapes(log, watch())
    assert set(found) == set(names)
    for shape in found.values():
        check(shape)
