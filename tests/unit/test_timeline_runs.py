from __future__ import annotations

import pytest

from gpuwatch.samples import GpuProcess, GpuStatus, WorkerSample
from gpuwatch.timeline.runs import title_of
from tests.unit.sample_builder import (
    GPU,
    at,
    ended,
    fetch,
    gpu_facts,
    gpu_processes,
    host,
    loader,
    phase,
    poll,
    polls,
    process,
    rank_at,
    run_facts,
    scene,
    steps,
    timeline,
)


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (("python", "train.py", "--epochs", "3"), "train.py"),
        (("/usr/bin/python3", "-u", "-X", "dev", "/home/me/run/train.py"), "train.py"),
        (("python", "-m", "pkg.train", "--x"), "pkg.train"),
        (("python3", "-c", "import x"), "python3 -c"),
        (("python",), "python"),
        ((), "unknown command"),
    ],
)
def test_run_is_called_by_its_script(command: tuple[str, ...], title: str) -> None:
    assert title_of(command) == title


def ranks(count: int = 2, **fields: object) -> list[object]:
    return [
        run_facts(4711 + rank, group="job", rank=rank, gpu_uuids=(f"GPU-{rank}",), **fields) for rank in range(count)
    ]


def test_ranks_of_a_group_are_one_run_in_rank_order() -> None:
    facts = ranks(3)
    history = timeline(facts[2], facts[0], facts[1], run_facts(5000))
    job, other = scene(history, 1).runs
    assert (job.id, [rank.facts.rank for rank in job.ranks]) == ("job", [0, 1, 2])
    assert other.id == "5000.1"


def test_runs_that_live_come_before_those_that_have_ended() -> None:
    history = timeline(run_facts(5000), run_facts(4711), run_facts(6000), ended(5, "5000.1"))
    assert [run.id for run in scene(history, 6).runs] == ["4711.1", "6000.1", "5000.1"]


def test_critical_rank_is_the_one_that_waits_longest() -> None:
    history = timeline(
        ranks(),
        steps(100, trainer="4711.1", wait=0.01),
        steps(100, trainer="4712.1", wait=0.06),
    )
    (run,) = scene(history, 10).runs
    assert run.critical.facts.rank == 1
    assert run.samples_per_second == pytest.approx(640.0)


def test_ended_rank_is_not_critical_while_another_lives() -> None:
    history = timeline(
        ranks(), steps(100, trainer="4711.1"), steps(100, trainer="4712.1", wait=0.06), ended(10, "4712.1")
    )
    (run,) = scene(history, 11).runs
    assert run.critical.facts.rank == 0


def test_restarted_rank_takes_the_place_of_its_predecessor() -> None:
    history = timeline(ranks(), ended(5, "4712.1"), run_facts(6000, group="job", rank=1))
    (run,) = scene(history, 6).runs
    assert [rank.facts.pid for rank in run.ranks] == [4711, 6000]


def test_ranks_of_a_larger_job_at_the_same_address_are_gone() -> None:
    old = [run_facts(4711 + rank, group="job", rank=rank, world_size=4) for rank in range(4)]
    over = [ended(5, f"{4711 + rank}.1") for rank in range(4)]
    new = [run_facts(5000 + rank, group="job", rank=rank, world_size=2) for rank in range(2)]
    (run,) = scene(timeline(old, over, new), 6).runs
    assert [rank.facts.pid for rank in run.ranks] == [5000, 5001]


def test_run_that_ended_before_the_window_is_not_in_it() -> None:
    history = timeline(run_facts(), steps(100), ended(10))
    assert len(scene(history, 60).runs) == 1
    assert scene(history, 120).runs == ()


def test_trainer_without_facts_is_not_shown() -> None:
    assert scene(timeline(steps(50)), 10).runs == ()


def test_gpus_are_those_that_the_trainers_name() -> None:
    facts = run_facts(gpu_uuids=("0f2e4a",))  # torch leaves out NVML's prefix
    history = timeline(gpu_facts(0), gpu_facts(1, uuid="GPU-0F2E4A"), facts)
    (run,) = scene(history, 1).runs
    assert run.gpu_uuids == ("GPU-0F2E4A",)


