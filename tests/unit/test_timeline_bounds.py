from __future__ import annotations

from dataclasses import replace

from gpuwatch.samples import BatchCount, GpuGap, GpuLost, MachineFacts, RunMemory
from gpuwatch.timeline.timeline import RUNS_KEPT, Timeline
from tests.unit.sample_builder import (
    GPU,
    at,
    ended,
    gpu_facts,
    phase,
    poll,
    process,
    run_facts,
    scene,
    steps,
    timeline,
)

DAY = 24 * 3600


def sizes(history: Timeline) -> tuple[int, ...]:
    gpu, trainer = history.gpus[GPU], history.trainers["4711.1"]
    return (
        len(gpu.polls),
        len(gpu.rings["utilization_percent"].rows),
        gpu.tiers["power_watts"].seconds.length,
        gpu.tiers["power_watts"].minutes.length,
        len(gpu.marks),
        len(trainer.steps),
        trainer.tiers.seconds.length,
        trainer.tiers.minutes.length,
    )


def test_sizes_stand_still_once_every_tier_is_full() -> None:
    history = timeline(gpu_facts(), run_facts(gpu_uuids=(GPU,)))
    seen = []
    for day in range(4):
        for minute in range(24 * 60):
            second = day * DAY + minute * 60
            history.add(poll(second, utilization_percent=50.0, power_watts=300.0, energy_joules=second))
            history.extend(steps(2, start=second, period=0.5, first=1 + (day * 1_440 + minute) * 2))
        history.prune(at((day + 1) * DAY))
        seen.append(sizes(history))
    assert max(seen[3][2:]) <= 7_200 * 1.07
    assert all(later <= earlier * 1.07 for later, earlier in zip(seen[3], seen[2], strict=True))


def test_fast_steps_and_rings_are_bounded_by_count() -> None:
    history = timeline(gpu_facts(), run_facts(), steps(40_000, period=0.001))
    assert len(history.trainers["4711.1"].steps) <= 16_384 * 1.1
    for second in range(200):
        stamps = tuple((at(second) + place * 10_000_000, 50.0) for place in range(100))
        history.add(poll(second + 1, utilization_ring=stamps))
    assert len(history.gpus[GPU].rings["utilization_percent"].rows) <= 8_192 * 1.1


def test_gpu_that_vanished_is_dropped_after_its_last_minute_aged_out() -> None:
    history = timeline(gpu_facts(), poll(1), GpuLost(at(2), GPU, "gone"))
    history.prune(at(DAY - 10))
    assert scene(history, DAY - 10).gpus[0].status == "lost"
    history.prune(at(DAY + 10))
    assert scene(history, DAY + 10).gpus == ()


def test_ended_run_is_dropped_after_a_day_and_its_process_after_ten_minutes() -> None:
    history = timeline(run_facts(), steps(50), process(5), ended(6))
    history.prune(at(700))
    assert history.processes == {}
    assert len(history.trainers["4711.1"].steps) == 50
    history.prune(at(1_000))
    assert len(history.trainers["4711.1"].steps) == 0
    history.prune(at(DAY + 10))
    assert history.trainers == {}


def test_a_gpu_that_comes_back_after_a_long_silence_has_no_rate_of_one_reading() -> None:
    history = timeline(gpu_facts(), [poll(second, pcie_rx_bytes=second * 1_000) for second in range(60)])
    history.prune(at(955))
    history.add(poll(955, pcie_rx_bytes=955_000))
    (gpu,) = scene(history, 955, window=900).gpus
    assert gpu.pcie_rx_bytes_per_second is None


def test_of_many_runs_the_living_and_the_newest_stay() -> None:
    history = timeline(run_facts(1, time_ns=at(0)))
    for pid in range(2, 200):
        history.extend([run_facts(pid, time_ns=at(pid)), ended(pid + 0.5, f"{pid}.1")])
    history.prune(at(300))
    assert len(history.trainers) == RUNS_KEPT
    assert "1.1" in history.trainers
    assert "199.1" in history.trainers
    assert "2.1" not in history.trainers


def test_trainers_that_never_introduce_themselves_are_bounded() -> None:
    history = timeline()
    for pid in range(500):
        history.extend(steps(1, start=pid, trainer=f"{pid}.1"))
    history.prune(at(600))
    assert len(history.trainers) == RUNS_KEPT


def test_phases_and_gaps_ahead_are_bounded() -> None:
    history = timeline(run_facts(), steps(10))
    for number in range(20_000):
        history.add(phase("gc", number, number + 0.01))
        history.add(GpuGap("4711.1", 1_000 + number, 0.1))
    trainer = history.trainers["4711.1"]
    assert sum(1 for _ in trainer.phases.spans(0)) <= 1_024
    assert len(trainer._gaps_ahead) <= 256


def test_counts_beyond_64_bits_are_added_up() -> None:
    """What a damaged recording claims; a count that is read again from less goes on from where it was."""
    most = 2**63 - 1
    late = replace(steps(1)[0], number=0, start_ns=at(5), end_ns=at(6))
    history = timeline(
        run_facts(), steps(1, first=most, epoch_position=0), late, RunMemory("4711.1", at(7), 1, 1, 1, 0, 0)
    )
    assert history.trainers["4711.1"].steps_total > most
    for second, batches in enumerate((most, 1, most, most - 1), start=3):
        history.add(BatchCount("4711.1", at(second), 1, "train", batches, epochs=batches))
    assert history.trainers["4711.1"].counts.total > 2 * most


def test_a_machine_without_a_core_is_none() -> None:
    history = timeline(MachineFacts(at(0), "host", "6.1", 0))
    assert history.machine is None
