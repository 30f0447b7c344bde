from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from gpuwatch.samples import BatchWait, GpuGap, LinkLoss, ModelFacts, RunMemory, StepEnd, WorkerFetch
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.trainer import LoaderWaits
from gpuwatch.timeline.windows import RankWindow
from tests.unit.sample_builder import (
    TRAINER,
    at,
    ended,
    fetch,
    loader,
    phase,
    process,
    rank_at,
    run_facts,
    scene,
    steps,
    timeline,
)

SECOND = 1_000_000_000


def test_shares_are_of_training_time() -> None:
    rank = rank_at(timeline(run_facts(), steps(300, period=0.2, wait=0.05, copy_seconds=0.02)), 60)
    assert rank.steps == 300
    assert rank.train_seconds == pytest.approx(60.0, rel=1e-4)
    assert rank.wait_share == pytest.approx(0.25)
    assert rank.copy_share == pytest.approx(0.1)
    assert rank.samples_per_second == pytest.approx(160.0)
    assert rank.step_seconds is not None
    assert rank.step_seconds.p50 == pytest.approx(0.2)


def test_phases_are_taken_off_the_step_before_shares_are_formed() -> None:
    calm = steps(100, period=0.2, wait=0.05)
    (long,) = steps(1, start=20.0, period=10.2, wait=0.05, first=101, phase_seconds=10.0)
    rank = rank_at(timeline(run_facts(), calm, long), 31)
    assert rank.train_seconds == pytest.approx(20.2, rel=1e-4)
    assert rank.wait_share == pytest.approx(0.25)
    assert rank.step_seconds is not None
    assert rank.step_seconds.max == pytest.approx(0.2)


def test_a_pause_inside_a_part_is_no_part_of_the_step() -> None:
    calm = steps(100, period=0.2, wait=0.15, forward_seconds=0.02, backward_seconds=0.03)
    compiling = {"forward_seconds": 0.02, "backward_seconds": 10.03, "phase_seconds": 10.0}
    (long,) = steps(1, start=20.0, period=10.2, wait=0.15, first=101, **compiling)
    rank = rank_at(timeline(run_facts(), calm, long), 31)
    shares = (rank.wait_share, rank.forward_share, rank.backward_share)
    assert rank.backward_share == pytest.approx(0.15, abs=0.01)
    assert sum(share or 0.0 for share in shares) == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize("held_by", ["backward_seconds", "wait"])
def test_a_stopped_process_does_not_train(held_by: str) -> None:
    calm = {"wait": 0.05, "forward_seconds": 0.05, "backward_seconds": 0.1}
    looks = [process(second + 0.5, state="R", tree_cores=2.0) for second in range(20)]
    stopped = [process(second + 0.5, state="T", tree_cores=0.0) for second in range(20, 62)]
    history = timeline(run_facts(), steps(100, period=0.2, **calm), looks, stopped)
    during = rank_at(history, 50)
    assert during.open_phase is not None and during.open_phase.kind == "stopped"
    history.extend(steps(1, start=20.0, period=42.2, first=101, **(calm | {held_by: calm[held_by] + 42.0})))
    history.add(GpuGap(TRAINER, 101, 42.0))
    history.extend([process(62.5, state="R", tree_cores=2.0), *steps(10, start=62.2, period=0.2, first=102, **calm)])
    rank = rank_at(history, 64.3)
    assert rank.open_phase is None
    assert rank.wait_share == pytest.approx(0.25, abs=0.01)
    assert rank.forward_share == pytest.approx(0.25, abs=0.01)
    assert rank.backward_share == pytest.approx(0.5, abs=0.01)
    assert rank.samples_per_second == pytest.approx(160.0, rel=0.01)
    assert rank.gap_share is not None and rank.gap_share <= 1.0
    assert rank.step_seconds is not None and rank.step_seconds.max == pytest.approx(0.2)
    assert rank.phases["stopped"].seconds == pytest.approx(42.0, abs=1.0)
    assert rank.process is not None and rank.process.tree_cores == pytest.approx(2.0)


