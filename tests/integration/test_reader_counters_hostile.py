"""Objects that only look like DataLoader iterators, or broken ones: their count is right or unknown."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.loaders import LoaderReader
from tests.integration.interpreters import Python, each, require_reading, until_standing
from tests.integration.loader_watch import place

CASES = 16


@pytest.mark.parametrize("python", each())
def test_what_only_looks_like_an_iterator_has_no_count(python: Python, tmp_path: Path) -> None:
    require_reading()
    told: dict[str, tuple[str, int | None]] = {}
    with (
        place(python, tmp_path) as here,
        subprocess.Popen(
            here.command("hostile.py"),
            env=here.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        reader = None
        for line in process.stdout:
            if reader is None:
                target = attach(process.pid)
                reader = LoaderReader(target)
            name, truth = line.strip().split("|")
            until_standing(process.pid)
            stack = target.main_stack()
            assert stack is not None, name
            state = reader.state(stack)
            told[name] = truth, None if state is None else state.batches_yielded
            process.stdin.write("\n")
            process.stdin.flush()
    assert len(told) == CASES
    assert {name: count for name, (_, count) in told.items()} == {
        name: None if truth == "unknown" else int(truth) for name, (truth, _) in told.items()
    }
