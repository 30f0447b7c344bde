"""Whether a line or a whole function is named, from samples of lines and of the calls above them."""

from __future__ import annotations

from gpuwatch.timeline.stacks import hottest_line
from gpuwatch.timeline.windows import LineShare
from tests.unit.stack_builder import AUGMENT, interval

OF = 1000


def line(number: int, samples: int, function: str = "__getitem__", phase: str = "item", leaf: str = "") -> LineShare:
    return LineShare(phase, AUGMENT, number, function, samples, interval(samples, OF), f"line {number}", leaf or None)


def call(number: int, samples: int, callee: str, function: str = "__getitem__", phase: str = "item") -> LineShare:
    share = interval(samples, OF)
    return LineShare(
        phase, AUGMENT, number, function, samples, share, f"{callee}(image)", callee=callee, callee_file=AUGMENT
    )


def spread(function: str, first: int, count: int, samples: int) -> list[LineShare]:
    """So many lines of a function with equal shares of the samples."""
    return [line(first + place, samples // count, function, leaf="numpy/core.py:dot") for place in range(count)]


def found(lines: list[LineShare], calls: list[LineShare]) -> LineShare:
    named = hottest_line(lines, calls, ("item", "collate"))
    assert named is not None
    return named


def test_a_function_whose_cost_is_spread_over_its_lines_comes_before_a_hotter_line_beside_it() -> None:
    named = found([line(35, 200), *spread("elastic", 50, 8, 400)], [call(34, 400, "elastic")])
    assert (named.callee, named.line, named.samples, named.text) == ("elastic", 34, 400, "elastic(image)")
    assert named.share == interval(400, OF)
    assert named.leaf == "numpy/core.py:dot"


def test_the_few_lines_that_have_half_of_the_function_are_named() -> None:
    inside = [line(57, 180, "elastic"), line(58, 120, "elastic"), *spread("elastic", 60, 5, 100)]
    named = found([line(35, 200), *inside], [call(34, 400, "elastic")])
    assert (named.callee, named.callee_lines) == ("elastic", (57, 58))


def test_lines_that_do_not_have_half_of_it_together_are_not_named() -> None:
    assert found(spread("elastic", 50, 10, 400), [call(34, 400, "elastic")]).callee_lines == ()


def test_a_line_that_has_half_of_a_function_is_named_itself() -> None:
    named = found([line(35, 200), line(57, 250, "elastic"), line(58, 150, "elastic")], [call(34, 400, "elastic")])
    assert (named.line, named.callee, named.samples) == (57, None, 250)


def test_functions_are_followed_to_the_one_that_works() -> None:
    calls = [call(20, 900, "load"), call(40, 850, "decode", "load"), call(41, 50, "check", "load")]
    named = found([*spread("decode", 70, 5, 850), line(80, 50, "check")], calls)
    assert (named.callee, named.line, named.function) == ("decode", 40, "load")


def test_a_function_that_is_called_from_two_lines_is_followed_with_all_its_samples() -> None:
    calls = [call(20, 450, "load"), call(21, 350, "load")]
    named = found([line(50, 700, "load"), line(51, 100, "load")], calls)
    assert (named.line, named.callee, named.samples) == (50, None, 700)


def test_without_calls_it_is_the_line_with_the_most_samples() -> None:
    assert found([line(35, 200), line(36, 300)], []).line == 36
    assert hottest_line([line(35, 200)], [], ("collate",)) is None


def test_samples_of_one_line_in_two_phases_are_added_up() -> None:
    named = found([line(35, 200), line(36, 150), line(36, 100, phase="collate")], [])
    assert (named.line, named.samples, named.share.value) == (36, 250, 0.25)


def test_a_comprehension_is_its_line() -> None:
    inside = "__getitem__.<locals>.<listcomp>"
    named = found(spread(inside, 40, 5, 500), [call(40, 500, inside)])
    assert (named.line, named.callee) == (40, None)


def test_functions_that_call_each_other_come_to_an_end() -> None:
    calls = [call(20, 900, "walk"), call(30, 880, "visit", "walk"), call(40, 870, "walk", "visit")]
    assert found(spread("visit", 50, 9, 90), calls).callee in ("walk", "visit")
