"""The worker formula against what real DataLoaders were measured to do, the caps around it, and a number that stays."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from gpuwatch.diagnosis.advice.cost import StepCost, step_cost
from gpuwatch.diagnosis.advice.gains import from_rarer_phase, middle, phase_shares, without
from gpuwatch.diagnosis.advice.resources import cores_left, foreign_cores
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.advice.stream import autocorrelation, comb, robust_sigma, stretches
from gpuwatch.diagnosis.advice.workers import advise, cpu_workers, filling_workers
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, Finding, Gain
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import Scene
from tests.unit.scene_builder import (
    gpu,
    host,
    later,
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


def cost_of(case: RunCase) -> StepCost:
    starvation = starvation_of(case)
    assert starvation is not None
    cost = step_cost(case, starvation)
    assert cost is not None
    return cost


def on_gpu(load: float, compute: float, **fields: object) -> RunCase:
    usual: dict[str, object] = {"loader": loader(num_workers=0), "wait_cpu_share": 0.02}
    trained = rank(step=load + compute, wait=load, gap=load, **(usual | fields))  # type: ignore[arg-type]
    return run_case(scene(run(trained), gpus=[gpu(utilization=50)]))


def on_cpu(
    load: float,
    compute: float,
    cpu_share: float,
    *,
    cores: int = 2,
    threads: int = 1,
    busy: float = 1.0,
    **fields: object,
) -> RunCase:
    """Training on the CPU, `busy` of whose cores are used by this run while it computes."""
    period = load + compute
    trained = rank(
        step=period,
        wait=load,
        device="cpu",
        loader=loader(num_workers=0, batch_bytes=100_000),
        wait_cpu_share=cpu_share,
        facts={"torch_threads": threads, "cpu_affinity": cores},
        process=process(cores=cores, tree_cores=(load * cpu_share + compute * busy) / period, main_thread_cores=1.0),
        **fields,  # type: ignore[arg-type]
    )
    used = trained.process.tree_cores if trained.process and trained.process.tree_cores else 0.0
    return run_case(scene(run(trained), gpus=[], host=host(cpu_percent=100 * used / cores), machine=machine(cores)))


@pytest.mark.parametrize(("count", "wait_share"), [(1, 0.77), (2, 0.51), (3, 0.29), (4, 0.06), (5, 0.07), (8, 0.05)])
def test_waits_of_real_loaders_are_predicted(count: int, wait_share: float) -> None:
    """80 ms to load, 20 ms to compute, as measured on 2 cores with items that wait."""
    cost = cost_of(on_cpu(0.080, 0.020, 0.0))
    period = max(cost.limits(cost.blocks[0], count, slow=False).values())
    assert 1 - 0.020 / period == pytest.approx(wait_share, abs=0.06)


def test_the_number_of_workers_has_a_fifth_of_margin() -> None:
    case = on_gpu(0.080, 0.020)
    assert advise(case, cost_of(case)).count == 5


@pytest.mark.parametrize(
    ("case", "measured"),
    [
        pytest.param(on_cpu(0.083, 0.0179, 0.02, threads=2, busy=1.9), {2: 2.37, 4: 4.66}, id="items that wait"),
        pytest.param(on_cpu(0.0328, 0.0155, 1.0), {1: 1.43, 2: 1.6}, id="items that compute, one thread"),
        pytest.param(on_cpu(0.033, 0.0107, 1.0, threads=2, busy=2.0), {1: 1.33, 2: 1.47}, id="items that compute"),
        pytest.param(on_cpu(0.0667, 0.0124, 0.26, threads=2, busy=2.0), {2: 2.1, 4: 3.0}, id="items that do both"),
        pytest.param(on_cpu(0.0205, 0.00163, 0.02), {19: 9.87}, id="steps of a millisecond"),
        pytest.param(on_cpu(0.0832, 0.00548, 0.03), {20: 11.0}, id="steps of five milliseconds"),
    ],
)
def test_speed_ups_of_real_runs_lie_in_the_predicted_range(case: RunCase, measured: dict[int, float]) -> None:
    """Plain torch scripts on 2 cores: samples per second with this many workers over those with none."""
    cost = cost_of(case)
    for count, ratio in measured.items():
        gain = cost.gain(count)
        assert gain.low * 0.93 <= ratio <= gain.high * 1.07


def test_without_a_gpu_computing_and_loading_share_the_cores() -> None:
    alone = cost_of(on_cpu(0.030, 0.030, 1.0, cores=16)).gain(2)
    crowded = cost_of(on_cpu(0.030, 0.030, 1.0, cores=2, threads=2, busy=2.0)).gain(2)
    assert middle(alone) == pytest.approx(1.9, abs=0.1)
    assert crowded.high < 1.4


def test_one_worker_is_said_in_the_singular_and_a_cap_as_a_limit() -> None:
    case = on_gpu(0.01, 0.1)
    advice = advise(case, cost_of(case))
    assert advice.arithmetic == "1 worker keeps up, with 20% headroom"
    assert advice.gain.cap == "then the GPU sets the pace"
    crowded = on_cpu(0.060, 0.020, 1.0)
    assert cost_of(crowded).gain(2).cap == "then limited by the 2 CPU cores"
    assert cost_of(on_gpu(0.2, 0.1)).gain(1).cap == "then limited by the one worker"


def with_cpu_percent(case: RunCase, cpu_percent: float) -> RunCase:
    assert case.host is not None
    return replace(case, scene=replace(case.scene, host=replace(case.host, cpu_percent=cpu_percent)))


def test_other_processes_take_cores_from_the_prediction() -> None:
    free = on_cpu(0.060, 0.020, 1.0, cores=4)
    assert foreign_cores(free) == pytest.approx(0.0, abs=0.01)
    busy = with_cpu_percent(free, 85.0)
    assert foreign_cores(busy) == pytest.approx(2.4, abs=0.1)
    assert cost_of(busy).gain(3).high < cost_of(free).gain(3).low


def test_a_cpu_quota_is_no_set_of_cores() -> None:
    """Others use 12 of 32 cores: of a quota of 23 then 20 are left, and of 23 cores of its own by affinity 14.4."""

    def left(**limits: float) -> float:
        own = process(cores=32, main_thread_cores=0.5, tree_cores=4.0, latest={"cpu_capacity_cores": 23.0, **limits})
        seen = scene(run(rank(process=own)), machine=machine(32), host=host(cpu_percent=50.0))
        return cores_left(run_case(seen))

    assert left(cpu_quota_cores=23.0) == pytest.approx(20.0, abs=0.1)
    assert left(affinity_cores=23) == pytest.approx(23.0 - 12.0 * 23 / 32, abs=0.1)


def test_cores_carry_all_threads_of_a_worker() -> None:
    """Eight threads in each of 2 workers: of a second of their CPU time the one that makes the batch shows 0.125."""

    def gain(worker_cores: float) -> Gain:
        made_by = workers(2, cpu_cores=worker_cores, busy_share=1.0, batch_seconds=0.4, batch_cpu_seconds=0.04)
        trained = rank(step=0.2, wait=0.15, gap=0.15, loader=loader(num_workers=2), workers=made_by)
        trained = replace(trained, process=process(cores=4, main_thread_cores=0.1, tree_cores=2 * worker_cores))
        return cost_of(run_case(scene(run(trained), gpus=[gpu(utilization=25)], machine=machine(4)))).gain(8)

    assert gain(0.1).high == pytest.approx(4.0, rel=0.01)
    assert gain(1.6).high == pytest.approx(3.9 / 3.2, rel=0.01), "the cores carry no more of the same work"


def test_on_a_full_machine_the_range_reaches_to_a_fair_share() -> None:
    case = on_cpu(0.060, 0.020, 1.0, cores=4)
    full = cost_of(with_cpu_percent(case, 97.0)).gain(3)
    assert full.high / full.low > 1.5


def test_a_noisy_stretch_widens_the_range_a_quiet_run_keeps_it_tight() -> None:
    quiet = cost_of(on_gpu(0.2, 0.1)).gain(3)
    assert quiet.high / quiet.low < 1.03
    loads = [0.2] * 100 + [0.4] * 100
    trained = rank(step=[load + 0.1 for load in loads], wait=loads, gap=loads, loader=loader(num_workers=0))
    noisy = cost_of(run_case(scene(run(trained), gpus=[gpu()]))).gain(5)
    assert noisy.high / noisy.low > 1.5


def test_the_gpus_first_launches_behind_a_wait_go_with_it_at_best() -> None:
    trained = rank(step=0.2, wait=0.1, gap=0.1, loader=loader(num_workers=0), wait_cpu_share=0.02)

    def gain(busy: float) -> Gain:
        return cost_of(run_case(scene(run(trained), gpus=[gpu(utilization=busy)]))).gain(8)

    assert gain(50).high == pytest.approx(2.0)
    assert gain(48).high == pytest.approx(1 / 0.48, abs=0.001)
    assert gain(30).high == pytest.approx(1 / 0.47, abs=0.001)
    assert gain(48).low == gain(50).low


def test_where_the_gpus_use_is_not_known_its_first_launches_may_take_two_milliseconds() -> None:
    trained = rank(step=0.2, wait=0.1, gap=0.1, loader=loader(num_workers=0), wait_cpu_share=0.02)
    gain = cost_of(run_case(scene(run(trained), gpus=[]))).gain(8)
    assert (gain.low, gain.high) == (pytest.approx(0.2 / 0.1012, abs=0.001), pytest.approx(0.2 / 0.098, abs=0.001))


def test_a_step_needs_the_training_thread_as_long_when_it_comes_sooner() -> None:
    """Of 120 ms it launches for 40 ms: with 80 ms of loading on 2 cores they need 60 ms, however many workers load."""
    own = process(cores=2, main_thread_cores=1.0)
    facts = {"cpu_affinity": 2, "torch_threads": 1}
    trained = rank(
        step=0.12, wait=0.08, gap=0.08, loader=loader(num_workers=0), wait_cpu_share=1.0, process=own, facts=facts
    )
    moment = scene(run(trained), gpus=[gpu(utilization=33)], host=host(cpu_percent=50), machine=machine(2))
    gain = cost_of(run_case(moment)).gain(4)
    assert gain.high == pytest.approx(0.12 / 0.06, rel=0.01)
    assert gain.low == pytest.approx(0.12 / ((0.04 + 1.2 * 0.08) / 2), rel=0.01)


def test_ranks_that_load_in_turn_all_wait_for_the_last_one() -> None:
    """Each idles for 10 ms of every fourth step and spins in the others: without waits 40 ms are left of 50 ms."""
    members = [
        rank(
            step=0.05,
            wait=0.045,
            gap=[0.01 if place % 4 == number else 0.0 for place in range(400)],
            steps=400,
            loader=loader(num_workers=0),
            wait_cpu_share=0.02,
            pid=4711 + number,
            gpus=(number,),
        )
        for number in range(4)
    ]
    case = run_case(scene(run(*members), gpus=[gpu(index=index, utilization=95) for index in range(4)]))
    assert cost_of(case).compute_seconds == pytest.approx(0.04, rel=0.01)


def test_the_slowest_of_many_ranks_stays_when_nobody_waits_for_a_batch() -> None:
    """Eight ranks compute for 0.1 s, give or take 0.01 s, and one of them waits for 0.05 s before that."""
    chance = random.Random(3)
    computing = [[max(0.0, chance.gauss(0.1, 0.01)) for _ in range(8)] for _ in range(400)]
    late = [chance.randrange(8) for _ in computing]
    periods = [
        max(each + 0.05 * (place == waits) for place, each in enumerate(step))
        for step, waits in zip(computing, late, strict=True)
    ]
    members = [
        rank(
            step=periods,
            wait=0.05,
            gap=[0.05 if waits == number else 0.0 for waits in late],
            steps=400,
            loader=loader(num_workers=0),
            wait_cpu_share=0.02,
            pid=4711 + number,
            gpus=(number,),
        )
        for number in range(8)
    ]
    gain = cost_of(run_case(scene(run(*members), gpus=[gpu(index, utilization=95) for index in range(8)]))).gain(8)
    real = sum(periods) / sum(map(max, computing))
    assert 1.2 < real < 1.4
    assert gain.low <= real <= gain.high


def test_batches_that_leave_open_what_more_workers_bring_promise_nothing() -> None:
    case = on_gpu(0.08, 0.02)
    cost = cost_of(case)
    advice = replace(advise(case, cost), gain=Gain(0.55, 7.8, "then limited by the 11 workers"))
    assert advice.promise is None and advice.hint is not None and "too different" in advice.hint
    assert advise(case, cost).promise is not None


@pytest.mark.parametrize(("busy", "computes"), [(60, 0.6), (30, 0.5)])
def test_without_event_pairs_the_gpus_use_or_the_threads_own_part_is_left(busy: int, computes: float) -> None:
    """A thread launches ahead, so that what takes longer sets the pace; a minute's utilization is off by 5%."""
    trained = rank(step=0.1, wait=0.05, loader=loader(num_workers=0))
    gain = cost_of(run_case(scene(run(trained), gpus=[gpu(utilization=busy)]))).gain(8)
    assert gain.high == pytest.approx(1 / computes, rel=0.001)
    assert gain.low == pytest.approx(1 / (1.05 * 0.6 if busy == 60 else 0.5), rel=0.03)


