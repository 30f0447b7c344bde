"""Which loop a whole training stands in, as seen from outside while it trains and evaluates alternately."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.loaders import LoaderReader
from gpuwatch.reader.stacks import Stack
from tests.integration.attached import needs_training, training

pytestmark = needs_training
ENOUGH_LOOKS = 200


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_that_is_over_is_not_taken_for_the_loop_around_it(tmp_path: Path, workers: int) -> None:
    """A function called in each step evaluates now and then; with workers the evaluation's iterator lives on."""
    options = ("--workers", str(workers), "--eval-every", "4", "--eval-batches", "2")
    with training(tmp_path, *options, epoch_steps=40) as target:
        interpreter = attach(target.pid)
        loaders = LoaderReader(interpreter)
        seen: Counter[tuple[bool, int]] = Counter()
        while min(evaluating := evaluated(seen), seen.total() - evaluating) < ENOUGH_LOOKS:
            stack = interpreter.main_stack()
            state = stack and loaders.state(stack)
            after = interpreter.main_stack()
            # On a busy machine the target may make many steps between a stack and its loop.
            if stack and state and after and is_evaluating(stack) == is_evaluating(after):
                seen[is_evaluating(stack), state.loader] += 1
        interpreter.close()
    usual = {True: most_seen(seen, True), False: most_seen(seen, False)}
    assert usual[True] != usual[False]
    # A stack and its loop are read one after the other, so some looks fall between two loops.
    strange = sum(count for (inside, loader), count in seen.items() if loader != usual[inside])
    assert strange < seen.total() / 10, seen


def is_evaluating(stack: Stack) -> bool:
    return any(frame.code.name == "evaluate" for frame in stack.frames)


def evaluated(seen: Counter[tuple[bool, int]]) -> int:
    return sum(count for (inside, _), count in seen.items() if inside)


def most_seen(seen: Counter[tuple[bool, int]], inside: bool) -> int:
    return max((count, loader) for (is_inside, loader), count in seen.items() if is_inside == inside)[1]