def test_a_step_that_held_a_stop_took_no_less_than_the_parts_that_are_left_of_it() -> None:
    looks = [process(second + 0.5, state="T") for second in range(20, 62)]
    history = timeline(run_facts(), steps(100, period=0.2), looks, process(62.5, state="R"))
    history.extend(steps(1, start=20.0, period=44.0, first=101, wait=1.0, forward_seconds=0.5))
    columns = rank_at(history, 64.3).columns
    assert columns.wait_seconds[-1] == pytest.approx(1.0)
    assert columns.period_seconds[-1] == pytest.approx(1.5)


def test_a_wait_is_no_longer_than_the_training_of_its_step() -> None:
    """Packets and files are not ours: a share above 100% is shown of none of them."""
    history = timeline(run_facts(), steps(10, period=1.0, wait=1.6))
    assert rank_at(history, 10).wait_share == 1.0
    shares = history.chart(Series("run.wait_share", TRAINER), at(0), at(10), 5)
    assert set(shares.max) == {1.0}


def test_a_stop_in_an_evaluation_is_no_evaluation() -> None:
    looks = [process(second + 0.5, state="T") for second in range(12, 52)]
    history = timeline(run_facts(), steps(50, period=0.2), looks, process(52.5, state="R"), phase("eval", 10.0, 54.0))
    history.extend(steps(1, start=10.0, period=44.2, phase_seconds=44.0, first=51))
    rank = rank_at(history, 54.2)
    assert rank.phases["eval"].seconds == pytest.approx(4.5, abs=0.6)
    assert rank.step_seconds is not None and rank.step_seconds.max == pytest.approx(0.2)


def test_a_slow_step_beside_a_stop_stays_slow() -> None:
    history = timeline(run_facts(), steps(50, period=0.2), process(9.5, state="R"), process(11.0, state="T"))
    history.extend([*steps(1, start=10.0, period=2.0, first=51), process(12.5, state="R")])
    history.extend(steps(1, start=12.0, period=5.0, first=52))
    slowest = rank_at(history, 17.5).step_seconds
    assert slowest is not None and slowest.max == pytest.approx(5.0)


def test_workers_that_were_stopped_with_their_trainer_were_not_idle() -> None:
    made = [fetch(0, second, second + 0.9) for second in (*range(10), *range(52, 60))]
    stopped = [process(second + 0.5, state="T") for second in range(10, 52)]
    history = timeline(run_facts(), steps(50, period=0.2), stopped, process(52.2, state="R"), made)
    workers = rank_at(history, 60).workers
    assert workers is not None and workers.busy_share == pytest.approx(0.9, abs=0.05)


def test_parts_that_were_not_measured_are_unknown() -> None:
    rank = rank_at(timeline(run_facts(), steps(50, samples=None)), 10)
    assert (rank.copy_share, rank.forward_share, rank.gap_share, rank.wait_cpu_share) == (None, None, None, None)
    assert rank.samples_per_second is None
    assert all(math.isnan(value) for value in rank.columns.gap_seconds)


def test_wait_that_is_not_seen_is_unknown_and_not_zero() -> None:
    unseen = rank_at(timeline(run_facts(), steps(50, wait=None)), 10)
    assert (unseen.wait_share, unseen.settled_wait_share) == (None, None)
    mixed = rank_at(timeline(run_facts(), steps(100, wait=[0.05, None])), 20)
    assert mixed.wait_share == pytest.approx(0.5)


def test_window_holds_only_its_own_steps() -> None:
    history = timeline(run_facts(), steps(300, wait=0.0), steps(300, start=30.0, first=301, wait=0.05))
    assert rank_at(history, 60, window=20).wait_share == pytest.approx(0.5)
    assert rank_at(history, 60, window=20).steps == 200
    assert rank_at(history, 60).wait_share == pytest.approx(0.25)


def test_window_is_as_long_as_the_run_is_old() -> None:
    history = timeline(run_facts(time_ns=at(0)), steps(100, start=50.0))
    assert rank_at(history, 60).window_seconds == pytest.approx(10.0)


def test_window_holds_thirty_steps_where_most_are_quick_and_some_are_slow() -> None:
    """Two of three steps take 1 s and the third 10 s: 30 median steps would be a window of 60 s with 15 steps."""
    history, start = timeline(run_facts()), 0.0
    for number in range(1, 121):
        period = 10.0 if number % 3 == 0 else 1.0
        history.extend(steps(1, start=start, first=number, period=period))
        start += period
    rank = rank_at(history, start)
    assert (rank.steps, rank.window_seconds) == (30, pytest.approx(120.0))
    assert rank_at(history, start + 9.9).steps == 30
    assert rank_at(history, start + 200.0).steps == 0