def test_starved_workers_tell_a_batch_by_the_steps_where_they_do_not_report_it() -> None:
    waits = [0.0, 0.0, 0.3]
    trained = rank(
        step=[0.1 + wait for wait in waits], wait=waits, gap=waits, loader=loader(num_workers=3), workers=workers(3)
    )
    cost = cost_of(run_case(scene(run(trained), gpus=[gpu()])))
    assert cost.batch_seconds == pytest.approx(0.6)
    assert cost.compute_seconds == pytest.approx(0.1)


def test_accumulated_gradients_take_several_batches_a_step() -> None:
    made = workers(4, batch_seconds=0.2, batch_cpu_seconds=0.19)
    case = run_case(scene(run(rank(step=0.3, wait=0.1, gap=0.1, batches=4, workers=made)), gpus=[gpu()]))
    cost = cost_of(case)
    assert (cost.batches_per_step, cost.batch_seconds) == (4, pytest.approx(0.8))
    assert advise(case, cost, at_least=5).count == 5
    assert cost.gain(5).high == pytest.approx(1.5, rel=0.02)


def test_the_cpu_share_of_loading_falls_back_to_the_main_thread() -> None:
    sampled = cost_of(on_gpu(0.06, 0.04, wait_cpu_share=0.5))
    assert (sampled.batch_cpu_share, sampled.batch_cpu_known) == (0.5, True)
    derived = cost_of(on_gpu(0.06, 0.04, wait_cpu_share=None, process=process(main_thread_cores=0.3)))
    assert derived.batch_cpu_share == pytest.approx(0.5)
    unknown = cost_of(on_gpu(0.06, 0.04, wait_cpu_share=None, process=process(main_thread_cores=None)))
    assert (unknown.batch_cpu_share, unknown.batch_cpu_known) == (1.0, False)


