"""Numbers as people read them."""

from __future__ import annotations

import pytest

from gpuwatch.text.numbers import grouped, rate


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (999, "999"), (1219, "1 219"), (1271.6, "1 272"), (18204, "18 204"), (-2500, "-2 500")],
)
def test_thousands_are_apart_from_four_digits_on(value: float, words: str) -> None:
    assert grouped(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.0412, "0.0412"), (98.44, "98.4"), (99.96, "100"), (1271.6, "1 272"), (1e6, "1 000 000")]
)
def test_a_rate_has_three_digits_and_no_exponent(value: float, words: str) -> None:
    assert rate(value) == words