def test_window_of_slow_steps_is_stretched_to_thirty_of_them() -> None:
    rank = rank_at(timeline(run_facts(), steps(100, period=5.0)), 500)
    assert rank.window_seconds == pytest.approx(150.0)
    assert rank.steps == 30
    crawling = rank_at(timeline(run_facts(), steps(100, period=60.0)), 6_000)
    assert crawling.window_seconds == pytest.approx(900.0)


def test_sums_of_a_window_beyond_the_raw_steps_come_from_the_tiers() -> None:
    history = timeline(run_facts(), steps(20_000, period=0.1, wait=0.02), steps(16_000, start=2_000, first=20_001))
    rank = rank_at(history, 3_600, window=3_600)
    assert rank.steps == pytest.approx(36_000, rel=0.01)
    assert rank.train_seconds == pytest.approx(3_600, rel=0.01)
    assert rank.wait_share == pytest.approx(400 / 3_600, rel=0.01)
    assert len(rank.columns.number) <= 4_096


def test_steady_run_is_warm_after_ten_steps() -> None:
    assert not rank_at(timeline(run_facts(), steps(9)), 10).warm
    assert rank_at(timeline(run_facts(), steps(10)), 10).warm


def test_compiling_run_is_not_warm_before_its_steps_agree() -> None:
    compiling = steps(12, period=[8.0, 4.0, 2.0, 1.0, 0.5, 0.3, 0.25, 0.2, 0.15, 0.12, 0.1, 0.1])
    assert not rank_at(timeline(run_facts(), compiling), 20).warm
    history = timeline(run_facts(), compiling, steps(10, start=16.72, first=13))
    assert rank_at(history, 18).warm


def test_run_that_waits_for_every_second_batch_gets_warm_too() -> None:
    history = timeline(run_facts(), steps(20, period=[0.5, 0.1]))
    assert rank_at(history, 10).warm


def test_first_batches_of_an_epoch_are_not_settled() -> None:
    epoch = [
        StepEnd(TRAINER, n + 1, at(n * 0.1), at(n * 0.1 + 0.1), 0.0, loader=1, samples=32, epoch_position=n % 50)
        for n in range(150)
    ]
    facts = run_facts(loaders=(loader(num_workers=4, prefetch_factor=2),))
    columns = rank_at(timeline(facts, epoch), 15).columns
    unsettled = {
        position for position, ok in zip(columns.epoch_position[50:], columns.settled[50:], strict=True) if not ok
    }
    assert unsettled == set(range(8))


def test_first_batch_is_not_settled_without_workers_either() -> None:
    epoch = [
        StepEnd(TRAINER, n + 1, at(n * 0.1), at(n * 0.1 + 0.1), 0.0, loader=1, samples=32, epoch_position=n % 50)
        for n in range(150)
    ]
    columns = rank_at(timeline(run_facts(), epoch), 15).columns
    unsettled = {
        position for position, ok in zip(columns.epoch_position[50:], columns.settled[50:], strict=True) if not ok
    }
    assert unsettled == {0}


def test_partial_batches_and_warm_up_are_not_settled() -> None:
    history = timeline(
        run_facts(), steps(40), steps(1, start=4.0, first=41, samples=20), steps(1, start=4.1, first=42, samples=30)
    )
    settled = rank_at(history, 5).columns.settled
    assert settled[:10] == [False] * 10
    assert settled[10:40] == [True] * 30
    assert settled[40:] == [False, True]  # 20 and 30 of 32


def test_loader_facts_that_come_late_settle_the_steps_anew() -> None:
    early = [
        StepEnd(TRAINER, n + 1, at(n * 0.1), at(n * 0.1 + 0.1), 0.0, loader=1, samples=32, epoch_position=n % 50)
        for n in range(100)
    ]
    history = timeline(run_facts(loaders=()), early)
    assert rank_at(history, 10).columns.settled[53]
    history.add(run_facts(loaders=(loader(num_workers=4, prefetch_factor=None),)))
    settled = rank_at(history, 10).columns.settled
    assert settled[50:60] == [False] * 8 + [True] * 2