@pytest.mark.parametrize(
    ("cores", "cpu_share", "training", "count"),
    [(16, 1.0, 1.0, 15), (16, 0.5, 1.0, 30), (2, 1.0, 0.1, 2), (2, 1.0, 1.0, 1), (1, 1.0, 1.0, 1), (2, 0.0, 0.5, 15)],
)
def test_cores_carry_workers(cores: float, cpu_share: float, training: float, count: int) -> None:
    assert cpu_workers(cores, cpu_share, training) == count


def test_small_machines_are_filled_larger_ones_keep_a_core_for_training() -> None:
    assert [filling_workers(cores) for cores in (1, 1.5, 2, 3, 4, 8, 64)] == [1, 1, 2, 3, 3, 7, 63]


def test_factors_of_shares_and_rarer_phases() -> None:
    assert without(0.5) == 2.0
    assert without(1.0) == pytest.approx(50.0)
    assert from_rarer_phase(0.3, 3) == pytest.approx(1.25)
    assert middle(Gain(1.0, 4.0)) == 2.0


def test_a_phases_share_is_that_of_the_window_or_of_its_own_cycle() -> None:
    three_of_5_s_each_18_s = phase("checkpoint", count=3, share=0.25, longest_seconds=5.0, every_seconds=18.0)
    assert phase_shares(three_of_5_s_each_18_s) == pytest.approx((0.25, 5 / 18))
    assert phase_shares(phase("eval", share=0.25, every_seconds=None)) == (0.25, 0.25)


