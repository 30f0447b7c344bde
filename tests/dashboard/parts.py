"""GPUs, runs and findings made by hand, of which the situations are put together."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.diagnosis.finding import CallEdit, Finding, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.monitor.snapshot import GpuNow, Origin, RankNow, RunNow
from gpuwatch.samples import (
    Candidate,
    GpuFacts,
    GpuHealth,
    GpuProcess,
    GpuSample,
    GpuStatus,
    HostSample,
    LoaderFacts,
    MachineFacts,
    NvmlState,
    PhaseSpan,
    RunFacts,
)
from tests.dashboard.fake_monitor import SECOND_NS

NOW_NS = 500_000 * SECOND_NS
WALL_TIME = 1_795_183_407.0  # 20 Nov 2026, 14:03:27 UTC
GIB = 2**30
LIVE = Origin("live", "LIVE")
MACHINE = MachineFacts(NOW_NS, "node07", "6.8.0", 16, "AMD EPYC 9334", 256 * GIB)
HOST = HostSample(
    NOW_NS,
    cpu_percent=31.0,
    cpu_iowait_percent=2.0,
    load_1m=5.12,
    memory_total_bytes=256 * GIB,
    memory_available_bytes=192 * GIB,
    pressure_io_percent=1.2,
    disk_read_bytes_per_second=210e6,
    network_receive_bytes_per_second=12e3,
)
NVML_OK = NvmlState(NOW_NS, "ok", driver_version="580.159.03", cuda_version="13.0", gpu_count=1)


def gpu(index: int = 0, name: str = "NVIDIA H100 80GB HBM3", **changes: object) -> GpuNow:
    uuid = f"GPU-{index:08d}-aaaa-bbbb-cccc-0123456789ab"
    facts = GpuFacts(
        NOW_NS,
        uuid,
        index,
        name,
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        compute_capability=(9, 0),
        memory_total_bytes=80 * GIB,
        power_limit_watts=700.0,
        power_limit_default_watts=700.0,
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=2619,
        pcie_generation_max=5,
        pcie_width_max=16,
    )
    sample = GpuSample(
        NOW_NS - SECOND_NS // 2,
        uuid,
        utilization_percent=58.0,
        memory_utilization_percent=31.0,
        power_watts=402.0 + index,
        power_window_seconds=0,
        energy_joules=1.2e6,
        memory_used_bytes=round(61.2 * GIB),
        temperature_celsius=61.0,
        sm_clock_mhz=1755.0,
        event_reasons=0,
        sm_activity_percent=44.0,
        tensor_activity_percent=21.0,
        unavailable={"memory_temperature_celsius": "not supported by this GPU"},
    )
    status = GpuStatus(
        NOW_NS - 2 * SECOND_NS,
        uuid,
        memory_clock_mhz=2619,
        performance_state=0,
        pcie_generation=5,
        pcie_width=16,
        processes=(GpuProcess(4711, 4711, round(60.8 * GIB), 57.0, "python train.py", "ana", 61_000.0),),
        unavailable={"fan_percent": "this board has no fan"},
    )
    health = GpuHealth(NOW_NS - 9 * SECOND_NS, uuid, power_limit_watts=700.0, ecc_uncorrected_volatile=0)
    now = GpuNow(facts, "live", None, None, sample, status, health, (), 58.0, 31.0)
    return replace(now, **changes)  # type: ignore[arg-type]


def loader(num_workers: int = 4) -> LoaderFacts:
    return LoaderFacts(
        loader=1,
        file="/home/ana/train.py",
        line=88,
        function="build_loader",
        dataset="ImageFolder",
        num_workers=num_workers,
        batch_size=64,
        pin_memory=True,
        prefetch_factor=2,
        role="train",
    )


def rank(number: int | None = None, pid: int = 4711, **changes: object) -> RankNow:
    facts = RunFacts(
        NOW_NS,
        f"{pid}.1",
        pid,
        1,
        ("python", "train.py", "--config", "base.yaml"),
        cwd="/home/ana",
        rank=number,
        device="cuda",
        loaders=(loader(),),
    )
    now = RankNow(f"{pid}.1", facts, "training", 18_204, NOW_NS - SECOND_NS // 4, 0.312, 0.45)
    return replace(now, **changes)  # type: ignore[arg-type]


def run(**changes: object) -> RunNow:
    """A run in training."""
    now = RunNow(
        id="4711.1",
        title="train.py",
        pid=4711,
        command=("python", "train.py", "--config", "base.yaml"),
        visibility="exact",
        state="training",
        ranks=(rank(),),
        gpu_indices=(0,),
        seconds=60.0,
        steps_total=18_204,
        last_step_ns=NOW_NS - SECOND_NS // 4,
        step_seconds_p50=0.312,
        step_seconds_p95=0.540,
        samples_per_second=2564.0,
        wait_share=0.45,
        gap_share=0.41,
        copy_share=0.01,
        forward_share=0.17,
        backward_share=0.30,
        optimizer_share=0.04,
        phase_share=0.02,
        phases=(
            PhaseSpan("4711.1", "eval", NOW_NS - 70 * SECOND_NS, NOW_NS - 58 * SECOND_NS),
            PhaseSpan("4711.1", "checkpoint", NOW_NS - 25 * SECOND_NS, NOW_NS - 20 * SECOND_NS),
        ),
    )
    return replace(now, **changes)  # type: ignore[arg-type]


def candidate(pid: int = 5000, **changes: object) -> Candidate:
    """A training that nobody prepared, started an hour ago."""
    now = Candidate(
        pid,
        100 + pid,
        ("python", "train.py", "--config", "base.yaml"),
        "ana",
        3700.0,
        "sampled",
        "it has libtorch in memory and 2 DataLoader workers below it",
        workers=2,
        gpu_uuids=("GPU-00000000-aaaa-bbbb-cccc-0123456789ab",),
        how_to_see_more="start it with `gpuwatch run python train.py` for exact steps and waits",
    )
    return replace(now, **changes)  # type: ignore[arg-type]


def refused(pid: int = 6000, **changes: object) -> Candidate:
    """One whose stacks may not be read."""
    return candidate(
        pid,
        **{
            "command": ("python", "finetune.py"),
            "user": "ben",
            "age_seconds": 90_000.0,
            "visibility": "process",
            "why": "it has a context on GPU 0",
            "workers": 0,
            "refusal": "kernel.yama.ptrace_scope is 1: only a parent may read its children",
            "how_to_see_more": "run gpuwatch with sudo, or: sudo sysctl kernel.yama.ptrace_scope=0",
        }
        | changes,
    )


def starvation(**changes: object) -> Finding:
    finding = Finding(
        rule="data-starvation",
        severity=Severity.CRITICAL,
        level=Level.E3,
        summary="train.py (4711): the GPU idles 41% of the time waiting for data",
        evidence=(
            Measure("gpu_idle_from_wait_share", 0.41, "GPU idle 41% of 60 s (192 steps)"),
            Measure("worker_busy_share", 0.97, "4 workers are 97% busy"),
            Measure("free_cores", 11, "11 of 16 cores are free"),
        ),
        state="firing",
        since_ns=NOW_NS - 312 * SECOND_NS,
        run="4711.1",
        window_seconds=60.0,
        fix=Fix(
            text="Use 10 workers: each batch takes a worker 1.2 s, and the GPU needs one every 0.13 s",
            code="num_workers=10",
            file="/home/ana/train.py",
            line=88,
            value=10,
            edit=CallEdit("DataLoader", "/home/ana/train.py", 88, {"num_workers": "10"}),
        ),
        gain=Gain(1.5, 1.7, "then the GPU"),
        ruled_out=(
            RuledOut("slow disk", "workers spend 1% of their time in state D"),
            RuledOut("too few cores", "11 of 16 cores are free"),
        ),
        verify="gpuwatch trial num_workers=10 -- python train.py --config base.yaml",
        chart=("gpu.utilization_percent", "run.wait_share"),
    )
    return replace(finding, **changes)  # type: ignore[arg-type]


def hint(**changes: object) -> Finding:
    finding = Finding(
        rule="amp-off",
        severity=Severity.HINT,
        level=Level.E2,
        summary="train.py trains in 32-bit floats on a GPU whose 16-bit units are far faster",
        evidence=(Measure("float32_share", 1.0, "100% of the parameters are float32"),),
        state="firing",
        since_ns=NOW_NS - 300 * SECOND_NS,
        run="4711.1",
        window_seconds=60.0,
        fix=Fix(
            text="Run forward and loss under autocast in bfloat16",
            code='with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)',
            file="/home/ana/train.py",
            line=131,
        ),
        hint="1.0-2.6x, from NVIDIA's A100 examples",
        behind="data-starvation",
        chart=("gpu.power_watts",),
    )
    return replace(finding, **changes)  # type: ignore[arg-type]