def test_settled_wait_leaves_out_the_start_of_epochs() -> None:
    epoch = [
        StepEnd(
            TRAINER, n + 1, at(n * 0.1), at(n * 0.1 + 0.1), 0.09 if n % 50 == 0 else 0.01,
            loader=1, samples=32, epoch_position=n % 50,
        )
        for n in range(200)
    ]  # fmt: skip
    rank = rank_at(timeline(run_facts(), epoch), 20)
    assert rank.settled_wait_share == pytest.approx(0.1)
    assert rank.wait_share is not None and rank.wait_share > 0.11


def test_gap_finds_its_step_and_counts_settled_steps_only() -> None:
    history = timeline(run_facts(), steps(100, wait=0.05), [GpuGap(TRAINER, n, 0.03) for n in range(1, 99)])
    rank = rank_at(history, 10)
    assert rank.gap_share == pytest.approx(0.3)
    assert [math.isnan(gap) for gap in rank.columns.gap_seconds[-3:]] == [False, True, True]


def test_five_minutes_are_remembered_beside_the_minute() -> None:
    gaps = [GpuGap(TRAINER, n, 0.03 if n <= 1500 else 0.0) for n in range(1, 3001)]
    rank = rank_at(timeline(run_facts(), steps(3000, wait=0.05), gaps), 300)
    assert rank.gap_share == pytest.approx(0.0, abs=1e-6)
    assert rank.lasting_gap_share == pytest.approx(0.15, abs=0.005)
    assert rank.lasting_wait_share == pytest.approx(0.5, abs=0.005)


def test_gap_that_comes_before_its_step_is_kept_for_it() -> None:
    history = timeline(run_facts(), steps(50), GpuGap(TRAINER, 51, 0.04), steps(1, start=5.0, first=51))
    assert rank_at(history, 6).columns.gap_seconds[-1] == pytest.approx(0.04)


def test_gap_of_a_forgotten_step_is_ignored() -> None:
    history = timeline(run_facts(), steps(50, first=1_000), GpuGap(TRAINER, 3, 9.0))
    assert rank_at(history, 6).gap_share is None


def test_late_step_is_put_in_order() -> None:
    made = steps(50)
    history = timeline(run_facts(), made[:20], made[21:], made[20])
    columns = rank_at(history, 5).columns
    assert list(columns.number) == list(range(1, 51))
    assert list(columns.end_ns) == sorted(columns.end_ns)


def test_history_that_a_reconnecting_hook_sends_again_counts_once() -> None:
    made = steps(50, wait=0.02)
    history = timeline(
        run_facts(), made, ended(5.0, how="lost"), run_facts(time_ns=at(6)), made[10:], steps(1, start=6, first=51)
    )
    rank = rank_at(history, 7)
    assert (rank.steps, rank.steps_total, rank.ended) == (51, 51, None)


def test_end_stands_unless_the_link_was_merely_lost() -> None:
    history = timeline(run_facts(), steps(50), ended(6.0, how="killed"))
    assert rank_at(history, 10).ended == "killed"
    assert rank_at(history, 10).window_seconds == pytest.approx(6.0)


def test_step_that_takes_less_than_its_phases_is_refused() -> None:
    history = timeline(run_facts(), steps(20), steps(1, start=2.0, first=21, period=0.1, phase_seconds=5.0))
    assert rank_at(history, 5).steps == 20


def test_session_percentile_covers_what_the_window_does_not() -> None:
    history = timeline(run_facts(), steps(20, period=3.0), steps(380, start=60.0, first=21))
    rank = rank_at(history, 98, window=10)
    assert rank.step_seconds is not None and rank.step_seconds.max == pytest.approx(0.1)
    assert rank.step_p99_session_seconds == pytest.approx(3.0, rel=0.02)


def epochs_of(first_wait: float, later_wait: float, count: int, length: int = 20) -> list[BatchWait]:
    waits = []
    for number in range(count * length):
        wait = first_wait if number % length == 0 else later_wait
        waits.append(BatchWait(TRAINER, 1, "train", at(number), at(number + wait), number % length))
    return waits


