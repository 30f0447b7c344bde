"""The machine under the run: crowded cores, memory that is short, processes far from their GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scene_builder import (
    check,
    findings,
    fired,
    gpu,
    host,
    loader,
    machine,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)
from stack_windows import from_outside, sampled, watched

from gpuwatch.diagnosis.finding import CallEdit, Draft, Finding, Severity, WorkerInitEdit
from gpuwatch.timeline.windows import MemoryGrowth, Scene

GIB = 2**30


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def drafted(rule: str, moment: Scene, *holding: str) -> Draft:
    draft = check(rule, run_case(moment, holding=holding))
    assert draft is not None
    return draft


def silent(rule: str, moment: Scene, *holding: str) -> bool:
    return check(rule, run_case(moment, holding=holding)) is None


def texts(found: Draft | Finding) -> str:
    return " | ".join(measure.text for measure in found.evidence)


class TestNoisyNeighbour:
    def crowded(
        self, *, busy: float = 75.0, pressure: float | None = 50.0, delay: float | None = 0.2, **fields: Any
    ) -> Scene:
        seen = fields.pop("host", host(cpu_percent=98, pressure_cpu_percent=pressure))
        shown: dict[str, Any] = {"tree_cores": 3.0, "run_delay_share": delay, "main_thread_cores": 0.7}
        shown |= fields.pop("shown", {})
        fields.setdefault("workers", workers(busy_share=0.6))
        trained = rank(step=0.1, wait=0.001, gap=0.001, process=process(**shown), **fields)
        return scene(run(trained), gpus=[gpu(utilization=busy)], host=seen, at=60.0)

    def test_foreign_work_keeps_the_training_thread_from_its_core(self) -> None:
        finding = of(findings(self.crowded()), "noisy-neighbour")
        assert finding.summary == (
            "The GPU idles 24% of the time inside steps: the training thread waits for a core 20% of the "
            "time, behind other programs"
        )
        assert "other processes use 12.7 of 16 cores" in texts(finding)
        assert finding.fix is not None and finding.fix.code == "taskset -acp CORES 4711"
        assert finding.gain is not None
        # The waits of 0.01 are won as well: these workers have time to spare.
        assert (finding.gain.low, finding.gain.high) == pytest.approx((1 / 0.79, 1 / 0.75), abs=0.001)
        assert finding.severity is Severity.WARNING

    def test_workers_that_other_programs_slow_down_are_faster_without_them_too(self) -> None:
        # Batches of 0.8 s by 4 workers, 0.6 of which computes: between as slow as the thread and 0.6 of that, or 0.22
        # less again without the switching. 0.25 of a step of 0.2 s waits for them, another 0.08 stands in line.
        made_by = workers(4, busy_share=1.0, cpu_cores=0.6, batch_seconds=0.8, batch_cpu_seconds=0.48)
        trained = rank(
            step=0.2,
            wait=0.05,
            gap=0.05,
            workers=made_by,
            loader=loader(num_workers=4),
            process=process(tree_cores=3.0, run_delay_share=0.1, main_thread_cores=0.5),
        )
        moment = scene(run(trained), gpus=[gpu(utilization=67.0)], host=host(cpu_percent=98, pressure_cpu_percent=50))
        gain = drafted("noisy-neighbour", moment, "data-starvation").gain
        assert gain is not None
        assert (gain.low, gain.high) == pytest.approx((1.2, 1 / 0.67), abs=0.01)

    def test_own_workers_are_lowered_to_those_that_keep_up(self) -> None:
        made_by = workers(14, cpu_cores=0.98, busy_share=0.3, batch_seconds=0.3, batch_cpu_seconds=0.3)
        moment = self.crowded(loader=loader(num_workers=14), workers=made_by, shown={"tree_cores": 15.5})
        draft = drafted("noisy-neighbour", moment)
        assert draft.fix is not None and isinstance(draft.fix.edit, CallEdit)
        assert draft.fix.edit.keywords == {"num_workers": "4"}
        assert "behind its own workers" in draft.summary
        assert draft.severity is Severity.INFO, "what yields to it may be what it waits for"

    def test_workers_that_are_all_needed_yield(self) -> None:
        made_by = workers(14, cpu_cores=0.98, busy_share=0.95, batch_seconds=1.4, batch_cpu_seconds=1.4)
        moment = self.crowded(loader=loader(num_workers=14), workers=made_by, shown={"tree_cores": 15.5})
        fix = drafted("noisy-neighbour", moment).fix
        assert fix is not None and isinstance(fix.edit, WorkerInitEdit)
        assert fix.edit.statements == ("os.nice(10)",)

    def test_behind_its_own_workers_no_more_than_the_time_in_line_is_won(self) -> None:
        made_by = workers(14, cpu_cores=0.3, busy_share=0.3, batch_seconds=0.3, batch_cpu_seconds=0.3)
        moment = self.crowded(loader=loader(num_workers=14), workers=made_by, shown={"tree_cores": 15.5})
        gain = drafted("noisy-neighbour", moment).gain
        assert gain is not None and (gain.low, gain.high) == pytest.approx((1.0, 1 / 0.8), abs=0.001)

    def test_a_run_that_waits_for_its_own_workers_is_not_told_to_slow_them_down(self) -> None:
        made_by = workers(14, cpu_cores=0.98, busy_share=0.95)
        moment = self.crowded(loader=loader(num_workers=14), workers=made_by, shown={"tree_cores": 15.5})
        assert silent("noisy-neighbour", moment, "data-starvation")
        assert not silent("noisy-neighbour", self.crowded(), "data-starvation"), "other programs slow both"

    @pytest.mark.parametrize(
        "fields",
        [{"busy": 91.0}, {"delay": 0.04}, {"host": host(cpu_percent=70, pressure_cpu_percent=15.0)}],
        ids=["little idle", "hardly in line", "little pressure"],
    )
    def test_near_misses_do_not_fire(self, fields: dict[str, Any]) -> None:
        assert not drafted("noisy-neighbour", self.crowded(**fields)).fires

    def test_it_clears_with_calm_cores_or_a_busy_gpu(self) -> None:
        assert silent("noisy-neighbour", self.crowded(host=host(cpu_percent=50, pressure_cpu_percent=5.0)))
        assert silent("noisy-neighbour", self.crowded(busy=96.0))

    def test_an_idle_host_has_small_kernels_instead(self) -> None:
        calm = self.crowded(
            delay=0.001, host=host(cpu_percent=20, pressure_cpu_percent=0.0), shown={"main_thread_cores": 0.98}
        )
        assert {"launch-bound"} <= fired(calm)
        assert "noisy-neighbour" not in fired(calm)
        assert "launch-bound" not in fired(self.crowded(shown={"main_thread_cores": 0.98}))

    def test_a_quota_that_stops_the_group_is_no_neighbour(self) -> None:
        assert silent("noisy-neighbour", self.crowded(shown={"throttled_period_share": 0.4}))
        assert silent("noisy-neighbour", self.crowded(), "cpu-quota-throttled")
        assert not silent("noisy-neighbour", self.crowded(shown={"throttled_period_share": 0.05}))

    def test_what_is_not_known_is_silent(self) -> None:
        assert silent("noisy-neighbour", self.crowded(delay=None))
        assert silent("noisy-neighbour", self.crowded(host=None))
        assert silent("noisy-neighbour", self.crowded(device="cpu"))

    def test_without_pressure_accounts_the_cpu_tells(self) -> None:
        assert drafted("noisy-neighbour", self.crowded(host=host(cpu_percent=85, pressure_cpu_percent=None))).fires
        assert not drafted("noisy-neighbour", self.crowded(host=host(cpu_percent=79, pressure_cpu_percent=12))).fires

    def test_from_outside_it_says_the_same(self) -> None:
        seen = watched({"wait": 0.02, "forward": 0.6, "backward": 0.3})
        shown = process(tree_cores=3.0, run_delay_share=0.2, main_thread_cores=0.7)
        trained = sampled(seen, loader=from_outside(num_workers=4), process=shown)
        moment = scene(run(trained), gpus=[gpu(utilization=70)], host=host(cpu_percent=98, pressure_cpu_percent=50))
        assert of(findings(moment), "noisy-neighbour").level == 1


class TestHostMemoryPressure:
    def short(self, *, available: float = 0.05, latest: dict[str, Any] | None = None, **fields: Any) -> Scene:
        own = fields.pop("own", {})
        trained = rank(process=process(latest=own), **fields.pop("of_rank", {}))
        total = 128 * GIB
        memory = {"memory_total_bytes": total, "memory_available_bytes": int(available * total)}
        seen = host(memory_available_share=available, latest=memory | (latest or {}), **fields)
        return scene(run(trained), host=seen)

    def test_hardly_any_free_memory(self) -> None:
        finding = of(findings(self.short()), "host-memory-pressure")
        assert finding.severity is Severity.WARNING
        assert (
            finding.summary == "Memory is short: 5% of the memory is free, so file data is evicted from the page cache"
        )
        assert finding.fix is not None and "19.2 GiB more memory" in finding.fix.text
        assert finding.fix.value == 20

    def test_fewer_workers_where_they_hold_what_is_missing(self) -> None:
        growth = MemoryGrowth(1000.0, 0.1, 590.0, 8 * GIB)
        fix = drafted("host-memory-pressure", self.short(of_rank={"workers": workers(4, growth=growth)})).fix
        assert fix is not None and isinstance(fix.edit, CallEdit)
        assert fix.edit.keywords == {"num_workers": "1"}

    def test_the_containers_limit_counts_whatever_the_machine_has(self) -> None:
        full = {"cgroup_memory_limit_bytes": 32 * GIB, "cgroup_memory_used_bytes": 30 * GIB}
        draft = drafted("host-memory-pressure", self.short(available=0.8, own=full))
        assert draft.fires and "30.0 GiB of the container's 32.0 GiB are used" in draft.summary
        room = {"cgroup_memory_limit_bytes": 32 * GIB, "cgroup_memory_used_bytes": 20 * GIB}
        assert silent("host-memory-pressure", self.short(available=0.8, own=room))

    def test_pressure_counts_by_itself(self) -> None:
        assert drafted("host-memory-pressure", self.short(available=0.5, pressure_memory_percent=12)).fires
        assert not drafted("host-memory-pressure", self.short(available=0.5, pressure_memory_percent=8)).fires

    @pytest.mark.parametrize(
        "fields", [{"major_faults_per_second": 900.0}, {"swap_in_bytes_per_second": 3e6}], ids=["faults", "swap"]
    )
    def test_faults_and_swapping_count_where_little_is_free(self, fields: dict[str, float]) -> None:
        assert drafted("host-memory-pressure", self.short(available=0.15, **fields)).fires
        assert not drafted("host-memory-pressure", self.short(available=0.15)).fires
        assert silent("host-memory-pressure", self.short(available=0.7, **fields))

    def test_plenty_and_the_unknown_are_silent(self) -> None:
        assert silent("host-memory-pressure", self.short(available=0.25))
        assert silent("host-memory-pressure", scene(run(rank()), host=None))
        vast = {"memory_total_bytes": 2048 * GIB, "memory_available_bytes": 160 * GIB}
        assert silent("host-memory-pressure", self.short(available=0.08, latest=vast))

    def slow_storage(self, available: float) -> Scene:
        made_by = workers(4, cpu_cores=0.05, blocked_share=0.9)
        trained = rank(step=0.1, wait=0.04, gap=0.04, loader=loader(num_workers=4), workers=made_by)
        seen = host(pressure_io_percent=60, memory_available_share=available)
        return scene(run(trained), gpus=[gpu(utilization=60)], host=seen)

    def test_it_is_the_cause_where_storage_is_slow_because_of_it(self) -> None:
        for available, cause in ((0.05, "host-memory-pressure"), (0.6, "io-bound")):
            said = findings(self.slow_storage(available))
            found = next(each.value for each in of(said, "data-starvation").evidence if each.name == "cause")
            assert found == cause
        assert of(findings(self.slow_storage(0.05)), "io-bound").behind == "host-memory-pressure"

    def test_it_is_no_cause_of_a_wait_that_storage_does_not_explain(self) -> None:
        slow = replace(self.slow_storage(0.05), host=host(memory_available_share=0.05))
        said = findings(slow)
        assert "host-memory-pressure" in {each.rule for each in said}
        assert "cause: host-memory-pressure" not in texts(of(said, "data-starvation"))


class TestNumaMisplaced:
    def placed(self, *shares: float, node: int | None = 1, own: int = 64, **fields: Any) -> Scene:
        nodes = () if node is None else (("0000:3b:00.0", node),)
        trained = rank(process=process(cores=own, node_shares=shares, **fields))
        at = gpu(facts={"pci_bus_id": "00000000:3B:00.0"})
        return scene(run(trained), gpus=[at], machine=machine(64, numa_nodes=2, gpu_numa_nodes=nodes))

    def test_most_of_the_cpu_time_on_the_other_socket(self) -> None:
        finding = of(findings(self.placed(0.9, 0.1)), "numa-misplaced")
        assert finding.severity is Severity.INFO
        assert finding.summary == "The run runs 90% of its CPU time far from its GPU: GPU 0 is on node 1"
        assert finding.fix is not None and finding.fix.value == 1
        assert finding.fix.code == "numactl --cpunodebind=1 --membind=1 python train.py"

    def test_near_misses(self) -> None:
        assert not drafted("numa-misplaced", self.placed(0.7, 0.3)).fires
        assert silent("numa-misplaced", self.placed(0.4, 0.6))

    def test_one_node_an_unknown_node_and_a_placed_process_are_silent(self) -> None:
        assert silent("numa-misplaced", self.placed())
        assert silent("numa-misplaced", self.placed(0.9, 0.1, node=None))
        assert silent("numa-misplaced", self.placed(0.9, 0.1, own=32))

    def test_a_run_with_a_gpu_on_each_node_is_nowhere_far(self) -> None:
        both = (("0000:3b:00.0", 0), ("0000:af:00.0", 1))
        trained = rank(gpus=(0, 1), process=process(cores=64, node_shares=(0.9, 0.1)))
        gpus = [gpu(0, facts={"pci_bus_id": "00000000:3B:00.0"}), gpu(1, facts={"pci_bus_id": "00000000:AF:00.0"})]
        moment = scene(run(trained), gpus=gpus, machine=machine(64, numa_nodes=2, gpu_numa_nodes=both))
        assert silent("numa-misplaced", moment)

    def test_the_rank_is_named(self) -> None:
        nodes = (("0000:3b:00.0", 0), ("0000:af:00.0", 1))
        ranks = [
            rank(pid=10 + i, gpus=(i,), facts={"rank": i}, process=process(cores=64, node_shares=(0.95, 0.05)))
            for i in range(2)
        ]
        gpus = [gpu(0, facts={"pci_bus_id": "00000000:3B:00.0"}), gpu(1, facts={"pci_bus_id": "00000000:AF:00.0"})]
        moment = scene(run(*ranks), gpus=gpus, machine=machine(64, numa_nodes=2, gpu_numa_nodes=nodes))
        assert drafted("numa-misplaced", moment).summary.startswith("Rank 1 runs 95%")