def test_a_comb_has_the_rhythm_of_its_workers() -> None:
    waits = [0.0, 0.0, 0.0, 0.3] * 40
    assert comb(waits, 4) == pytest.approx(1.0, abs=0.05)
    assert (autocorrelation(waits, 3) or 0.0) < 0.0
    assert comb(waits[:60], 4) is None
    assert comb([0.1] * 200, 4) is None
    assert comb(waits, 1) is None


def test_stretches_keep_whole_rhythms() -> None:
    assert [len(stretch) for stretch in stretches(range(100), 12, 4)] == [12] * 8
    assert [list(stretch) for stretch in stretches(range(3), 12, 4)] == [[0, 1, 2]]


def test_an_outlier_does_not_move_the_robust_spread() -> None:
    assert robust_sigma([1.0, 1.1, 0.9, 1.0, 50.0]) == pytest.approx(0.148, abs=0.01)


def test_nothing_is_promised_where_loading_and_training_compute_on_few_cores() -> None:
    for case, promised in (
        (on_cpu(0.0064, 0.0024, 1.0), False),
        (on_cpu(0.0064, 0.0024, 1.0, cores=8), True),
        (on_cpu(0.064, 0.024, 0.5), True),
        (on_gpu(0.0064, 0.0024, wait_cpu_share=1.0), True),
    ):
        advice = advise(case, cost_of(case))
        assert (advice.promise is not None) == promised
        assert (advice.hint is None) == promised


