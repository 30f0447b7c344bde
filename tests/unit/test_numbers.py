"""Numbers as people read them, in tables and in sentences."""

from __future__ import annotations

import pytest

from gpuwatch import numbers
from gpuwatch.compare import comparison as compare_wording
from gpuwatch.numbers import clock, cpu_cores, duration_words, factors, gibibytes, grouped, rate, seconds
from gpuwatch.trial.render import change_words
from gpuwatch.trial.results import Judgement


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
    ("value", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (90, "2 min"),
        (3599, "1 h"),
        (7500, "2 h 5 min"),
        (86_400, "24 h"),
        (172_800, "2 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_in_words_have_two_units_at_most(value: float, text: str) -> None:
    assert duration_words(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723.4, "1:02:03"), (90_061, "25:01:01")]
)
def test_lengths_are_written_as_players_do(value: float, text: str) -> None:
    assert clock(value) == text


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


def test_a_large_checkpoint_has_no_exponent() -> None:
    assert [numbers.megabytes(size) for size in (126e6, 5.2e9)] == ["126 MB", "5,200 MB"]


def test_one_core_is_not_several() -> None:
    assert [cpu_cores(count) for count in (1, 1.5, 16)] == ["1 CPU core", "1.5 CPU cores", "16 CPU cores"]


@pytest.mark.parametrize(("size", "words"), [(3 << 30, "3.0 GiB"), (40 << 20, "40 MiB"), (0, "0.0 GiB")])
def test_little_memory_is_not_said_to_be_none(size: int, words: str) -> None:
    assert gibibytes(size) == words


@pytest.mark.parametrize("share", [-0.0, -1e-6, 1e-6, -0.0004, 0.0004, 0.00949, 0.00951])
def test_a_share_is_no_percent_only_where_it_is_none(share: float) -> None:
    text = numbers.percent(share)
    assert text not in ("-0%", "-0.0%", "0.0%")
    assert (text == "0%") == (share == 0)


@pytest.mark.parametrize("ratio", [1.0, 1.0004, 0.9996, 0.99996, 1.9996])
def test_a_change_that_rounds_to_nothing_goes_neither_way(ratio: float) -> None:
    assert compare_wording.percent(ratio) in ("+0.0%", "+100%")
    judgement = Judgement("no detectable change", ratio=ratio)
    assert change_words(judgement) in ("+0.0%", "2.00x")


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (999, "999"), (1219, "1,219"), (1271.6, "1,272"), (18204, "18,204"), (-2500, "-2,500")],
)
def test_thousands_are_apart_from_four_digits_on(value: float, words: str) -> None:
    assert grouped(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.0412, "0.0412"), (98.44, "98.4"), (99.96, "100"), (1271.6, "1,272"), (1e6, "1,000,000")]
)
def test_a_rate_has_three_digits_and_no_exponent(value: float, words: str) -> None:
    assert rate(value) == words
