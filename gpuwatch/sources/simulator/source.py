"""The source that plays a scenario: a seeded model of machine and run, advanced to the clock it is asked with.

Where the simulated run has no hook, its stacks are sampled from outside and its loader's batches counted. The watch can
be narrowed to one process, so that the demo of attaching can be attached and detached, too. What machine and run say of
themselves is made up here as well; their files lie in no folder that exists.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpuwatch.samples import (
    BatchCount,
    BatchWait,
    Candidate,
    Candidates,
    CurrentLine,
    GpuFacts,
    GpuGap,
    GpuHealth,
    GpuProcess,
    GpuSample,
    GpuStatus,
    HostSample,
    LineCount,
    LoaderFacts,
    MachineFacts,
    ModelFacts,
    NvmlState,
    ProcessSample,
    RunFacts,
    RunMemory,
    Sample,
    StackTally,
    StepEnd,
    WorkerFetch,
    WorkerSample,
)
from gpuwatch.sources.simulator.model import EVAL_LOADER, TRAIN_LOADER, BatchQueue, GpuModel, Rank, Training
from gpuwatch.sources.simulator.scenarios import GIB, SCENARIOS, GpuSpec, LoaderSpec, Neighbour, Scenario

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
NEIGHBOUR_PID = 20_000
FOLDER = "/simulated"
USER = "ana"
AGE_SECONDS = 61_000.0  # of the training, when the demo begins
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
        gpu_count=scenario.gpu_count + len(neighbours_of(scenario)),
    )


def neighbours_of(scenario: Scenario) -> list[Neighbour]:
    """Who has each GPU after those of the training, one by one."""
    return [neighbour for neighbour in scenario.neighbours for _ in range(neighbour.gpus)]


def neighbour_sample(spec: GpuSpec, neighbour: Neighbour, index: int, time_ns: int, rng: random.Random) -> GpuSample:
    """One poll of a GPU that somebody else has: as busy as they keep it, give or take."""
    wanted = neighbour.utilization_percent
    busy = min(100.0, max(0.0, wanted + rng.gauss(0, 1.5))) if wanted else 0.0
    power = spec.idle_watts + (spec.power_limit_watts - spec.idle_watts) * 0.9 * busy / 100
    return GpuSample(
        time_ns=time_ns,
        uuid=gpu_uuid(index),
        utilization_percent=round(busy, 1),
        memory_utilization_percent=round(busy * 0.5, 1),
        power_watts=round(power + rng.gauss(0, 2.0), 1),
        power_window_seconds=0.0,
        memory_used_bytes=int(spec.memory_total_bytes * neighbour.memory_share)
        + (GIB // 2 if neighbour.command else 0),
        temperature_celsius=round(34.0 + spec.full_load_celsius * power / spec.power_limit_watts),
        sm_clock_mhz=float(spec.sm_clock_max_mhz if wanted else 345),
        event_reasons=0 if wanted else 1,
        sm_activity_percent=round(busy * 0.8, 1) if spec.has_gpm else None,
    )


def neighbour_status(spec: GpuSpec, neighbour: Neighbour, index: int, time_ns: int, busy_percent: float) -> GpuStatus:
    """The 5 s lane of such a GPU."""
    pid = NEIGHBOUR_PID + 17 * index
    process = GpuProcess(
        host_pid=pid,
        pid=pid,
        memory_bytes=int(spec.memory_total_bytes * neighbour.memory_share),
        sm_percent=busy_percent,
        command=neighbour.command,
        user=neighbour.user,
        age_seconds=neighbour.age_seconds + time_ns / 1e9,
    )
    return GpuStatus(
        time_ns=time_ns,
        uuid=gpu_uuid(index),
        memory_clock_mhz=float(spec.memory_clock_max_mhz),
        performance_state=0 if neighbour.utilization_percent else 8,
        pcie_generation=spec.pcie_generation,
        pcie_width=16,
        processes=(process,) if neighbour.command else (),
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
                user=USER,
                age_seconds=AGE_SECONDS + time_ns / 1e9,
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


class SimulatedFocus:
    """One process, or everything; no process of this machine is ever sampled.

    Args:
        pid: of the simulated run that is attached to at the start.
    """

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    @property
    def attached_pid(self) -> int | None:
        """Its pid; None where everything is shown."""
        return self._pid

    def attach(self, pid: int | None) -> None:
        """Narrows it to another one."""
        self._pid = pid

    def pids(self) -> frozenset[int] | None:
        """The processes that are shown; None for all."""
        return None if self._pid is None else frozenset((self._pid,))


_SAMPLES_HZ, _WORKER_SAMPLES_HZ = 100, 20
_COST_SECONDS = 0.021  # of samples of one process, per second
_AUGMENT = f"{FOLDER}/augment.py"
_HOW_TO_SEE_MORE = "`gpuwatch run COMMAND` measures steps, waits and the GPU's idle time exactly"


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what a thread does at once, with the line that it stands on; None: in no frame of the user's."""

    phase: str
    share: float
    line: LineCount | None


