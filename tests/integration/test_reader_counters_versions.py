"""Counts of DataLoader iterators on every Python, by targets that write down their own batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.loader_watch import LOOPS, Shape, python, running, shapes, stand_in, watch

SHAPES = ("plain", "enumerated", "zipped", "sliced", "generated", "prefetched", "fetched")
SHAPES += ("nested", "inlined", "by_turns")
BOTH = {"TrainSet", "EvalSet"}
LOADERS = {name: BOTH if name in ("nested", "inlined", "by_turns") else {"TrainSet"} for name in SHAPES}
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


def check(shape: Shape) -> None:
    assert not shape.wrong(), f"{shape.name}: {shape.wrong()[:5]}"
    assert shape.loaders() == LOADERS[shape.name], shape.name
    assert shape.seen() > 0.85, f"{shape.name}: {shape.seen()}"
    if shape.name in ("nested", "inlined"):
        assert shape.misled() < 0.1, f"{shape.name}: {shape.misled()}"
    for loader in LOADERS[shape.name]:
        counted, epochs = shape.counted(loader)
        unused = epochs if shape.name == "zipped" else 0  # drawn before the shorter loader's end was found
        assert counted <= shape.truth(loader) + 1 + unused, f"{shape.name}: batches of {loader} were invented"


@pytest.mark.parametrize("workers", ["none", "workers", "persistent workers"])
@pytest.mark.parametrize("version", VERSIONS)
def test_each_count_read_is_one_that_the_loader_had(version: str, workers: str, tmp_path: Path) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"Python {version} is not installed: pyenv install {version}")
    log = tmp_path / "log"
    count, persistent = ("0" if workers == "none" else "2"), ("yes" if workers.startswith("persistent") else "no")
    command = [interpreter, LOOPS, log, count, persistent, "0.006", "3", *SHAPES]
    with running(command, stand_in(tmp_path / "path")) as process:
        found = shapes(log, watch(process))
    assert set(found) == set(SHAPES)
    for shape in found.values():
        check(shape)