def test_epoch_starts_cost_their_excess_over_the_usual_wait() -> None:
    history = timeline(run_facts(loaders=(loader(batches_per_epoch=20),)), epochs_of(0.9, 0.1, 4), steps(800))
    epochs = rank_at(history, 80).epochs
    assert epochs is not None
    assert epochs.count == 3  # the first one starts the workers whatever the settings
    assert epochs.excess_seconds == pytest.approx(3 * 0.8, rel=1e-3)
    assert epochs.share == pytest.approx(2.4 / 80, rel=0.01)
    assert epochs.first_wait_seconds == pytest.approx(0.9)
    assert epochs.usual_wait_seconds == pytest.approx(0.1)
    assert epochs.batches_per_epoch == 20


def test_epochs_are_known_from_steps_where_no_single_waits_come() -> None:
    made = [
        StepEnd(TRAINER, n + 1, at(n), at(n + 1), 0.5 if n % 20 == 0 else 0.1, loader=1, epoch_position=n % 20)
        for n in range(80)
    ]
    epochs = rank_at(timeline(run_facts(), made), 80).epochs
    assert epochs is not None
    assert (epochs.count, epochs.excess_seconds) == (3, pytest.approx(1.2))


def test_epochs_are_unknown_before_the_second_one() -> None:
    assert rank_at(timeline(run_facts(), epochs_of(0.9, 0.1, 1), steps(200)), 20).epochs is None


def test_epochs_of_fewer_batches_than_workers_cost_what_their_first_batch_waits_longer() -> None:
    waits = [BatchWait(TRAINER, 1, "train", at(n), at(n + (0.5 if n % 3 == 0 else 0.1)), n % 3) for n in range(60)]
    history = timeline(run_facts(loaders=(loader(num_workers=4),)), waits, steps(600))
    epochs = rank_at(history, 60).epochs
    assert epochs is not None
    assert (epochs.count, epochs.usual_wait_seconds) == (19, pytest.approx(0.1))
    assert epochs.excess_seconds == pytest.approx(19 * 0.4)


def test_first_waits_of_one_round_of_workers_belong_to_the_start() -> None:
    waits = []
    for number in range(80):
        wait = 0.5 if number % 20 < 4 else 0.1
        waits.append(BatchWait(TRAINER, 1, "train", at(number), at(number + wait), number % 20))
    history = timeline(run_facts(loaders=(loader(num_workers=4),)), waits, steps(800))
    epochs = rank_at(history, 80).epochs
    assert epochs is not None
    assert epochs.excess_seconds == pytest.approx(3 * 4 * 0.4, rel=1e-3)


def test_ending_and_starting_workers_between_epochs_is_part_of_their_cost() -> None:
    waits = []
    for number in range(80):
        if number % 20 == 0:
            edges = (("end", 0.4), ("start", 0.2)) if number else (("start", 0.2),)
            waits += [
                BatchWait(TRAINER, 1, "train", at(number - 1 + s), at(number - 1 + 2 * s), 0, p) for p, s in edges
            ]
        waits.append(BatchWait(TRAINER, 1, "train", at(number), at(number + 0.1), number % 20))
    epochs = rank_at(timeline(run_facts(), waits, steps(800)), 80).epochs
    assert epochs is not None
    assert epochs.count == 3
    assert epochs.excess_seconds == pytest.approx(3 * 0.6)
    assert epochs.first_wait_seconds == pytest.approx(0.7)


def test_evaluation_batches_do_not_start_epochs() -> None:
    evaluation = [BatchWait(TRAINER, 2, "eval", at(n), at(n + 0.5), n % 5) for n in range(50)]
    assert rank_at(timeline(run_facts(), evaluation, steps(500)), 50).epochs is None


def test_phase_totals_are_cut_to_the_window() -> None:
    history = timeline(
        run_facts(),
        steps(1_000),
        phase("eval", 35.0, 45.0, wait_seconds=4.0, batches=20, file="train.py", line=160),
        phase("eval", 70.0, 75.0, wait_seconds=1.0, batches=10, file="train.py", line=164),
    )
    evaluation = rank_at(history, 100, window=60).phases["eval"]
    assert (evaluation.count, evaluation.seconds) == (2, pytest.approx(10.0))
    assert evaluation.share == pytest.approx(10 / 60)
    assert evaluation.longest_seconds == pytest.approx(10.0)
    assert evaluation.wait_seconds == pytest.approx(3.0)  # half of the first one's
    assert evaluation.batches == 20
    assert (evaluation.file, evaluation.line) == ("train.py", 164)
    assert evaluation.every_seconds == pytest.approx(35.0)


