"""Numbers as sentences say them."""

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.wording import cpu_cores, factors, gibibytes, seconds


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


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.5, 1.7, "1.5-1.7x"),
        (2.0, 2.04, "2.0x"),
        (1.0, 1.16, "1.00-1.16x"),
        (1.02, 1.04, "1.02-1.04x"),
    ],
)
def test_a_speed_up_is_a_range_and_a_small_one_is_not_rounded_to_none(low: float, high: float, text: str) -> None:
    assert factors(low, high) == text


def test_one_core_is_not_several() -> None:
    assert [cpu_cores(count) for count in (1, 1.5, 16)] == ["1 CPU core", "1.5 CPU cores", "16 CPU cores"]


@pytest.mark.parametrize(("size", "words"), [(3 << 30, "3.0 GiB"), (40 << 20, "40 MiB"), (0, "0.0 GiB")])
def test_little_memory_is_not_said_to_be_none(size: int, words: str) -> None:
    assert gibibytes(size) == words
