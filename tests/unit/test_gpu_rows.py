from __future__ import annotations

from dataclasses import replace

from gpuwatch.dashboard.panels.gpu_rows import numbers_of, rows_of, total_of
from gpuwatch.monitor.snapshot import GpuNow
from gpuwatch.samples import GpuSample
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.gpu import GpuHistory
from tests.dashboard import situations
from tests.dashboard.parts import GIB, gpu


def polled(*utilizations: float | None) -> GpuHistory:
    history = GpuHistory("GPU-0")
    for second, percent in enumerate(utilizations):
        history.add_poll(GpuSample(second * SECOND_NS, "GPU-0", utilization_percent=percent))
    return history


class TestIdle:
    def test_it_is_idle_since_the_first_poll_without_work(self) -> None:
        history = polled(80.0, 0.0, 0.0, 0.0)
        assert history.idle_since_ns == 1 * SECOND_NS and not history.idle_when_found

    def test_one_that_was_idle_when_it_was_found_is_so_at_least_since_then(self) -> None:
        history = polled(0.0, 0.0)
        assert history.idle_since_ns == 0 and history.idle_when_found

    def test_a_display_that_blinks_ends_nothing_and_work_does(self) -> None:
        assert polled(0.0, 3.0, 0.0).idle_since_ns == 0
        assert polled(0.0, 30.0).idle_since_ns is None
        assert polled(3.0, 3.0).idle_since_ns is None

    def test_what_is_unknown_is_not_idle(self) -> None:
        assert polled(0.0, None).idle_since_ns is None

    def test_after_a_gap_nobody_knows_what_it_did_meanwhile(self) -> None:
        history = polled(0.0)
        history.add_poll(GpuSample(200 * SECOND_NS, "GPU-0", utilization_percent=0.0))
        assert history.idle_since_ns == 200 * SECOND_NS

    def test_a_burst_between_two_polls_is_work(self) -> None:
        history = polled(0.0)
        history.add_poll(
            GpuSample(SECOND_NS, "GPU-0", utilization_percent=0.0, utilization_ring=((1, 0.0), (2, 90.0), (3, 0.0)))
        )
        assert history.idle_since_ns is None


class TestTotals:
    def test_a_shared_server(self) -> None:
        total = total_of(situations.shared().gpus)
        assert total.gpus == 8
        assert total.uses == {"busy": 5, "held": 2, "free": 1}
        assert total.power_watts == 402 + 403 + 3 * 655 + 3 * 92
        assert total.power_limit_watts == 8 * 700

    def test_a_sum_without_one_of_its_parts_is_unknown(self) -> None:
        known, unknown = gpu(0), gpu(1)
        assert unknown.latest is not None
        unknown = replace(unknown, latest=replace(unknown.latest, memory_used_bytes=None, power_watts=None))
        total = total_of((known, unknown))
        assert total.memory_used_bytes is None and total.power_watts is None
        assert total.memory_total_bytes == 160 * GIB

    def test_a_lost_gpu_counts_as_failing_and_gives_no_figure(self) -> None:
        total = total_of(situations.lost().gpus)
        assert total.uses == {"busy": 1, "failing": 1}
        assert total.power_watts == 402 and total.memory_total_bytes == 80 * GIB

    def test_mig_instances_count_with_their_parent(self) -> None:
        parent = gpu(0)
        parent = replace(parent, facts=replace(parent.facts, mig=True))
        instance = replace(parent, facts=replace(parent.facts, uuid="MIG-1", mig_parent=parent.facts.uuid))
        assert total_of((parent, instance, instance)).gpus == 1


def shown(gpus: tuple[GpuNow, ...], **options: object) -> list[str]:
    return [numbers_of(row.gpus) for row in rows_of(gpus, opened=set(), **options)]  # type: ignore[arg-type]


class TestRows:
    def test_each_gpu_has_its_own_where_they_fit(self) -> None:
        assert shown(situations.shared().gpus) == [str(index) for index in range(8)]

    def test_those_of_one_owner_share_one_and_those_that_differ_stay_apart(self) -> None:
        rows = shown(situations.cluster_node().gpus, collapsed=True)
        assert rows[:5] == ["0-7", "8-15", "16,18-23", "17", "24-28,30-31"]
        assert {"29", "50", "40-42", "43-47", "60-63"} <= set(rows)

    def test_failing_held_throttled_and_hot_ones_come_first(self) -> None:
        gpus = situations.cluster_node().gpus
        slow = replace(gpus[3], throttled_by=("thermal",))
        rows = shown((*gpus[:3], slow, *gpus[4:]), collapsed=True, order="worst")
        assert rows[:5] == ["17", "40-42", "3", "50", "29"]
        assert rows[-1] == "60-63"

    def test_every_gpu_is_in_exactly_one_row(self) -> None:
        gpus = situations.cluster_node().gpus
        for collapsed in (True, False):
            rows = rows_of(gpus, order="worst", collapsed=collapsed, opened={gpus[8].facts.uuid})
            assert sorted(gpu.facts.index for row in rows for gpu in row.gpus) == list(range(64))
