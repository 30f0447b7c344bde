"""What a window tells of the workers beyond their load: their memory, threads, cores and nodes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpuwatch.samples import HostSample, LoaderFacts, ProcessSample, WorkerSample
from gpuwatch.timeline.host import HostHistory, ProcessHistory
from gpuwatch.timeline.windows import MemoryGrowth
from tests.unit.sample_builder import fetch, process, rank_at, run_facts, steps, timeline

SECOND = 1_000_000_000
MB = 2**20


def sample(second: float, *workers: WorkerSample, **fields: object) -> ProcessSample:
    return ProcessSample(int(second * SECOND), 100, 1, workers=workers, **fields)  # type: ignore[arg-type]


def grown(
    size_at: Callable[[float], float],
    *,
    until: int = 700,
    changed_at: int | None = None,
    evaluated_at: int | None = None,
) -> MemoryGrowth | None:
    """Two of four workers whose memory is read every 30 s in turn; an evaluation has workers of its own for a while."""
    history = ProcessHistory()
    known: dict[int, int | None] = {201: None, 202: None, 203: None, 204: None}
    for second in range(until + 1):
        if second == changed_at:
            known = {pid + 100: None for pid in known}
        if second % 30 == 0:
            known[min(known) + second // 30 % 2] = int(size_at(second))
        if evaluated_at is not None:
            known = {pid: size for pid, size in known.items() if pid < 900}
            known |= (
                dict.fromkeys((900 + second, 901 + second), None)
                if second in range(evaluated_at, evaluated_at + 20)
                else {}
            )
        workers = [WorkerSample(pid, private_dirty_bytes=size) for pid, size in known.items()]
        history.add(sample(second, *workers, rss_bytes=1000 + second * MB))
    totals = history.workers((until - 60) * SECOND, until * SECOND)
    assert totals is not None
    return totals.growth


def test_growth_is_a_line_through_ten_minutes_of_all_workers() -> None:
    growth = grown(lambda second: 300 * MB + second * MB)
    assert growth is not None
    assert growth.bytes_per_second == pytest.approx(4 * MB, rel=0.02)
    assert growth.fit > 0.99
    assert growth.trainer_bytes_per_second == pytest.approx(MB, rel=0.02)


def test_memory_that_wavers_fits_no_line() -> None:
    noise = random.Random(1)
    growth = grown(lambda second: 300 * MB + noise.uniform(0, 50) * MB)
    assert growth is not None and growth.fit < 0.5


def test_growth_is_unknown_before_ten_minutes_and_with_new_workers() -> None:
    assert grown(lambda second: second * MB, until=500) is None
    assert grown(lambda second: second * MB, changed_at=400) is None


def test_workers_of_an_evaluation_do_not_end_the_line() -> None:
    assert grown(lambda second: second * MB, evaluated_at=400) is not None


def test_memory_that_stays_is_no_growth() -> None:
    assert grown(lambda second: 300 * MB) is None


def test_workers_of_an_evaluation_that_persist_are_no_workers_of_the_training() -> None:
    loaders = (LoaderFacts(1, num_workers=1, role="train"), LoaderFacts(2, num_workers=1, role="eval"))
    busy, idle = WorkerSample(9000, cpu_cores=1.0, last_core=0), WorkerSample(9001, cpu_cores=0.0, last_core=1)
    seen = [process(second + 0.1, workers=(busy, idle)) for second in range(5, 40)]
    made = [fetch(0, second, second + 0.9, loader=1) for second in range(40)] + [fetch(1, 3.0, 3.5, loader=2)]
    history = timeline(run_facts(loaders=loaders), steps(40, period=1.0), made, seen)
    workers = rank_at(history, 40).workers
    assert workers is not None
    assert (workers.count, workers.cpu_cores, workers.cores_seen) == (1, 1.0, 1)


def test_active_threads_are_those_of_the_asked_ones_times_the_workers() -> None:
    history = ProcessHistory()
    asked = [WorkerSample(201, active_threads=10), WorkerSample(202, active_threads=6), WorkerSample(203)]
    history.add(sample(1, *asked))
    totals = history.workers(0, 2 * SECOND)
    assert totals is not None and totals.active_threads == 24


def test_the_kernels_share_is_of_all_that_they_used() -> None:
    history = ProcessHistory()
    for second, cores, system in ((1, 0.8, 0.2), (2, 0.4, 0.4)):
        history.add(sample(second, WorkerSample(201, cpu_cores=cores, system_cores=system)))
    totals = history.workers(0, 2 * SECOND)
    assert totals is not None and totals.system_share == pytest.approx(0.5)


def test_time_in_line_is_the_workers_mean_over_the_window() -> None:
    history = ProcessHistory()
    for second, share in ((1, 0.9), (2, 0.5), (3, 0.7)):
        history.add(sample(second, WorkerSample(201, run_delay_share=share), WorkerSample(202)))
    totals = history.workers(SECOND, 3 * SECOND)
    assert totals is not None and totals.run_delay_share == pytest.approx(0.6)


def test_cores_count_where_any_worker_was_seen_in_the_window() -> None:
    history = ProcessHistory()
    for second, cores in enumerate(((3, 4), (5, 5), (5, 6)), start=1):
        history.add(sample(second, *(WorkerSample(200 + i, last_core=core) for i, core in enumerate(cores))))
    seen = [history.workers(start * SECOND, 3 * SECOND) for start in (0, 1, 2)]
    assert [totals.cores_seen for totals in seen if totals is not None] == [4, 2, 2]


def test_the_widest_affinity_of_all_workers_is_kept() -> None:
    history = ProcessHistory()
    history.add(sample(1, WorkerSample(201, affinity_cores=2), WorkerSample(202, affinity_cores=8), WorkerSample(203)))
    totals = history.workers(0, SECOND)
    assert totals is not None and totals.max_affinity_cores == 8


def test_what_is_not_known_of_workers_stays_unknown() -> None:
    history = ProcessHistory()
    history.add(sample(1, WorkerSample(201)))
    totals = history.workers(0, SECOND)
    assert totals is not None
    assert (totals.active_threads, totals.system_share, totals.cores_seen, totals.growth) == (None, None, None, None)


def test_node_shares_are_of_the_cpu_time_in_the_window() -> None:
    history = ProcessHistory()
    for second, cores in enumerate(((9.0, 0.0), (0.5, 1.5), (0.0, 2.0)), start=1):
        history.add(sample(second, node_cores=cores))
    history.add(sample(4))
    totals = history.totals(SECOND, 4 * SECOND)
    assert totals is not None and totals.node_shares == pytest.approx((0.125, 0.875))
    before = history.totals(3 * SECOND, 4 * SECOND)
    assert before is not None and before.node_shares == ()


def test_faults_and_swapping_of_the_machine_are_means() -> None:
    history = HostHistory()
    for second, faults in ((1, None), (2, 400.0), (3, 600.0)):
        history.add(HostSample(second * SECOND, major_faults_per_second=faults, swap_in_bytes_per_second=8.0))
    window = history.window(0, 3 * SECOND)
    assert window is not None
    assert (window.major_faults_per_second, window.swap_in_bytes_per_second) == (500.0, 8.0)


def test_cores_lately_are_those_of_the_last_30_s_of_a_long_window() -> None:
    history = ProcessHistory()
    for second in range(1, 301):
        history.add(sample(second, tree_cores=4.0 if second <= 270 else 0.1))
    totals = history.totals(0, 300 * SECOND)
    assert totals is not None and totals.tree_cores == pytest.approx(3.61)
    assert totals.tree_cores_lately == pytest.approx(0.1)
    young = history.totals(290 * SECOND, 300 * SECOND)
    assert young is not None and young.tree_cores_lately == young.tree_cores
