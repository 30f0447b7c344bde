from __future__ import annotations

import math
import sys
from statistics import NormalDist

import pytest

from gpuwatch.samples import BatchCount, CallCount, StackTally, WorkerCount
from gpuwatch.timeline.stacks import BatchCounts, Counted, StackLog
from gpuwatch.timeline.windows import StackWindow, wilson
from tests.unit.sample_builder import TRAINER, at, count, counts, current_line, line, tallies, tally

DAY = 24 * 3600


def log(*found: StackTally) -> StackLog:
    made = StackLog()
    for each in found:
        made.add(each)
    return made


def window(made: StackLog, start: float, end: float) -> StackWindow:
    found = made.window(at(start), at(end))
    assert found is not None
    return found


@pytest.mark.parametrize(("hits", "count"), [(5, 10), (60, 600), (1, 6_000), (599, 600), (333, 1_000)])
def test_bounds_are_the_shares_that_the_looks_just_do_not_rule_out(hits: int, count: int) -> None:
    share = wilson(hits, count)
    assert share.low < share.value == hits / count < share.high
    for bound in (share.low, share.high):
        sigma = math.sqrt(bound * (1 - bound) / count)
        assert abs(share.value - bound) / sigma == pytest.approx(NormalDist().inv_cdf(0.975))


def test_nothing_seen_in_ten_looks_may_still_be_a_quarter() -> None:
    assert wilson(0, 10).low == 0.0
    assert wilson(0, 10).high == pytest.approx(0.2775, abs=1e-4)
    assert wilson(10, 10).low == pytest.approx(0.7225, abs=1e-4)
    assert wilson(10, 10).high == 1.0


def test_shares_are_of_all_looks_and_of_those_at_training() -> None:
    seen = window(log(*tallies(60, {"wait": 40, "forward": 30, "eval": 20, "save": 10})), 0, 60)
    assert (seen.samples, seen.seconds) == (6_000, 60.0)
    assert seen.phases["wait"].value == pytest.approx(0.4)
    assert seen.train_phases["wait"].value == pytest.approx(40 / 70)
    assert sum(share.value for share in seen.phases.values()) == pytest.approx(1.0)
    assert sum(share.value for share in seen.train_phases.values()) == pytest.approx(1.0)
    assert not {"eval", "save", "compile"} & seen.train_phases.keys()
    assert seen.phases["wait"].low < 0.4 < seen.phases["wait"].high


def test_phase_that_was_never_seen_has_a_share_of_zero_with_a_bound() -> None:
    seen = window(log(*tallies(10, {"forward": 60})), 0, 10)
    assert seen.phases["sync"].value == 0.0
    assert 0.0 < seen.phases["sync"].high < 0.01


def test_without_usable_looks_no_share_is_known() -> None:
    seen = window(log(tally(1, {}, rejected=90, worker_samples=0)), 0, 10)
    assert (seen.samples, seen.rejected, seen.phases, seen.train_phases, seen.worker_phases) == (0, 90, {}, {}, {})
    assert (seen.eval_wait_share, seen.receiving_share, seen.first_wait_share) == (None, None, None)


def test_evaluation_alone_says_nothing_of_training() -> None:
    seen = window(log(*tallies(10, {"eval": 100}, eval_waiting_samples=25)), 0, 10)
    assert seen.train_phases == {}
    assert seen.eval_wait_share == pytest.approx(0.25)


def test_no_looks_are_no_window() -> None:
    assert StackLog().window(at(0), at(60)) is None
    assert log(*tallies(10, {"wait": 1})).window(at(100), at(160)) is None


def test_only_looks_of_the_window_count() -> None:
    made = log(*tallies(60, {"wait": 100}), *tallies(60, {"forward": 100}, start=60))
    assert window(made, 60, 120).phases["forward"].value == 1.0
    assert window(made, 30, 90).phases["wait"].value == pytest.approx(0.5, abs=0.02)


def test_parts_of_the_wait_are_of_all_looks() -> None:
    seen = window(log(*tallies(10, {"wait": 50, "other": 50}, receiving_samples=10, first_wait_samples=20)), 0, 10)
    assert (seen.receiving_share, seen.first_wait_share) == (pytest.approx(0.1), pytest.approx(0.2))