def test_gpus_are_else_those_that_run_its_processes() -> None:
    history = timeline(
        gpu_facts(0),
        gpu_facts(1),
        run_facts(),
        process(1, workers=(WorkerSample(4800),)),
        gpu_processes(1, 1234, uuid="GPU-0"),
        gpu_processes(1, 4711, uuid="GPU-1"),
    )
    assert scene(history, 2).runs[0].gpu_uuids == ("GPU-1",)
    history.add(gpu_processes(2, 4800, uuid="GPU-0"))
    assert scene(history, 3).runs[0].gpu_uuids == ("GPU-0", "GPU-1")


def test_each_rank_has_the_gpu_that_holds_its_memory() -> None:
    gpus = [gpu_facts(index) for index in range(2)]
    contexts = [
        GpuStatus(at(1), "GPU-0", processes=(GpuProcess(1, 4711, 9 << 30), GpuProcess(2, 4712, 300 << 20))),
        GpuStatus(at(1), "GPU-1", processes=(GpuProcess(2, 4712, 9 << 30),)),
    ]
    ranks = [run_facts(4711 + rank, group="job", rank=rank, visibility="sampled") for rank in range(2)]
    (run,) = scene(timeline(*gpus, *ranks, *contexts), 2).runs
    assert [rank.facts.gpu_uuids for rank in run.ranks] == [("GPU-0",), ("GPU-1",)]


def test_what_a_trainer_calls_its_gpu_is_read_as_nvml_calls_it() -> None:
    history = timeline(gpu_facts(uuid="GPU-0F2E4A"), run_facts(gpu_uuids=("0f2e4a",)))
    assert scene(history, 1).runs[0].critical.facts.gpu_uuids == ("GPU-0F2E4A",)
    assert scene(timeline(run_facts(gpu_uuids=("0f2e4a",))), 1).runs[0].critical.facts.gpu_uuids == ("0f2e4a",)


def test_phase_on_one_rank_masks_the_gpus_of_all() -> None:
    history = timeline(
        gpu_facts(0),
        gpu_facts(1),
        ranks(),
        steps(400, start=-10, trainer="4711.1"),
        steps(400, start=-10, trainer="4712.1"),
        phase("checkpoint", 10, 20, trainer="4711.1"),
        [poll(second, uuid, utilization_percent=50.0) for second in range(1, 31) for uuid in ("GPU-0", "GPU-1")],
    )
    totals = [gpu.train_utilization for gpu in scene(history, 30).gpus]
    assert [total and total.count for total in totals] == [20, 20]


def test_usual_power_is_that_of_the_time_when_steps_were_made() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(600),
        polls(range(1, 61), power_watts=600.0),
        polls(range(61, 3_000), power_watts=70.0),
    )
    (run,) = scene(history, 3_000).runs
    assert run.usual_power_watts == {GPU: pytest.approx(600.0, abs=1)}


def test_workers_are_busy_by_whole_cycles() -> None:
    made = [fetch(worker, n + worker / 4, n + worker / 4 + 0.75, cpu=0.3) for n in range(30) for worker in range(2)]
    history = timeline(run_facts(), steps(300), made)
    workers = rank_at(history, 60).workers  # it is idle since second 30: that is no worker's idleness
    assert workers is not None
    assert workers.count == 2
    assert workers.busy_share == pytest.approx(0.75)
    assert workers.batch_seconds == pytest.approx(0.75)
    assert list(workers.newest_batch_seconds) == pytest.approx([0.75] * 60)
    assert workers.batch_cpu_seconds == pytest.approx(0.3)


def test_a_worker_that_takes_longer_for_its_batches_is_told_from_the_others() -> None:
    took = (0.9, 0.1)
    made = [fetch(worker, n, n + took[worker]) for n in range(30) for worker in range(2)]
    workers = rank_at(timeline(run_facts(), steps(300), made), 60).workers
    assert workers is not None and workers.busy_share == pytest.approx(0.5)
    quick, slow = sorted(workers.by_worker, key=lambda each: each.busy_share)
    assert (quick.batches, quick.batch_seconds, quick.busy_share) == (30, pytest.approx(0.1), pytest.approx(0.1))
    assert (slow.batches, slow.batch_seconds, slow.busy_share) == (30, pytest.approx(0.9), pytest.approx(0.9))