@pytest.mark.parametrize(
    ("changes", "count", "said"),
    [
        ({"cores": 16}, 15, "the 16 CPU cores cannot carry more than 15 besides the training (1 of a core each)"),
        ({"cores": 4}, 3, "the 4 CPU cores cannot carry more than 3 besides the training (1 of a core each; the "
         "affinity allows 4 of 16)"),
        ({"cores": 6, "quota": 6.0}, 5, "the 6 CPU cores cannot carry more than 5 besides the training (1 of a core "
         "each; a CPU quota allows 6 CPU cores)"),
        ({"cores": 16, "ranks": 2}, 7, "the 8 CPU cores cannot carry more than 7 besides the training (1 of a core "
         "each; 2 ranks share 16 CPU cores)"),
        ({"cores": 8, "quota": 8.0, "ranks": 2}, 3, "(1 of a core each; a CPU quota allows 8 CPU cores and 2 ranks "
         "share them)"),
        ({"memory": 12}, 3, "half of the 12.0 GiB free memory holds 3"),
        ({"memory": 24, "ranks": 2}, 3, "half of the 24.0 GiB free memory holds 3 for each of 2 ranks"),
        ({"shm": 5}, 2, "/dev/shm has 5.0 GiB free, which holds the batches of 2"),
        ({"shm": 10, "ranks": 2}, 2, "/dev/shm has 10.0 GiB free, which holds the batches of 2 for each of 2 ranks"),
        ({"epoch": 16}, 4, "an epoch of 16 batches keeps 4 busy"),
    ],
)  # fmt: skip
def test_the_cap_that_binds_is_named(changes: dict[str, float], count: int, said: str) -> None:
    latest: dict[str, object] = {}
    if "memory" in changes:
        latest["memory_available_bytes"] = int(changes["memory"] * 2**30)
    if "shm" in changes:
        latest |= {"shm_total_bytes": int(changes["shm"] * 2**30), "shm_used_bytes": 0}
    cores, quota = changes.get("cores", 16), changes.get("quota")
    held = {"cpu_quota_cores": quota, "affinity_cores": 16} if quota else {}
    facts = {"batch_bytes": 10**9 if latest else 10**5, "batches_per_epoch": int(changes.get("epoch", 5000))}
    trained = rank(
        step=1.05,
        wait=1.0,
        gap=1.0,
        wait_cpu_share=1.0,
        loader=loader(num_workers=0, **facts),
        process=process(cores=cores, main_thread_cores=1.0, latest=held),
        facts={"local_world_size": int(changes.get("ranks", 1))},
    )
    case = run_case(scene(run(trained), gpus=[gpu(utilization=5)], host=host(latest=latest), machine=machine(16)))
    advice = advise(case, cost_of(case))
    assert (advice.count, advice.needed) == (count, 24)
    assert advice.arithmetic.startswith("24 workers would keep up, but ")
    assert said in advice.arithmetic


COMPUTE = 0.1


def fed_by(count: int, needed: float) -> Scene:
    """A run for which this many workers make batches with a fifth of margin, before that number is rounded."""
    making = needed * COMPUTE / 1.2
    wait = making / count - COMPUTE if count else making
    made = workers(count, cpu_cores=0.5, batch_seconds=making, batch_cpu_seconds=0.5 * making) if count else None
    trained = rank(
        step=COMPUTE + wait,
        wait=wait,
        gap=wait,
        loader=loader(num_workers=count, batch_bytes=1_000_000),
        workers=made,
        wait_cpu_share=None if count else 0.5,
    )
    busy = gpu(utilization=100.0 * COMPUTE / (COMPUTE + wait))
    return scene(run(trained), gpus=[busy], host=host(cpu_percent=10), machine=machine(64))


def judged(moments: Iterable[Scene]) -> list[tuple[Finding, ...]]:
    engine = Engine()
    said = [engine.evaluate(later(moment, 5.0 * place)) for place, moment in enumerate(moments)]
    return said[1:]  # a cause is said at its second evaluation