def _line(phase: str, number: int, text: str, leaf: str | None = None, file: str = SCRIPT) -> LineCount:
    return LineCount(phase, file, number, "main" if file == SCRIPT else "__getitem__", 0, text, leaf)


_WAIT = _line("wait", 120, "for images, labels in loader:")
_STEP = (
    _Part("copy", 0.04, _line("copy", 122, "images = images.to(device, non_blocking=True)")),
    _Part("forward", 0.24, _line("forward", 124, "logits = model(images)", "torch/nn/modules/module.py:_call_impl")),
    _Part("backward", 0.30, _line("backward", 127, "loss.backward()", "torch/autograd/graph.py:_engine_run_backward")),
    _Part("optimizer", 0.06, _line("optimizer", 128, "optimizer.step()", "torch/optim/optimizer.py:wrapper")),
    _Part("sync", 0.30, _line("sync", 130, "running += loss.item()")),
    _Part("other", 0.06, _line("other", 131, "seen += labels.size(0)")),
)
_FETCH = (
    _Part("item", 0.22, _line("item", 36, 'image = Image.open(path).convert("RGB")', "PIL/Image.py:convert", _AUGMENT)),
    _Part(
        "item",
        0.48,
        _line("item", 41, "image = image.filter(GaussianBlur(self.radius))", "PIL/ImageFilter.py:filter", _AUGMENT),
    ),
    _Part("item", 0.16, _line("item", 44, "pixels = np.asarray(image, dtype=np.float32) / 255", None, _AUGMENT)),
    _Part("collate", 0.10, None),
    _Part("send", 0.04, None),
)


