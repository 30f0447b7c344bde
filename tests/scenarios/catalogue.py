"""The suite: 36 problems (two of them in two forms) and 24 runs that are healthy or nearly not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from gpuwatch.sources.simulator.scenarios import GIB, GpuSpec
from tests.scenarios.job import MIB, TUNED, Computing, Fault, Host, Job, Loading, Pause
from tests.scenarios.scenario import LOW, Holds, Scenario, is_anything, is_starved
from tests.scenarios.truth import Truth, truth_of

_FLOAT32 = replace(
    TUNED,
    autocast=False,
    autocast_dtype=None,
    float32_matmul_precision="highest",
    compiled=False,
    optimizer_fused=False,
)
_CNN = replace(_FLOAT32, matmul_share=0.06, conv_share=0.93, cudnn_allow_tf32=True, cudnn_benchmark=True)
_RTX_5090 = GpuSpec("NVIDIA GeForce RTX 5090", (12, 0), 32 * GIB, 575.0, 24.0, 3090, 14001, 5, False, False)
_GTX_1080 = GpuSpec("NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, 180.0, 10.0, 1911, 5005, 3, False, False)

_DATA = frozenset({"data-starvation"})
_HINTS = frozenset({"amp-off", "tf32-off", "compile-off", "optimizer-unfused", "batch-headroom"})
_HEALTHY_SECONDS = 160


def _starved(
    number: str,
    name: str,
    title: str,
    job: Job,
    cause: str,
    *more: str,
    may: frozenset[str] = frozenset(),
    holds: Holds = is_starved,
) -> Scenario:
    return Scenario(
        id=f"{number}-{name}",
        title=title,
        job=job,
        must=_DATA | {cause, *more},
        may=may | LOW,
        cause=cause,
        holds=holds,
    )


def _loses(least: float) -> Holds:
    return lambda truth: truth.in_step_idle >= least and truth.data_loss <= 0.05


def _heavily_starved(truth: Truth) -> bool:
    return truth.data_loss >= 0.25


def _exposed(truth: Truth) -> bool:
    return truth.data_loss >= 0.2


_DATA_PROBLEMS = (
    _starved("01", "w0-heavy", "num_workers=0, 200 ms a batch, 100 ms on the GPU",
             Job(Loading(workers=0, cpu_seconds=0.2)), "workers-zero", "low-util", holds=_heavily_starved),
    _starved("02", "w0-moderate", "num_workers=0, 115 ms a batch", Job(Loading(workers=0, cpu_seconds=0.115)),
             "workers-zero"),
    _starved("03", "few-1", "1 worker, 250 ms a batch", Job(Loading(workers=1, cpu_seconds=0.25)), "workers-too-few"),
    _starved("04", "few-3of16", "3 workers of 16 cores, 600 ms a batch", Job(Loading(workers=3, cpu_seconds=0.6)),
             "workers-too-few"),
    _starved("05", "few-4-aug", "4 workers, 900 ms of augmentation a batch",
             Job(Loading(workers=4, cpu_seconds=0.9)), "workers-too-few"),
    _starved("06", "cpu-exhausted", "15 workers fill 16 cores, 3 s a batch",
             Job(Loading(workers=15, cpu_seconds=3.0)), "host-cpu-exhausted",
             may=frozenset({"worker-cpu-bound", "noisy-neighbour"})),
    _starved("07", "too-many-28on8", "28 workers on 8 cores",
             Job(Loading(workers=28, cpu_seconds=1.2), host=Host(cores=8)), "too-many-workers",
             may=frozenset({"noisy-neighbour", "host-cpu-exhausted"})),
    _starved("08", "quota", "16 workers, 64 cores, a quota of 4",
             Job(Loading(workers=16, cpu_seconds=0.6), host=Host(cores=64, quota=4.0)), "cpu-quota-throttled",
             may=frozenset({"noisy-neighbour", "too-many-workers"})),
    _starved("09", "io-bound", "20 ms of CPU and 800 ms of storage a batch",
             Job(Loading(workers=4, cpu_seconds=0.02, io_seconds=0.8)), "io-bound", may=frozenset({"workers-too-few"})),
    _starved("10", "threads", "12 workers of 16 threads each on 16 cores",
             Job(Loading(workers=12, cpu_seconds=0.35, threads=16)), "thread-oversubscription",
             may=frozenset({"noisy-neighbour", "host-cpu-exhausted"})),
    _starved("35", "slow-worker", "one of 4 workers takes 6 times as long for its batches",
             Job(Loading(workers=4, cpu_seconds=0.15, slow_worker_times=6.0)), "slow-worker"),
    _starved("11", "slow-samples", "1.2% of the batches take 40 times as long",
             Job(Loading(workers=4, cpu_seconds=0.2, slow_share=0.012, slow_times=40.0)), "slow-samples"),
)  # fmt: skip


def _keeping_up(job: Job, rng: random.Random) -> Job:
    """With workers that are fast enough within an epoch: only its start may cost."""
    most = 0.8 * job.loading.workers * job.computing.gpu_seconds
    return job.with_loading(cpu_seconds=min(job.loading.cpu_seconds, most))


_PAUSED = (
    Scenario("12-epoch-short", "epochs of 60 steps with new workers",
             Job(Loading(workers=4, cpu_seconds=0.3, batches_per_epoch=60, persistent=False, start_seconds=0.3)),
             must=frozenset({"epoch-start-stall"}), may=LOW | _DATA, holds=lambda truth: truth.data_loss >= 0.07,
             make=_keeping_up),
    Scenario("13-ckpt-stall", "a checkpoint of 4 s every 150 steps",
             Job(pauses=(Pause("checkpoint", 4.0, every_steps=150),)),
             must=frozenset({"checkpoint-stall"}), may=LOW, holds=is_anything),
    Scenario("14-log-stall", "logging for 0.4 s every 20 steps",
             Job(pauses=(Pause("log", 0.4, every_steps=20),), computing=Computing(asks=True)),
             must=frozenset({"log-stall"}), may=LOW | {"sync-per-step"},
             holds=lambda truth: truth.in_step_idle >= 0.08),
    Scenario("15-gc-stall", "garbage collection for 1 s every 10 s",
             Job(pauses=(Pause("gc", 1.0, every_seconds=10.0),)),
             must=frozenset({"gc-stall"}), may=LOW, holds=is_anything),
    Scenario("16-eval-cpu-heavy", "an evaluation of 6 s at 25% utilization every 100 steps",
             Job(pauses=(Pause("eval", 6.0, every_steps=100, gpu_share=0.25, batches=24),)),
             must=frozenset({"eval-stall"}), may=LOW, holds=is_anything),
    Scenario("17-launch-bound", "100 ms of launches for 40 ms on the GPU",
             Job(computing=Computing(gpu_seconds=0.04, launch_seconds=0.1)),
             must=frozenset({"launch-bound"}), may=LOW | _HINTS, holds=_loses(0.2)),
    Scenario("18-sync-exposes-load", "60 ms of loading that .item() exposes",
             Job(Loading(workers=0, cpu_seconds=0.06), Computing(asks=True)),
             must=_DATA | {"workers-zero", "sync-per-step"}, may=LOW, cause="workers-zero", holds=_exposed),
    Scenario("36-loop-code", "metrics on the CPU for 100 ms after each step of 60 ms on the GPU",
             Job(Loading(cpu_seconds=0.3), Computing(gpu_seconds=0.06), pauses=(Pause("code", 0.1, every_steps=1),)),
             must=frozenset({"loop-code"}), may=LOW | {"launch-bound"}, holds=_loses(0.2)),
    Scenario("19-fp32-small", "half the power at 98% utilization, in float32",
             Job(computing=Computing(intensity=0.45, tensor_percent=3.0, model=_FLOAT32), gpu=_RTX_5090),
             must=frozenset({"low-power-high-util"}), may=_HINTS),
    Scenario("20-hang-nccl", "4 ranks stop in a collective",
             Job(ranks=4, host=Host(cores=64), faults=(Fault("hang", 60.0),)),
             must=frozenset({"collective-hang"}), may=LOW, onset=60.0, seconds=170),
    Scenario("21-pageable", "blocking copies from pageable memory",
             Job(Loading(pinned=False, batch_bytes=150_000_000)),
             must=frozenset({"pageable-transfer"}), may=LOW | {"h2d-bound"}, holds=lambda truth: True),
    Scenario("22-step-stalled", "the loader waits forever", Job(faults=(Fault("stall", 60.0),)),
             must=frozenset({"step-stalled"}), may=LOW, onset=60.0, seconds=170),
)  # fmt: skip

_DATA_PARALLEL = (1.0, 0.97, 0.58, 0.6)
_HARDWARE = (
    Scenario("23-thermal", "heat takes 12% of the clock, 30% of the time", Job(faults=(Fault("heat", 60.0),)),
             must=frozenset({"thermal-throttle"}), may=LOW | {"step-time-regression"}, onset=60.0, seconds=170),
    Scenario("24-power-brake", "a power brake once a minute", Job(faults=(Fault("brake", 30.0),)),
             must=frozenset({"hw-slowdown"}), may=LOW | {"step-time-regression"}, onset=30.0, seconds=430,
             deadline=390.0),
    Scenario("25-imbalance", "DataParallel: 2 of 4 GPUs at 60%", Job(gpus_of_one_process=_DATA_PARALLEL),
             must=frozenset({"gpu-imbalance"}), may=LOW, holds=is_anything),
    Scenario("26-straggler-data", "one of 4 ranks loads slowly",
             Job(Loading(workers=4, cpu_seconds=0.3), ranks=4, host=Host(cores=64), slow_rank=(2, 2.0, 1.0)),
             must=frozenset({"straggler-rank"}), may=LOW | _DATA | {"workers-too-few", "gpu-imbalance"},
             holds=is_starved),
    Scenario("26-straggler-hw", "one of 4 ranks computes slowly",
             Job(ranks=4, host=Host(cores=64), slow_rank=(2, 1.0, 1.3)),
             must=frozenset({"straggler-rank"}), may=LOW | {"gpu-imbalance"}, holds=is_anything),
    Scenario("27-shared", "a foreign process on the GPU", Job(faults=(Fault("share", 20.0, 0.4),)),
             must=frozenset({"shared-gpu"}), may=LOW | {"step-time-regression"}, onset=20.0),
    Scenario("28-creep", "1 MiB more GPU memory with every step", Job(faults=(Fault("creep", 0.0, 1.0),)),
             must=frozenset({"gpu-memory-creep"}), may=_HINTS | {"memory-near-limit"}, seconds=260, deadline=250.0),
    Scenario("29-shm", "/dev/shm 92% full",
             Job(host=Host(shm_bytes=8 * GIB, shm_used_share=0.86), loading=Loading(batch_bytes=40 * MIB)),
             must=frozenset({"shm-pressure"}), make=lambda job, rng: job.with_host(
                 shm_used_share=rng.uniform(0.83, 0.90))),
    Scenario("30-noisy", "other programs want the cores that the training thread needs",
             Job(Loading(workers=4, cpu_seconds=0.1), Computing(launch_seconds=0.075), Host(foreign_cores=22.0)),
             must=frozenset({"noisy-neighbour"}), may=LOW | _HINTS,
             holds=lambda truth: truth.in_step_idle >= 0.12 and truth.gap_share <= 0.05),
    Scenario("31-recompile", "a compilation of 3 s every 150 steps",
             Job(pauses=(Pause("compile", 3.0, every_steps=150),)),
             must=frozenset({"recompile-storm"}), may=LOW, seconds=180, deadline=120.0, holds=is_anything),
    Scenario("32-xid79", "the GPU falls off the bus", Job(faults=(Fault("xid", 40.0),)),
             must=frozenset({"xid-error"}), may=LOW | {"step-stalled"}, onset=40.0),
    Scenario("32-ecc", "uncorrected memory errors", Job(faults=(Fault("ecc", 40.0),)),
             must=frozenset({"ecc-or-remap"}), onset=40.0),
    Scenario("33-regression", "steps 15% longer from t=300 on", Job(faults=(Fault("slower", 300.0, 0.15),)),
             must=frozenset({"step-time-regression"}), onset=300.0, seconds=430),
    Scenario("34-mig-no-util", "MIG without utilization: the hook still tells",
             Job(Loading(workers=0, cpu_seconds=0.2), faults=(Fault("mig"),)),
             must=_DATA | {"workers-zero", "metrics-limited"}, cause="workers-zero", holds=_heavily_starved),
)  # fmt: skip


def _healthy(number: int, title: str, job: Job, *, seconds: int = _HEALTHY_SECONDS, **fields: Any) -> Scenario:
    return Scenario(f"H{number:02d}", title, job, seconds=seconds, **fields)


def _borderline(job: Job, rng: random.Random) -> Job:
    """The loading whose true loss is 8% within 2 points: found by halving between much and little."""
    goal = rng.uniform(0.06, 0.10)
    low, high = 0.05, 0.5
    for _ in range(12):
        middle = 0.5 * (low + high)
        tried = job.with_loading(cpu_seconds=middle)
        if truth_of(tried, "H20").data_loss < goal:
            low = middle
        else:
            high = middle
    return job.with_loading(cpu_seconds=low)


def _is_borderline(truth: Truth) -> bool:
    return 0.05 <= truth.data_loss <= 0.11


_HEALTHY = (
    _healthy(1, "healthy", Job()),
    _healthy(2, "num_workers=0, 4 ms a batch", Job(Loading(workers=0, cpu_seconds=0.004))),
    _healthy(3, "num_workers=0, 60 ms hidden behind 100 ms on the GPU", Job(Loading(workers=0, cpu_seconds=0.06))),
    _healthy(4, "waits of 25% that cost 3%",
             Job(Loading(workers=0, cpu_seconds=0.04, spread=0.55), Computing(gpu_seconds=0.1, launch_seconds=0.04)),
             holds=lambda truth: 0.005 <= truth.data_loss <= 0.05),
    _healthy(5, "compiles for 19 s at the start",
             Job(pauses=(Pause("compile", 19.0, every_seconds=9e9, first_seconds=0.1, times=1),))),
    _healthy(6, "one checkpoint", Job(pauses=(Pause("checkpoint", 4.0, every_seconds=70.0, times=1),)),
             holds=is_anything),
    _healthy(7, "a rare evaluation at 95% utilization",
             Job(pauses=(Pause("eval", 8.0, every_seconds=80.0, gpu_share=0.95, batches=40),)), holds=is_anything),
    _healthy(8, "inputs of varying length", Job(computing=Computing(spread=0.25, batch_shapes=40))),
    _healthy(9, "steps of 2.5 s",
             Job(Loading(cpu_seconds=4.0), Computing(gpu_seconds=2.5, launch_seconds=0.2)), seconds=300),
    _healthy(10, "steps of 12 ms",
             Job(Loading(cpu_seconds=0.03, batch_bytes=2_000_000), Computing(gpu_seconds=0.012, launch_seconds=0.005)),
             seconds=150),
    _healthy(11, "a .item() per step that costs nothing",
             Job(computing=Computing(gpu_seconds=0.25, launch_seconds=0.006, asks=True))),
    _healthy(12, "28 workers on 64 cores", Job(Loading(workers=28, cpu_seconds=1.2), host=Host(cores=64))),
    _healthy(13, "other programs keep the CPU busy, nobody waits",
             Job(Loading(workers=4, cpu_seconds=0.1), host=Host(foreign_cores=9.5))),
    _healthy(14, "slow storage behind enough workers",
             Job(Loading(workers=16, cpu_seconds=0.02, io_seconds=0.7))),
    _healthy(15, "a short garbage collection once a minute",
             Job(pauses=(Pause("gc", 0.3, every_seconds=60.0),)), holds=is_anything),
    _healthy(16, "a sensor that averages over a second", Job(faults=(Fault("sensor-1s"),))),
    _healthy(17, "an epoch of hours", Job(Loading(batches_per_epoch=1_000_000))),
    _healthy(18, "at the power limit", Job(computing=Computing(intensity=1.2), faults=(Fault("cap"),)),
             make=lambda job, rng: job.with_computing(intensity=rng.uniform(1.02, 1.2))),
    _healthy(19, "a memory-bound model: 99% busy at 62% of the power",
             Job(computing=Computing(intensity=0.62, tensor_percent=22.0)),
             make=lambda job, rng: job.with_computing(intensity=rng.uniform(0.55, 0.7))),
    _healthy(20, "borderline: 8% lost within 2 points, for an hour",
             Job(Loading(workers=2, spread=0.25), Computing(gpu_seconds=0.15)), make=_borderline, fixed=True,
             holds=_is_borderline, may=_DATA | {"workers-too-few", "slow-samples", "bursty-prefetch"} | LOW,
             seconds=3600, every=8),
    _healthy(21, "a last batch cut short in each epoch",
             Job(Loading(batches_per_epoch=150, last_batch_share=0.3))),
    _healthy(22, "the job ends and is started again", Job(faults=(Fault("restart", 70.0),))),
    _healthy(23, "a CNN in float32 with cuDNN's TF32", Job(computing=Computing(model=_CNN)),
             never=frozenset({"tf32-off"})),
    _healthy(24, "float32 on a GTX 1080", Job(computing=Computing(model=_FLOAT32), gpu=_GTX_1080),
             never=frozenset({"amp-off", "tf32-off"})),
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {
    scenario.id: scenario for scenario in (*_DATA_PROBLEMS, *_PAUSED, *_HARDWARE, *_HEALTHY)
}
