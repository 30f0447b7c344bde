"""A simulated run as a source: the samples that the hook, the driver, /proc and looks at stacks would bring."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import replace

from gpuwatch.samples import (
    GpuLost,
    LoaderFacts,
    MachineFacts,
    NvmlState,
    RunFacts,
    Sample,
    TrainerEnded,
    XidEvent,
)
from gpuwatch.sources.simulator.model import GpuModel
from gpuwatch.sources.simulator.source import gpu_facts, gpu_health, gpu_uuid
from tests.scenarios.driver import gpu_sample, gpu_status
from tests.scenarios.host import HostSensors
from tests.scenarios.job import Job
from tests.scenarios.loading import Fetch
from tests.scenarios.looks import Looks
from tests.scenarios.outside import TORN_SHARE, Outside, rates
from tests.scenarios.training import (
    EVAL_LOADER,
    FIRST_PID,
    RESTART_SECONDS,
    SCRIPT,
    START_TICKS,
    TRAIN_LOADER,
    Training,
    trainer_name,
)

SECOND_NS = 1_000_000_000
STATUS_SECONDS, HEALTH_SECONDS = 5, 30
LEFT_OVER_SECONDS = 20.0
"""How long stretches of a thread are kept: looks come a second late at most."""


class StreamSource:
    """The samples of one job, handed out once a second.

    Args:
        job: what runs.
        seed: of everything random.
        start_ns: of the stream.
        hooked: whether a hook is in the run; else it is seen by its stacks and counters alone.
    """

    name = "scenario"

    def __init__(self, job: Job, seed: str, start_ns: int, *, hooked: bool = True) -> None:
        self._job = job
        self._start_ns = start_ns
        self._rng = random.Random(f"{seed} sensors")
        self._waiting: list[tuple[float, int, Sample]] = []
        self._order = 0
        self._second = 0
        self._brakes = 0
        self._lost = False
        workers = job.loading.workers
        self._outside = None if hooked else Outside(random.Random(f"{seed} looks"), self._ns, workers)
        count = len(job.gpus_of_one_process) or job.ranks
        self._gpus = [self._gpu(index) for index in range(count)]
        ranks = [self._gpus] if job.gpus_of_one_process else [[gpu] for gpu in self._gpus]
        self.training = self._play(seed, ranks)
        self._host = HostSensors(job, self._rng)
        self._looks = Looks(self._rng) if hooked else Looks(self._rng, rates(workers), TORN_SHARE)
        self._recent: dict[int, list[Fetch]] = {}
        self._generation = 0
        self._introduce()

    def fileno(self) -> int | None:
        """No file: only the clock moves it."""
        return None

    def due_ns(self) -> int | None:
        """The next whole second."""
        return self._ns(self._second + 1.0)

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples up to the last whole second."""
        while self._ns(self._second + 1.0) <= now_ns:
            self._play_second()
        found: list[Sample] = []
        while self._waiting and self._waiting[0][0] <= self._second:
            found.append(heapq.heappop(self._waiting)[2])
        return found

    def relieve(self) -> None:
        """The trouble passes now."""
        self._job = self._job.relieved()
        self.training.change(self._job)
        self._host.change(self._job)

    def close(self) -> None:
        """Nothing is held."""

    def _play(self, seed: str, gpus: list[list[GpuModel]]) -> Training:
        return Training(self._job, seed, gpus, self._emit, self._ns)

    def _ns(self, seconds: float) -> int:
        return self._start_ns + round(seconds * 1e9)

    def _emit(self, time: float, sample: Sample) -> None:
        if self._outside is None:
            self._put(time, sample)
            return
        for moment, known in self._outside.seen(time, sample):
            self._put(moment, known)

    def _put(self, time: float, sample: Sample) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (time, self._order, sample))

    def _gpu(self, index: int) -> GpuModel:
        gpu = GpuModel(self._job.gpu, 24.0 + 0.6 * index, 1.0, random.Random(self._rng.random()))
        gpu.warm_up(self._job.computing.intensity)
        return gpu

    def _introduce(self) -> None:
        job, start = self._job, self._ns(0.0)
        host = job.host
        machine = MachineFacts(start, "simulated", "simulated", host.cores, None, host.memory_bytes, host.quota)
        self._emit(0.0, machine)
        nvml = NvmlState(start, "ok", driver_version="580.159", cuda_version="13.0", gpu_count=len(self._gpus))
        self._emit(0.0, nvml)
        mig = any(fault.kind == "mig" for fault in job.faults)
        for index in range(len(self._gpus)):
            self._emit(0.0, replace(gpu_facts(job.gpu, index, start), mig=mig))
        for index in range(job.ranks):
            self._emit(0.1, self._run_facts(index, 0, self._ns(0.1)))

    def _run_facts(self, rank: int, generation: int, time_ns: int) -> RunFacts:
        job = self._job
        many = job.ranks > 1
        uuids = tuple(gpu_uuid(place) for place in (range(len(self._gpus)) if job.gpus_of_one_process else (rank,)))
        loading = job.loading
        train = LoaderFacts(
            loader=TRAIN_LOADER,
            file=SCRIPT,
            line=88,
            function="main",
            dataset="ImageFolder",
            num_workers=loading.workers,
            batch_size=loading.batch_size,
            pin_memory=loading.pinned,
            persistent_workers=loading.persistent,
            prefetch_factor=loading.prefetch if loading.workers else None,
            in_order=loading.in_order,
            drop_last=loading.last_batch_share == 1.0,
            start_method="fork",
            batches_per_epoch=loading.batches_per_epoch,
            batch_bytes=loading.batch_bytes,
            batch_shape=f"uint8[{loading.batch_size}, 3, 224, 224]",
            batches_inspected=20,
            batch_shapes=job.computing.batch_shapes,
            role="train",
        )
        evaluating = any(pause.kind == "eval" for pause in job.pauses)
        evaluation = replace(train, loader=EVAL_LOADER, line=94, num_workers=2, batches_per_epoch=40, role="eval")
        return RunFacts(
            time_ns=time_ns,
            trainer=trainer_name(rank, generation),
            pid=FIRST_PID + rank + 100 * generation,
            start_ticks=START_TICKS,
            command=("python", "train.py"),
            cwd="/simulated",
            python="3.12.3",
            torch="2.13.0+cu130",
            group="simulated:29500" if many else None,
            rank=rank if many else None,
            local_rank=rank if many else None,
            world_size=job.ranks if many else None,
            local_world_size=job.ranks if many else None,
            device="cuda",
            gpu_uuids=uuids,
            cpu_affinity=job.host.cores,
            torch_threads=job.host.cores,
            loaders=(train, evaluation) if evaluating else (train,),
            model=job.computing.model,
            gpu_gap_measured=True,
        )

    def _play_second(self) -> None:
        end = self._second + 1.0
        training = self.training
        while training.time <= end + 0.5:
            training.advance()
            for rank in training.ranks:
                self._host.fetched(rank.index, rank.queue.fetches)
                self._recent.setdefault(rank.index, []).extend(rank.queue.fetches)
                rank.queue.fetches = []
        if training.generation > self._generation:
            self._start_again()
        for rank in training.ranks:
            rank.flush()
        self._second += 1
        self._read_driver(end)
        self._read_host(end)

    def _start_again(self) -> None:
        """The old processes end, new ones say hello when the script runs again."""
        self._generation = self.training.generation
        fault = next(fault for fault in self._job.faults if fault.kind == "restart")
        for rank in range(self._job.ranks):
            self._emit(fault.start + 0.5, TrainerEnded(trainer_name(rank), self._ns(fault.start + 0.5), "exited"))
            begin = fault.start + RESTART_SECONDS
            self._emit(begin, self._run_facts(rank, self._generation, self._ns(begin)))

    def _read_driver(self, end: float) -> None:
        job, time_ns = self._job, self._ns(end)
        for fault in job.faults:
            if fault.kind == "brake" and end >= fault.start:
                self._brakes = int((end - fault.start) // 60.0) + 1
            if fault.kind == "xid" and not self._lost and end >= fault.start:
                self._lost = True
                uuid = gpu_uuid(fault.gpu)
                self._emit(end, XidEvent(time_ns, uuid, 79, "GPU has fallen off the bus"))
                self._emit(end, GpuLost(time_ns, uuid, "GPU is lost"))
        for index, gpu in enumerate(self._gpus):
            gpu.read_sensors(end)
            if self._lost and any(fault.kind == "xid" and fault.gpu == index for fault in job.faults):
                continue
            creep = next((fault for fault in job.faults if fault.kind == "creep"), None)
            memory = round(job.gpu.memory_total_bytes * job.computing.memory_share)
            uuid = gpu_uuid(index)
            gpu.received_bytes = self.training.ranks[min(index, job.ranks - 1)].received_bytes
            if creep is not None:
                memory = min(memory, job.gpu.memory_total_bytes)
            polled = gpu.poll(uuid, self._start_ns, time_ns, memory)
            self._emit(end, gpu_sample(job, polled, end, index, self._brakes))
            if (self._second - 1) % STATUS_SECONDS == 0:
                busy, pid = polled.utilization_percent or 0.0, self._pid_on(index)
                self._emit(end, gpu_status(job, uuid, index, end, time_ns, busy, pid))
            if (self._second - 1) % HEALTH_SECONDS == 0:
                health = gpu_health(job.gpu, index, time_ns)
                ecc = next((fault for fault in job.faults if fault.kind == "ecc" and fault.gpu == index), None)
                if ecc is not None and end >= ecc.start:
                    health = replace(health, ecc_uncorrected_volatile=2)
                self._emit(end, health)

    def _pid_on(self, index: int) -> int:
        rank = 0 if self._job.gpus_of_one_process else index
        return FIRST_PID + rank + 100 * self._generation

    def _read_host(self, end: float) -> None:
        time_ns = self._ns(end)
        ranks = self.training.ranks
        away = self._generation and end < ranks[0].queue.epochs
        for sample in self._host.second(ranks, end, time_ns, self._generation):
            if not away:
                self._emit(end, sample)
        for rank in ranks:
            trainer = trainer_name(rank.index, self._generation)
            fetches = self._recent.get(rank.index, [])
            seen = [*fetches, *rank.cores.under_way(rank.queue)]
            tally = self._looks.second(rank, trainer, seen, end, self._ns(end - 1.0), time_ns)
            if tally is not None:
                self._emit(end, tally)
            self._recent[rank.index] = [fetch for fetch in fetches if fetch.end > end]
        for moment, count in self._outside.second(end) if self._outside is not None else ():
            self._put(moment, count)
        for rank in ranks:
            if rank.log and rank.log[0].end < end - LEFT_OVER_SECONDS:
                rank.log[:] = [one for one in rank.log if one.end >= end - 1.0]
