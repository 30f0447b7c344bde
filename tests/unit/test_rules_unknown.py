"""What is not known is left out of a finding: it is no 0, no None, and rules nothing out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwatch.diagnosis.finding import Draft
from gpuwatch.diagnosis.rule import GpuCase, MachineCase, RunCase
from gpuwatch.samples import GpuProcess, GpuStatus, WorkerSample
from gpuwatch.timeline.windows import HostWindow, MemoryTotals, Scene
from tests.unit import scene_builder as build

STUCK_AT = 200.0


def said(rule_id: str, case: RunCase | GpuCase | MachineCase) -> Draft:
    draft = build.check(rule_id, case)
    assert draft is not None
    return draft


def texts(draft: Draft) -> str:
    return " | ".join(measure.text for measure in draft.evidence)


def ruled_out(draft: Draft) -> dict[str, str]:
    return {rival.cause: rival.reason for rival in draft.ruled_out}


def crowded(host: HostWindow, **shown: Any) -> Draft:
    """A starved run on a full machine."""
    made_by = build.workers(16, cpu_cores=0.98, busy_share=0.98)
    starved = build.rank(
        step=0.2,
        wait=0.12,
        gap=0.08,
        loader=build.loader(num_workers=16),
        workers=made_by,
        process=build.process(**shown),
    )
    moment = build.scene(build.run(starved), gpus=[build.gpu(utilization=58)], host=host)
    return said("host-cpu-exhausted", build.run_case(moment, holding={"data-starvation"}))


class TestCores:
    full = build.host(cpu_percent=98.0, pressure_cpu_percent=None)

    def test_pressure_that_the_kernel_does_not_tell_is_not_said(self) -> None:
        assert "pressure" not in texts(crowded(self.full))
        assert "CPU pressure 37%" in texts(crowded(replace(self.full, pressure_cpu_percent=37.0)))

    def test_other_processes_are_reported_only_where_their_share_is_known(self) -> None:
        assert "other processes use" in texts(crowded(self.full))
        assert "other processes" not in texts(crowded(self.full, tree_cores=None))

    def test_nobody_is_blamed_for_a_line_where_it_is_not_known_who_stands_in_it(self) -> None:
        trained = build.rank(
            step=0.1,
            wait=0.001,
            gap=0.001,
            process=build.process(tree_cores=None, run_delay_share=0.2, main_thread_cores=0.7),
        )
        host = build.host(cpu_percent=98, pressure_cpu_percent=50.0)
        moment = build.scene(build.run(trained), gpus=[build.gpu(utilization=75)], host=host)
        draft = said("noisy-neighbour", build.run_case(moment))
        assert "behind other threads" in draft.summary
        assert "other processes" not in texts(draft)


class TestHangs:
    idle = build.gpu(utilization=0, power=80, latest={"utilization_percent": 0.0, "power_watts": 80.0})
    spinning = build.gpu(1, utilization=100, power=120, latest={"utilization_percent": 100.0, "power_watts": 120.0})

    def test_dead_workers_of_an_unknown_number_are_counted_alone(self) -> None:
        workers = (WorkerSample(1, state="S"), WorkerSample(2, state="Z"))
        process = build.process(tree_cores=0.02, latest={"workers": workers})
        trained = build.rank(gap=0.0, window=30, process=process, loader=build.loader(num_workers=None))
        moment = build.scene(build.run(trained), gpus=[self.idle], at=STUCK_AT)
        assert "1 of its DataLoader workers is gone" in said("step-stalled", build.run_case(moment)).summary

    def test_a_process_without_a_rank_is_named_by_its_pid(self) -> None:
        idle = build.workers(cpu_cores=0.0)
        members = [build.rank(gap=0.0, window=30, gpus=(index,), pid=10 + index, workers=idle) for index in range(2)]
        moment = build.scene(build.run(*members), gpus=[self.idle, self.spinning], at=STUCK_AT)
        fix = said("collective-hang", build.run_case(moment)).fix
        assert fix is not None and "look at process 10 first" in fix.text

    def test_of_processes_without_ranks_the_one_that_is_behind_is_named(self) -> None:
        spinning = [self.spinning, replace(self.spinning, facts=replace(self.spinning.facts, index=0, uuid="GPU-0"))]
        members = [
            build.rank(gap=0.0, window=30, gpus=(index,), pid=10 + index, steps_total=200 - index) for index in range(2)
        ]
        moment = build.scene(build.run(*members), gpus=spinning, at=STUCK_AT)
        fix = said("collective-hang", build.run_case(moment)).fix
        assert fix is not None and "Process 11 is 1 steps behind" in fix.text


class TestGpus:
    def test_an_imbalance_says_only_the_spreads_that_are_known(self) -> None:
        gpus = [build.gpu(index, utilization=value, power=None) for index, value in enumerate((97, 60))]
        gpus[1] = replace(gpus[1], memory_used_bytes=None)
        moment = build.scene(build.run(build.rank(gpus=(0, 1))), gpus=gpus)
        draft = said("gpu-imbalance", build.run_case(moment))
        assert "utilization 37 points apart" in texts(draft)
        assert "memory" not in texts(draft) and "power" not in texts(draft)

    @pytest.mark.parametrize(
        ("held", "words"),
        [
            ((None,), "process 4711 is on it, how much memory it holds is not known"),
            ((2**30, None), "processes 4711 and 4712 are on it, how much memory they hold is not known"),
            ((2**30, 2**30), "processes 4711 and 4712 hold 2.0 GiB on it"),
        ],
    )
    def test_memory_that_a_process_does_not_tell_is_no_part_of_a_sum(
        self, held: tuple[int | None, ...], words: str
    ) -> None:
        own = tuple(GpuProcess(4711 + at, pid=4711 + at, memory_bytes=size) for at, size in enumerate(held))
        status = GpuStatus(build.START_NS, "GPU-1", processes=own)
        members = [build.rank(gpus=(0,), pid=4711 + at) for at in range(len(held))]
        gpus = [build.gpu(0), build.gpu(1, utilization=0.0, latest_status=status)]
        draft = said("idle-gpu-allocated", build.gpu_case(build.scene(build.run(*members), gpus=gpus), 1))
        assert words in texts(draft)

    def test_heat_of_driver_and_chip_is_no_sum(self) -> None:
        draft = said("thermal-throttle", self.hot({"sw-thermal": 0.2, "hw-thermal": 0.15}))
        assert "20% of the time because of heat" in draft.summary
        assert "by the driver 20%" in texts(draft) and "by the chip 15%" in texts(draft)

    def test_heat_says_only_the_reasons_that_are_read(self) -> None:
        draft = said("thermal-throttle", self.hot({"sw-thermal": 0.2}))
        assert "by the chip" not in texts(draft)
        assert ruled_out(draft) == {}

    @pytest.mark.parametrize(("held", "reason"), [(0.01, "it held the clock 1% of the time"), (0.4, None)])
    def test_the_power_limit_is_ruled_out_only_where_it_hardly_held(self, held: float, reason: str | None) -> None:
        draft = said("thermal-throttle", self.hot({"sw-thermal": 0.2, "power": held}))
        assert ruled_out(draft).get("the power limit") == reason

    @pytest.mark.parametrize(
        ("known", "causes"),
        [
            ({"throttle_shares": {}}, set()),
            ({"throttle_shares": {"power": 0.0, "sw-thermal": 0.0}}, {"a lowered power limit", "heat"}),
            ({"throttle_shares": {"power": 0.0}, "facts": {"power_limit_default_watts": None}}, set()),
        ],
    )
    def test_low_power_rules_out_what_is_read(self, known: dict[str, Any], causes: set[str]) -> None:
        quiet = build.gpu(utilization=97, power=300, **known)
        draft = said("low-power-high-util", build.gpu_case(build.scene(gpus=[quiet])))
        assert ruled_out(draft).keys() == causes

    def hot(self, shares: dict[str, float]) -> GpuCase:
        clock = build.stats([1600.0])
        return build.gpu_case(build.scene(gpus=[build.gpu(throttle_shares=shares, sm_clock_mhz=clock)]))


class TestWaits:
    def test_dips_rule_out_waits_with_their_share_and_nothing_where_it_is_not_known(self) -> None:
        share = ruled_out(said("periodic-dips", build.gpu_case(self.dipping(gap=0.004))))["waiting for data"]
        assert share == "waits explain 2% of the time"
        unknown = self.dipping(settled_wait_share=None, wait_share=None)
        assert "waiting for data" not in ruled_out(said("periodic-dips", build.gpu_case(unknown)))

    def test_headroom_rules_out_waits_only_where_they_are_measured(self) -> None:
        assert ruled_out(self.roomy(gap=0.004)) == {"waiting for data": "that explains 2%"}
        assert ruled_out(self.roomy(wait_share=None, settled_wait_share=None)) == {}

    def dipping(self, **of_rank: Any) -> Scene:
        dips = [95.0] * 18 + [10.0] * 2
        return build.scene(build.run(build.rank(step=0.2, **of_rank)), gpus=[build.gpu(utilization=dips)], at=60.0)

    def roomy(self, **of_rank: Any) -> Draft:
        memory = MemoryTotals(allocated_peak_bytes=20 * 2**30, reserved_peak_bytes=20 * 2**30, total_bytes=80 * 2**30)
        run = build.run(build.rank(step=0.2, memory=memory, **of_rank))
        return said("batch-headroom", build.run_case(build.scene(run, gpus=[build.gpu(utilization=60)])))


class TestAllocator:
    @pytest.mark.parametrize(
        ("counts", "summary", "evidence"),
        [
            (
                {"alloc_retries": 6, "out_of_memory": None},
                "The CUDA allocator of train.py flushed its cache 6 times in 300 steps",
                "6 retries in 300 steps",
            ),
            (
                {"alloc_retries": None, "out_of_memory": 1},
                "The CUDA allocator of train.py failed once since its start",
                "1 out-of-memory error since its start",
            ),
            (
                {"alloc_retries": 1, "out_of_memory": 2},
                "The CUDA allocator of train.py flushed its cache once in 300 steps, and failed 2 times since its "
                "start",
                "1 retry in 300 steps | 2 out-of-memory errors since its start",
            ),
        ],
    )
    def test_it_says_what_was_counted_and_since_when(self, counts: dict[str, Any], summary: str, evidence: str) -> None:
        run = build.run(build.rank(step=0.2, memory=MemoryTotals(**counts)))
        draft = said("alloc-retries", build.run_case(build.scene(run)))
        assert (draft.summary, texts(draft)) == (summary, evidence)

    def test_the_rank_that_failed_is_reported_though_none_retried(self) -> None:
        members = [build.rank(pid=10 + at, memory=MemoryTotals(alloc_retries=0, out_of_memory=at)) for at in range(2)]
        assert said("alloc-retries", build.run_case(build.scene(build.run(*members)))).fires


@pytest.mark.parametrize(("interval", "asked"), [(1.0, "2"), (5.0, "10"), (45.0, "60")])
def test_a_gap_asks_for_a_longer_interval_than_there_is(interval: float, asked: str) -> None:
    slow = build.quality(poll_interval_seconds=interval, poll_gap_p95_seconds=3 * interval)
    fix = said("telemetry-gap", build.machine_case(build.scene(quality=slow))).fix
    assert fix is not None and fix.code == f"gpuwatch --interval {asked}"


def test_a_command_is_quoted_so_that_it_can_be_typed() -> None:
    facts = {"rank": 0, "local_world_size": 2, "command": ("python", "my train.py"), "torch_threads": 1}
    trained = build.rank(device="cpu", process=build.process(main_thread_cores=0.98), facts=facts)
    fix = said("ddp-misconfig", build.run_case(build.scene(build.run(trained), gpus=[]))).fix
    assert fix is not None and fix.code is not None and fix.code.endswith("'my train.py'")
