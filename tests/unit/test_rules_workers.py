"""Workers that are pinned, threaded, bursty, growing, too fast to help or short of shared memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from queued_runs import queued
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
from stack_windows import from_outside, line, sampled, share, watched

from gpuwatch.diagnosis.finding import CallEdit, Draft, Finding, Level, Severity, WorkerInitEdit
from gpuwatch.timeline.windows import LineShare, MemoryGrowth, Scene, WorkerPace, WorkerShare, WorkerTotals

STARVED = frozenset({"data-starvation"})
GIB = 2**30


def of(said: tuple[Finding, ...], rule: str) -> Finding:
    (finding,) = [finding for finding in said if finding.rule == rule]
    return finding


def drafted(rule: str, moment: Scene, holding: frozenset[str] = STARVED) -> Draft:
    draft = check(rule, run_case(moment, holding=holding))
    assert draft is not None
    return draft


def silent(rule: str, moment: Scene, *holding: str) -> bool:
    return check(rule, run_case(moment, holding=STARVED | set(holding))) is None


def texts(found: Draft | Finding) -> str:
    return " | ".join(measure.text for measure in found.evidence)


def cause(said: tuple[Finding, ...]) -> object:
    return next(each.value for each in of(said, "data-starvation").evidence if each.name == "cause")


def starved(made_by: WorkerTotals, *, lost: float = 0.4, **fields: Any) -> Scene:
    """A run that loses a part of its time to waits, whatever its workers do."""
    scene_fields = {name: fields.pop(name) for name in ("host", "machine") if name in fields}
    usual: dict[str, Any] = {"loader": loader(num_workers=made_by.count), "workers": made_by}
    trained = rank(step=0.1, wait=0.1 * lost, gap=0.1 * lost, **(usual | fields))
    return scene(run(trained), gpus=[gpu(utilization=100 * (1 - lost))], **scene_fields)


class TestThreadOversubscription:
    def crowd(self, threads: int = 192, system: float | None = 0.4, libraries: Any = ("cv2",), **fields: Any) -> Scene:
        made_by = workers(12, cpu_cores=0.66, active_threads=threads, system_share=system)
        usual: dict[str, Any] = {
            "host": host(cpu_percent=100, pressure_cpu_percent=80),
            "machine": machine(8),
            "process": process(cores=8, tree_cores=8.0, latest={"libraries": libraries}),
        }
        return starved(made_by, **(usual | fields))

    def test_hundreds_of_threads_on_eight_cores(self) -> None:
        said = findings(self.crowd())
        finding = of(said, "thread-oversubscription")
        assert finding.summary == (
            "192 threads of 12 workers compete for 8 CPU cores: a library in each worker starts its own"
        )
        assert finding.gain is not None and finding.hint is None
        assert (finding.gain.low, finding.gain.high) == pytest.approx((0.95 / 0.6, 1.05 / 0.6), abs=0.001)
        assert cause(said) == "thread-oversubscription"
        assert {"too-many-workers", "host-cpu-exhausted", "workers-too-few", "worker-cpu-bound"}.isdisjoint(
            each.rule for each in said
        )

    def test_launches_that_wait_for_a_core_are_lost_time_too(self) -> None:
        late = process(cores=8, tree_cores=8.0, run_delay_share=0.12)
        crowded = replace(self.crowd(lost=0.04, process=late), gpus=(gpu(utilization=33),))
        draft = drafted("thread-oversubscription", crowded)
        assert draft.fires and draft.severity is Severity.WARNING
        assert "the training thread waits for a core 12%" in texts(draft)
        busy = replace(self.crowd(lost=0.04, process=late), gpus=(gpu(utilization=96),))
        assert not drafted("thread-oversubscription", busy).fires  # the GPU had enough queued

    def test_what_a_batch_waits_for_storage_stays(self) -> None:
        # Half of the time of 12 workers that are never ready is storage: of 0.6 lost at least 0.5 stays, not a fourth.
        made_by = workers(12, cpu_cores=0.45, active_threads=192, system_share=0.4, blocked_share=0.5, busy_share=1.0)
        usual = {"host": host(cpu_percent=100, pressure_cpu_percent=80), "machine": machine(8)}
        reading = starved(made_by, lost=0.6, process=process(cores=8, tree_cores=8.0), **usual)
        brought = drafted("thread-oversubscription", reading)
        assert brought.gain is None or brought.gain.high < 1.95
        assert brought.hint is None or "1.8x at most" in brought.hint

    def test_opencv_is_advised_to_use_one_thread_by_an_edit(self) -> None:
        fix = drafted("thread-oversubscription", self.crowd()).fix
        assert fix is not None and isinstance(fix.edit, WorkerInitEdit)
        assert fix.edit.statements == ("cv2.setNumThreads(0)", "cv2.ocl.setUseOpenCL(False)")
        assert (fix.edit.line, fix.value) == (88, 1)

    def test_numpy_gets_it_from_the_environment(self) -> None:
        fix = drafted("thread-oversubscription", self.crowd(libraries=("openblas", "openmp"))).fix
        assert fix is not None and fix.edit is None
        assert fix.code == "OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python train.py"
        assert "OpenBLAS is loaded" in fix.text
        assert fix.trial_settings == {f"env.{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}

    def test_a_training_on_the_cpu_keeps_its_own_threads(self) -> None:
        fix = drafted("thread-oversubscription", self.crowd(libraries=("openblas",), device="cpu")).fix
        assert fix is not None and fix.code == "OPENBLAS_NUM_THREADS=1 python train.py"
        fix = drafted("thread-oversubscription", self.crowd(libraries=("mkl",), device="cpu")).fix
        assert fix is not None and fix.code is not None and "threadpoolctl.threadpool_limits(1)" in fix.code

    def test_launches_that_the_crowd_slows_down_count_too(self) -> None:
        idle = replace(self.crowd(lost=0.4), gpus=(gpu(utilization=27),))
        gain = drafted("thread-oversubscription", idle).gain
        # Loading takes 0.97 of a 0.1 s step now; with a quarter of it the GPU's 27 ms are the longer.
        assert gain is not None and gain.low < 1 / 0.27 < gain.high

    def test_where_a_threads_own_time_decides_there_is_no_promise(self) -> None:
        idle = replace(self.crowd(lost=0.4), gpus=(gpu(utilization=18),))
        draft = drafted("thread-oversubscription", idle)
        assert draft.gain is None and draft.hint is not None
        assert "4.0x by what others measured, 5.6x at most" in draft.hint

    def test_no_more_is_named_than_was_ever_measured(self) -> None:
        hint = drafted("thread-oversubscription", self.crowd(lost=0.98)).hint
        assert hint is not None and "10.0x at most" in hint

    def test_fewer_workers_than_cores_may_use_several_threads_each(self) -> None:
        made_by = workers(2, cpu_cores=3.9, active_threads=64, system_share=0.5)
        fix = drafted("thread-oversubscription", self.crowd(workers=made_by, loader=loader(num_workers=2))).fix
        assert fix is not None and fix.value == 4
        assert fix.code is not None and "cv2.setNumThreads(4)" in fix.code

    def test_the_line_at_work_tells_which_library_it_is(self) -> None:
        seen = watched(
            {"wait": 0.4},
            worker_phases={"item": 0.9},
            worker_lines=[line("item", 31, 0.6, text="u = np.linalg.svd(x)")],
        )
        fix = drafted("thread-oversubscription", self.crowd(libraries=("cv2", "openblas"), stacks=seen)).fix
        assert fix is not None and fix.code is not None and "OPENBLAS_NUM_THREADS=1" in fix.code

    def test_threads_that_leave_half_of_the_cores_alone_fight_for_nothing(self) -> None:
        rest = {"active_threads": 24, "system_share": 0.5}
        crowded, calm = workers(12, cpu_cores=0.4, **rest), workers(12, cpu_cores=0.3, **rest)
        assert drafted("thread-oversubscription", self.crowd(workers=crowded)).fires
        assert silent("thread-oversubscription", self.crowd(workers=calm))

    def test_a_high_load_is_a_sign_too(self) -> None:
        loaded = host(cpu_percent=100, latest={"load_1m": 16.0})
        assert drafted("thread-oversubscription", self.crowd(system=None, host=loaded)).fires
        calmer = host(cpu_percent=100, latest={"load_1m": 15.0})
        assert not drafted("thread-oversubscription", self.crowd(system=None, host=calmer)).fires

    @pytest.mark.parametrize(
        "fields",
        [{"threads": 15}, {"system": 0.2}, {"lost": 0.04}],
        ids=["just under two threads per core", "the kernel has little to do", "hardly any wait"],
    )
    def test_near_misses_do_not_fire(self, fields: dict[str, Any]) -> None:
        made_by = workers(
            2, cpu_cores=3.9, active_threads=fields.get("threads", 192), system_share=fields.get("system", 0.4)
        )
        moment = self.crowd(workers=made_by, loader=loader(num_workers=2), **fields)
        assert not drafted("thread-oversubscription", moment).fires

    def test_sleeping_threads_do_not_count(self) -> None:
        sleepers = workers(12, cpu_cores=0.66, threads=600, active_threads=9)
        assert silent("thread-oversubscription", self.crowd(workers=sleepers))
        unknown = workers(12, cpu_cores=0.66, threads=600)
        assert silent("thread-oversubscription", self.crowd(workers=unknown))

    def test_many_workers_of_one_thread_have_their_own_rule(self) -> None:
        single = workers(28, cpu_cores=0.29, active_threads=28, system_share=0.4)
        said = fired(self.crowd(workers=single, loader=loader(num_workers=28)))
        assert "thread-oversubscription" not in said and "too-many-workers" in said

    @pytest.mark.parametrize("other", ["io-bound", "cpu-quota-throttled", "worker-affinity-pinned"])
    def test_what_comes_first_in_the_tree_is_left_to_it(self, other: str) -> None:
        assert silent("thread-oversubscription", self.crowd(), other)

    def test_from_outside_it_says_the_same(self) -> None:
        seen = watched({"wait": 0.4, "forward": 0.6}, worker_phases={"item": 0.9})
        made_by = workers(12, cpu_cores=0.66, active_threads=192, system_share=0.4, busy_share=None)
        trained = sampled(
            seen,
            loader=from_outside(num_workers=12),
            workers=made_by,
            process=process(cores=8, tree_cores=8.0, latest={"libraries": ("cv2",)}),
        )
        moment = scene(run(trained), gpus=[gpu(utilization=60)], host=host(cpu_percent=100), machine=machine(8))
        finding = of(findings(moment), "thread-oversubscription")
        assert finding.fix is not None and finding.fix.edit is None
        assert (finding.fix.file, finding.fix.line) == ("/home/user/train.py", 60)


class TestWorkerAffinityPinned:
    def pinned(self, seen: int | None = 1, affinity: int | None = 1, own: int = 16, **fields: Any) -> Scene:
        made_by = workers(
            4, cpu_cores=0.25, busy_share=0.99, batch_seconds=0.4, batch_cpu_seconds=0.1,
            max_affinity_cores=affinity, cores_seen=seen,
        )  # fmt: skip
        usual: dict[str, Any] = {
            "process": process(cores=own, tree_cores=1.5),
            "facts": {"cpu_affinity": own},
            "host": host(cpu_percent=12),
        }
        return starved(made_by, **(usual | fields))

    def test_four_workers_on_one_core(self) -> None:
        said = findings(self.pinned())
        finding = of(said, "worker-affinity-pinned")
        assert finding.summary == "The 4 workers share 1 CPU core, while the training process may use 16"
        assert finding.fix is not None and isinstance(finding.fix.edit, WorkerInitEdit)
        assert finding.fix.edit.statements == ("os.sched_setaffinity(0, range(os.cpu_count()))",)
        assert finding.fix.value == 16
        assert finding.gain is not None and 1.3 < finding.gain.high <= 1 / 0.6 + 0.001
        assert cause(said) == "worker-affinity-pinned"
        assert "workers-too-few" not in {each.rule for each in said}

    def test_workers_on_a_core_each_are_placed_on_purpose(self) -> None:
        assert silent("worker-affinity-pinned", self.pinned(seen=4))

    def test_a_process_that_may_use_few_cores_was_given_few(self) -> None:
        assert silent("worker-affinity-pinned", self.pinned(own=3))

    def test_three_cores_each_are_not_pinned(self) -> None:
        assert silent("worker-affinity-pinned", self.pinned(affinity=3))

    def test_unknown_affinities_and_cores_say_nothing(self) -> None:
        assert silent("worker-affinity-pinned", self.pinned(affinity=None))
        assert silent("worker-affinity-pinned", self.pinned(seen=None))

    def test_it_needs_a_wait(self) -> None:
        assert check("worker-affinity-pinned", run_case(self.pinned())) is None

    @pytest.mark.parametrize("other", ["slow-samples", "io-bound", "cpu-quota-throttled"])
    def test_what_comes_first_in_the_tree_is_left_to_it(self, other: str) -> None:
        assert silent("worker-affinity-pinned", self.pinned(), other)


class TestSlowWorker:
    """One worker of four is busy all the time, the others wait for its batch."""

    def paces(self, *busy: float, batches: int = 40) -> tuple[WorkerPace, ...]:
        return tuple(WorkerPace(9000 + place, batches, 0.4 * each, each) for place, each in enumerate(busy))

    def shards(self, *busy: float, batches: int = 40, lost: float = 0.6, **fields: Any) -> Scene:
        mean = sum(busy) / len(busy)
        made_by = workers(4, cpu_cores=mean, busy_share=mean, batch_seconds=0.4 * mean, by_worker=self.paces(*busy))
        if batches != 40:
            made_by = replace(made_by, by_worker=self.paces(*busy, batches=batches))
        usual: dict[str, Any] = {"loader": loader(num_workers=4, iterable=True), "workers": made_by}
        trained = rank(step=0.1, wait=0.1 * lost, gap=0.1 * lost, **(usual | fields))
        return scene(run(trained), gpus=[gpu(utilization=100 * (1 - lost))])

    def test_it_is_named_with_its_pid_and_what_the_others_do(self) -> None:
        moment = self.shards(0.1, 0.08, 1.0, 0.09)
        finding = of(findings(moment), "slow-worker")
        assert finding.summary == (
            "One of 4 workers holds up all batches: process 9002 is busy 100% of the time, the others at most 10%"
        )
        assert cause(findings(moment)) == "slow-worker"
        assert "a batch takes it 400 ms, the others 36 ms" in texts(finding)
        fix = finding.fix
        assert fix is not None and "get_worker_info()" in fix.text
        assert isinstance(fix.edit, CallEdit) and fix.edit.keywords == {"in_order": "False"}
        assert fired(moment) & {"bursty-prefetch", "workers-too-few", "slow-collate-ipc"} == set()

    def test_its_line_is_named_where_stacks_show_it(self) -> None:
        seen = watched({"wait": 0.6}, batches_per_second=None, by_worker=self.seen(0.1, 0.1, 1.0, 0.1))
        finding = of(findings(self.shards(0.1, 0.08, 1.0, 0.09, stacks=seen)), "slow-worker")
        assert "busy 100% of the time (data.py:13), the others" in finding.summary

    def seen(self, *busy: float, samples: int = 400) -> tuple[WorkerShare, ...]:
        line = LineShare("item", "/home/user/data.py", 13, "read", 390, share(0.97, 400), text="return file.read()")
        return tuple(
            WorkerShare(9000 + place, samples, share(each, samples), line if each > 0.9 else None)
            for place, each in enumerate(busy)
        )

    def test_from_outside_their_stacks_say_the_same(self) -> None:
        waits = [(1.0, 0.6)] * 30
        seen = watched(
            {"wait": 0.6}, worker_phases={"item": 0.3}, by_worker=self.seen(0.1, 0.1, 0.99, 0.1), waits=waits
        )
        moment = scene(run(sampled(seen, loader=from_outside(num_workers=4))), gpus=[gpu(utilization=40)])
        finding = of(findings(moment), "slow-worker")
        assert "process 9002 is busy 99% of the time (data.py:13), the others at most 10%" in finding.summary
        assert finding.level is Level.E1

    def test_one_that_got_the_slow_items_of_the_window_is_not_slow_itself(self) -> None:
        paces = [replace(each, batch_seconds=0.04) for each in self.paces(0.1, 0.1, 1.0, 0.1)]
        made_by = workers(4, busy_share=0.3, batch_seconds=0.13, by_worker=tuple(paces))
        assert silent("slow-worker", self.shards(0.1, 0.1, 1.0, 0.1, workers=made_by))

    def test_nor_from_outside_where_its_waits_take_seconds_but_its_load_is_told(self) -> None:
        waits = [(1.0, 1.0 if place % 12 else 0.0) for place in range(60)]
        by_worker = self.seen(0.1, 0.1, 0.99, 0.1)
        seen = watched({"wait": 0.9}, worker_phases={"item": 0.3}, by_worker=by_worker, waits=waits)
        moment = scene(run(sampled(seen, loader=from_outside(num_workers=4))), gpus=[gpu(utilization=10)])
        assert silent("slow-worker", moment)
        fix = of(findings(moment), "data-starvation").fix
        assert fix is not None
        assert fix.text.startswith("One worker, process 9002, is busy 99% of the time and the others at most 10%")

    def test_half_of_the_workers_may_be_slow(self) -> None:
        assert "2 of 4 workers hold up all batches" in drafted("slow-worker", self.shards(0.1, 1.0, 1.0, 0.1)).summary

    def test_it_promises_from_even_work_to_each_at_its_own_pace_and_no_more_than_is_lost(self) -> None:
        gain = drafted("slow-worker", self.shards(0.5, 0.5, 1.0, 0.5)).gain
        assert gain is not None and (gain.low, gain.high) == (1.6, 1.75)
        gain = drafted("slow-worker", self.shards(0.1, 0.1, 1.0, 0.1, lost=0.3)).gain
        assert gain is not None and (gain.low, gain.high) == (1.37, 1.429)

    @pytest.mark.parametrize(
        "moment",
        [
            pytest.param(((0.97, 0.95, 1.0, 0.96), {}), id="all are busy"),
            pytest.param(((1.0, 1.0, 1.0, 0.1), {}), id="most are busy"),
            pytest.param(((0.1, 0.7, 1.0, 0.1), {}), id="one is in between"),
            pytest.param(((0.1, 0.1, 0.6, 0.1), {}), id="none is busy"),
            pytest.param(((0.1, 0.1, 1.0, 0.1), {"batches": 4}), id="too few batches"),
            pytest.param(((0.1, 1.0, 0.1), {}), id="not all of them were seen"),
            pytest.param(
                ((0.1, 0.1, 1.0, 0.1), {"loader": loader(num_workers=4, in_order=False)}),
                id="batches are handed over out of order",
            ),
        ],
    )
    def test_silent(self, moment: tuple[tuple[float, ...], dict[str, Any]]) -> None:
        busy, fields = moment
        assert silent("slow-worker", self.shards(*busy, **fields))

    def test_it_needs_a_wait(self) -> None:
        assert check("slow-worker", run_case(self.shards(0.1, 0.1, 1.0, 0.1))) is None


class TestPinThread:
    def pinned(self, busy: float = 0.97, workers_busy: float = 0.2, looks: int = 400, wait: float = 0.5) -> Scene:
        phases = {"pin": share(busy, looks), "pin-idle": share(1 - busy, looks)}
        fields: dict[str, Any] = {"feeder_rounds": looks, "feeder_samples": looks, "feeder_phases": phases}
        seen = watched({"wait": wait}, worker_phases={"item": workers_busy}, **fields)
        member = sampled(seen, loader=from_outside(num_workers=4, pin_memory=True))
        return scene(run(member), gpus=[gpu(utilization=40)])

    def test_one_that_is_busy_while_the_workers_are_not_is_the_cause(self) -> None:
        said = findings(self.pinned())
        assert cause(said) == "pin-thread-bound"
        finding = of(said, "pin-thread-bound")
        assert finding.summary == (
            "The one thread that pins the loader's batches cannot keep up: it is busy 97% of the time, the workers 20%"
        )
        assert finding.gain is not None and (finding.gain.low, finding.gain.high) == (1.0, 2.0)

    @pytest.mark.parametrize(
        "moment",
        [{"busy": 0.6}, {"workers_busy": 0.9}, {"looks": 100}],
        ids=["it has time to spare", "the workers are the limit", "too few samples"],
    )
    def test_silent(self, moment: dict[str, Any]) -> None:
        assert silent("pin-thread-bound", self.pinned(**moment))

    def test_between_its_thresholds_it_neither_fires_nor_clears_and_it_needs_a_wait(self) -> None:
        assert not drafted("pin-thread-bound", self.pinned(busy=0.8)).fires
        assert check("pin-thread-bound", run_case(self.pinned())) is None


class TestBurstyPrefetch:
    def bursts(self, sigma: float | None = 0.05, lost: float = 0.07, busy: float = 0.6, **fields: Any) -> Scene:
        noise = random.Random(3)
        waits = [noise.choice((0.0, 0.0, 0.0, 2 * lost, 2 * lost)) * 0.125 for _ in range(597)]
        made_by = workers(
            4, cpu_cores=0.5, busy_share=busy, batch_seconds=0.1, batch_cpu_seconds=0.05, batch_seconds_sigma=sigma
        )
        usual: dict[str, Any] = {"loader": loader(num_workers=4, batch_bytes=10_000_000), "workers": made_by}
        trained = rank(step=[0.1 + wait for wait in waits], wait=waits, gap=waits, **(usual | fields))
        return scene(run(trained), gpus=[gpu(utilization=92)])

    def test_workers_with_time_to_spare_that_let_the_run_wait(self) -> None:
        moment = self.bursts()
        finding = of(findings(moment), "bursty-prefetch")
        assert finding.severity is Severity.INFO
        assert finding.fix is not None and isinstance(finding.fix.edit, CallEdit)
        assert finding.fix.value == 4 and finding.fix.edit.keywords == {"prefetch_factor": "4"}
        assert finding.gain is None and finding.hint is not None

    def test_where_batches_are_timed_the_queue_is_as_deep_as_they_need_and_its_gain_promised(self) -> None:
        """Two workers take 5 ms for a batch and for every third 70 ms, in no order; a step takes 20 ms."""
        chance = random.Random(4)
        making = [chance.choice((0.005, 0.005, 0.07)) for _ in range(800)]
        draft = drafted("bursty-prefetch", queued(making, 0.02, count=2))
        assert draft.fix is not None and draft.fix.value == 4
        assert draft.gain is not None and draft.hint is None
        starved_share = next(each.value for each in draft.evidence if each.name == "starvation_share")
        assert isinstance(starved_share, float)
        assert 1.0 < draft.gain.low < 1.0 / (1.0 - starved_share) < draft.gain.high < 1.2
        moment = queued(making, 0.02, count=2)
        ranks = moment.runs[0].ranks * 2
        several = drafted("bursty-prefetch", replace(moment, runs=(run(*ranks),)))
        assert several.gain is None and several.hint is not None, "each rank waits for the others' bursts too"

    def test_workers_that_could_not_keep_up_if_they_never_idled_are_too_few(self) -> None:
        """Four take 0.8 s for a batch, give or take 40%, and a step 0.16 s: in order they idle 18% of their time."""
        chance = random.Random(4)
        making = [chance.lognormvariate(-0.3, 0.4) for _ in range(400)]
        moment = queued(making, 0.16, busy_share=0.82)
        assert silent("bursty-prefetch", moment)
        assert drafted("workers-too-few", moment).fires
        slow_items = [10.0 if place % 40 == 20 else 0.4 for place in range(800)]
        assert silent("workers-too-few", queued(slow_items, 0.16)), "those are what makes the mean batch take too long"

    def test_workers_that_stand_in_line_for_a_core_are_no_bursts_of_batches(self) -> None:
        made = {"cpu_cores": 0.5, "busy_share": 0.6, "batch_seconds": 0.1, "batch_cpu_seconds": 0.05}
        for in_line, is_silent in ((0.05, False), (0.2, True)):
            crowd = workers(4, batch_seconds_sigma=0.05, run_delay_share=in_line, **made)
            assert silent("bursty-prefetch", self.bursts(workers=crowd)) is is_silent

    def test_bursts_that_no_queue_smooths_are_not_blamed_on_it(self) -> None:
        making = [30.0 if place == 400 else 0.005 for place in range(800)]
        assert silent("bursty-prefetch", queued(making, 0.02))

    def test_it_is_the_cause_of_a_starved_run_that_nothing_else_explains(self) -> None:
        assert cause(findings(self.bursts(lost=0.2))) == "bursty-prefetch"

    def test_even_batches_busy_workers_and_small_waits_are_silent(self) -> None:
        assert silent("bursty-prefetch", self.bursts(sigma=0.02))
        assert silent("bursty-prefetch", self.bursts(sigma=None))
        assert silent("bursty-prefetch", self.bursts(busy=0.9))
        assert silent("bursty-prefetch", self.bursts(lost=0.01))

    def test_between_three_and_five_percent_it_neither_fires_nor_clears(self) -> None:
        assert not drafted("bursty-prefetch", self.bursts(lost=0.045)).fires

    def test_a_comb_is_too_few_workers(self) -> None:
        waits = [0.0, 0.0, 0.0, 0.08]
        moment = self.bursts()
        combed = rank(
            step=[0.1 + wait for wait in waits], wait=waits, gap=waits, workers=moment.runs[0].critical.workers
        )
        assert silent("bursty-prefetch", replace(moment, runs=(run(combed),)))

    def test_a_queue_that_is_as_deep_or_does_not_fit_is_left(self) -> None:
        assert silent("bursty-prefetch", self.bursts(loader=loader(num_workers=4, prefetch_factor=8)))
        small = host(latest={"shm_total_bytes": 100_000_000, "shm_used_bytes": 0})
        assert silent("bursty-prefetch", replace(self.bursts(), host=small))

    def test_slow_samples_come_first(self) -> None:
        assert silent("bursty-prefetch", self.bursts(), "slow-samples")


class TestEpochTooShort:
    def short(self, batches: int | None = 10, count: int = 8, **fields: Any) -> Scene:
        used = loader(num_workers=count, batches_per_epoch=batches)
        return scene(run(rank(loader=used, workers=workers(count, busy_share=0.3, cpu_cores=0.2), **fields)))

    def test_fewer_than_two_batches_for_each_worker(self) -> None:
        finding = of(findings(self.short()), "epoch-too-short")
        assert finding.severity is Severity.INFO
        assert finding.fix is not None and isinstance(finding.fix.edit, CallEdit)
        assert finding.fix.edit.keywords == {"num_workers": "2"}

    def test_two_for_each_are_enough_and_no_length_tells_nothing(self) -> None:
        assert silent("epoch-too-short", self.short(batches=16))
        assert silent("epoch-too-short", self.short(batches=None))
        assert silent("epoch-too-short", self.short(count=0))

    def test_one_worker_cannot_be_fewer(self) -> None:
        assert silent("epoch-too-short", self.short(batches=1, count=1))

    def test_workers_that_are_all_needed_stay(self) -> None:
        busy = workers(8, busy_share=0.97)
        used = loader(num_workers=8, batches_per_epoch=10)
        assert silent("epoch-too-short", starved(busy, loader=used))

    def test_it_is_the_cause_of_waits_that_busy_workers_do_not_explain(self) -> None:
        idle = workers(8, busy_share=0.3, cpu_cores=0.2)
        assert cause(findings(starved(idle, loader=loader(num_workers=8, batches_per_epoch=10)))) == "epoch-too-short"


class TestShmPressure:
    def mount(self, used: float, *, total: float = 4.0, inside: bool = False, **fields: Any) -> Scene:
        latest = {"shm_total_bytes": int(total * GIB), "shm_used_bytes": int(used * GIB)}
        trained = rank(process=process(latest=latest), **fields)
        return scene(run(trained), machine=machine(container=inside))

    def test_nearly_full_warns_and_full_is_critical(self) -> None:
        finding = of(findings(self.mount(3.5)), "shm-pressure")
        assert finding.severity is Severity.WARNING
        assert finding.summary == "/dev/shm has 0.5 GiB of 4.0 GiB left: workers that find it full crash or hang"
        assert of(findings(self.mount(3.9)), "shm-pressure").severity is Severity.CRITICAL

    def test_the_size_is_twice_what_is_needed(self) -> None:
        fix = drafted("shm-pressure", self.mount(3.5, inside=True)).fix
        assert fix is not None
        assert (fix.code, fix.value) == ("docker run --shm-size=7g", 7)
        outside = drafted("shm-pressure", self.mount(3.5)).fix
        assert outside is not None and outside.code == "mount -o remount,size=7G /dev/shm"

    def test_what_full_queues_need_counts_before_they_are_full(self) -> None:
        large = loader(num_workers=8, batch_bytes=60 * 2**20)
        moment = self.mount(0.1, total=1.0, loader=large)
        draft = drafted("shm-pressure", moment)
        assert draft.fires and draft.severity is Severity.WARNING
        assert "need 0.9 GiB of the 1.0 GiB" in draft.summary

    def test_all_ranks_of_the_machine_share_it(self) -> None:
        used = loader(num_workers=4, batch_bytes=20 * 2**20)
        alone = self.mount(0.1, total=1.0, loader=used)
        assert silent("shm-pressure", alone)
        eight = self.mount(0.1, total=1.0, loader=used, facts={"local_world_size": 8})
        assert drafted("shm-pressure", eight).fires

    def test_batches_that_go_through_files_need_none_of_it(self) -> None:
        large = loader(num_workers=8, batch_bytes=60 * 2**20)
        assert silent("shm-pressure", self.mount(0.0, total=1.0, loader=large))

    def test_room_and_no_workers_are_silent(self) -> None:
        assert silent("shm-pressure", self.mount(2.3))
        assert not drafted("shm-pressure", self.mount(3.1)).fires
        assert silent("shm-pressure", self.mount(3.9, loader=loader(num_workers=0)))

    def test_an_unknown_mount_is_silent(self) -> None:
        unknown = host(latest={"shm_total_bytes": None, "shm_used_bytes": None})
        assert silent("shm-pressure", scene(run(rank()), host=unknown))

    def test_it_speaks_before_the_first_step(self) -> None:
        moment = self.mount(3.9, steps_total=0, steps=1, warm=False)
        assert "shm-pressure" in fired(moment)

    def test_only_a_full_mount_is_the_cause_of_a_wait(self) -> None:
        made_by = workers(4, busy_share=0.97)
        for used, expected in ((3.5, False), (3.9, True)):
            latest = {"shm_total_bytes": 4 * GIB, "shm_used_bytes": int(used * GIB)}
            said = findings(starved(made_by, process=process(latest=latest)))
            assert (cause(said) == "shm-pressure") is expected


class TestWorkerMemoryGrowth:
    def growing(
        self, per_second: float = 4 * 2**20, fit: float = 0.95, main: float | None = 0.0, **fields: Any
    ) -> Scene:
        growth = MemoryGrowth(per_second, fit, 590.0, 1.5 * GIB, main)
        trained = rank(workers=workers(4, growth=growth))
        usual: dict[str, Any] = {
            "host": host(latest={"memory_total_bytes": 128 * GIB, "memory_available_bytes": 36 * GIB})
        }
        return scene(run(trained), **(usual | fields))

    def test_it_says_when_memory_is_used_up(self) -> None:
        finding = of(findings(self.growing()), "worker-memory-growth")
        assert finding.summary == (
            "The workers grow by 14.1 GiB an hour: memory is used up in about 99.0 min, and then the job is killed"
        )
        assert finding.fix is not None and "2 instead of 4 workers last 3.3 h" in finding.fix.text

    def test_a_training_process_that_grows_alike_leaks_itself(self) -> None:
        fix = drafted("worker-memory-growth", self.growing(main=2**20)).fix
        assert fix is not None and "training process grows as well" in fix.text

    def test_the_containers_limit_may_be_nearer(self) -> None:
        latest = {"cgroup_memory_limit_bytes": 40 * GIB, "cgroup_memory_used_bytes": 30 * GIB}
        growth = MemoryGrowth(2**20, 0.95, 590.0, GIB, None)
        moment = scene(run(rank(workers=workers(4, growth=growth), process=process(latest=latest))))
        assert "102.4 min" in drafted("worker-memory-growth", moment).summary

    def test_slow_growth_no_line_and_no_growth_are_silent(self) -> None:
        assert silent("worker-memory-growth", self.growing(per_second=2**20))
        assert not drafted("worker-memory-growth", self.growing(per_second=3 * 2**20)).fires
        assert silent("worker-memory-growth", self.growing(fit=0.7))
        assert silent("worker-memory-growth", self.growing(per_second=-1.0))

    def test_what_is_not_known_is_silent(self) -> None:
        assert silent("worker-memory-growth", scene(run(rank(workers=workers(4)))))
        assert silent("worker-memory-growth", self.growing(host=None))


class TestLoaderOverheadFloor:
    def floor(
        self, step: float = 0.009, wait: float | list[float] = 0.0012, busy: float = 0.05, **fields: Any
    ) -> Scene:
        made_by = workers(4, cpu_cores=0.1, busy_share=busy, batch_seconds=busy * 4 * step)
        usual: dict[str, Any] = {"loader": loader(num_workers=4), "workers": made_by, "gap": 0.0}
        return scene(run(rank(step=step, wait=wait, **(usual | fields))))

    def test_the_handover_of_a_ready_batch(self) -> None:
        finding = of(findings(self.floor()), "loader-overhead-floor")
        assert finding.severity is Severity.INFO
        assert finding.summary == (
            "Receiving a ready batch costs 1.2 ms of a step of 9 ms, and no number of workers makes it faster"
        )
        assert finding.fix is not None and finding.fix.value == 1

    def test_batches_that_are_cheaper_than_their_handover_need_no_workers(self) -> None:
        fix = drafted("loader-overhead-floor", self.floor(busy=0.01)).fix
        assert fix is not None and isinstance(fix.edit, CallEdit)
        assert fix.edit.keywords == {"num_workers": "0", "persistent_workers": "False", "prefetch_factor": "None"}

    def test_workers_too_few_is_silent_then(self) -> None:
        assert silent("workers-too-few", starved(workers(1)), "loader-overhead-floor")

    @pytest.mark.parametrize(
        "fields",
        [{"step": 0.025}, {"wait": 0.004}, {"wait": 0.0001}, {"busy": 0.25}, {"wait": 0.00025}],
        ids=["long steps", "long waits", "no waits", "busy workers", "too little to matter"],
    )
    def test_other_shapes_are_silent(self, fields: dict[str, Any]) -> None:
        assert silent("loader-overhead-floor", self.floor(**fields))

    def test_a_few_long_waits_are_another_shape(self) -> None:
        assert silent("loader-overhead-floor", self.floor(wait=[0.0012] * 9 + [0.03]))

    def test_without_workers_there_is_no_handover(self) -> None:
        assert silent("loader-overhead-floor", self.floor(loader=loader(num_workers=0)))

    def test_from_outside_the_mean_wait_stands_for_all(self) -> None:
        seen = watched({"wait": 0.13, "forward": 0.8}, worker_phases={"item": 0.05}, batches_per_second=110.0)
        trained = sampled(seen, loader=from_outside(num_workers=4))
        draft = drafted("loader-overhead-floor", scene(run(trained), gpus=[gpu(utilization=85)]))
        assert draft.fires and draft.level == 1


class TestTree:
    """Causes that were ruled out are named with their numbers."""

    def ruled_out(self, **fields: Any) -> dict[str, str]:
        draft = drafted("data-starvation", starved(workers(1, cpu_cores=0.9, batch_seconds=0.3, **fields)))
        return {rival.cause: rival.reason for rival in draft.ruled_out}

    def test_threads_cores_and_memory_are_ruled_out_where_they_are_known(self) -> None:
        found = self.ruled_out(active_threads=3)
        assert found["threads"] == "3 threads of the workers are at work on 16 cores"
        assert found["memory"] == "80% of the memory is free"
        assert "pinned workers" not in found

    def test_the_unknown_rules_out_nothing(self) -> None:
        assert "threads" not in self.ruled_out()
        several = workers(4, busy_share=0.97, cores_seen=4)
        draft = drafted("data-starvation", starved(several))
        assert "the 4 workers were seen on 4 cores" in {rival.reason for rival in draft.ruled_out}


class TestWorkersInLine:
    """On a machine that others fill, workers that compute get little of a core and are no sleepers."""

    def crowded(self, in_line: float | None) -> Scene:
        made_by = workers(
            8, cpu_cores=0.08, busy_share=1.0, batch_seconds=0.8, batch_cpu_seconds=0.064, run_delay_share=in_line
        )
        return starved(
            made_by,
            lost=0.9,
            process=process(cores=2, tree_cores=0.7),
            facts={"cpu_affinity": 2},
            host=host(cpu_percent=100, pressure_cpu_percent=90),
            machine=machine(2),
        )

    def test_they_are_neither_too_many_nor_too_few(self) -> None:
        """Fewer of them would get fewer of the cores that the others fill."""
        said = findings(self.crowded(0.9))
        assert cause(said) == "host-cpu-exhausted"
        assert {"workers-too-few", "too-many-workers"}.isdisjoint(each.rule for each in said)

    def test_workers_that_really_sleep_are_not_too_many(self) -> None:
        assert "too-many-workers" not in fired(self.crowded(0.0))
        assert "too-many-workers" not in fired(self.crowded(None))