def test_batches_of_evaluation_are_no_part_of_what_training_waits_for() -> None:
    train, evaluation = loader(num_workers=2), loader(loader=2, num_workers=2, role="eval")
    made = [fetch(worker, n, n + 0.9, cpu=0.3, loader=1) for n in range(30) for worker in range(2)]
    made += [fetch(2 + worker, 10 + worker, 10.05 + worker, cpu=0.05, loader=2) for worker in range(2)]
    made += [fetch(2 + worker, 28, 28.05, cpu=0.05, loader=2) for worker in range(2)]
    history = timeline(run_facts(loaders=(train, evaluation)), steps(300), made)
    workers = rank_at(history, 60).workers
    assert workers is not None
    assert workers.busy_share == pytest.approx(0.9), "the workers of the evaluation wait for it most of the time"
    assert list(workers.newest_batch_seconds) == pytest.approx([0.9] * 60)
    assert (workers.batch_seconds, workers.batch_cpu_seconds) == (pytest.approx(0.9), pytest.approx(0.3))


@pytest.mark.parametrize("kind", ["eval", "checkpoint", "gc"])
def test_workers_that_wait_for_the_end_of_a_phase_are_not_idle(kind: str) -> None:
    made = [fetch(0, n, n + 0.9) for n in (*range(10), *range(20, 30), *range(40, 50))]
    # The queue fills while the run evaluates: that is no training either.
    made += [fetch(0, n, n + 0.5) for n in (10, 30)]
    pauses = [phase(kind, start, start + 10.0) for start in (10.0, 30.0)]
    trained = [*steps(100), *steps(100, start=20.0, first=101), *steps(100, start=40.0, first=201)]
    history = timeline(run_facts(loaders=(loader(num_workers=1),)), trained, *pauses, made)
    workers = rank_at(history, 55).workers
    assert workers is not None and workers.busy_share == pytest.approx(0.9)


def test_the_batch_that_the_first_step_of_the_window_waited_for_is_one_of_its_batches() -> None:
    slow = steps(601, period=[30.05, *[0.1] * 600])
    made = [fetch(0, 0.0, 30.0), *(fetch(0, 30.0 + 0.1 * n, 30.1 + 0.1 * n) for n in range(600))]
    history = timeline(run_facts(loaders=(loader(num_workers=1),)), slow, made)
    workers = rank_at(history, 90.02).workers
    assert workers is not None
    assert max(workers.newest_batch_seconds) == pytest.approx(30.0)


def test_batches_before_the_window_are_known_as_far_as_training_made_them() -> None:
    train, evaluation = loader(num_workers=1), loader(loader=2, num_workers=1, role="eval")
    made = [fetch(0, n, n + (0.2 if n < 60 else 0.6), loader=1) for n in range(120)]
    made += [fetch(1, 30 + n, 30.9 + n, loader=2) for n in range(5)]
    made += [fetch(1, 90 + n, 90.9 + n, loader=2) for n in range(5)]
    history = timeline(run_facts(loaders=(train, evaluation)), steps(1_200), sorted(made, key=lambda each: each.end_ns))
    workers = rank_at(history, 120).workers
    assert workers is not None
    known = [*workers.earlier_batch_seconds, *workers.newest_batch_seconds]
    assert known == pytest.approx([0.2] * 60 + [0.6] * 60)
    assert min(workers.newest_batch_seconds) == pytest.approx(0.6)


def test_workers_as_the_host_sees_them() -> None:
    def second(at_second: int, changed: bool = False) -> object:
        pair = (
            WorkerSample(1, cpu_cores=0.8, blocked_share=0.1, threads=2, rss_bytes=100, affinity_cores=8),
            WorkerSample(2, cpu_cores=0.4, blocked_share=0.3, threads=1, rss_bytes=300, affinity_cores=2),
        )
        return process(at_second, workers=pair, worker_pids_changed=changed)

    history = timeline(run_facts(), steps(600), [second(n, n == 5) for n in range(1, 60)], process(60, workers=()))
    workers = rank_at(history, 60).workers
    assert workers is not None
    assert workers.count == 2  # a moment between two epochs has none
    assert workers.cpu_cores == pytest.approx(0.6)
    assert workers.blocked_share == pytest.approx(0.2)
    assert workers.pids_changed
    assert workers.busy_share is None


def test_run_without_workers_has_none() -> None:
    assert rank_at(timeline(run_facts(), steps(100), [process(n) for n in range(10)]), 10).workers is None


