"""Counts and settings of torch's own DataLoader iterators, against what the targets say of themselves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.loaders import LoaderReader, LoaderState
from tests.integration.forked_python import ForkedPython
from tests.integration.interpreters import require_reading, until_standing
from tests.integration.loader_watch import LOOPS, TARGETS, looping, shapes
from tests.integration.process_groups import kill_group
from tests.integration.test_reader_counters_versions import OF_WORKERS, SHAPES, check

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@contextmanager
def running_on_request(script: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """A target that waits, and what makes it go on to its next pause."""
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        pipe_in, pipe_out = process.stdin, process.stdout

        def until_waiting() -> None:
            assert pipe_out.readline() == "\n"
            until_standing(process.pid)

        def go_on() -> None:
            pipe_in.write("\n")
            pipe_in.flush()
            until_waiting()

        try:
            until_waiting()
            yield process, go_on
        finally:
            kill_group(process)


SETTINGS = ("num_workers", "batch_size", "pin_memory", "prefetch_factor", "persistent_workers")
SETTINGS += ("drop_last", "dataset", "iterable", "loader")


@pytest.mark.parametrize(("workers", "persistent"), [("0", "no"), ("2", "no"), ("2", "yes")])
def test_each_count_read_is_one_that_the_loader_had(workers: str, persistent: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = SHAPES if workers == "0" else OF_WORKERS
    with looping(log, [sys.executable, LOOPS, log, workers, persistent, "0.01", "2", *names], forked=True) as watch:
        found = shapes(log, watch())
    assert set(found) == set(names)
    for shape in found.values():
        check(shape)


def test_an_iterator_that_dies_where_the_new_one_was_made_is_not_taken_for_it() -> None:
    """The frame of the old one's `__del__` begins where that of `__iter__` did, which the sampled stack has."""
    require_reading()
    with running_on_request(TARGETS / "replaced.py") as (process, go_on):
        interpreter = attach(process.pid)
        reader = LoaderReader(interpreter)
        stack = interpreter.main_stack()
        assert stack is not None
        old = reader.state(stack)
        assert old is not None
        assert old.batches_yielded == 1
        go_on()
        made = interpreter.main_stack()
        assert made is not None
        assert "__iter__" in {frame.code.name for frame in made.frames}
        go_on()
        dying = interpreter.main_stack()
        assert dying is not None
        assert "__del__" in {frame.code.name for frame in dying.frames}
        state = reader.state(made)
        assert state is not None
        assert state.iterator != old.iterator


@pytest.mark.parametrize("workers", ["0", "2"])
def test_loops_of_libraries_over_a_loader(workers: str, tmp_path: Path) -> None:
    packages = {"stateful": "torchdata", "accelerated": "accelerate", "barred": "tqdm"}
    kinds = [kind for kind, package in packages.items() if importlib.util.find_spec(package) is not None]
    if not kinds:
        pytest.skip("none of torchdata, accelerate and tqdm is installed")
    log = tmp_path / "log"
    with looping(
        log, [sys.executable, TARGETS / "libraries.py", log, workers, "0.01", "3", *kinds], forked=True
    ) as watch:
        found = shapes(log, watch())
    assert set(found) == set(kinds)
    for shape in found.values():
        assert not shape.wrong(), f"{shape.name}: {shape.wrong()[:5]}"
        assert shape.loaders() == {"TrainSet"}
        assert shape.seen() > 0.9, f"{shape.name}: {shape.seen()}"


@pytest.mark.parametrize(("step_seconds", "workers"), [("0.2", "0"), ("0.05", "2"), ("0.0125", "0"), ("0.0125", "2")])
def test_steps_per_second_are_within_two_percent_or_a_batch(step_seconds: str, workers: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    epochs = {"0.2": "2", "0.05": "5", "0.0125": "16"}[step_seconds]
    with looping(
        log, [sys.executable, LOOPS, log, workers, "yes", step_seconds, epochs, "plain"], forked=True
    ) as watch:
        shape = shapes(log, watch(pause_seconds=0.002))["plain"]
    told, truth, one_batch = shape.rates("TrainSet")
    assert told == pytest.approx(truth, rel=0.02, abs=one_batch)


def test_steps_per_second_of_two_loaders(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with looping(log, [sys.executable, LOOPS, log, "0", "no", "0.02", "3", "nested"], forked=True) as watch:
        shape = shapes(log, watch(pause_seconds=0.002))["nested"]
    for loader in ("TrainSet", "EvalSet"):
        told, truth, one_batch = shape.rates(loader)
        assert told == pytest.approx(truth, rel=0.02, abs=one_batch)


def test_settings_are_those_of_the_live_loader() -> None:
    require_reading()
    told: list[tuple[LoaderState | None, dict[str, Any]]] = []
    with ForkedPython(
        [sys.executable, TARGETS / "settings.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        reader = None
        for line in process.stdout:
            if reader is None:
                interpreter = attach(process.pid)
                reader = LoaderReader(interpreter)
            until_standing(process.pid)
            stack = interpreter.main_stack()
            told.append((None if stack is None else reader.state(stack), json.loads(line)))
            process.stdin.write("\n")
            process.stdin.flush()
    assert len(told) == 14
    for state, truth in told:
        assert state is not None, truth
        assert state.type_name == truth["type_name"]
        assert {name: getattr(state.settings, name) for name in SETTINGS} == {name: truth[name] for name in SETTINGS}
        assert state.batches_yielded == 1
        assert state.settings.batches_per_epoch in (None, truth["batches_per_epoch"]), truth
    assert sum(state is not None and state.settings.batches_per_epoch is not None for state, _ in told) >= 9
