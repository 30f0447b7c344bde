"""Columns give back the values that were put into them, whatever shape they are written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.recording.columns import ColumnReader, write_column

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTER = st.integers(0, 2**62)


def size_and_values(values: Sequence[Any]) -> tuple[int, list[Any]]:
    out = bytearray()
    write_column(values, out)
    return len(out), list(ColumnReader(bytes(out)).read(len(values)))


@given(values=st.lists(INT64, max_size=90) | st.lists(COUNTER, max_size=90).map(sorted))
def test_whole_numbers_come_back(values: list[int]) -> None:
    assert size_and_values(values)[1] == values


@given(values=st.lists(COUNTER, min_size=40, max_size=90, unique=True).map(sorted), data=st.data())
def test_a_counter_that_steps_back_comes_back(values: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(values) - 1))
    values[place] = data.draw(st.integers(-5, values[place]))
    assert size_and_values(values)[1] == values


@pytest.mark.parametrize(
    "values",
    [
        [-3, *range(0, 400, 4), 2**62],
        [0, *(2**63 - 1000 + place for place in range(100))],
        [*range(1, 100), -1, *range(100, 200)],
        [*range(1, 100), -(2**63), *range(100, 200)],
    ],
    ids=["from below zero", "up to the greatest", "with one below zero", "with the least"],
)
def test_numbers_that_grow_but_for_one_come_back(values: list[int]) -> None:
    assert size_and_values(values)[1] == values


def test_a_counter_takes_the_room_of_its_steps() -> None:
    steady = [10**15 + 7 * place + place % 5 for place in range(600)]
    size, values = size_and_values(steady)
    assert values == steady and size < 2 * 600


@pytest.mark.parametrize("count", [200, 256, 257, 300])
def test_up_to_256_values_that_come_again_take_a_byte_each(count: int) -> None:
    values = [f"line {place % count}" if place >= 64 else f"line {place % 20}" for place in range(2_000)]
    size, read = size_and_values(values)
    assert read == values
    assert (size < 2_000 + 12 * count) == (count <= 256)


def test_whole_numbers_and_decimals_in_one_column_come_back_as_they_were() -> None:
    values = [place if place % 3 else place / 1000 for place in range(200)]
    assert size_and_values(values)[1] == values


def test_numbers_among_which_some_are_unknown_or_words_come_back() -> None:
    unknown = [None if place % 7 == 0 else place / 1000 for place in range(200)]
    words = [f"{place}" if place % 7 == 0 else place / 1000 for place in range(200)]
    assert size_and_values(unknown)[1] == unknown
    assert size_and_values(words)[1] == words