def test_rhythm_of_saves_is_counted_in_steps() -> None:
    samples: list[object] = [run_facts()]
    for save in range(4):
        samples += [
            steps(25, start=save * 3.5, first=save * 25 + 1),
            phase("checkpoint", save * 3.5 + 2.5, save * 3.5 + 3.5),
        ]
    saves = rank_at(timeline(*samples), 14).phases["checkpoint"]
    assert (saves.every_steps, saves.every_seconds) == (25, pytest.approx(3.5))


def test_open_phase_lasts_until_it_is_closed() -> None:
    history = timeline(run_facts(), steps(50), phase("eval", 5.0, None))
    assert rank_at(history, 8).open_phase == phase("eval", 5.0, None)
    assert rank_at(history, 8).phases["eval"].seconds == pytest.approx(3.0)
    history.add(phase("eval", 5.0, 9.0))
    rank = rank_at(history, 10)
    assert rank.open_phase is None
    assert (rank.phases["eval"].count, rank.phases["eval"].seconds) == (1, pytest.approx(4.0))


def test_phase_that_was_taken_back_never_was() -> None:
    rank = rank_at(timeline(run_facts(), steps(50), phase("eval", 5.0, None), phase("eval", 5.0, 5.0)), 8)
    assert rank.open_phase is None
    assert rank.phases == {}


def test_phase_whose_end_was_lost_ends_with_the_next_whole_step() -> None:
    history = timeline(run_facts(), steps(50), phase("eval", 5.0, None), steps(2, start=8.0, first=51))
    assert rank_at(history, 9).open_phase is None


def test_phase_sent_again_counts_once() -> None:
    history = timeline(run_facts(), steps(50), phase("eval", 1.0, 2.0), phase("gc", 2.5, 2.6), phase("eval", 1.0, 2.0))
    assert rank_at(history, 5).phases["eval"].count == 1


def test_allocator_counts_are_of_the_window_and_peaks_of_the_run() -> None:
    readings = [
        RunMemory(
            TRAINER,
            at(second),
            allocated_peak_bytes=second,
            total_bytes=100,
            alloc_retries=second // 10,
            out_of_memory=1,
        )
        for second in range(1, 101)
    ]
    memory = rank_at(timeline(run_facts(), steps(1_000), readings), 100, window=60).memory
    assert memory is not None
    assert (memory.alloc_retries, memory.allocated_peak_bytes, memory.out_of_memory) == (6, 100, 1)


def test_lost_records_are_counted_where_they_were_lost() -> None:
    history = timeline(
        run_facts(),
        steps(1_000),
        LinkLoss(TRAINER, at(10), dropped=500),
        LinkLoss(TRAINER, at(90), dropped=20, malformed=1),
    )
    assert rank_at(history, 100, window=60).dropped_records == 20
    quality = scene(history, 100, window=60).quality
    assert (quality.dropped_records, quality.malformed_packets) == (20, 1)
    assert quality.received_records == 600


def test_the_windows_phases_are_kept_with_their_times_in_order() -> None:
    history = timeline(
        run_facts(),
        steps(200, period=0.2),
        phase("checkpoint", 50.0, 52.0),
        phase("gc", 20.0, 20.5),
        phase("eval", 58.0, None),
    )
    rank = rank_at(history, 60)
    assert rank.phase_spans == (
        ("gc", at(20.0), at(20.5)),
        ("checkpoint", at(50.0), at(52.0)),
        ("eval", at(58.0), at(60)),
    )


def rank_of(history: Timeline, end: float) -> RankWindow:
    return scene(history, end).runs[0].ranks[0]


def test_the_pace_is_the_newest_pair_against_the_best_pair() -> None:
    history = timeline(
        run_facts(),
        steps(600, period=0.1, forward_seconds=0.04, backward_seconds=0.03),
        steps(400, start=60.0, first=601, period=0.15, forward_seconds=0.09, backward_seconds=0.03),
    )
    pace = rank_of(history, 120).pace
    assert pace is not None
    assert pace.best.step_seconds == pytest.approx(0.1)
    assert pace.now.step_seconds == pytest.approx(0.15)
    assert pace.now.parts_seconds["forward"] - pace.best.parts_seconds["forward"] == pytest.approx(0.05)
    assert "copy" not in pace.now.parts_seconds, "not measured is not zero"


