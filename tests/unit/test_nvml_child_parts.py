"""The child's parts without a driver: stamps, counters, lanes, pids, reasons."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.metrics import GPU
from gpuwatch.sources.nvml import reasons, wire
from gpuwatch.sources.nvml.driver import CallError, Ledger
from gpuwatch.sources.nvml.readings import (
    LONGEST_PAUSE_SECONDS,
    Counter,
    Lanes,
    Pace,
    PidMap,
    Reading,
    StampClock,
    sensible,
)
from gpuwatch.sources.nvml.wire import Options

LANES = Lanes(interval=1.0, slow=5.0, rare=30.0)


class Question:
    """Something to ask: counts, and fails with `code` if that is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.code = 0

    def __call__(self) -> int:
        self.asked += 1
        if self.code:
            raise CallError(self.code)
        return self.asked


def test_stamps_of_any_origin_become_monotonic_times() -> None:
    clock = StampClock()
    clock.newest(stamp=1_700_000_000_000_000, now_ns=5_000_000_000)
    assert clock.monotonic_ns(1_700_000_000_000_000) == 5_000_000_000
    assert clock.monotonic_ns(1_700_000_000_000_000 - 139_000) == 5_000_000_000 - 139_000_000


def test_the_entry_read_soonest_sets_the_clock() -> None:
    clock = StampClock()
    clock.newest(stamp=1_000_000, now_ns=1_100_000_000)
    clock.newest(stamp=2_000_000, now_ns=2_020_000_000)
    clock.newest(stamp=3_000_000, now_ns=3_090_000_000)
    assert clock.monotonic_ns(3_000_000) == 3_020_000_000


def test_a_jump_of_the_drivers_clock_starts_over() -> None:
    clock = StampClock()
    clock.newest(stamp=10_000_000, now_ns=10_000_000_000)
    clock.newest(stamp=1_000_000, now_ns=11_000_000_000)
    assert clock.monotonic_ns(1_000_000) == 11_000_000_000


def test_a_counter_that_runs_backwards_once_is_dropped_and_counted() -> None:
    ledger = Ledger()
    counter = Counter(ledger)
    assert [counter.take(value) for value in (100, 110, 3, 120)] == [100, 110, None, 120]
    assert ledger.dropped == 1


def test_a_counter_that_stays_low_was_reset() -> None:
    counter = Counter(Ledger())
    assert [counter.take(value) for value in (100, 3, 5, 8)] == [100, None, 5, 8]


@pytest.mark.parametrize("sentinel", [-1, 1 << 63, 9223372036854775794, (1 << 64) - 1])
def test_sentinels_are_no_counts(sentinel: int) -> None:
    ledger = Ledger()
    assert Counter(ledger).take(sentinel) is None and ledger.dropped == 1


@given(st.sampled_from(sorted(GPU)), st.one_of(st.integers(), st.floats(allow_nan=True)))
def test_no_impossible_value_gets_through(name: str, value: float) -> None:
    ledger = Ledger()
    kept = sensible(name, value, ledger)
    low, high = GPU[name].low, GPU[name].high
    assert (kept is None) == (ledger.dropped == 1)
    assert kept is None or low <= kept <= high


@given(st.lists(st.integers(min_value=-10, max_value=1 << 64), max_size=30))
def test_a_counter_never_falls_without_a_dropped_value_before(values: list[int]) -> None:
    ledger = Ledger()
    kept = [value for value in map(Counter(ledger).take, values) if value is not None]
    falls = sum(later < earlier for earlier, later in itertools.pairwise(kept))
    assert falls <= ledger.dropped
    assert len(kept) + ledger.dropped == len(values)


def test_a_reading_is_asked_in_its_lane_in_spite_of_jitter() -> None:
    question = Question()
    reading = Reading(question, LANES.slow, LANES)
    for poll in range(100):
        reading.poll(poll * 1.0 + (0.1 if poll % 2 else -0.1) + 1000)
    assert question.asked == 20


def test_half_shifted_readings_take_turns() -> None:
    even = Reading(Question(), LANES.alternate, LANES)
    odd = Reading(Question(), LANES.alternate, LANES, offset=0.5)
    polls = [(even.poll(1000.0 + poll), odd.poll(1000.0 + poll)) for poll in range(9)]
    assert polls[0] == (True, True), "the first poll has everything"
    assert polls[1:] == [(False, True), (True, False)] * 4