def test_process_means_and_throttling_over_the_window() -> None:
    seconds = [
        process(
            n,
            tree_cores=2.0 if n <= 40 else 4.0,
            cgroup_periods=10 * n,
            cgroup_throttled_periods=3 * n,
            cgroup_throttled_seconds=0.1 * n,
        )
        for n in range(1, 101)
    ]
    totals = rank_at(timeline(run_facts(), steps(1_000), seconds), 100, window=60).process
    assert totals is not None
    assert totals.tree_cores == pytest.approx(4.0)
    assert totals.throttled_period_share == pytest.approx(0.3)
    assert totals.throttled_seconds == pytest.approx(5.9, rel=0.01)
    assert totals.main_thread_cores is None


def test_train_loader_is_the_one_the_newest_step_read() -> None:
    both = (loader(loader=1, role="unknown"), loader(loader=2, role="eval"), loader(loader=3, num_workers=4))
    history = timeline(run_facts(loaders=both), steps(20, loader=1))
    rank = rank_at(history, 3)
    assert rank.train_loader == both[0]
    assert rank.eval_loaders == (both[1],)
    assert rank_at(timeline(run_facts(loaders=both)), 3).train_loader == both[2]


def test_narrowed_scene_has_only_the_run_and_gpus_of_its_processes() -> None:
    history = timeline(gpu_facts(0), gpu_facts(1), ranks(1), run_facts(5000, gpu_uuids=("GPU-1",)))
    narrowed = scene(history, 1, only_pids=frozenset({5000}))
    assert [run.id for run in narrowed.runs] == ["5000.1"]
    assert [gpu.facts.uuid for gpu in narrowed.gpus] == ["GPU-1"]


def test_process_without_a_hook_stands_as_a_run_without_steps() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(5000),
        [process(n, tree_cores=1.5, command="python train.py --fast") for n in range(1, 11)],
        gpu_processes(1, 4711),
    )
    (run,) = scene(history, 10, only_pids=frozenset({4711})).runs
    assert (run.title, run.gpu_uuids) == ("train.py", (GPU,))
    assert (run.critical.facts.visibility, run.critical.steps_total, run.critical.wait_share) == ("process", 0, None)
    assert run.critical.process is not None
    assert run.critical.process.tree_cores == pytest.approx(1.5)
    assert run.critical.ended is None


def test_process_without_a_hook_has_ended_when_the_host_goes_on_without_it() -> None:
    history = timeline([process(n) for n in range(1, 4)], [host(n) for n in range(1, 11)])
    (run,) = scene(history, 10, only_pids=frozenset({4711})).runs
    assert run.critical.ended == "exited"


def test_hooked_run_is_shown_instead_of_the_process_around_it() -> None:
    history = timeline(run_facts(4712), process(1, pid=4711), process(1, pid=4712))
    (run,) = scene(history, 2, only_pids=frozenset({4711, 4712})).runs
    assert run.id == "4712.1"


def test_host_window_is_the_mean_over_its_seconds() -> None:
    history = timeline(
        [host(n, cpu_percent=20.0, memory_total_bytes=100, memory_available_bytes=25) for n in range(1, 41)],
        [host(n, cpu_percent=80.0, memory_total_bytes=100, memory_available_bytes=25) for n in range(41, 101)],
    )
    window = scene(history, 100).host
    assert window is not None
    assert window.cpu_percent == pytest.approx(80.0)
    assert window.memory_available_share == pytest.approx(0.25)
    assert window.pressure_io_percent is None


def test_hooked_pids_and_workers_are_offered_to_the_host_source() -> None:
    history = timeline(run_facts(1), run_facts(2), ended(1, "2.1"), fetch(0, 0, 1, trainer="1.1"))
    assert history.live_trainer_pids() == [1]
    assert [pid for pid, _ in history.trainer_identities()] == [1, 2]
    assert history.worker_pids(1) == {9000}
    assert history.worker_pids(2) == set()


def test_same_samples_give_the_same_scene() -> None:
    samples = [
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(300, wait=[0.01, 0.02, 0.0]),
        polls(range(1, 31), utilization_percent=50.0, power_watts=300.0),
        [process(n, tree_cores=1.0) for n in range(30)],
        phase("eval", 12, 15),
    ]
    first, second = timeline(*samples), timeline(*samples)
    scene(second, 20)  # looking does not change what is seen
    assert repr(scene(first, 30)) == repr(scene(second, 30))
    assert at(30) == scene(first, 30).now_ns
