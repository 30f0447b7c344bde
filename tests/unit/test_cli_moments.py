from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gpuwatch.cli.moments import moment, one_moment, span
from gpuwatch.cli.output import GpuwatchError

SECOND = 10**9
START_NS = 5_000 * SECOND
START_WALL = 1_795_183_200.0  # 2026-11-20T14:00:00Z


@dataclass
class Tape:
    """A recording of a length; the wall clock jumps ahead by an hour at a moment, if at all."""

    seconds: float = 3600.0
    jump_after: float = float("inf")

    start_ns = START_NS

    @property
    def end_ns(self) -> int:
        return START_NS + round(self.seconds * SECOND)

    def wall_time(self, time_ns: int) -> float:
        passed = (time_ns - START_NS) / SECOND
        return START_WALL + passed + (3600.0 if passed >= self.jump_after else 0.0)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("90.5", 90.5),
        ("1:30", 90),
        ("14:05", 845),
        ("0:14:05", 845),
        ("+00:14:05", 845),
        ("-90", 3510),
        ("-1:30", 3510),
        ("14:14:05", 845),
        ("2026-11-20T14:14:05", 845),
        ("2026-11-20T14:14:05Z", 845),
        ("2026-11-20 16:14:05+02:00", 845),
    ],
)
def test_every_form_names_the_moment_it_looks_like(text: str, seconds: float) -> None:
    assert one_moment(Tape(), moment(text), "--from") == START_NS + seconds * SECOND


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "25:00:61", "-", "+", "1h", "nan", "inf", "2026-13-01"])
def test_what_is_no_moment_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="0:14:05"):
        moment(text)


def test_offset_with_a_leading_zero_is_one_where_it_is_no_time_of_day_of_the_recording() -> None:
    assert one_moment(Tape(), moment("00:14:05"), "--from") == START_NS + 845 * SECOND
    with pytest.raises(GpuwatchError, match="outside the recording"):
        one_moment(Tape(), moment("01:14:05"), "--from")


def test_time_of_day_before_the_beginning_is_of_the_next_day() -> None:
    assert one_moment(Tape(86_400), moment("02:00:00"), "--from") == START_NS + 12 * 3600 * SECOND


def test_wall_times_follow_a_clock_that_was_set_meanwhile() -> None:
    tape = Tape(3600, jump_after=600)
    assert one_moment(tape, moment("15:20:00"), "--from") == START_NS + 1200 * SECOND
    assert one_moment(tape, moment("14:05:00"), "--from") == START_NS + 300 * SECOND


def test_moment_outside_is_refused_with_the_extent() -> None:
    with pytest.raises(GpuwatchError, match=r"--from 2:00:00 .* lasts 1:00:00, from 14:00:00 to 15:00:00"):
        one_moment(Tape(), moment("2:00:00"), "--from")


def test_span_ends_with_the_recording() -> None:
    assert span(Tape(), None, None) == (START_NS, START_NS + 3600 * SECOND)
    assert span(Tape(), moment("60"), moment("9:00:00")) == (START_NS + 60 * SECOND, START_NS + 3600 * SECOND)
    assert span(Tape(), moment("13:59:00"), moment("10")) == (START_NS, START_NS + 10 * SECOND)
    assert span(Tape(), moment("14:59:00"), moment("15:01:00")) == (START_NS + 3540 * SECOND, START_NS + 3600 * SECOND)


def test_empty_span_is_refused() -> None:
    with pytest.raises(GpuwatchError, match="--from 90 is not before --to 60"):
        span(Tape(), moment("90"), moment("60"))
    with pytest.raises(GpuwatchError, match="nothing was recorded --from 2:00:00 --to 3:00:00"):
        span(Tape(), moment("2:00:00"), moment("3:00:00"))