def test_a_refused_reading_is_asked_in_the_rare_lane() -> None:
    question = Question()
    question.code = reasons.NO_PERMISSION
    reading = Reading(question, LANES.every_poll, LANES)
    for poll in range(61):
        reading.poll(1000.0 + poll)
    assert question.asked == 3 and reading.value is None


def test_a_transient_failure_is_asked_again_at_once() -> None:
    question = Question()
    reading = Reading(question, LANES.every_poll, LANES)
    question.code = reasons.TIMEOUT
    reading.poll(1000.0)
    question.code = 0
    reading.poll(1001.0)
    assert reading.value == 2 and reading.code == 0


def test_polls_are_jittered_by_a_tenth_around_the_interval() -> None:
    pauses = [Pace(2.0).pause() for _ in range(400)]
    assert min(pauses) >= 1.8 and max(pauses) <= 2.2
    assert max(pauses) - min(pauses) > 0.3
    assert sum(pauses) / len(pauses) == pytest.approx(2.0, abs=0.05)


def test_a_slow_driver_gets_one_percent_of_the_time() -> None:
    pace = Pace(1.0)
    for _ in range(4):
        pace.spent(0.02)
    assert pace.interval() == pytest.approx(2.0)
    for _ in range(4):
        pace.spent(1.0)
    assert pace.interval() == LONGEST_PAUSE_SECONDS
    pace.spent(0.001)
    assert pace.interval() == 1.0, "one quick round and it is asked as before"


def test_no_lane_is_faster_than_the_interval() -> None:
    lanes = Lanes(interval=10.0, slow=5.0, rare=30.0)
    assert min(lanes.every_poll, lanes.alternate, lanes.slow, lanes.lazy) >= 10.0


def test_pids_cannot_be_mapped_where_proc_says_nothing(tmp_path: Path) -> None:
    pids = PidMap(str(tmp_path))
    assert not pids.known and pids.pid(1) is None and pids.command(1) is None
    assert "--pid=host" in (pids.reason or "")


def test_a_process_has_its_user_and_its_age_and_one_that_is_gone_has_none(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("NSpid:\t5\t1\n")
    (tmp_path / "77" / "status").write_text("Uid:\t1000\t0\t1000\t1000\nNSpid:\t77\t7\n")
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "77" / "stat").write_text(f"77 (a) R (b) S {' '.join(['1'] * 18)} {30 * ticks} 0 0\n")
    (tmp_path / "uptime").write_text("100.5 400.0\n")
    pids = PidMap(str(tmp_path))
    assert pids.user(77) == "root" and pids.age_seconds(77) == pytest.approx(70.5)
    assert pids.user(78) is None and pids.age_seconds(78) is None


def test_a_user_without_a_name_is_a_number(tmp_path: Path) -> None:
    for name in ("self", "77"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text("Uid:\t1\t987654321\t1\t1\nNSpid:\t77\t7\n")
    assert PidMap(str(tmp_path)).user(77) == "987654321"


@pytest.mark.parametrize("code", [*range(1, 31), 999, -1, -2, -3, -4, 12345])
def test_every_code_has_words(code: int) -> None:
    words = reasons.reason_of(code)
    assert words and "\n" not in words and not words.endswith(".")
    sentence = reasons.init_sentence(code)
    assert sentence[0].isupper() or sentence.startswith("libnvidia")
    assert sentence.endswith(".")


def test_the_marker_is_read_by_whoever_holds_the_file(tmp_path: Path) -> None:
    with (tmp_path / "marker").open("w+b") as file:
        file.truncate(wire.MARKER_SIZE)
        mark = wire.Marker(file.fileno())
        assert wire.read_marker(file.fileno()) is None
        mark.set(wire.marker_line("GPU-a", "nvmlDeviceGetTemperature"), 1.0)
        mark.set(wire.marker_line("GPU-b", "nvmlDeviceGetName"), 2.5)
        assert wire.read_marker(file.fileno()) == ("GPU-b", "nvmlDeviceGetName")
        assert wire.marker_began(file.fileno()) == 2.5
        mark.clear()
        assert wire.read_marker(file.fileno()) is None


def test_options_come_as_json() -> None:
    options = Options.from_arguments(["--survey", '{"interval_seconds": 0.5, "kernel_log": null}'])
    assert (options.interval_seconds, options.kernel_log, options.survey) == (0.5, None, True)
    assert Options.from_arguments([]).slow_seconds == 5.0
