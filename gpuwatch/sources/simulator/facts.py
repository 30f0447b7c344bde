"""What the simulated machine and run say of themselves and leave in /proc. Their files lie in no folder that exists."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuProcess,
    GpuStatus,
    HostSample,
    LoaderFacts,
    MachineFacts,
    NvmlState,
    ProcessSample,
    RunFacts,
    WorkerSample,
)
from gpuwatch.sources.simulator.scenarios import GIB, GpuSpec, LoaderSpec, Scenario
from gpuwatch.sources.simulator.training import EVAL_LOADER, TRAIN_LOADER, Rank

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


FIRST_PID = 4711
FOLDER = "/simulated"
SCRIPT = f"{FOLDER}/train.py"


def gpu_uuid(index: int) -> str:
    """A UUID that reads as made up."""
    return f"GPU-51513a7e-d000-4000-8000-{index:012d}"


def rank_pid(rank: int) -> int:
    """The pid of a rank's training process."""
    return FIRST_PID + rank


def trainer_id(rank: int) -> str:
    """The trainer's name as the link would give it."""
    return f"{rank_pid(rank)}.{START_TICKS}"


def machine_facts(scenario: Scenario, time_ns: int) -> MachineFacts:
    """The host."""
    return MachineFacts(
        time_ns=time_ns,
        hostname="simulated",
        kernel="simulated",
        cpu_count=scenario.cpu_count,
        cpu_model="simulated",
        memory_total_bytes=scenario.memory_total_bytes,
    )


def nvml_state(scenario: Scenario, time_ns: int) -> NvmlState:
    """NVML stands, and costs nothing: no call is made."""
    return NvmlState(
        time_ns=time_ns,
        status="ok",
        driver_version="580.159 (simulated)",
        cuda_version="13.0",
        gpu_count=scenario.gpu_count,
    )


def gpu_facts(spec: GpuSpec, index: int, time_ns: int) -> GpuFacts:
    """A GPU at start."""
    return GpuFacts(
        time_ns=time_ns,
        uuid=gpu_uuid(index),
        index=index,
        name=spec.name,
        pci_bus_id=f"00000000:{0x17 + 0x10 * index:02X}:00.0",
        compute_capability=spec.compute_capability,
        memory_total_bytes=spec.memory_total_bytes,
        power_limit_watts=spec.power_limit_watts,
        power_limit_default_watts=spec.power_limit_watts,
        sm_clock_max_mhz=spec.sm_clock_max_mhz,
        memory_clock_max_mhz=spec.memory_clock_max_mhz,
        pcie_generation_max=spec.pcie_generation,
        pcie_width_max=16,
    )


def gpu_status(scenario: Scenario, index: int, time_ns: int, busy_percent: float) -> GpuStatus:
    """The 5 s lane."""
    spec = scenario.gpu
    return GpuStatus(
        time_ns=time_ns,
        uuid=gpu_uuid(index),
        memory_clock_mhz=float(spec.memory_clock_max_mhz),
        fan_percent=None if spec.has_gpm else 62.0,
        performance_state=0,
        pcie_generation=spec.pcie_generation,
        pcie_width=16,
        processes=(
            GpuProcess(
                host_pid=rank_pid(index),
                pid=rank_pid(index),
                memory_bytes=memory_used(scenario) - GIB // 2,
                sm_percent=busy_percent,
                command=COMMAND,
            ),
        ),
        unavailable={"fan_percent": "not supported by this GPU (SXM modules have no fan)"} if spec.has_gpm else {},
    )


def gpu_health(spec: GpuSpec, index: int, time_ns: int) -> GpuHealth:
    """The 30 s lane."""
    zero = 0 if spec.has_ecc else None
    no_ecc = "not supported by this GPU (no ECC memory)"
    return GpuHealth(
        time_ns=time_ns,
        uuid=gpu_uuid(index),
        power_limit_watts=spec.power_limit_watts,
        ecc_uncorrected_volatile=zero,
        ecc_corrected_volatile=zero,
        remapped_rows_uncorrectable=zero,
        remap_pending=False if spec.has_ecc else None,
        remap_failed=False if spec.has_ecc else None,
        retired_pages=None,
        recovery_action="none" if spec.has_ecc else None,
        pcie_replays=0,
        unavailable={}
        if spec.has_ecc
        else dict.fromkeys(
            ("ecc_uncorrected_volatile", "ecc_corrected_volatile", "remapped_rows_uncorrectable"), no_ecc
        ),
    )


def memory_used(scenario: Scenario) -> int:
    """Device memory in use: torch's reserve, the context, the driver's own."""
    return int(scenario.gpu.memory_total_bytes * scenario.compute.memory_share)


def run_facts(scenario: Scenario, rank: int, time_ns: int) -> RunFacts:
    """The hello of a rank."""
    distributed = scenario.gpu_count > 1
    loaders = [_loader_facts(scenario.loader)]
    if any(phase.kind == "eval" for phase in scenario.phases):
        loaders.append(_eval_loader_facts(scenario.loader))
    return RunFacts(
        time_ns=time_ns,
        trainer=trainer_id(rank),
        pid=rank_pid(rank),
        start_ticks=START_TICKS,
        command=tuple(COMMAND.split()),
        cwd=FOLDER,
        python="3.12.3",
        torch="2.13.0+cu130",
        group="simulated:29500" if distributed else None,
        rank=rank if distributed else None,
        local_rank=rank if distributed else None,
        world_size=scenario.gpu_count if distributed else None,
        local_world_size=scenario.gpu_count if distributed else None,
        device="cuda",
        gpu_uuids=(gpu_uuid(rank),),
        cpu_affinity=scenario.cpu_count,
        torch_threads=scenario.cpu_count,
        loaders=tuple(loaders),
        model=scenario.compute.facts,
        gpu_gap_measured=True,
        visibility="exact",
    )


def _loader_facts(spec: LoaderSpec) -> LoaderFacts:
    return LoaderFacts(
        loader=TRAIN_LOADER,
        file=SCRIPT,
        line=spec.line,
        function="main",
        dataset=spec.dataset,
        num_workers=spec.num_workers,
        batch_size=spec.batch_size,
        pin_memory=spec.pin_memory,
        persistent_workers=spec.persistent_workers,
        prefetch_factor=spec.prefetch_factor if spec.num_workers else None,
        in_order=True,
        drop_last=True,
        start_method="fork",
        batches_per_epoch=spec.batches_per_epoch,
        batch_bytes=spec.batch_bytes,
        batch_shape=f"[{spec.batch_size}, 3, 224, 224]",
        role="train",
    )


def _eval_loader_facts(spec: LoaderSpec) -> LoaderFacts:
    return replace(
        _loader_facts(spec),
        loader=EVAL_LOADER,
        line=spec.line + 6,
        num_workers=2,
        pin_memory=True,
        persistent_workers=False,
        prefetch_factor=2,
        drop_last=False,
        batches_per_epoch=40,
        batch_shape=None,
        role="eval",
    )
