from __future__ import annotations

import os
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.dashboard import formatting as say

GIB = 2**30


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (say.percent(58.2), "58%"),
        (say.percent(0.4), "0.4%"),
        (say.percent(0.0), "0%"),
        (say.share(0.413), "41%"),
        (say.mean_and_sigma(58.0, 31.2), "58% ±31"),
        (say.of_limit(402.4, 700.0, "W"), "402/700 W"),
        (say.of_limit(402.4, None, "W"), "402 W"),
        (say.memory_of_total(61.24 * GIB, 80 * GIB), "61.2/80 GiB"),
        (say.memory_of_total(61.24 * GIB, 80 * GIB, 0), "61/80 GiB"),
        (say.byte_size(512), "512 B"),
        (say.byte_size(3.5 * GIB), "3.5 GiB"),
        (say.byte_rate(210e6), "200 MiB/s"),
        (say.celsius(61), "61 °C"),
        (say.megahertz(1755), "1755 MHz"),
        (say.seconds(0.312), "312 ms"),
        (say.seconds(0.9996), "1 s"),
        (say.seconds(4.2e-6), "4 us"),
        (say.seconds(212.0), "3.5 min"),
        (say.age(3_400_000_000), "3 s"),
        (say.age(312_000_000_000), "5 min"),
        (say.count(18204), "18,204"),
        (say.count(2.5), "2.5"),
        (say.count(0.04), "0.04"),
        (say.gpu_name("NVIDIA H100 80GB HBM3"), "H100 80GB HBM3"),
        (say.gpu_name("NVIDIA H100 80GB HBM3", 5), "H100"),
        (say.gpu_name("NVIDIA GeForce RTX 4090", 5), "4090"),
        (say.gpu_name("NVIDIA RTX PRO 6000 Blackwell Max-Q", 6), "6000"),
    ],
)
def test_numbers_carry_their_unit(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    "text",
    [
        say.percent(None),
        say.share(None),
        say.mean_and_sigma(None, 3.0),
        say.of_limit(None, 700.0, "W"),
        say.memory_of_total(None, None),
        say.byte_size(None),
        say.celsius(None),
        say.megahertz(None),
        say.seconds(None),
        say.seconds(float("nan")),
        say.count(None),
    ],
)
def test_unknown_is_a_dash_and_never_a_zero(text: str) -> None:
    assert text == "-"


def test_a_moment_of_another_day_says_its_day(utc: None) -> None:
    noon = 1_795_176_000.0  # 20 Nov 2026, 12:00 UTC
    assert say.since(noon - 3600, noon) == "11:00"
    assert say.since(noon - 13 * 3600, noon) == "19 Nov 23:00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("two\nlines\tand tabs", "two\\x0alines\\x09and tabs"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("[red]not markup[/]", "[red]not markup[/]"),
        ("学習 ünïcode", "学習 ünïcode"),
    ],
)
def test_foreign_text_is_made_harmless(text: str, expected: str) -> None:
    assert say.escape(text) == expected


@given(st.text(st.characters(codec=None)))
def test_escaped_text_holds_no_control_character_whatever_comes(text: str) -> None:
    escaped = say.escape(text)
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in escaped)


@given(st.text(), st.integers(0, 30))
def test_fitted_text_never_takes_more_cells_than_there_are(text: str, width: int) -> None:
    assert cell_len(say.fit(say.escape(text), width)) <= width


@given(st.text(), st.integers(2, 40))
def test_wrapped_text_keeps_all_its_words_within_the_width(text: str, width: int) -> None:
    text = say.escape(text)
    lines = say.wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("width", range(12, 60))
def test_a_number_is_not_torn_from_its_unit(width: int) -> None:
    lines = say.wrap("waits 61% ± 2.4 of the time (1,640 samples, 20 s) at 402 W and 61.2 GiB", width)
    assert not any(line.startswith(("%", "±", "2.4", "640", "s)", "W", "GiB")) for line in lines)
    assert " ".join(lines) == "waits 61% ± 2.4 of the time (1,640 samples, 20 s) at 402 W and 61.2 GiB"


@pytest.mark.parametrize(("value", "words"), [(0.2, "200 ms"), (0.6, "1 s"), (45, "45 s"), (120, "2 min")])
def test_the_width_of_a_window_is_never_nothing(value: float, words: str) -> None:
    assert say.span(value) == words


def _value(text: str) -> float:
    return float(text.removeprefix("<").removeprefix(">").removesuffix("%").split(" ")[0].replace("<", ""))


@given(st.just(0.0) | st.floats(1e-9, 100))
def test_a_percentage_is_none_only_where_it_is_none(value: float) -> None:
    text = say.percent(value)
    assert text.endswith("%") and not text.startswith("-")
    assert (text in ("0%", "0.0%")) == (value == 0)
    assert abs(_value(text) - value) <= 0.5


@pytest.mark.parametrize("value", [-0.0, -1e-9, 1e-9, -0.04, 0.04, 0.949, 0.951, 99.96])
def test_no_percentage_is_less_than_nothing_by_rounding(value: float) -> None:
    assert say.percent(value) not in ("-0%", "-0.0%", "0.0%")


@given(st.floats(1e-7, 1e6))
def test_durations_carry_the_unit_that_they_round_to(value: float) -> None:
    number, unit = say.seconds(value).split(" ")
    assert float(number) < {"us": 1000, "ms": 1000, "s": 120, "min": 120.05, "h": 1e6}[unit]
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.03, abs=0.51e-6)


@given(st.integers(0, 2**50))
def test_bytes_carry_the_unit_that_they_round_to(value: int) -> None:
    number, unit = say.byte_size(value).split(" ")
    assert float(number) < {"B": 1024, "KiB": 1024, "MiB": 1024, "GiB": 10_240.1, "TiB": 1e6}[unit]


@given(st.integers(1, 2**41), st.floats(0, 1), st.integers(0, 1))
def test_memory_in_use_is_never_more_than_there_is(total: int, share: float, decimals: int) -> None:
    used, whole = say.memory_of_total(total * share, total, decimals).removesuffix(" GiB").split("/")
    assert float(used) <= float(whole)


@given(st.floats(-1e6, 1e6))
def test_counts_round_to_whole_numbers_from_ten_on_and_never_to_less_than_nothing(value: float) -> None:
    text = say.count(value)
    assert text not in ("-0", "-0.0", "10.0")
    assert abs(value) < 10 or "." not in text
