"""What the simulated machine and run say of themselves. Their paths lie in a folder that does not exist."""

from __future__ import annotations

from gpuwatch.samples import (
    GpuFacts,
    GpuHealth,
    GpuProcess,
    GpuStatus,
    LoaderFacts,
    MachineFacts,
    NvmlState,
    RunFacts,
)
from gpuwatch.sources.simulator.host import COMMAND, START_TICKS
from gpuwatch.sources.simulator.parameters import GIB, GpuSpec, LoaderSpec, Scenario
from gpuwatch.sources.simulator.training import EVAL_LOADER, TRAIN_LOADER

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
    return LoaderFacts(
        loader=EVAL_LOADER,
        file=SCRIPT,
        line=spec.line + 6,
        function="main",
        dataset=spec.dataset,
        num_workers=2,
        batch_size=spec.batch_size,
        pin_memory=True,
        persistent_workers=False,
        prefetch_factor=2,
        in_order=True,
        drop_last=False,
        start_method="fork",
        batches_per_epoch=40,
        batch_bytes=spec.batch_bytes,
        role="eval",
    )