@pytest.mark.parametrize(("batches", "share"), [(1000, 0.179), (130, 0.0), (75, 0.2)])
def test_first_batches_count_as_far_as_they_wait_longer_than_others(batches: int, share: float) -> None:
    """Ten epochs with 4 workers each: 400 samples wait for 40 first batches, 1,000 for the others."""
    made = log(*tallies(20, {"wait": 70, "other": 30}, first_wait_samples=20, workers=4))
    counts = BatchCounts()
    for second in range(21):
        counts.add(count(second, batches * second // 20, epochs=second // 2))
    found = made.window(at(0), at(20), counts)
    assert found is not None
    assert found.epochs == 10
    assert found.first_wait_share == pytest.approx(share, abs=0.005)


def test_the_start_of_the_first_epoch_is_known_apart_from_those_of_others() -> None:
    """Workers start for 3 s and are waited for; each of four epochs of 10 s then waits half a second."""
    first = tallies(4, {"start": 50, "wait": 50}, first_wait_samples=50, workers=4)
    later = [
        each
        for second in range(4, 44)
        for each in tallies(
            1,
            {"wait": 50 if second % 10 == 4 else 0, "other": 100},
            start=second,
            first_wait_samples=50 if second % 10 == 4 else 0,
            workers=4,
        )
    ]
    counts = BatchCounts()
    for second in range(3, 45):
        counts.add(count(second, 10 * max(0, second - 3), epochs=1 + max(0, second - 4) // 10))
    found = log(*first, *later).window(at(0), at(44), counts)
    assert found is not None and found.epochs == 4
    samples = 4 * 100 + 36 * 100 + 4 * 150
    assert found.beginning_share == pytest.approx(400 / samples, abs=0.002)
    assert found.first_wait_share == pytest.approx(400 / samples, abs=0.002)


@pytest.mark.parametrize(("waiting", "share"), [(50, 0.0), (20, 0.2)])
def test_a_first_round_that_fills_the_window_is_no_start_of_an_epoch(waiting: int, share: float) -> None:
    """128 workers take minutes for a batch each: 30 s of waits in a minute without a new epoch are their pace."""
    made = log(*tallies(60, {"wait": waiting, "other": 100 - waiting}, first_wait_samples=waiting, workers=128))
    counts = BatchCounts()
    for second in range(0, 61, 10):
        counts.add(count(second, 1 + second))
    found = made.window(at(0), at(60), counts)
    assert found is not None and found.first_wait_share == pytest.approx(share, abs=0.005)


def test_threads_that_feed_the_training_are_counted_apart_and_add_up() -> None:
    looks = {"handed_samples": 40, "feeder_rounds": 10, "feeder_phases": {"make": 9, "idle": 1}}
    seen = window(
        log(*tallies(10, {"wait": 50, "other": 50}, feeder_lines=(line(7, 9, phase="make"),), **looks)), 0, 10
    )
    assert (seen.handed_samples, seen.feeder_rounds, seen.feeder_samples) == (400, 100, 100)
    shares = {"make": 0.9, "wait": 0.0, "idle": 0.1, "pin": 0.0, "pin-idle": 0.0}
    assert {phase: share.value for phase, share in seen.feeder_phases.items()} == shares
    (hot,) = seen.feeder_lines
    assert (hot.line, hot.samples, hot.share.value) == (7, 90, pytest.approx(0.9))
    assert seen.lines == () and seen.worker_lines == ()


def test_workers_are_counted_one_by_one_with_the_line_of_each() -> None:
    slow, quick = WorkerCount(7, 20, 1, line(13, 19, phase="item")), WorkerCount(8, 20, 18, line(14, 2, phase="item"))
    made = log(*tallies(200, {"wait": 50}, by_worker=(slow, quick)))
    for start, seconds in ((140, 60), (0, 200)):
        first, second = sorted(window(made, start, 200).by_worker, key=lambda each: each.pid)
        assert (first.pid, first.samples, first.busy.value) == (7, 20 * seconds, pytest.approx(0.95))
        assert first.line is not None and (first.line.line, first.line.share.value) == (13, 1.0)
        assert (second.pid, second.busy.value) == (8, pytest.approx(0.1))


def test_waits_are_reported_tally_by_tally_without_phases_and_first_batches() -> None:
    first = tally(1, {"wait": 60, "forward": 40}, first_wait_samples=20)
    made = log(first, tally(2, {"eval": 100}), tally(3, {"wait": 10, "forward": 40, "eval": 50}))
    expected = [(pytest.approx(1.0), pytest.approx(0.4)), (pytest.approx(0.5), pytest.approx(0.1))]
    assert list(window(made, 0, 60).waits) == expected


def test_pauses_between_looks_at_logging_count_training_only() -> None:
    logs, trains, evaluates = {"log": 5, "forward": 95}, {"forward": 100}, {"eval": 100}
    seen = [logs, trains, trains, logs, *[evaluates] * 20, logs, trains, trains, trains]
    made = log(*(tally(second, phases) for second, phases in enumerate(seen, start=1)))
    found = window(made, 0, 60)
    assert (found.log_quiet_seconds, found.log_pause_seconds) == (pytest.approx(3.0), pytest.approx(4.0))


def test_logging_that_was_seen_once_or_never_has_no_pauses() -> None:
    once = window(log(tally(1, {"log": 100}), tally(2, {"forward": 100})), 0, 60)
    assert (once.log_quiet_seconds, once.log_pause_seconds) == (pytest.approx(1.0), None)
    never = window(log(*tallies(10, {"forward": 100})), 0, 60)
    assert (never.log_quiet_seconds, never.log_pause_seconds) == (None, None)


def test_lines_are_ranked_and_count_with_all_their_leaves() -> None:
    split = (
        line(7, 30, leaf="PIL/Image.py:resize"),
        line(7, 25, leaf="PIL/Image.py:convert", text="x = load(path)"),
        line(9, 40),
    )
    (first, second) = window(log(*tallies(10, {"forward": 100}, lines=split)), 0, 10).lines
    assert (first.line, first.samples, first.leaf) == (7, 550, "PIL/Image.py:resize")
    assert first.share.value == pytest.approx(0.55)
    assert (second.line, second.samples) == (9, 400)


def test_text_of_a_line_is_kept_from_the_look_that_read_it() -> None:
    made = log(tally(1, {"forward": 10}, lines=(line(7, 10, text="loss.backward()"),)))
    made.add(tally(2, {"forward": 10}, lines=(line(7, 10),)))
    assert window(made, 0, 2).lines[0].text == "loss.backward()"


def test_line_in_two_phases_is_two_lines() -> None:
    both = (line(7, 30, phase="wait"), line(7, 20, phase="start"))
    assert [each.phase for each in window(log(tally(1, {"wait": 50}, lines=both)), 0, 1).lines] == ["wait", "start"]


def test_twenty_lines_are_shown_and_the_hottest_of_many_is_first() -> None:
    for_every_second = [
        tally(second, {"other": 200}, lines=(*(line(n, 1) for n in range(100, 190)), line(7, 30)))
        for second in range(1, 61)
    ]
    seen = window(log(*for_every_second), 0, 60)
    assert len(seen.lines) == 20
    assert (seen.lines[0].line, seen.lines[0].share.value) == (7, pytest.approx(0.15))


def test_worker_lines_leave_idle_workers_out() -> None:
    made = log(
        *tallies(
            10,
            {"wait": 100},
            workers=4,
            worker_samples=80,
            worker_phases={"item": 30, "idle": 40, "send": 10},
            worker_lines=(line(31, 20, phase="item", leaf="PIL/Image.py:resize"),),
        )
    )
    seen = window(made, 0, 10)
    assert (seen.workers, seen.worker_samples) == (4, 800)
    assert seen.worker_phases["idle"].value == pytest.approx(0.5)
    assert seen.worker_lines[0].share.value == pytest.approx(0.5)


def test_calls_are_added_up_beside_the_lines_also_where_tallies_are_merged() -> None:
    calls = (CallCount("item", "/data.py", 34, "__getitem__", "/data.py", "elastic", 20, "elastic(image)"),)
    made = log(
        *tallies(200, {"wait": 100}, workers=2, worker_samples=50, worker_phases={"item": 50}, worker_calls=calls)
    )
    (call,) = window(made, 0, 200).worker_calls
    assert (call.callee, call.line, call.samples, call.share.value) == ("elastic", 34, 4000, pytest.approx(0.4))
    assert not window(made, 0, 200).calls and not window(made, 0, 200).worker_lines


def test_workers_are_as_many_as_there_mostly_were() -> None:
    made = log(*(tally(n + 1, {"wait": 10}, workers=0 if n % 3 else 4) for n in range(30)))
    assert window(made, 0, 30).workers == 4


def test_own_cost_is_per_second_of_looks() -> None:
    assert window(log(*tallies(60, {"wait": 100}, cpu_seconds=0.02)), 0, 60).cpu_share == pytest.approx(0.02)


def test_late_tallies_fall_where_they_belong() -> None:
    late = [*tallies(60, {"wait": 100}), *tallies(60, {"forward": 100}, start=60)][::-1]
    made = log(*late)
    assert window(made, 0, 60).phases["wait"].value == 1.0
    assert window(made, 60, 120).phases["forward"].value == 1.0


def test_a_window_that_slid_says_what_it_says_without_its_past() -> None:
    """What was added up for an earlier window is used again, unless a late tally or the merging changed it."""
    slid, arrived = StackLog(), []
    order = [*range(1, 180), *range(180, 200, 2), *range(181, 200, 2)]
    for second in order:
        found = tally(second, {"wait": second % 7, "forward": 5}, lines=[line(second % 3, 5)], cpu_seconds=0.1)
        arrived.append(found)
        slid.add(found)
        newest = max(order[: len(arrived)])
        seen, fresh = (made.window(at(newest - 60), at(newest)) for made in (slid, log(*arrived)))
        assert seen == fresh
        assert seen is not None and seen.samples == sum(
            sum(each.phases.values()) for each in arrived if at(newest - 60) < (each.start_ns + each.end_ns) // 2
        )


def test_tally_that_is_minutes_late_is_counted_among_the_merged() -> None:
    made = log(*tallies(300, {"wait": 100}))
    made.add(tally(30.5, {"forward": 100}))
    assert window(made, 0, 60).phases["forward"].value == pytest.approx(1 / 61, rel=0.2)  # merged to 15 s
    made.add(tally(-2_000, {"forward": 100}))
    assert window(made, -3_000, 300).samples == 30_100


def test_fifteen_minutes_are_kept_and_merged_tallies_add_up() -> None:
    made = log(*tallies(900, {"wait": 30, "forward": 70}, lines=(line(7, 70),), cpu_seconds=0.01))
    seen = window(made, 0, 900)
    assert (seen.samples, seen.seconds) == (90_000, 900.0)
    assert seen.phases["wait"].value == pytest.approx(0.3)
    assert seen.lines[0].samples == 63_000
    assert made.reaches(at(0))
    made.add(tally(1_000, {"wait": 1}))
    assert not made.reaches(at(0))
    assert window(made, 0, 1_000).samples == pytest.approx(80_000, rel=0.02)


def footprint(made: StackLog) -> tuple[int, int]:
    blocks = [*made._singles, *made._merged.values()]
    lines = sum(len(block.lines) + len(block.worker_lines) for block in blocks)
    return len(blocks), lines + len(made._keys)


def test_month_of_ever_new_lines_needs_no_more_memory_than_an_hour() -> None:
    made = StackLog()
    sizes = []
    second = 0
    for _ in range(30):
        for _ in range(150):
            second += 7
            wandering = tuple(line(second * 40 + n, 1) for n in range(40))
            made.add(tally(second, {"other": 40}, lines=wandering, worker_lines=wandering, worker_samples=40))
        sizes.append(footprint(made))
        second += DAY - 150 * 7
    assert max(blocks for blocks, _ in sizes) <= 200
    assert sizes[-1][1] <= 2 * 200 * 64 + 2 * 4_096 + 2 * sizes[0][1]
    assert sizes[-1][1] <= 1.1 * max(size for _, size in sizes[:3])


def test_crowded_tallies_are_bounded_by_their_most_frequent_lines() -> None:
    made = log(*tallies(900, {"other": 500}, lines=tuple(line(n, 1 + (n == 3)) for n in range(500))))
    blocks, lines = footprint(made)
    assert blocks <= 190
    assert lines <= 190 * 64 + 500
    assert window(made, 0, 900).lines[0].line == 3


def test_standing_is_the_newest_look_and_only_of_the_window() -> None:
    made = log(*tallies(60, {"forward": 100}))
    made.see(current_line(50, since=20))
    made.see(current_line(40, "wait"))
    seen = window(made, 0, 60).current_line
    assert seen is not None
    assert (seen.time_ns, seen.phase) == (at(50), "forward")
    made.add(tally(200, {"forward": 100}))
    assert window(made, 140, 200).current_line is None


def test_tally_without_a_duration_is_ignored() -> None:
    assert log(StackTally(TRAINER, at(1), at(1), 5, {"wait": 5})).window(at(0), at(10)) is None


def test_blocks_hold_numbers_instead_of_names() -> None:
    made = log(*tallies(60, {"forward": 100}, lines=tuple(line(n, 1, function=f"f{n}") for n in range(50))))
    assert len(made._keys) == 50
    assert all(sys.getsizeof(key) <= 32 for block in made._singles for key in block.lines)


def counted(*readings: BatchCount) -> BatchCounts:
    made = BatchCounts()
    for each in readings:
        made.add(each)
    return made


def between(made: BatchCounts, start: float, end: float, looks: tuple[float, float] | None = None) -> Counted:
    first, last = looks or (start, end)
    found = made.between(at(start), at(end), (at(first), at(last)))
    assert found is not None
    return found


def test_rate_is_the_growth_between_the_first_and_the_last_reading() -> None:
    made = counted(*counts(100, 7.5))
    assert between(made, 40, 100).per_second == pytest.approx(7.5, rel=0.005)
    assert between(made, 40.7, 99.2).per_second == pytest.approx(7.5, rel=0.01)
    assert made.total == 750


def test_readings_that_come_unevenly_do_not_shift_the_rate() -> None:
    moments = [0.0, 0.4, 3.1, 3.2, 5.9, 8.0, 9.7]
    made = counted(*(count(moment, round(moment * 80)) for moment in moments))
    assert between(made, -1, 10).per_second == pytest.approx(80, rel=0.005)


def test_slow_batches_are_counted_over_the_whole_stretch() -> None:
    made = counted(*(count(second, second // 10) for second in range(301)))
    assert between(made, 0, 300).per_second == pytest.approx(0.1, rel=0.04)


def test_evaluation_adds_time_and_no_batches() -> None:
    training = [count(second, second * 10) for second in range(31)]
    evaluating = [count(30 + second, second * 50, loader=2, role="eval") for second in range(1, 31)]
    made = counted(*training, *evaluating)
    assert between(made, 0, 60).per_second == pytest.approx(5, rel=0.02)
    assert between(made, 0, 60).batches == 300
    assert made.train_loader == 1
    assert made.last_growth_ns == at(30)


def test_pause_without_readings_counts_as_time_where_the_thread_was_looked_at() -> None:
    made = counted(*counts(30, 10))
    assert between(made, 0, 60, looks=(0, 60)).per_second == pytest.approx(5, rel=0.05)
    assert between(made, 0, 60, looks=(0, 30)).per_second == pytest.approx(10, rel=0.02)
    made.add(count(90, 300))
    assert between(made, 35, 95, looks=(35, 95)).per_second == 0.0


def test_first_reading_is_not_growth_of_the_time_before_it() -> None:
    made = counted(*(count(10 + second, 40 + second * 10) for second in range(31)))
    assert between(made, 0, 40).per_second == pytest.approx(10)
    assert made.total == 340


def test_new_loader_every_epoch_goes_on_where_the_old_one_ended() -> None:
    made = BatchCounts()
    for epoch in range(6):
        for second in range(10):
            made.add(count(epoch * 10 + second, second * 10 + 10, loader=epoch, epochs=1))
    assert made.total == 600
    assert between(made, -1, 59).per_second == pytest.approx(10, rel=0.02)
    assert between(made, -1, 59).epochs == 5


def test_watch_that_started_over_adds_to_what_it_was() -> None:
    made = counted(*counts(10, 10), *(count(20 + second, second * 10) for second in range(11)))
    assert made.total == 200
    assert between(made, 20, 30).per_second == pytest.approx(10, rel=0.01)


def test_late_reading_changes_nothing() -> None:
    made = counted(*counts(10, 10))
    assert made.add(count(5, 50)) is None
    assert (made.total, made.last_growth_ns) == (100, at(10))


def test_loader_of_unknown_use_counts_until_one_is_known_to_train() -> None:
    made = counted(*counts(10, 10, role="unknown"))
    assert made.total == 100
    made.add(count(11, 1, loader=2))
    assert (made.total, made.train_loader) == (1, 2)


def test_evaluation_alone_is_no_training() -> None:
    made = counted(*counts(10, 10, role="eval"))
    assert made.between(at(0), at(10), (at(0), at(10))) is None
    assert (made.total, made.last_growth_ns) == (0, None)


def test_estimate_among_the_readings_is_said() -> None:
    made = counted(*counts(10, 10))
    assert between(made, 0, 10).exact
    made.add(count(11, 110, exact=False))
    assert not between(made, 0, 11).exact


def test_usual_batch_leaves_an_evaluation_out() -> None:
    made = counted(
        *(count(second, second // 4) for second in range(81)), *(count(200 + n, 20 + n // 4) for n in range(81))
    )
    assert sorted(made.usual)[len(made.usual) // 2] == pytest.approx(4.0)


def test_loaders_and_readings_are_bounded_and_the_total_is_not_lost() -> None:
    made = BatchCounts()
    for loader in range(10_000):
        made.add(count(loader, 0, loader=loader))
        made.add(count(loader + 0.5, 3, loader=loader))
    assert made.total == 30_000
    assert len(made._loaders) <= 64
    for second in range(20_000):
        made.add(count(20_000 + second, second, loader=1))
    assert len(made._loaders[1].rows) <= 1_100
