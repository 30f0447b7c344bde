"""Nothing is measured for minutes if nobody could be given the result."""

from __future__ import annotations

import sys

import pytest

from gpuwatch.__main__ import main


@pytest.mark.parametrize(
    "words",
    [
        ["trial", "num_workers=2", "--", sys.executable, "-c", "raise SystemExit('was started')"],
        ["report", "--simulate", "starved", "--duration", "600000"],
    ],
)
def test_a_closed_stdout_is_reported_before_anything_is_measured(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 2
    assert capsys.readouterr().err == "gpuwatch: stdout is closed: write to a file with -o FILE\n"
