"""Objects that only look like DataLoader iterators, or broken ones: their count is right or unknown."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.counters import LoaderReader
from tests.integration.loader_watch import TARGETS, python, stand_in
from tests.integration.test_reader_counters_versions import VERSIONS

CASES = 16


@pytest.mark.parametrize("version", VERSIONS)
def test_what_only_looks_like_an_iterator_has_no_count(version: str, tmp_path: Path) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"Python {version} is not installed: pyenv install {version}")
    told: dict[str, tuple[str, int | None]] = {}
    with subprocess.Popen(
        [interpreter, TARGETS / "hostile.py"],
        env={**os.environ, "PYTHONPATH": str(stand_in(tmp_path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        reader = None
        for line in process.stdout:
            if reader is None:
                target = attach(process.pid)
                reader = LoaderReader(target)
            name, truth = line.strip().split("|")
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