def test_the_mean_step_holds_what_no_part_holds_and_leaves_hiccups_out() -> None:
    history = timeline(
        run_facts(),
        steps(300, period=0.1, forward_seconds=0.04),
        steps(1, start=30.0, first=301, period=5.0),
        steps(900, start=35.0, first=302, period=0.1, forward_seconds=0.04),
        steps(600, start=125.0, first=1202, period=0.15, forward_seconds=0.04),
    )
    pace = rank_of(history, 215).pace
    assert pace is not None
    assert pace.now.mean_step_seconds == pytest.approx(0.15)
    assert pace.best.mean_step_seconds == pytest.approx(0.1)


def test_one_slow_block_is_not_the_pace_yet() -> None:
    history = timeline(run_facts(), steps(700, period=0.1), steps(80, start=70.0, first=701, period=0.15))
    pace = rank_of(history, 82).pace
    assert pace is not None and pace.now.step_seconds == pytest.approx(0.1)


def test_one_lucky_block_is_not_the_best() -> None:
    history = timeline(
        run_facts(),
        steps(310, period=0.1),
        steps(120, start=31.0, first=311, period=0.084),
        steps(400, start=41.1, first=431, period=0.1),
    )
    pace = rank_of(history, 82).pace
    assert pace is not None and pace.best.step_seconds > 0.095


def test_a_block_of_fast_steps_lasts_ten_seconds() -> None:
    history = timeline(run_facts(), steps(5_000, period=0.002))
    assert rank_of(history, 10).pace is None
    history = timeline(run_facts(), steps(12_000, period=0.002))
    pace = rank_of(history, 24).pace
    assert pace is not None and pace.now.steps > 4_000


def test_another_batch_size_begins_the_pace_anew() -> None:
    history = timeline(
        run_facts(),
        steps(300, period=0.1, samples=32),
        steps(900, start=30.0, first=301, period=0.2, samples=64),
    )
    pace = rank_of(history, 210).pace
    assert pace is not None and pace.best.step_seconds == pytest.approx(0.2)


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32)])
def test_a_batch_size_that_is_new_after_thousands_of_steps_counts_after_a_hundred(sizes: tuple[int, int]) -> None:
    before, after = sizes
    history = timeline(
        run_facts(),
        steps(3000, period=0.1, samples=before),
        steps(800, start=300.0, first=3001, period=0.1 * after / before, samples=after),
    )
    pace = rank_of(history, 300.0 + 80.0 * after / before).pace
    assert pace is not None
    assert pace.best.step_seconds == pytest.approx(0.1 * after / before)


@pytest.mark.parametrize(
    "change",
    [{"optimizer": "AdamW"}, {"parameters": 25_000_000}, {"trained_parameters": 9_000_000}, {"backward_line": 140}],
    ids=str,
)
def test_another_kind_of_training_begins_the_pace_anew(change: dict[str, object]) -> None:
    usual = ModelFacts(parameters=11_000_000, optimizer="SGD", backward_line=70)
    history = timeline(run_facts(model=usual), steps(600, period=0.1))
    history.add(run_facts(model=replace(usual)))
    assert rank_of(history, 60).pace is not None
    history.add(run_facts(model=replace(usual, **change)))
    assert rank_of(history, 60).pace is None


def test_a_last_batch_that_is_smaller_does_not_count() -> None:
    history = timeline(run_facts(loaders=(loader(),)), steps(600, period=0.1, samples=32))
    best = rank_of(history, 60).pace
    history.extend(steps(60, start=60.0, first=601, period=0.02, samples=8))
    assert rank_of(history, 62).pace == best


def test_compilations_count_from_the_hundredth_step_on() -> None:
    history = timeline(run_facts(), phase("compile", 1.0, 5.0), steps(100, period=0.1))
    found = rank_of(history, 10.1).recompiles
    assert found is not None and found.count == 0
    history.extend([*steps(500, start=10.0, first=101, period=0.1), phase("compile", 20.0, 26.0)])
    found = rank_of(history, 60).recompiles
    assert found is not None
    assert (found.count, found.seconds, found.over_seconds) == (1, 6.0, 50.0)
    assert found.share == pytest.approx(0.12)