def numbers(said: tuple[Finding, ...], rule: str) -> set[object]:
    """Whatever of a finding names the number: its value, its patch, its code, its words, and its gain's limit."""
    (finding,) = [each for each in said if each.rule == rule]
    fix = finding.fix
    assert fix is not None and isinstance(fix.edit, CallEdit) and fix.code is not None
    named: set[object] = {fix.value, int(fix.edit.keywords["num_workers"])}
    assert f"num_workers={fix.value}" in fix.code
    assert f" {fix.value} " in fix.text
    return named


@pytest.mark.parametrize(("count", "rule"), [(0, "workers-zero"), (4, "workers-too-few")])
@pytest.mark.parametrize(("first", "other", "stays"), [(11.98, 12.02, 12), (12.02, 11.98, 13), (12.3, 11.8, 13)])
def test_the_number_does_not_turn_on_the_last_digit(
    count: int, rule: str, first: float, other: float, stays: int
) -> None:
    said = judged(fed_by(count, first if place % 2 == 0 else other) for place in range(12))
    assert len(said) == 11
    for each in said:
        assert numbers(each, rule) == {stays}
        assert numbers(each, "data-starvation") == {stays}, "which repeats the fix of its cause"


def test_a_run_that_changes_is_given_the_new_number() -> None:
    said = judged(fed_by(4, needed) for needed in (12.02, 12.02, 14.0, 14.0, 9.0, 9.0))
    assert [numbers(each, "workers-too-few") for each in said] == [{13}, {14}, {14}, {9}, {9}]


def test_a_slow_drift_is_followed_once_it_is_more_than_the_error() -> None:
    said = judged(fed_by(4, 12.02 + 0.05 * place) for place in range(40))
    named = [number for each in said for number in numbers(each, "workers-too-few")]
    assert named[0] == 13 and named[-1] == 14, "13.97 at the end"
    assert sum(a != b for a, b in pairwise(named)) == 1


def test_the_gain_is_that_of_the_number_that_is_named() -> None:
    said = judged(fed_by(4, needed) for needed in (12.02, 12.02, 11.9))
    (finding,) = [each for each in said[-1] if each.rule == "workers-too-few"]
    assert finding.fix is not None and finding.fix.value == 13
    assert finding.gain == cost_of(run_case(fed_by(4, 11.9))).gain(13)


def test_a_number_that_is_kept_says_the_margin_that_it_has() -> None:
    case = run_case(fed_by(4, 12.3))
    kept = advise(case, cost_of(case), earlier=12)
    assert kept.arithmetic == "12 workers keep up, with 17% headroom"
    assert advise(case, cost_of(case), earlier=13).arithmetic == "13 workers keep up, with 20% headroom"


def test_what_differs_by_more_than_the_error_is_not_kept() -> None:
    case = run_case(fed_by(4, 12.3))
    assert {advise(case, cost_of(case), earlier=earlier).count for earlier in (None, 5, 11, 14, 64)} == {13}


def loading(*seconds: float) -> RunCase:
    """A run without workers whose batches take so long alternately, 25 at a time."""
    wait = [seconds[place // 25 % len(seconds)] for place in range(300)]
    trained = rank(step=[COMPUTE + each for each in wait], wait=wait, gap=wait, loader=loader(num_workers=0))
    return run_case(scene(run(trained), gpus=[gpu(utilization=33)], machine=machine(64)))


def test_stretches_that_differ_leave_more_open() -> None:
    even, wavering = loading(0.19), loading(0.14, 0.24)
    assert [advise(case, cost_of(case)).count for case in (even, wavering)] == [3, 3]
    assert [advise(case, cost_of(case), earlier=2).count for case in (even, wavering)] == [3, 2]
    assert advise(wavering, cost_of(wavering), earlier=1).count == 3, "which would not keep up"


def test_a_limit_of_the_machine_stands_too_and_its_reason_names_the_number() -> None:
    each = 1_000_000 * 2
    for free in (12.4 * each, 12.6 * each, 13.2 * each):
        moment = fed_by(4, 40.0)
        small = host(cpu_percent=10, latest={"shm_total_bytes": int(free / 0.8), "shm_used_bytes": 0})
        case = run_case(scene(*moment.runs, gpus=moment.gpus, host=small, machine=machine(64)))
        kept = advise(case, cost_of(case), earlier=13)
        assert kept.count == 13
        assert kept.cap is not None and kept.cap.name == "shm" and "holds the batches of 13" in kept.cap.reason