class OutsideView:
    """Follows the training's own samples, hides those that only a hook gives, and counts samples once a second.

    Args:
        workers: of the loader.
        rng: when each sample is taken.
        to_ns: model seconds to the clock's.
    """

    def __init__(self, workers: int, rng: random.Random, to_ns: Callable[[float], int], trainer: str) -> None:
        self._workers = workers
        self._rng = rng
        self._ns = to_ns
        self._trainer = trainer
        self._stretches: list[tuple[int, int, _Part]] = []
        self._fetches: list[tuple[int, int, int]] = []
        self._batch_ends: list[int] = []
        self._waited_until: int | None = None

    def seen(self, sample: Sample) -> Sample | None:
        """The sample as it is known without a hook; None where it is not."""
        if isinstance(sample, RunFacts):
            return _from_outside(sample)
        if isinstance(sample, BatchWait):
            self._stretches.append((sample.start_ns, sample.end_ns, _Part("wait", 1.0, _WAIT)))
            self._batch_ends.append(sample.end_ns)
            self._waited_until = sample.end_ns
        elif isinstance(sample, StepEnd):
            self._step(self._waited_until or sample.start_ns, sample.end_ns)
        elif isinstance(sample, WorkerFetch):
            self._fetches.append((sample.worker, sample.start_ns, sample.end_ns))
        return None if isinstance(sample, BatchWait | StepEnd | WorkerFetch | GpuGap | RunMemory) else sample

    def second(self, start: float, end: float) -> Iterator[Sample]:
        """What the samples of a second found, the loader's count, and where the thread stands."""
        start_ns, end_ns = self._ns(start), self._ns(end)
        found = [self._at(moment) for moment in self._moments(start_ns, end_ns, _SAMPLES_HZ)]
        parts = [part for part in found if part is not None]
        in_workers = [
            self._fetching(worker, moment)
            for worker in range(self._workers)
            for moment in self._moments(start_ns, end_ns, _WORKER_SAMPLES_HZ)
        ]
        if parts:
            yield StackTally(
                trainer=self._trainer,
                start_ns=start_ns,
                end_ns=end_ns,
                samples=len(parts),
                phases=Counter(part.phase for part in parts),
                lines=_lines(parts),
                rejected=len(found) - len(parts),
                workers=self._workers,
                worker_samples=len(in_workers),
                worker_phases=Counter(part.phase if part else "idle" for part in in_workers),
                worker_lines=_lines([part for part in in_workers if part is not None]),
                cpu_seconds=_COST_SECONDS,
            )
            line = parts[-1].line
            if line is not None:
                yield CurrentLine(
                    self._trainer,
                    end_ns,
                    end_ns - 10_000_000,
                    line.phase,
                    line.file,
                    line.line,
                    line.function,
                    line.text,
                )
        batches = bisect_right(self._batch_ends, end_ns)
        yield BatchCount(self._trainer, end_ns, TRAIN_LOADER, "train", batches, epochs=1)
        self._stretches = [stretch for stretch in self._stretches if stretch[1] > end_ns]
        self._fetches = [fetch for fetch in self._fetches if fetch[2] > end_ns]

    def _step(self, start_ns: int, end_ns: int) -> None:
        moment = float(start_ns)
        for part in _STEP:
            after = moment + part.share * (end_ns - start_ns)
            self._stretches.append((round(moment), round(after), part))
            moment = after

    def _moments(self, start_ns: int, end_ns: int, count: int) -> list[int]:
        """Jittered, one in each equal part of the second."""
        width = (end_ns - start_ns) / count
        return [start_ns + round((number + self._rng.random()) * width) for number in range(count)]

    def _at(self, moment_ns: int) -> _Part | None:
        return next((part for start, end, part in self._stretches if start <= moment_ns < end), None)

    def _fetching(self, worker: int, moment_ns: int) -> _Part | None:
        if not any(number == worker and start <= moment_ns < end for number, start, end in self._fetches):
            return None
        return self._rng.choices(_FETCH, [part.share for part in _FETCH])[0]


def candidates(time_ns: int, age_seconds: float, workers: int) -> Candidates:
    """The run, and another user's that may not be read."""
    own = Candidate(
        pid=FIRST_PID,
        start_ticks=START_TICKS,
        command=tuple(COMMAND.split()),
        user=USER,
        age_seconds=AGE_SECONDS + age_seconds,
        visibility="sampled",
        why=f"it computes on GPU 0, and {workers} DataLoader workers run below it",
        workers=workers,
        gpu_uuids=(gpu_uuid(0),),
        how_to_see_more=_HOW_TO_SEE_MORE,
    )
    other = Candidate(
        pid=FIRST_PID + 2_000,
        start_ticks=START_TICKS + 1,
        command=("python", "finetune.py"),
        user="ben",
        age_seconds=1_300.0 + age_seconds,
        visibility="process",
        why="libtorch is in its memory",
        refusal="it belongs to another user",
        how_to_see_more="run gpuwatch with sudo to read its stacks",
    )
    return Candidates(time_ns, (own, other))


