"""The report's figures in words: a small one is no 0, and what some GPUs do not tell is not said of all."""

from __future__ import annotations

import pytest

from gpuwatch.report.verdict import gain_text
from gpuwatch.report.words import rate, seconds
from tests.unit import scene_builder as build
from tests.unit.report_builder import json_report


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0.0, "0"), (0.04, "0.04"), (2.5, "2.5"), (64.25, "64.2"), (18_204.4, "18 204")]
)
def test_a_slow_rate_is_not_shown_as_none(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0.312, "312 ms"), (0.9996, "1 s"), (212.0, "3.5 min"), (5400.0, "90.0 min")]
)
def test_a_duration_is_written_without_powers_of_ten(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_a_small_gain_is_not_rounded_to_none() -> None:
    assert gain_text(1.02, 1.04) == "1.02-1.04x faster"


def test_without_a_run_the_mean_says_how_many_gpus_told_it() -> None:
    def sentence(*used: float | None) -> str:
        gpus = [build.gpu(index, utilization=value) for index, value in enumerate(used)]
        (line,) = json_report(build.scene(gpus=gpus))["verdict"]
        return str(line["sentence"])

    assert "the GPUs were busy 40 % of the time on average" in sentence(30.0, 50.0)
    assert "the 1 of 2 GPUs that report it were busy 50 % of the time on average" in sentence(None, 50.0)
