"""Numbers as sentences say them."""

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.wording import cpu_cores, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0000004, "0 us"),
        (0.00025, "250 us"),
        (0.0412, "41.2 ms"),
        (0.9997, "1 s"),
        (4.21, "4.21 s"),
        (600, "10.0 min"),
    ],
)
def test_durations_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_one_core_is_not_several() -> None:
    assert [cpu_cores(count) for count in (1, 1.5, 16)] == ["1 CPU core", "1.5 CPU cores", "16 CPU cores"]