def _from_outside(known: RunFacts) -> RunFacts:
    """What the reader finds of what a hook would say."""
    loaders = tuple(
        replace(
            loader, batch_bytes=None, batch_shape=None, start_method=None, loop_file=_WAIT.file, loop_line=_WAIT.line
        )
        for loader in known.loaders
    )
    return replace(
        known,
        loaders=loaders,
        model=ModelFacts(),
        torch_threads=None,
        gpu_gap_measured=False,
        visibility="sampled",
        how_to_see_more=_HOW_TO_SEE_MORE,
    )


def _lines(parts: list[_Part]) -> tuple[LineCount, ...]:
    counted = Counter(part.line for part in parts if part.line is not None)
    return tuple(replace(line, samples=count) for line, count in counted.most_common())


_STATUS_SECONDS = 5.0
_HEALTH_SECONDS = 30.0


class SimulatorSource:
    """A source of made-up samples, the same for the same scenario, seed and start.

    The first `collect` brings `history_seconds` of past at once, so that a demo opens with a full chart.
    """

    name = "simulator"

    def __init__(
        self,
        scenario: str | Scenario,
        *,
        seed: int = 0,
        start_ns: int,
        history_seconds: float = 0,
        interval_seconds: float = 1.0,
    ) -> None:
        self.scenario = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        self._origin_ns = max(0, start_ns - round(history_seconds * 1e9))
        self._interval = interval_seconds
        self._rng = random.Random(f"{self.scenario.name} {seed}")
        self._pending: list[tuple[float, int, Sample]] = []
        self._order = 0
        self._neighbours = neighbours_of(self.scenario)
        self._neighbour_rng = random.Random(f"{self.scenario.name} neighbours {seed}")
        self._host = HostModel(self.scenario, self._rng)
        self._gpus = [self._gpu(index) for index in range(self.scenario.gpu_count)]
        self._ranks = [self._rank(index) for index in range(self.scenario.gpu_count)]
        self._training = Training(self.scenario, self._ranks, self._rng, self._emit, self._to_ns)
        self._outside = self._view_from_outside() if self.scenario.attached else None
        self.focus = SimulatedFocus(FIRST_PID) if self.scenario.attached else None
        self._polls = 0
        self._host_polls = 0
        self._closed = False
        self._introduce()

    def fileno(self) -> int | None:
        """No file: only the clock moves this source."""
        return None

    def due_ns(self) -> int | None:
        """When the next sample is there."""
        if self._closed:
            return None
        self._advance(self._to_seconds_of_next())
        return self._to_ns(self._pending[0][0])

    def collect(self, now_ns: int) -> Iterable[Sample]:
        """All samples up to `now_ns`, oldest first."""
        if self._closed:
            return []
        now = (now_ns - self._origin_ns) / 1e9
        self._advance(now)
        samples = []
        while self._pending and self._pending[0][0] <= now:
            samples.append(heapq.heappop(self._pending)[2])
        return samples

    def close(self) -> None:
        """Ends it; there is nothing to release."""
        self._closed = True
        self._pending.clear()

    def _to_ns(self, seconds: float) -> int:
        return self._origin_ns + round(seconds * 1e9)

    def _to_seconds_of_next(self) -> float:
        return self._pending[0][0] if self._pending else self._training.time + self._interval

    def _emit(self, time: float, sample: Sample) -> None:
        if isinstance(sample, WorkerFetch):
            start, end = ((at - self._origin_ns) / 1e9 for at in (sample.start_ns, sample.end_ns))
            self._host.fetched(sample.trainer, sample.worker, start, end, sample.cpu_seconds or 0.0)
        known = sample if self._outside is None else self._outside.seen(sample)
        if known is not None:
            self._order += 1
            heapq.heappush(self._pending, (time, self._order, known))

    def _gpu(self, index: int) -> GpuModel:
        inlet = self.scenario.inlet_celsius + 0.6 * index
        resistance = self.scenario.heat_resistance.get(index, 1.0)
        gpu = GpuModel(self.scenario.gpu, inlet, resistance, random.Random(self._rng.random()))
        gpu.warm_up(self.scenario.compute.intensity)
        return gpu

    def _rank(self, index: int) -> Rank:
        scenario = self.scenario
        wanted = scenario.gpu_count * (1 + scenario.loader.num_workers * scenario.loader.cpu_share)
        queue = BatchQueue(scenario.loader, random.Random(self._rng.random()), max(1.0, wanted / scenario.cpu_count))
        first_worker = FIRST_PID + 100 + index * scenario.loader.num_workers
        return Rank(
            index=index,
            trainer=trainer_id(index),
            queue=queue,
            gpu=self._gpus[index],
            step_ended=0.2,
            worker_pids=tuple(range(first_worker, first_worker + scenario.loader.num_workers)),
            cpu_busy=[],
        )

    def _view_from_outside(self) -> OutsideView:
        workers, trainer = self.scenario.loader.num_workers, trainer_id(0)
        return OutsideView(workers, random.Random(self._rng.random()), self._to_ns, trainer)

    def _introduce(self) -> None:
        start_ns = self._origin_ns
        self._emit(0.0, machine_facts(self.scenario, start_ns))
        self._emit(0.0, nvml_state(self.scenario, start_ns))
        for index in range(self.scenario.gpu_count + len(self._neighbours)):
            self._emit(0.0, gpu_facts(self.scenario.gpu, index, start_ns))
        for rank in self._ranks:
            self._emit(0.1, run_facts(self.scenario, rank.index, self._to_ns(0.1)))

    def _advance(self, until: float) -> None:
        """Plays the training past `until`, then lets the sensors look at what is settled."""
        while self._training.time <= until:
            self._training.advance()
            self._read_sensors(self._training.time)

    def _read_sensors(self, until: float) -> None:
        while (poll_time := (self._polls + 1) * self._interval) <= until:
            for gpu in self._gpus:
                gpu.read_sensors(poll_time)
            self._poll(poll_time)
        for gpu in self._gpus:
            gpu.read_sensors(until)
        while self._host_polls + 1 <= until:
            self._poll_host()

    def _poll(self, time: float) -> None:
        self._polls += 1
        time_ns = self._to_ns(time)
        self._emit(time, nvml_state(self.scenario, time_ns))
        for index, gpu in enumerate(self._gpus):
            used = memory_used(self.scenario)
            sample = gpu.poll(gpu_uuid(index), self._origin_ns, time_ns, used)
            self._emit(time, sample)
            if self._is_due(_STATUS_SECONDS):
                busy = sample.utilization_percent or 0.0
                self._emit(time, gpu_status(self.scenario, index, time_ns, busy))
            if self._is_due(_HEALTH_SECONDS):
                self._emit(time, gpu_health(self.scenario.gpu, index, time_ns))
        spec = self.scenario.gpu
        for index, neighbour in enumerate(self._neighbours, start=len(self._gpus)):
            seen = neighbour_sample(spec, neighbour, index, time_ns, self._neighbour_rng)
            self._emit(time, seen)
            if self._is_due(_STATUS_SECONDS):
                busy = seen.utilization_percent or 0.0
                self._emit(time, neighbour_status(spec, neighbour, index, time_ns, busy))
            if self._is_due(_HEALTH_SECONDS):
                self._emit(time, gpu_health(spec, index, time_ns))

    def _is_due(self, lane_seconds: float) -> bool:
        """Whether a slower lane is read along with this poll."""
        return (self._polls - 1) % max(1, round(lane_seconds / self._interval)) == 0

    def _poll_host(self) -> None:
        self._host_polls += 1
        end = float(self._host_polls)
        for sample in self._host.second(self._ranks, end - 1, end, self._to_ns(end)):
            self._emit(end, sample)
        if self._outside is not None:
            for seen in self._outside.second(end - 1, end):
                self._emit(end, seen)
            if self._host_polls % _STATUS_SECONDS == 1:
                self._emit(end, candidates(self._to_ns(end), end, self.scenario.loader.num_workers))