def test_what_an_evaluation_compiles_does_not_count() -> None:
    history = timeline(run_facts(), steps(600, period=0.1), phase("compile", 31.0, 35.0), phase("eval", 30.0, 40.0))
    found = rank_of(history, 60).recompiles
    assert found is not None and found.count == 0


def test_noise_is_how_blocks_usually_differ_and_no_lasting_change() -> None:
    wavering = [0.1 + 0.01 * (number // 100 % 2) for number in range(1_000)]
    history = timeline(run_facts(), steps(1_000, period=wavering))
    pace = rank_of(history, 110).pace
    assert pace is not None and pace.noise is not None and pace.noise > 0.05
    stepped = timeline(run_facts(), steps(600, period=0.1), steps(600, start=60.0, first=601, period=0.15))
    pace = rank_of(stepped, 150).pace
    assert pace is not None and pace.noise == pytest.approx(0.0, abs=1e-3)
    assert rank_of(timeline(run_facts(), steps(500, period=0.1)), 50).pace.noise is None


def test_compilations_are_unknown_before_the_hundredth_step() -> None:
    assert rank_of(timeline(run_facts(), steps(99, period=0.1)), 10).recompiles is None


def test_compilations_of_more_than_ten_minutes_ago_are_forgotten() -> None:
    history = timeline(run_facts(), steps(7_000, period=0.1), phase("compile", 50.0, 60.0))
    found = rank_of(history, 700).recompiles
    assert found is not None and (found.count, found.over_seconds) == (0, 600.0)


def memories(*peaks: float, spacing: float = 1.0) -> list[RunMemory]:
    return [
        RunMemory(TRAINER, at(20 + spacing * place), allocated_peak_bytes=int(peak)) for place, peak in enumerate(peaks)
    ]


def test_growth_of_the_peak_comes_in_quarters() -> None:
    history = timeline(run_facts(), steps(200, period=0.1), memories(*range(1_000, 1_401, 10)))
    memory = rank_of(history, 60).memory
    assert memory is not None and memory.growth is not None
    assert memory.growth.quarters_bytes == (100, 100, 100, 100)
    assert (memory.growth.start_bytes, memory.growth.seconds) == (1_000, 40.0)


def test_growth_is_unknown_on_few_readings_and_before_the_hundredth_step() -> None:
    few = timeline(run_facts(), steps(200, period=0.1), memories(*range(10)))
    early = timeline(run_facts(), steps(50, period=0.1), memories(*range(100)))
    for history in (few, early):
        memory = rank_of(history, 120).memory
        assert memory is not None and memory.growth is None


def test_a_step_that_reads_from_two_waits_for_the_slow_one() -> None:
    labeled, unlabeled = loader(loader=1, num_workers=2, line=20), loader(loader=2, num_workers=1, line=21)
    waits = [
        BatchWait(TRAINER, number, "train", at(step), at(step + seconds), step)
        for step in range(60)
        for number, seconds in ((2, 0.6), (1, 0.001))
    ]
    fetches = [
        WorkerFetch(TRAINER, 100 + number, 0, at(step), at(step + 0.5), loader=number)
        for step in range(60)
        for number in (1, 2)
    ]
    history = timeline(
        run_facts(loaders=(labeled, unlabeled)), steps(60, period=1.0, wait=0.601, loader=1), *waits, fetches
    )
    rank = rank_at(history, 60)
    assert rank.train_loader is not None and rank.train_loader.line == 21
    assert rank.workers is not None and rank.workers.count == 1


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_that_are_alike_none_takes_turns(first: int) -> None:
    waits, chance, seen = LoaderWaits(), random.Random(5), set()
    waits.add(first, 0, 0.05)
    for step in range(2_000):
        for number in (1, 2):
            waits.add(number, step * SECOND // 10, chance.expovariate(20.0))
            seen.add(waits.slowest)
    assert seen == {first}


def test_a_loop_that_has_gone_on_to_another_loader_waits_for_that() -> None:
    waits = LoaderWaits()
    for step in range(300):
        waits.add(1, step * SECOND, 0.5)
    for step in range(300, 400):
        waits.add(2, step * SECOND, 0.001)
    assert waits.slowest == 2
