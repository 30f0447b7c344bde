"""The CPU side of the simulated machine: what the loop and its workers leave in /proc, once a second."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuwatch.samples import HostSample, ProcessSample, WorkerSample
from gpuwatch.sources.simulator.parameters import GIB, Scenario
from gpuwatch.sources.simulator.training import Rank

COMMAND = "python train.py --config base.yaml"
START_TICKS = 8_640_000

_WORKER_RSS_BYTES = 900 * 1024**2
_MAIN_RSS_BYTES = 6 * GIB


@dataclass(slots=True)
class HostModel:
    """Adds up, second by second, what the training threads and the workers burned."""

    scenario: Scenario
    rng: random.Random
    _fetches: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    _generation: dict[str, int] = field(default_factory=dict)

    def fetched(self, trainer: str, worker: int, start: float, end: float, cpu_seconds: float) -> None:
        """Takes note of a batch under way on a worker."""
        self._fetches.setdefault(trainer, []).append((worker, start, end, cpu_seconds))

    def second(self, ranks: list[Rank], start: float, end: float, time_ns: int) -> Iterable[HostSample | ProcessSample]:
        """The samples of the stretch from `start` to `end`."""
        processes = [self._process(rank, start, end, time_ns) for rank in ranks]
        yield from processes
        wanted = sum(process.tree_cores or 0.0 for process in processes) + 0.15
        blocked = [worker.blocked_share or 0.0 for process in processes for worker in process.workers]
        yield self._host(wanted, sum(blocked), time_ns)

    def _process(self, rank: Rank, start: float, end: float, time_ns: int) -> ProcessSample:
        main = sum(_overlap(begun, ended, start, end) * cores for begun, ended, cores in rank.cpu_busy) / (end - start)
        rank.cpu_busy[:] = [stretch for stretch in rank.cpu_busy if stretch[1] > end]
        fetches = self._fetches.get(rank.trainer, [])
        workers = []
        for worker, pid in enumerate(rank.worker_pids):
            busy = cpu = 0.0
            for number, begun, ended, cpu_seconds in fetches:
                if number == worker:
                    overlap = _overlap(begun, ended, start, end)
                    busy += overlap
                    cpu += cpu_seconds * overlap / (ended - begun)
            workers.append(self._worker(pid, cpu / (end - start), busy / (end - start)))
        self._fetches[rank.trainer] = [fetch for fetch in fetches if fetch[2] > end]
        changed = self._generation.get(rank.trainer, rank.worker_generation) != rank.worker_generation
        self._generation[rank.trainer] = rank.worker_generation
        pid = int(rank.trainer.split(".")[0])
        main = min(1.0, main + 0.02)
        return ProcessSample(
            time_ns=time_ns,
            pid=pid,
            start_ticks=START_TICKS,
            state="R" if main > 0.5 else "S",
            command=COMMAND,
            main_thread_cores=round(main, 3),
            tree_cores=round(main + sum(worker.cpu_cores or 0.0 for worker in workers), 3),
            workers=tuple(workers),
            worker_pids_changed=changed,
            affinity_cores=self.scenario.cpu_count,
            cpu_quota_cores=None,
            cpu_capacity_cores=float(self.scenario.cpu_count),
            involuntary_switches_per_second=round(self._crowding(ranks=self.scenario.gpu_count) * 180, 1),
            run_delay_share=0.002,
            rss_bytes=_MAIN_RSS_BYTES + len(workers) * _WORKER_RSS_BYTES,
            read_bytes_per_second=0.0,
            write_bytes_per_second=0.0,
            shm_total_bytes=self.scenario.memory_total_bytes // 2,
            shm_used_bytes=len(workers) * 2 * self.scenario.loader.batch_bytes,
        )

    def _worker(self, pid: int, cores: float, busy: float) -> WorkerSample:
        return WorkerSample(
            pid=pid,
            cpu_cores=round(cores, 3),
            state="R" if cores > 0.5 else "S",
            blocked_share=round(max(0.0, busy - cores), 3),
            threads=1,
            rss_bytes=_WORKER_RSS_BYTES,
            affinity_cores=self.scenario.cpu_count,
        )

    def _crowding(self, ranks: int) -> float:
        """Runnable threads per core beyond the cores there are; 0 on a machine with room."""
        loader = self.scenario.loader
        wanted = ranks * (1 + loader.num_workers * loader.cpu_share)
        return max(0.0, wanted / self.scenario.cpu_count - 1)

    def _host(self, wanted_cores: float, blocked_workers: float, time_ns: int) -> HostSample:
        scenario = self.scenario
        percent = min(100.0, 100 * wanted_cores / scenario.cpu_count + abs(self.rng.gauss(0, 0.6)))
        by_core = tuple(
            round(min(100.0, max(0.0, percent + self.rng.gauss(0, 12 * (1 - percent / 100)))), 1)
            for _ in range(scenario.cpu_count)
        )
        used = 12 * GIB + scenario.gpu_count * (_MAIN_RSS_BYTES + scenario.loader.num_workers * _WORKER_RSS_BYTES)
        loader = scenario.loader
        reading = loader.batch_bytes / max(
            scenario.compute.gpu_seconds, loader.batch_seconds / max(1, loader.num_workers)
        )
        return HostSample(
            time_ns=time_ns,
            cpu_percent=round(percent, 1),
            cpu_percent_by_core=by_core,
            cpu_iowait_percent=round(min(40.0, 100 * blocked_workers / scenario.cpu_count), 1),
            load_1m=round(wanted_cores, 2),
            memory_total_bytes=scenario.memory_total_bytes,
            memory_available_bytes=max(GIB, scenario.memory_total_bytes - used),
            swap_in_bytes_per_second=0.0,
            major_faults_per_second=0.0,
            pressure_cpu_percent=round(min(90.0, 100 * self._crowding(scenario.gpu_count)), 1),
            pressure_io_percent=round(min(60.0, 6 * blocked_workers), 1),
            pressure_memory_percent=0.0,
            disk_read_bytes_per_second=round(reading * scenario.gpu_count * 0.2, 0),
            disk_write_bytes_per_second=120_000.0,
            disk_queue_length=round(0.2 + 0.3 * blocked_workers, 2),
            network_receive_bytes_per_second=4_200.0,
            network_send_bytes_per_second=3_100.0,
            shm_total_bytes=scenario.memory_total_bytes // 2,
            shm_used_bytes=scenario.gpu_count * loader.num_workers * 2 * loader.batch_bytes,
        )


def _overlap(start: float, end: float, window_start: float, window_end: float) -> float:
    return max(0.0, min(end, window_end) - max(start, window_start))
