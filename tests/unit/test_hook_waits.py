"""When a `next` is metered: one in so many, and always the last of a pass, which may be smaller."""

from __future__ import annotations

import pytest

from gpuwatch.hook.loaders import LoaderEntry
from gpuwatch.hook.waits import Iteration


def metered(length: int | None, period: int, inline: bool, taken: int) -> list[int]:
    """Which of the first `taken` calls are metered."""
    entry = LoaderEntry(1, None)
    entry.inline = inline
    iteration = Iteration(entry, length)
    found = []
    for number in range(1, taken + 1):
        if iteration.turn == 0:
            found.append(number)
            iteration.schedule(period)
        elif iteration.turn > 0:
            iteration.turn -= 1
    return found


@pytest.mark.parametrize(
    ("length", "period", "inline", "expected"),
    [
        (20, -1, False, [1, 20, 21]),
        (20, 7, True, [1, 9, 17, 20, 21]),
        (9, 7, True, [1, 9, 10]),
        (1, -1, False, [1, 2]),
        (2, 7, True, [1, 2, 3]),
        (0, -1, False, [1]),
        (None, 7, True, [1, 9, 17]),
        (None, -1, False, []),
        (4, 0, True, [1, 2, 3, 4, 5]),
    ],
)
def test_the_last_batch_of_a_pass_is_always_looked_at(
    length: int | None, period: int, inline: bool, expected: list[int]
) -> None:
    end = length + 1 if length is not None else 20
    assert metered(length, period, inline, end) == expected
