"""The data pipeline's rules: what fires on which picture, with which number, and what stays silent."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from queued_runs import queued
from scene_builder import (
    SCRIPT,
    check,
    epochs,
    findings,
    fired,
    gpu,
    host,
    loader,
    machine,
    phase,
    process,
    rank,
    run,
    run_case,
    scene,
    workers,
)

from gpuwatch.diagnosis.finding import Draft, Finding, Gain, Level, Severity
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import GpuWindow, Scene

STARVED = frozenset({"data-starvation"})
DATA_RULES = {
    "data-starvation",
    "workers-zero",
    "workers-too-few",
    "worker-cpu-bound",
    "host-cpu-exhausted",
    "too-many-workers",
    "cpu-quota-throttled",
    "io-bound",
    "slow-samples",
    "epoch-start-stall",
}


def no_workers(load: float, compute: float, **fields: object) -> Scene:
    """A run that loads in its own process, on a GPU whose events are read."""
    facts: dict[str, object] = {"wait_cpu_share": 1.0, **fields}
    trained = rank(step=load + compute, wait=load, gap=load, loader=loader(num_workers=0), **facts)  # type: ignore[arg-type]
    return scene(run(trained), gpus=[gpu(utilization=100 * compute / (load + compute))])


def starved_by_workers(count: int, batch: float, compute: float, cpu: float = 0.95, **fields: object) -> Scene:
    """Workers that need `batch` seconds each: every count-th step waits until the next round is done."""
    late = max(0.0, batch - count * compute)
    usual: dict[str, object] = {
        "loader": loader(num_workers=count),
        "workers": workers(count, cpu_cores=cpu, batch_seconds=batch, batch_cpu_seconds=cpu * batch),
        "process": process(tree_cores=count * cpu + 0.5),
    }
    waits = [0.0] * (count - 1) + [late]
    trained = rank(step=[compute + wait for wait in waits], wait=waits, gap=waits, **(usual | fields))  # type: ignore[arg-type]
    busy = 100 * compute * count / (compute * count + late)
    return scene(run(trained), gpus=[gpu(utilization=busy)])


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


@pytest.mark.parametrize(("gpus", "level"), [((), Level.E2), ((gpu(utilization=50),), None)], ids=["no GPU", "a GPU"])
def test_a_program_without_torch_waits_where_no_gpu_can_hide_it(
    gpus: tuple[GpuWindow, ...], level: Level | None
) -> None:
    trained = rank(step=0.2, wait=0.1, device=None, loader=loader(num_workers=None), workers=None)
    draft = check("data-starvation", run_case(scene(run(trained), gpus=list(gpus))))
    assert (draft and draft.level) == level
    assert draft is None or draft.summary.startswith("Training waits about 50% of the time")


def drafted(rule: str, moment: Scene, holding: frozenset[str] = STARVED) -> Draft:
    draft = check(rule, run_case(moment, holding=holding))
    assert draft is not None
    return draft


class TestStarvation:
    def test_the_sentence_says_how_much_of_the_time_the_gpu_idles(self) -> None:
        finding = of(findings(no_workers(0.041, 0.059)), "data-starvation")
        assert finding.summary == "The GPU idles 41% of the time waiting for the next batch"
        assert (finding.severity, finding.level) == (Severity.CRITICAL, Level.E3)

    def test_on_the_cpu_the_wait_is_the_figure(self) -> None:
        trained = rank(step=0.1, wait=0.041, device="cpu", loader=loader(num_workers=0), facts={"torch_threads": 1})
        finding = of(findings(scene(run(trained))), "data-starvation")
        assert finding.summary == "Training waits 41% of the time for the next batch"
        assert finding.level is Level.E3

    def test_without_gpu_events_it_is_the_smaller_of_wait_and_idle_and_never_critical(self) -> None:
        trained = rank(step=0.1, wait=0.06, loader=loader(num_workers=0))
        finding = of(findings(scene(run(trained), gpus=[gpu(utilization=70)])), "data-starvation")
        assert finding.summary == "The GPU idles about 30% of the time waiting for the next batch"
        assert (finding.severity, finding.level) == (Severity.WARNING, Level.E2)
        assert any(note.startswith("likely") for note in finding.confidence_notes)

    def test_without_gpu_events_and_utilization_nothing_is_claimed(self) -> None:
        trained = rank(step=0.1, wait=0.06, loader=loader(num_workers=0))
        assert fired(scene(run(trained), gpus=[gpu(utilization=None)])) & DATA_RULES == set()

    def test_a_tenth_warns_and_a_fifth_is_critical(self) -> None:
        assert drafted("data-starvation", no_workers(0.012, 0.088)).severity is Severity.WARNING
        assert not drafted("data-starvation", no_workers(0.009, 0.091)).fires
        assert drafted("data-starvation", no_workers(0.022, 0.078)).severity is Severity.CRITICAL
        assert check("data-starvation", run_case(no_workers(0.005, 0.095))) is None

    def test_it_points_to_the_fix_of_its_cause(self) -> None:
        said = findings(no_workers(0.2, 0.1))
        assert of(said, "data-starvation").fix == of(said, "workers-zero").fix
        assert of(said, "data-starvation").gain == of(said, "workers-zero").gain

    def test_without_a_cause_it_says_what_is_not_known_and_how_to_find_out(self) -> None:
        idle = starved_by_workers(4, 0.8, 0.1, workers=workers(4, cpu_cores=0.4, busy_share=0.5))
        finding = of(findings(idle), "data-starvation")
        assert finding.fix is not None and "busy only 50%" in finding.fix.text
        assert "stacks" in finding.fix.text
        assert finding.fix.edit is None

    def test_a_loop_over_an_iterator_of_its_own_is_not_advised_to_use_the_hook_that_it_has(self) -> None:
        own = rank(step=0.3, wait=0.2, gap=0.2, loader=loader(num_workers=None))
        finding = of(findings(scene(run(own), gpus=[gpu(utilization=33.0)])), "data-starvation")
        assert finding.fix is not None
        assert "not a DataLoader" in finding.fix.text and "gpuwatch run" not in finding.fix.text

    def test_the_rank_that_waits_longest_is_named(self) -> None:
        ranks = [
            rank(step=0.1, wait=wait, gap=wait, loader=loader(num_workers=0), pid=pid, facts={"rank": pid})
            for pid, wait in ((0, 0.01), (1, 0.05))
        ]
        finding = of(findings(scene(run(*ranks))), "data-starvation")
        assert any("rank 1 waits longest" in measure.text for measure in finding.evidence)


class TestSilence:
    """The near misses: none of these is a finding about data."""

    @pytest.mark.parametrize(
        "moment",
        [
            pytest.param(no_workers(0.004, 0.096), id="a batch takes 4 ms of 100"),
            pytest.param(
                scene(run(rank(step=0.1, wait=0.059, gap=0.0, loader=loader(num_workers=0)))),
                id="hidden behind the GPU",
            ),
            pytest.param(
                scene(run(rank(step=0.1, wait=0.059, loader=loader(num_workers=0))), gpus=[gpu(utilization=98)]),
                id="hidden, by utilization",
            ),
            pytest.param(scene(run(rank(step=0.1, wait=0.025, gap=0.003))), id="a wait of 25% that costs 3%"),
            pytest.param(
                scene(run(rank(step=0.0013, wait=0.0003, device="cpu", loader=loader(num_workers=0)))),
                id="1 ms steps from memory, no workers",
            ),
            pytest.param(
                scene(
                    run(
                        rank(
                            step=0.008,
                            wait=[0.001, 0.003, 0.002],
                            device="cpu",
                            workers=workers(4, cpu_cores=0.1, busy_share=0.1),
                        )
                    )
                ),
                id="5 ms steps from memory, workers",
            ),
            pytest.param(
                scene(run(rank(step=0.012, wait=0.0011, gap=0.0009)), gpus=[gpu(utilization=92)]), id="fast steps"
            ),
            pytest.param(scene(run(rank(step=2.5, wait=0.01, gap=0.0, steps=40, window=100.0))), id="long steps"),
            pytest.param(
                scene(run(rank(step=0.2, loader=loader(num_workers=28), process=process(cores=64)))),
                id="28 workers on 64 cores",
            ),
            pytest.param(
                scene(run(rank(step=0.2)), host=host(cpu_percent=99, pressure_cpu_percent=50)), id="busy CPU, no wait"
            ),
            pytest.param(
                scene(
                    run(rank(step=0.2, workers=workers(4, cpu_cores=0.1, blocked_share=0.8))),
                    host=host(pressure_io_percent=40),
                ),
                id="storage waits that nobody waits for",
            ),
            pytest.param(
                scene(run(rank(step=0.1, wait=0.004, gap=0.004, phases={"eval": phase("eval", share=0.4)}))),
                id="a validation loop",
            ),
            pytest.param(
                scene(run(rank(process=process(throttled_period_share=0.6)))), id="a quota that costs nothing"
            ),
        ],
    )
    def test_nothing_is_said_about_data(self, moment: Scene) -> None:
        assert fired(moment) & DATA_RULES == set()

    def test_training_that_needs_the_cores_itself_gets_no_workers_advice(self) -> None:
        trained = rank(
            step=0.1,
            wait=0.012,
            device="cpu",
            wait_cpu_share=1.0,
            loader=loader(num_workers=0),
            facts={"torch_threads": 2},
            process=process(cores=2, tree_cores=1.9, main_thread_cores=1.0),
        )
        moment = scene(run(trained), host=host(cpu_percent=98), machine=machine(2))
        assert fired(moment) & DATA_RULES == {"data-starvation"}
        fix = of(findings(moment), "data-starvation").fix
        assert fix is not None and "cheaper" in fix.text


class TestWorkersZero:
    def test_the_value_follows_from_load_and_compute_with_a_fifth_of_margin(self) -> None:
        draft = drafted("workers-zero", no_workers(0.200, 0.100))
        assert draft.fix is not None and draft.fix.value == 3
        assert drafted("workers-zero", no_workers(0.600, 0.100)).fix.value == 8  # type: ignore[union-attr]

    def test_the_edit_names_call_place_and_keywords(self) -> None:
        moment = no_workers(0.2, 0.1)
        unpinned = loader(num_workers=0, pin_memory=False)
        moment = scene(run(rank(step=0.3, wait=0.2, gap=0.2, loader=unpinned)), gpus=moment.gpus)
        fix = drafted("workers-zero", moment).fix
        assert fix is not None and fix.edit is not None
        assert (fix.edit.call, fix.edit.file, fix.edit.line) == ("DataLoader", SCRIPT, 88)
        assert fix.edit.keywords == {"num_workers": "3", "persistent_workers": "True", "pin_memory": "True"}
        assert fix.code == "DataLoader(..., num_workers=3, persistent_workers=True, pin_memory=True)"

    def test_on_the_cpu_memory_is_not_pinned(self) -> None:
        unpinned = loader(num_workers=0, pin_memory=False)
        trained = rank(
            step=0.3, wait=0.2, device="cpu", loader=unpinned, wait_cpu_share=0.0, facts={"torch_threads": 1}
        )
        fix = drafted("workers-zero", scene(run(trained))).fix
        assert fix is not None and fix.edit is not None and "pin_memory" not in fix.edit.keywords

    def test_the_gain_is_what_computing_alone_leaves(self) -> None:
        gain = drafted("workers-zero", no_workers(0.2, 0.1)).gain
        assert gain is not None and gain.cap == "then the GPU sets the pace"
        assert gain.low <= 3.0 <= gain.high
        assert gain.high / gain.low < 1.05

    def test_the_cores_cap_the_value_and_the_gain_and_are_named(self) -> None:
        draft = drafted("workers-zero", no_workers(1.0, 0.1, process=process(cores=4, main_thread_cores=1.0)))
        assert draft.fix is not None and draft.fix.value == 3
        assert "12 workers would keep up, but the 4 CPU cores cannot carry more than 3" in draft.fix.text
        assert draft.gain is not None and draft.gain.high == pytest.approx(1.1 / (1.0 / 3), rel=0.05)

    def test_items_that_only_wait_may_have_more_workers_than_cores(self) -> None:
        waiting = no_workers(1.0, 0.1, process=process(cores=4, main_thread_cores=0.2), wait_cpu_share=0.05)
        assert drafted("workers-zero", waiting).fix.value == 12  # type: ignore[union-attr]

    def test_pytorch_warns_of_more_workers_than_the_machine_has_cores_not_the_rank(self) -> None:
        def text(ranks: int) -> str:
            facts = {"local_world_size": ranks}
            moment = no_workers(1.0, 0.1, facts=facts, process=process(cores=4), wait_cpu_share=0.2)
            fix = drafted("workers-zero", moment).fix
            assert fix is not None
            return fix.text

        assert "than the 4 CPU cores; computing 20% of the time, they need 2." in text(ranks=1)
        assert "PyTorch will warn" not in text(ranks=4)

    def test_one_worker_is_one_process(self) -> None:
        draft = drafted("workers-zero", no_workers(0.05, 0.1))
        assert draft.fix is not None and draft.fix.value == 1
        assert draft.verify.startswith("1 process named pt_data_worker")

    def beside_other_work(self, compute: float, delay: float | None = 0.35) -> Scene:
        """Items that compute 61% of 40-120 ms, on two cores that other processes keep busy."""
        waits = [0.04, 0.06, 0.05, 0.12]
        waiting = rank(
            step=[compute + wait for wait in waits],
            wait=waits,
            device="cpu",
            loader=loader(num_workers=0, batch_bytes=100_000),
            wait_cpu_share=0.61,
            facts={"torch_threads": 2, "cpu_affinity": 2},
            process=process(cores=2, tree_cores=0.9, main_thread_cores=0.6, run_delay_share=delay),
        )
        return scene(run(waiting), gpus=[], host=host(cpu_percent=100), machine=machine(2))

    @pytest.mark.parametrize("delay", [0.35, None])
    def test_items_that_compute_get_no_more_workers_than_a_shared_machine_has_cores(self, delay: float | None) -> None:
        draft = drafted("workers-zero", self.beside_other_work(0.01, delay))
        assert draft.fix is not None and draft.fix.value == 2
        share = next(measure for measure in draft.evidence if measure.name == "batch_cpu_share")
        assert ("waits for a core 36%" in share.text) == (delay is not None)

    def test_where_other_work_decides_nothing_is_promised(self) -> None:
        draft = drafted("workers-zero", self.beside_other_work(0.12))
        assert draft.gain is None
        assert draft.hint == "no promise: the machine is shared with other work"
        quiet = replace(self.beside_other_work(0.12), host=host(cpu_percent=45))
        assert drafted("workers-zero", quiet).gain is not None

    def test_memory_shared_memory_and_short_epochs_cap_the_value(self) -> None:
        def value(**fields: object) -> tuple[object, str]:
            facts = {key: fields.pop(key) for key in ("batch_bytes", "batches_per_epoch") if key in fields}
            slow = rank(step=1.1, wait=1.0, gap=1.0, loader=loader(num_workers=0, **facts))
            fix = drafted("workers-zero", scene(run(slow), host=host(**fields))).fix  # type: ignore[arg-type]
            assert fix is not None
            return fix.value, fix.text

        small_shm = value(batch_bytes=10**9, latest={"shm_total_bytes": 5 * 2**30, "shm_used_bytes": 0})
        assert small_shm[0] == 2 and "/dev/shm has 5.0 GiB free" in small_shm[1]
        little_memory = value(batch_bytes=10**9, latest={"memory_available_bytes": 12 * 2**30})
        assert little_memory[0] == 3 and "half of the 12.0 GiB free memory holds 3" in little_memory[1]
        short = value(batches_per_epoch=16)
        assert short[0] == 4 and "an epoch of 16 batches keeps 4 busy" in short[1]

    def test_the_ranks_of_one_machine_share_its_cores(self) -> None:
        shared = no_workers(1.0, 0.1, facts={"local_world_size": 4}, process=process(cores=16))
        assert drafted("workers-zero", shared).fix.value == 3  # type: ignore[union-attr]

    def test_unknown_cpu_work_is_taken_as_all_and_said(self) -> None:
        unknown = no_workers(0.2, 0.1, wait_cpu_share=None, process=process(main_thread_cores=None))
        fix = drafted("workers-zero", unknown).fix
        assert fix is not None and "not known yet" in fix.text

    @pytest.mark.parametrize(
        ("facts", "said"),
        [
            ({"iterable": True, "batches_per_epoch": None}, "; an IterableDataset must split its items"),
            ({"iterable": True}, "; an IterableDataset must split its items"),
            ({"iterable": None, "batches_per_epoch": None}, "; if it reads an IterableDataset, that must split"),
            ({"iterable": False, "batches_per_epoch": None}, None),
            ({"iterable": None}, None),
        ],
        ids=["iterable", "iterable with a length", "unknown", "map-style before its first pass", "known length"],
    )
    def test_only_what_may_be_an_iterable_dataset_must_split_its_items(
        self, facts: dict[str, object], said: str | None
    ) -> None:
        read = rank(step=0.3, wait=0.2, gap=0.2, loader=loader(num_workers=0, **facts))
        fix = drafted("workers-zero", scene(run(read))).fix
        assert fix is not None
        assert ("get_worker_info()" in fix.text) == (said is not None)
        assert said is None or said in fix.text

    def test_a_dataset_for_spawned_workers_must_pickle(self) -> None:
        spawned = rank(step=0.3, wait=0.2, gap=0.2, loader=loader(num_workers=0, start_method="spawn"))
        fix = drafted("workers-zero", scene(run(spawned))).fix
        assert fix is not None and "pickle (spawn workers)" in fix.text

    def test_without_starvation_it_says_nothing(self) -> None:
        assert check("workers-zero", run_case(no_workers(0.2, 0.1))) is None


class TestWorkersTooFew:
    @pytest.mark.parametrize(
        ("count", "batch", "value"), [(1, 0.25, 3), (3, 0.6, 8), (4, 0.9, 11)], ids=["one", "three", "four"]
    )
    def test_it_says_how_many_keep_up(self, count: int, batch: float, value: int) -> None:
        moment = starved_by_workers(count, batch, 0.1)
        assert {"data-starvation", "workers-too-few"} <= fired(moment)
        draft = drafted("workers-too-few", moment)
        assert draft.fix is not None and draft.fix.value == value
        assert draft.gain is not None and draft.gain.low <= max(batch / count, 0.1) / 0.1 <= draft.gain.high * 1.001

    def test_the_evidence_names_busy_workers_free_cores_and_the_rhythm(self) -> None:
        draft = drafted("workers-too-few", starved_by_workers(4, 0.9, 0.1))
        assert draft.summary.startswith("The 4 workers are 97% busy and cannot keep up, while 12 of 16 cores are free")
        assert {"worker_busy_share", "free_cores", "wait_autocorrelation"} <= {m.name for m in draft.evidence}

    def test_without_worker_records_the_rhythm_of_the_waits_tells(self) -> None:
        moment = starved_by_workers(4, 0.9, 0.1, workers=workers(4, busy_share=None))
        assert drafted("workers-too-few", moment).summary.startswith("One batch in 4 comes late")

    def test_one_more_worker_is_the_least_it_asks_for(self) -> None:
        assert drafted("workers-too-few", starved_by_workers(4, 0.45, 0.1)).fix.value == 6  # type: ignore[union-attr]

    def test_idle_workers_are_not_too_few(self) -> None:
        moment = starved_by_workers(4, 0.9, 0.1, workers=workers(4, cpu_cores=0.4, busy_share=0.5))
        assert "workers-too-few" not in fired(moment)

    def test_workers_that_mostly_wait_are_too_few_on_a_full_machine_as_well(self) -> None:
        full = host(cpu_percent=100.0, pressure_cpu_percent=80.0)
        waiting = replace(starved_by_workers(2, 0.4, 0.1, cpu=0.03), host=full)
        assert "workers-too-few" in fired(waiting)
        assert "more workers hardly need cores" in drafted("workers-too-few", waiting).summary
        computing = replace(starved_by_workers(2, 0.4, 0.1, cpu=0.95), host=full)
        assert "workers-too-few" not in fired(computing)

    def test_as_many_as_the_cores_carry_are_not_too_few(self) -> None:
        assert "workers-too-few" not in fired(starved_by_workers(12, 2.4, 0.1))


class TestCpu:
    def test_busy_workers_that_cannot_be_more_need_cheaper_items(self) -> None:
        moment = starved_by_workers(14, 3.0, 0.1)
        assert fired(moment) & DATA_RULES == {"data-starvation", "worker-cpu-bound"}
        draft = drafted("worker-cpu-bound", moment)
        assert draft.gain is None and draft.hint is not None
        assert "2.85 s of CPU" in draft.summary

    def test_all_cores_busy_is_reported_instead(self) -> None:
        moment = replace(starved_by_workers(15, 3.0, 0.1), host=host(cpu_percent=98))
        assert fired(moment) & DATA_RULES == {"data-starvation", "host-cpu-exhausted"}
        draft = drafted("host-cpu-exhausted", moment)
        assert draft.gain is None and draft.hint is not None and "no other number of workers" in draft.hint

    def test_which_of_cores_and_storage_limits_is_open_where_workers_wait_for_both(self) -> None:
        waiting = workers(6, cpu_cores=0.35, blocked_share=0.4, batch_seconds=1.5, batch_cpu_seconds=0.8)
        alone = starved_by_workers(6, 1.5, 0.1, process=process(tree_cores=6.0), workers=waiting)
        for pressure, severity in ((60, Severity.INFO), (5, Severity.WARNING)):
            moment = replace(alone, host=host(cpu_percent=99, pressure_io_percent=pressure))
            assert drafted("host-cpu-exhausted", moment).severity is severity

    def test_cores_that_others_keep_busy_are_reported_as_such(self) -> None:
        alone = starved_by_workers(6, 1.5, 0.1, process=process(tree_cores=6.0))
        moment = replace(alone, host=host(cpu_percent=95))
        draft = drafted("host-cpu-exhausted", moment)
        assert draft.summary.startswith("Other processes take 57%")
        assert draft.fix is not None and "Move the other jobs" in draft.fix.text

    def test_items_that_wait_do_not_blame_the_cores(self) -> None:
        sleeping = workers(4, cpu_cores=0.1, batch_seconds=0.9, batch_cpu_seconds=0.05)
        moment = replace(starved_by_workers(4, 0.9, 0.1, workers=sleeping), host=host(cpu_percent=98))
        assert check("host-cpu-exhausted", run_case(moment, holding=STARVED)) is None

    def test_pressure_counts_where_the_percentage_does_not_show_it(self) -> None:
        moment = replace(starved_by_workers(15, 3.0, 0.1), host=host(cpu_percent=85, pressure_cpu_percent=45))
        assert drafted("host-cpu-exhausted", moment).fires
        calm = replace(moment, host=host(cpu_percent=85, pressure_cpu_percent=5))
        assert not drafted("host-cpu-exhausted", calm).fires

    def test_twenty_eight_workers_on_eight_cores_are_too_many(self) -> None:
        crowded = starved_by_workers(
            28,
            6.0,
            0.1,
            workers=workers(28, cpu_cores=0.28, batch_seconds=6.0, batch_cpu_seconds=1.5),
            process=process(cores=8, tree_cores=7.9),
        )
        moment = replace(crowded, host=host(cpu_percent=99, pressure_cpu_percent=70), machine=machine(8))
        assert fired(moment) & DATA_RULES == {"data-starvation", "too-many-workers"}
        draft = drafted("too-many-workers", moment)
        assert draft.fix is not None and draft.fix.value == 7
        assert draft.summary == "28 loader workers share 8 CPU cores"

    def test_ranks_multiply_workers(self) -> None:
        trained = rank(
            step=0.1,
            wait=0.03,
            gap=0.03,
            facts={"local_world_size": 8},
            loader=loader(num_workers=8),
            workers=workers(8, cpu_cores=0.18),
            process=process(cores=16),
        )
        moment = scene(run(trained), host=host(pressure_cpu_percent=60))
        draft = drafted("too-many-workers", moment)
        assert draft.fires
        assert draft.summary == "64 loader workers in 8 ranks share 16 CPU cores"
        assert draft.fix is not None and draft.fix.value == 2

    def test_a_crowd_is_a_note_for_fewer_workers_may_bring_nothing(self) -> None:
        draft = drafted("too-many-workers", self.crowd(28, 0.79))
        assert draft.fires and draft.severity is Severity.INFO
        assert draft.gain is not None and draft.gain.low == 1.0 < 1.4 < draft.gain.high

    def test_fewer_workers_leave_their_cores_to_other_programs(self) -> None:
        """Four workers get 1.4 of 2 cores beside a program that keeps one busy: two would get the less."""
        each = 0.36
        made = workers(4, cpu_cores=each, batch_seconds=12.0, batch_cpu_seconds=4.3, run_delay_share=0.6)
        trained = rank(
            step=3.0,
            wait=2.6,
            gap=2.3,
            loader=loader(num_workers=4),
            workers=made,
            process=process(cores=2, main_thread_cores=0.06, tree_cores=1.5),
        )
        shared = scene(run(trained), host=host(cpu_percent=100, pressure_cpu_percent=99), machine=machine(2))
        assert "too-many-workers" not in fired(shared)

    def crowd(self, count: int, batch_cpu_seconds: float, steps: int = 600) -> Scene:
        """Workers that fill 8 cores, and a run that waits half of its time for them."""
        each = 7.8 / count
        made = workers(
            count, cpu_cores=each, batch_seconds=batch_cpu_seconds / each, batch_cpu_seconds=batch_cpu_seconds
        )
        trained = rank(
            step=0.1,
            wait=0.05,
            gap=0.05,
            steps=steps,
            loader=loader(num_workers=count),
            workers=made,
            process=process(cores=8, tree_cores=7.8),
        )
        full = host(cpu_percent=99, pressure_cpu_percent=80)
        return scene(run(trained), host=full, machine=machine(8))

    def test_a_crowd_that_fills_the_cores_a_little_over_is_none_of_their_number(self) -> None:
        """12 workers on 8 cores: 7 would not be 1.2 times as fast, so the cores are the cause."""
        said = fired(self.crowd(12, 0.77))
        assert "host-cpu-exhausted" in said and "too-many-workers" not in said

    def test_two_batches_of_each_worker_say_too_little(self) -> None:
        assert not drafted("too-many-workers", self.crowd(28, 0.79, steps=60)).fires
        assert drafted("too-many-workers", self.crowd(28, 0.79, steps=90)).fires

    def test_a_crowd_that_sleeps_on_storage_is_allowed(self) -> None:
        sleeping = rank(
            step=0.1,
            wait=0.03,
            gap=0.03,
            loader=loader(num_workers=28),
            workers=workers(28, cpu_cores=0.05),
            process=process(cores=8),
        )
        assert check("too-many-workers", run_case(scene(run(sleeping)), holding=STARVED)) is None

    def test_a_crowd_that_does_no_harm_is_silent(self) -> None:
        harmless = rank(loader=loader(num_workers=10), workers=workers(10, cpu_cores=0.5), process=process(cores=8))
        assert "too-many-workers" not in fired(scene(run(harmless)))

    def test_a_quota_that_stops_the_run(self) -> None:
        limits = {"cpu_quota_cores": 4.0, "cpu_capacity_cores": 4.0}
        throttled = process(cores=4, tree_cores=3.9, throttled_period_share=0.8, throttled_seconds=90.0, latest=limits)
        moment = replace(
            starved_by_workers(16, 4.0, 0.1, process=throttled, workers=workers(16, cpu_cores=0.24)),
            machine=machine(64),
        )
        assert fired(moment) & DATA_RULES == {"data-starvation", "cpu-quota-throttled"}
        draft = drafted("cpu-quota-throttled", moment)
        assert draft.summary == "The container's CPU limit of 4 cores stops the run in 80% of its periods"
        assert draft.fix is not None and "num_workers=3" in draft.fix.text
        # 16 workers that compute 0.35 s a batch need 6 cores: the advised limit carries them, and the GPU is the bound.
        assert draft.gain is not None and 1.0 < draft.gain.low <= draft.gain.high
        busy = moment.gpus[0].train_utilization
        # A minute's utilization is known to 5%.
        assert busy is not None and draft.gain.high == pytest.approx(1.05 * 100 / busy.mean, rel=0.01)

    def test_more_cpu_time_does_as_much_more_of_the_same_work(self) -> None:
        # Sixteen threads in each of 3 workers: the one that makes a batch computes 0.04 s of it, all together 0.5 s.
        limits = {"cpu_quota_cores": 4.0, "cpu_capacity_cores": 4.0}
        counted = {"throttled_period_share": 1.0, "throttled_seconds": 90.0, "main_thread_cores": 0.03}
        throttled = process(cores=4, tree_cores=4.0, latest=limits, **counted)
        made_by = workers(3, cpu_cores=1.33, batch_seconds=0.37, batch_cpu_seconds=0.04)
        moment = replace(
            starved_by_workers(3, 0.37, 0.03, process=throttled, workers=made_by),
            machine=machine(16),
        )
        draft = drafted("cpu-quota-throttled", moment)
        assert draft.fix is not None and draft.fix.value == 5 and draft.gain is not None
        assert draft.gain.low <= 5 / 4 <= draft.gain.high <= 1.06 * 5 / 4

    def test_ranks_share_a_quota_and_what_it_is_raised_to(self) -> None:
        limits = {"cpu_quota_cores": 4.0, "cpu_capacity_cores": 4.0}
        throttled = process(cores=4, tree_cores=1.0, throttled_period_share=1.0, throttled_seconds=90.0, latest=limits)
        made = workers(4, cpu_cores=0.24, batch_seconds=0.8, batch_cpu_seconds=0.2)
        moment = replace(
            starved_by_workers(4, 0.8, 0.1, process=throttled, workers=made, facts={"local_world_size": 4}),
            machine=machine(64),
        )
        draft = drafted("cpu-quota-throttled", moment)
        assert draft.fix is not None and draft.fix.value == 12, "2 cores of loading and one beside it, for each of 4"
        small = drafted("cpu-quota-throttled", replace(moment, machine=machine(8)))
        assert small.fix is not None and small.fix.value == 8, "the machine has no more"

    def test_what_the_model_misses_of_a_step_no_limit_wins_back(self) -> None:
        """Workers that wait for storage and are hardly throttled, in ranks that wait for each other."""
        limits = {"cpu_quota_cores": 4.0, "cpu_capacity_cores": 4.0}
        throttled = process(cores=4, tree_cores=0.5, throttled_period_share=0.34, throttled_seconds=9.0, latest=limits)
        made = workers(1, cpu_cores=0.15, blocked_share=0.83, batch_seconds=3.4, batch_cpu_seconds=0.5)
        slow = rank(step=3.9, wait=2.8, gap=2.7, loader=loader(num_workers=1), workers=made, process=throttled)
        draft = drafted("cpu-quota-throttled", scene(run(slow), gpus=[gpu(utilization=30)]))
        assert draft.gain is not None and draft.gain.high < 1.1 and not draft.fires

    def test_a_quota_is_not_said_where_workers_wait_for_storage(self) -> None:
        """What they wait for stays under any limit: of 0.97 busy they read 0.73 and compute 0.24."""
        limits = {"cpu_quota_cores": 4.0, "cpu_capacity_cores": 4.0}
        throttled = process(cores=4, tree_cores=3.9, throttled_period_share=0.4, throttled_seconds=9.0, latest=limits)
        reading = workers(16, cpu_cores=0.24, blocked_share=0.73)
        moment = replace(starved_by_workers(16, 4.0, 0.1, process=throttled, workers=reading), machine=machine(64))
        draft = drafted("cpu-quota-throttled", moment)
        assert not draft.fires
        assert draft.gain is not None and draft.gain.high < 1.06


class TestStorage:
    def test_blocked_workers_on_a_slow_disk(self) -> None:
        waiting = starved_by_workers(4, 0.9, 0.1, workers=workers(4, cpu_cores=0.05, blocked_share=0.9))
        moment = replace(waiting, host=host(cpu_percent=10, pressure_io_percent=60, disk_queue_length=25))
        assert fired(moment) & DATA_RULES == {"data-starvation", "io-bound"}
        draft = drafted("io-bound", moment)
        assert draft.summary == "Workers wait for storage 90% of their time instead of preparing batches"
        assert draft.fix is not None and draft.fix.edit is not None
        assert draft.fix.edit.keywords["prefetch_factor"] == "4"

    def test_blocked_workers_need_a_machine_that_sees_slow_storage(self) -> None:
        waiting = starved_by_workers(4, 0.9, 0.1, workers=workers(4, cpu_cores=0.05, blocked_share=0.9))
        assert "io-bound" not in fired(waiting)

    def test_on_full_cores_storage_is_the_cause_only_of_workers_that_mostly_wait_for_it(self) -> None:
        def said(blocked_share: float) -> frozenset[str]:
            made = workers(4, cpu_cores=0.35, blocked_share=blocked_share)
            full = host(cpu_percent=99, pressure_cpu_percent=80, pressure_io_percent=60, disk_queue_length=25)
            return fired(replace(starved_by_workers(4, 0.9, 0.1, workers=made), host=full))

        assert "io-bound" in said(0.6)
        assert "io-bound" not in said(0.35)

    def test_the_first_epoch_may_only_be_filling_the_cache(self) -> None:
        waiting = starved_by_workers(
            4, 0.9, 0.1, workers=workers(4, cpu_cores=0.05, blocked_share=0.9), epochs=epochs(count=1)
        )
        fix = drafted("io-bound", replace(waiting, host=host(pressure_io_percent=60))).fix
        assert fix is not None and "first epoch" in fix.text

    def test_less_than_a_round_of_the_workers_promises_nothing(self) -> None:
        """Nine steps of 32 workers, one of which waits for all: their mean is no pace."""
        made = workers(32, cpu_cores=0.41, blocked_share=0.59, batch_seconds=80.0, batch_cpu_seconds=33.0)
        waits = [80.0] + [0.0] * 8
        few = rank(step=[1.0 + wait for wait in waits], wait=waits, gap=waits, steps=9, loader=loader(num_workers=32))
        slow = replace(few, workers=made, process=process(cores=64))
        waiting = host(pressure_io_percent=99.0)
        moment = scene(run(slow), gpus=[gpu(utilization=10)], host=waiting, machine=machine(64))
        draft = drafted("io-bound", moment)
        assert draft.gain is not None and draft.gain.low == 1.0 and draft.severity is Severity.INFO

    def test_faster_storage_brings_no_more_than_the_cores_then_carry(self) -> None:
        def said(cores: int, steps: int = 100) -> Draft | None:
            made = workers(32, cpu_cores=0.41, blocked_share=0.59, batch_seconds=80.0, batch_cpu_seconds=33.0)
            own = process(cores=cores, tree_cores=13.5)
            slow = rank(
                step=2.5, wait=1.3, gap=1.3, steps=steps, loader=loader(num_workers=32), workers=made, process=own
            )
            busy = host(cpu_percent=1350 / cores, pressure_io_percent=99.0)
            moment = scene(run(slow), gpus=[gpu(utilization=48)], host=busy, machine=machine(cores))
            return check("io-bound", run_case(moment, holding=STARVED))

        def gain(cores: int) -> Gain:
            draft = said(cores)
            assert draft is not None and draft.fires and draft.gain is not None
            assert (draft.severity is Severity.INFO) is (draft.gain.low < 1.01)
            return draft.gain

        assert said(16) is None, "33 CPU seconds a step of 2.5 s fill 13 of 15 cores, and 32 that compute are a crowd"
        assert said(16, steps=9) is None, "the cores carry no more, however little is known of a step"
        assert 1.1 < gain(20).low < gain(20).high < 1.35
        assert 1.3 < gain(64).low < gain(64).high == pytest.approx(1.0 / 0.48, rel=0.01)


class TestSlowSamples:
    def tail(self, **fields: object) -> Scene:
        waits = ([0.0] * 83 + [0.9]) * 8
        return scene(run(rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=600, **fields)))  # type: ignore[arg-type]

    def test_a_few_late_batches_hold_the_loss(self) -> None:
        moment = self.tail(workers=workers(4, cpu_cores=0.4, busy_share=0.5))
        assert fired(moment) & DATA_RULES == {"slow-samples"}
        draft = drafted("slow-samples", moment)
        assert "wait about 900 ms each" in draft.summary
        assert draft.fix is not None and draft.fix.edit is not None
        assert draft.fix.edit.keywords == {"in_order": "False", "prefetch_factor": "8"}

    def test_one_late_batch_is_no_pattern(self) -> None:
        waits = [0.0] * 299 + [9.0] + [0.0] * 300
        made = workers(4, cpu_cores=0.4, busy_share=0.5)
        late = rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=600, workers=made)
        assert not drafted("slow-samples", scene(run(late))).fires
        waits[150] = 9.0
        twice = rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=600, workers=made)
        assert drafted("slow-samples", scene(run(twice))).fires

    def test_late_steps_are_counted_among_those_that_were_looked_at(self) -> None:
        waits = ([0.0] * 83 + [0.9]) * 30
        moment = scene(run(rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=2520)))
        assert "13 of 1,024 steps wait about 900 ms each" in drafted("slow-samples", moment).summary

    def test_nothing_can_pass_the_batch_of_the_only_worker(self) -> None:
        fix = drafted("slow-samples", self.tail(loader=loader(num_workers=1, prefetch_factor=8))).fix
        assert fix is not None and fix.edit is None and "no setting of the queue hides them" in fix.text

    def test_a_torch_without_in_order_gets_the_deeper_queue_alone(self) -> None:
        fix = drafted("slow-samples", self.tail(loader=loader(in_order=None))).fix
        assert fix is not None and fix.edit is not None and fix.edit.keywords == {"prefetch_factor": "8"}

    def test_waits_in_the_rhythm_of_the_workers_are_no_tail(self) -> None:
        assert check("slow-samples", run_case(starved_by_workers(4, 0.9, 0.1))) is None

    def batches_of_16(self, busy_share: float) -> Scene:
        """One item in a hundred takes 300 ms, the others 1 ms, a step 20 ms; 4 workers deliver in order."""
        chance = random.Random(1)
        free, taken, waits = [0.0] * 4, [0.0] * 8, []
        for step in range(600):
            items = sum(0.3 if chance.random() < 0.01 else 0.001 for _ in range(16))
            free[step % 4] = max(free[step % 4], taken[step]) + items
            waits.append(max(0.0, free[step % 4] - taken[-1] - 0.02))
            taken.append(taken[-1] + 0.02 + waits[-1])
        made = workers(4, cpu_cores=0.05, busy_share=busy_share)
        return scene(run(rank(step=[0.02 + wait for wait in waits], wait=waits, gap=waits, steps=600, workers=made)))

    def test_slow_items_that_make_a_tenth_of_the_batches_slow_are_the_cause(self) -> None:
        moment = self.batches_of_16(busy_share=0.44)
        draft = drafted("data-starvation", moment, frozenset())
        assert draft.fix is not None and draft.fix.edit is not None
        assert draft.fix.edit.keywords == {"in_order": "False", "prefetch_factor": "8"}
        assert draft.gain is not None
        assert 1.0 < draft.gain.low < draft.gain.high <= 1.95, "what in_order=False and a deeper queue brought"

    def test_the_gain_is_no_more_than_the_workers_can_deliver(self) -> None:
        gain = drafted("slow-samples", self.batches_of_16(busy_share=0.8)).gain
        assert gain is not None and gain.high == 1.25 and gain.cap == "then limited by the 4 workers"

    def test_a_queue_that_covers_the_slow_items_is_advised_without_giving_up_the_order(self) -> None:
        """A batch in forty takes 550 ms: 32 batches of 20 ms are asked for ahead where each worker has 8."""
        moment = queued([0.55 if place % 40 == 20 else 0.005 for place in range(800)], 0.02)
        draft = drafted("slow-samples", moment)
        assert draft.fix is not None and draft.fix.edit is not None and draft.fix.value == 8
        assert draft.fix.edit.keywords == {"prefetch_factor": "8"}
        assert "not reproducible" not in draft.fix.text
        assert draft.gain is not None and draft.gain.low > 1.3
        assert 1.49 < draft.gain.high < 1.57, "all of the third that is lost, and how well that is known"

    def test_the_order_is_given_up_where_no_queue_covers_the_slow_items(self) -> None:
        long = [2.0 if place % 80 == 20 else 0.005 for place in range(800)]
        draft = drafted("slow-samples", queued(long, 0.02))
        assert draft.fix is not None and draft.fix.edit is not None
        assert draft.fix.edit.keywords == {"in_order": "False"}
        assert "deeper queue" not in draft.fix.text and "not reproducible" in draft.fix.text
        # Ten of them might as well have been seven, or thirteen: 1.8x or 2.5x where the ten cost 54%.
        assert draft.gain is not None and 1.5 < draft.gain.low < 1.83 and draft.gain.high > 2.5
        moment = queued(long, 0.02)
        several = drafted("slow-samples", replace(moment, runs=(run(*moment.runs[0].ranks * 2),)))
        assert several.gain is None and several.hint is not None
        assert (
            several.hint == f"{draft.gain.low:.2f}x at least: each of 2 ranks also waits for slow items of the others"
        )

    def test_where_no_queue_helps_the_items_are_named_alone(self) -> None:
        long = [2.0 if place % 80 == 20 else 0.005 for place in range(800)]
        deep = loader(num_workers=4, prefetch_factor=8, in_order=None)
        draft = drafted("slow-samples", queued(long, 0.02, prefetch=8, loader=deep))
        assert draft.fix is not None and draft.fix.edit is None and draft.fix.line == 88
        assert draft.fix.text == "Find and resize or drop the slow items: no setting of the queue hides them"
        assert draft.gain is None and draft.hint is not None

    def test_workers_without_a_pause_are_too_slow_whatever_the_tail(self) -> None:
        assert check("slow-samples", run_case(self.batches_of_16(busy_share=0.95))) is None

    def test_it_takes_two_hundred_steps_or_batches_that_took_many_times_as_long(self) -> None:
        waits = [0.0] * 80 + [0.9]

        def steps(count: int, sigma: float | None) -> RunCase:
            made = workers(4, cpu_cores=0.4, busy_share=0.5, batch_seconds=0.2, batch_seconds_sigma=sigma)
            few = rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=count, workers=made)
            return run_case(scene(run(few)))

        assert check("slow-samples", steps(150, None)) is None
        assert check("slow-samples", steps(150, 0.15)) is None
        assert check("slow-samples", steps(150, 0.4)) is not None
        assert check("slow-samples", steps(50, 0.4)) is None

    def test_batches_that_take_alike_hold_no_slow_items_however_the_waits_fall(self) -> None:
        alike = workers(28, cpu_cores=0.28, busy_share=0.99, batch_seconds=2.0, batch_seconds_sigma=0.6)
        assert check("slow-samples", run_case(self.tail(workers=alike))) is None

    def test_slow_items_are_not_what_holds_up_workers_that_are_too_slow_without_them(self) -> None:
        """Eight make a batch in 0.1 or 0.2 s, one in 40 in 2 s, and a step takes 20 or 30 ms."""
        making = [2.0 if place % 40 == 20 else 0.1 for place in range(800)]
        assert check("slow-samples", run_case(queued(making, 0.02, count=8))) is not None
        late = queued(making, 0.02, count=8).runs[0].critical
        too_slow = replace(late.workers, newest_batch_seconds=tuple(max(0.2, each) for each in making))
        assert check("slow-samples", run_case(scene(run(replace(late, workers=too_slow))))) is None

    def test_on_full_cores_no_queue_is_advised(self) -> None:
        moment = queued([0.55 if place % 40 == 20 else 0.005 for place in range(800)], 0.02)
        draft = drafted("slow-samples", replace(moment, host=host(cpu_percent=99, pressure_cpu_percent=80)))
        assert draft.fix is not None and draft.fix.edit is None and draft.gain is None
        assert draft.hint is not None and draft.hint.startswith("up to ")

    def test_a_window_that_holds_the_end_of_any_starvation_holds_no_tail(self) -> None:
        """Thirty batches waited 500 ms each up to 15 s ago; nothing waits since."""
        early = [0.5 if place % 10 == 0 else 0.0 for place in range(300)]
        made = workers(4, cpu_cores=0.4, busy_share=0.5, batch_seconds=0.2, batch_seconds_sigma=0.2)
        for waits, fires in ((early + [0.0] * 150, False), (early[:150] + [0.0] * 150 + early[:150], True)):
            mixed = rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, steps=450, workers=made)
            assert (check("slow-samples", run_case(scene(run(mixed)))) is not None) is fires


def test_idle_workers_whose_few_slow_items_are_waited_for_are_at_no_floor() -> None:
    waits = [0.001] * 88 + [1.5] * 2
    usual: dict[str, Any] = {"step": [0.03 + wait for wait in waits], "wait": waits, "gap": waits, "steps": 90}
    moment = scene(run(rank(loader=loader(num_workers=12), workers=workers(12, busy_share=0.17), **usual)))
    assert check("data-starvation", run_case(moment)) is not None
    ready = {**usual, "step": 0.004, "wait": 0.0015, "gap": 0.0015}
    moment = scene(run(rank(loader=loader(num_workers=12), workers=workers(12, busy_share=0.17), **ready)))
    assert check("data-starvation", run_case(moment)) is None


class TestEpochStart:
    SLOW = epochs(count=4, share=0.12, first_wait_seconds=2.5, usual_wait_seconds=0.004, batches_per_epoch=60)

    def test_an_epoch_that_is_far_longer_than_those_before_ends_it(self) -> None:
        for position, fires in ((40, True), (400, False)):
            member = rank(epochs=self.SLOW, steps_total=300 + position, loader=loader(num_workers=4))
            columns = replace(member.columns, epoch_position=list(range(position - 40, position + 1)))
            assert (
                check("epoch-start-stall", run_case(scene(run(replace(member, columns=columns))))) is not None
            ) is fires

    def test_workers_that_restart_each_epoch(self) -> None:
        trained = rank(epochs=self.SLOW, loader=loader(persistent_workers=False))
        moment = scene(run(trained))
        assert fired(moment) & DATA_RULES == {"epoch-start-stall"}
        draft = drafted("epoch-start-stall", moment)
        assert draft.summary == "Between two epochs lies a pause of 2.5 s: 12% of the time in all"
        assert draft.fix is not None and draft.fix.edit is not None
        assert draft.fix.edit.keywords == {"persistent_workers": "True"}
        assert draft.gain is not None and draft.gain.high == pytest.approx(1 / 0.88, abs=0.001)

    def test_a_few_starts_of_long_epochs_leave_their_share_open(self) -> None:
        # Two starts in 100 s took 6%; of an epoch of 200 steps of 0.2 s and its pause of 3 s it is 7%.
        few = replace(self.SLOW, count=2, first_wait_seconds=3.0, share=0.06, excess_seconds=6.0, batches_per_epoch=200)
        gain = drafted("epoch-start-stall", scene(run(rank(epochs=few)))).gain
        assert gain is not None and gain.high == pytest.approx(43 / 40, abs=0.001)
        assert gain.low < 1 / 0.94

    def test_epochs_that_are_left_early_are_as_long_as_they_are(self) -> None:
        early = replace(self.SLOW, batches_per_epoch=5_000)
        gain = drafted("epoch-start-stall", scene(run(rank(epochs=early)))).gain
        assert gain is not None and gain.low > 1.05

    def test_the_first_batch_still_has_to_be_made_and_hidden_waits_bring_nothing(self) -> None:
        slow = replace(self.SLOW, first_wait_seconds=1.0, share=0.2)
        trained = rank(epochs=slow, loader=loader(persistent_workers=False), workers=workers(4, batch_seconds=0.25))
        gain = drafted("epoch-start-stall", scene(run(trained))).gain
        assert gain is not None and gain.low < 1 / 0.85 < gain.high
        assert (gain.low, gain.high) == pytest.approx((1 / 0.85, 1 / 0.85), abs=0.012)
        half_hidden = replace(
            trained,
            columns=replace(
                trained.columns,
                wait_seconds=[1.0] * trained.steps,
                gap_seconds=[0.5] * trained.steps,
                settled=[False] * trained.steps,
            ),
        )
        gain = drafted("epoch-start-stall", scene(run(half_hidden))).gain
        assert gain is not None and gain.high == pytest.approx(1 / (1 - 1.05 * 0.075), abs=0.001)

    def test_each_of_the_first_batches_may_be_the_one_that_is_waited_for(self) -> None:
        # Every fourth batch takes 0.9 s: with 8 workers one of the first ones nearly always does.
        slow = replace(self.SLOW, count=30, first_wait_seconds=1.2, share=0.2, excess_seconds=36.0)
        made = workers(8, batch_seconds=0.3, newest_batch_seconds=[0.1, 0.1, 0.1, 0.9] * 50, busy_share=0.6)
        usual: dict[str, Any] = {"step": 0.02, "wait": 0.001, "gap": 0.001, "epochs": slow, "workers": made}
        trained = rank(loader=loader(num_workers=8, persistent_workers=False), **usual)
        gain = drafted("epoch-start-stall", scene(run(trained))).gain
        # A round waits 0.78 s for them in the mean: 65% of the pause stays.
        assert gain is not None and 1.05 < gain.low < 1 / (1 - 0.2 * 0.35) < gain.high < 1.12

    def test_workers_that_start_one_after_the_other_hide_what_persistent_ones_take_together(self) -> None:
        # The first batch comes after 0.5 s, those of the last workers after 3.4 s, and a batch takes 2.9 s.
        slow = replace(self.SLOW, count=7, first_wait_seconds=0.53, share=0.1, excess_seconds=24.0)
        made = workers(64, batch_seconds=2.9, newest_batch_seconds=[2.8, 3.0] * 100, busy_share=0.7, cpu_cores=0.2)
        trained = rank(step=0.084, epochs=slow, workers=made, loader=loader(num_workers=64, persistent_workers=False))
        draft = drafted("epoch-start-stall", scene(run(trained)), frozenset())
        assert draft.fix is not None and draft.fix.code is not None and "RandomSampler" in draft.fix.code

    def test_workers_that_persist_and_vary_are_no_work_of_a_sampler(self) -> None:
        # Of eight batches that take 0.1 to 0.3 s the first N are waited for longer than for one.
        slow = replace(
            self.SLOW, count=100, first_wait_seconds=0.2, usual_wait_seconds=0.0005, share=0.15, excess_seconds=28.0
        )
        made = workers(8, batch_seconds=0.2, newest_batch_seconds=[0.1, 0.15, 0.2, 0.25, 0.3] * 40, busy_share=0.6)
        trained = rank(step=0.011, epochs=slow, workers=made, loader=loader(num_workers=8))
        draft = drafted("epoch-start-stall", scene(run(trained)), frozenset())
        assert draft.fix is not None and "Join" in draft.fix.text

    def test_where_a_first_batch_is_waited_for_epochs_are_joined(self) -> None:
        slow = replace(self.SLOW, first_wait_seconds=0.43, share=0.1, excess_seconds=1.72)
        made = workers(8, batch_seconds=0.87, busy_share=0.5)
        for persists in (False, True):
            trained = rank(epochs=slow, loader=loader(num_workers=8, persistent_workers=persists), workers=made)
            draft = drafted("epoch-start-stall", scene(run(trained)), frozenset())
            assert draft.severity is Severity.WARNING
            assert draft.fix is not None and draft.fix.edit is None
            assert draft.fix.code == "DataLoader(..., sampler=RandomSampler(dataset, num_samples=10 * len(dataset)))"
            assert draft.gain is not None and draft.gain.low > 1.05
        behind = replace(trained, workers=replace(made, busy_share=0.98), step_seconds=None)
        assert check("epoch-start-stall", run_case(scene(run(behind)), holding=STARVED)) is None, (
            "behind throughout, a longer epoch waits as long in all"
        )

    def test_what_their_rule_does_not_warn_of_counts_as_starvation(self) -> None:
        full = {"host": host(cpu_percent=98), "gpus": [gpu(utilization=84)]}
        slow = replace(self.SLOW, first_wait_seconds=0.43, share=0.1, excess_seconds=1.72)
        usual: dict[str, Any] = {
            "loader": loader(num_workers=8, persistent_workers=False),
            "workers": workers(8, batch_seconds=0.87, busy_share=0.5),
        }
        late = scene(run(rank(step=0.1, wait=0.005, gap=0.005, epochs=slow, **usual)), **full)
        assert check("epoch-start-stall", run_case(late)) is None, "workers that persist make the same first batches"
        draft = drafted("data-starvation", late, frozenset())
        assert draft.fires and draft.severity is Severity.WARNING
        assert "GPU idles 15% of the time" in draft.summary
        assert {each.name: each.value for each in draft.evidence}["epoch_start_share"] == 0.1
        short = replace(self.SLOW, first_wait_seconds=4.0, share=0.1)  # persistent workers win this back
        moment = scene(run(rank(step=0.1, wait=0.005, gap=0.005, epochs=short, **usual)), **full)
        assert drafted("epoch-start-stall", moment, frozenset()).severity is Severity.WARNING
        assert check("data-starvation", run_case(moment)) is None

    def test_epochs_that_are_joined_come_no_faster_than_workers_and_cores_make_batches(self) -> None:
        slow = replace(self.SLOW, share=0.58)
        busy = workers(4, batch_seconds=2.4, busy_share=0.45)
        trained = rank(step=0.2, epochs=slow, workers=busy, loader=loader(num_workers=4))
        moment = scene(run(trained), host=host(cpu_percent=62))
        gain = drafted("epoch-start-stall", moment, frozenset()).gain
        assert gain is not None and (gain.low, gain.high) == pytest.approx((1 / 0.62, 1 / 0.45), abs=0.001)

    def test_workers_that_persist_leave_sampler_or_dataset(self) -> None:
        fix = drafted("epoch-start-stall", scene(run(rank(epochs=self.SLOW)))).fix
        assert fix is not None and fix.edit is None and "sampler or the dataset" in fix.text

    def test_fewer_batches_than_workers_can_use(self) -> None:
        short = replace(self.SLOW, batches_per_epoch=6)
        made = workers(4, batch_seconds=1.5, busy_share=0.3)
        draft = drafted("epoch-start-stall", scene(run(rank(epochs=short, workers=made))))
        assert draft.fix is not None and draft.fix.value == 1 and "join several epochs" in draft.fix.text
        assert draft.gain is not None and draft.gain.low > 1.1, "joined epochs need no first batches"

    def test_one_epoch_proves_nothing(self) -> None:
        assert check("epoch-start-stall", run_case(scene(run(rank(epochs=replace(self.SLOW, count=1)))))) is None

    def test_between_three_and_five_percent_it_neither_starts_nor_ends(self) -> None:
        assert not drafted("epoch-start-stall", scene(run(rank(epochs=replace(self.SLOW, share=0.04))))).fires
