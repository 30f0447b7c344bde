"""Scenes for the rules that no played stream makes speak: a setting, a cable, a mount, a neighbour."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gpuwatch.samples import GpuHealth, GpuProcess, GpuStatus, XidEvent
from gpuwatch.timeline.windows import GpuWindow, LinkErrors, MemoryGrowth, MemoryTotals, Scene
from tests.unit import scene_builder as build
from tests.unit import stack_windows as stacks

GIB = 2**30
SCRIPT = build.SCRIPT
CNN = {
    "autocast": True,
    "autocast_dtype": "float16",
    "conv_share": 0.9,
    "matmul_share": 0.1,
    "channels_last": False,
    "compiled": False,
    "deterministic": False,
    "cudnn_benchmark": False,
    "optimizer": "SGD",
    "optimizer_fused": False,
    "optimizer_file": SCRIPT,
    "optimizer_line": 104,
}


def worker_affinity_pinned() -> Scene:
    made_by = build.workers(
        4, cpu_cores=0.25, busy_share=0.99, batch_seconds=0.4, batch_cpu_seconds=0.1,
        max_affinity_cores=1, cores_seen=1,
    )  # fmt: skip
    return _starved(
        made_by, process=build.process(cores=16, tree_cores=1.5), facts={"cpu_affinity": 16},
        host=build.host(cpu_percent=12),
    )  # fmt: skip


def bursty_prefetch() -> Scene:
    noise = random.Random(3)
    waits = [noise.choice((0.0, 0.0, 0.0, 0.14, 0.14)) * 0.125 for _ in range(597)]
    made_by = build.workers(
        4, cpu_cores=0.5, busy_share=0.6, batch_seconds=0.1, batch_cpu_seconds=0.05, batch_seconds_sigma=0.05
    )
    trained = build.rank(
        step=[0.1 + wait for wait in waits], wait=waits, gap=waits, workers=made_by,
        loader=build.loader(batch_bytes=10_000_000),
    )  # fmt: skip
    return build.scene(build.run(trained), gpus=[build.gpu(utilization=92)])


def noisy_neighbour() -> Scene:
    in_line = build.process(tree_cores=3.0, run_delay_share=0.2, main_thread_cores=0.7)
    trained = build.rank(step=0.1, wait=0.001, gap=0.001, process=in_line)
    crowded = build.host(cpu_percent=98, pressure_cpu_percent=50.0)
    return build.scene(build.run(trained), gpus=[build.gpu(utilization=75.0)], host=crowded)


def epoch_too_short() -> Scene:
    few = build.loader(num_workers=8, batches_per_epoch=10)
    made_by = build.workers(8, busy_share=0.3, cpu_cores=0.2)
    return build.scene(build.run(build.rank(loader=few, workers=made_by)))


def slow_collate_ipc() -> Scene:
    line = stacks.line("collate", 20, 0.3, function="merge", text="torch.stack(xs)")
    seen = stacks.watched({"wait": 0.4}, worker_phases={"item": 0.5, "collate": 0.4, "send": 0.06}, worker_lines=[line])
    member = stacks.sampled(seen, process=build.process(cores=5, tree_cores=4.5))
    return build.scene(
        build.run(member), gpus=[build.gpu(utilization=55)], machine=build.machine(5), host=build.host(cpu_percent=85)
    )


def pin_thread_bound() -> Scene:
    looks = {"pin": stacks.share(0.97, 400), "pin-idle": stacks.share(0.03, 400)}
    seen = stacks.watched(
        {"wait": 0.5}, worker_phases={"item": 0.2}, feeder_rounds=400, feeder_samples=400, feeder_phases=looks
    )
    member = stacks.sampled(seen, loader=stacks.from_outside(num_workers=4, pin_memory=True))
    return build.scene(build.run(member), gpus=[build.gpu(utilization=45)])


def worker_memory_growth() -> Scene:
    growth = MemoryGrowth(4 * 2**20, 0.95, 590.0, 1.5 * GIB, 0.0)
    memory = {"memory_total_bytes": 128 * GIB, "memory_available_bytes": 36 * GIB}
    return build.scene(build.run(build.rank(workers=build.workers(4, growth=growth))), host=build.host(latest=memory))


def loader_overhead_floor() -> Scene:
    made_by = build.workers(4, cpu_cores=0.1, busy_share=0.05, batch_seconds=0.0018)
    return build.scene(build.run(build.rank(step=0.009, wait=0.0012, gap=0.0, workers=made_by)))


def host_memory_pressure() -> Scene:
    memory = {"memory_total_bytes": 128 * GIB, "memory_available_bytes": 6 * GIB}
    full = build.host(memory_available_share=6 / 128, latest=memory, major_faults_per_second=900.0)
    made_by = build.workers(8, rss_bytes=3 * GIB)
    return build.scene(build.run(build.rank(loader=build.loader(num_workers=8), workers=made_by)), host=full)


def numa_misplaced() -> Scene:
    trained = build.rank(process=build.process(cores=64, node_shares=(0.9, 0.1)))
    machine = build.machine(64, numa_nodes=2, gpu_numa_nodes=(("0000:3b:00.0", 1),))
    return build.scene(build.run(trained), gpus=[build.gpu(facts={"pci_bus_id": "00000000:3B:00.0"})], machine=machine)


def h2d_bound() -> Scene:
    fat = build.loader(batch_bytes=800_000_000, batch_size=64, batch_shape="float32[64,3,512,512], int64[64]")
    return build.scene(build.run(build.rank(step=0.1, gap=0.0, loader=fat)), gpus=[_linked(rx=9e9, utilization=70.0)])


def pcie_degraded() -> Scene:
    return build.scene(build.run(build.rank()), gpus=[_linked(width=4, generation=5, utilization=95.0)])


def debug_mode_on() -> Scene:
    started = {"environment": (("CUDA_LAUNCH_BLOCKING", "1"),), "age_seconds": 3600.0}
    return build.scene(build.run(build.rank(process=build.process(latest=started))))


def cudnn_benchmark() -> Scene:
    return _kernels({"batches_inspected": 5, "batch_shapes": 1})


def channels_last_off() -> Scene:
    return _kernels({})


def shape_misaligned() -> Scene:
    return _kernels({}, misaligned_share=0.3, misaligned_shape="50257x768", conv_share=0.0, matmul_share=0.9)


def gpu_unused() -> Scene:
    latest = {"age_seconds": 600.0, "environment": (), "libraries": ("torch_cuda",)}
    trained = build.rank(
        device="cpu", facts={"torch": "2.13.0+cu130"}, process=build.process(tree_cores=6.0, latest=latest)
    )
    free = build.gpu(utilization=0.0, latest_status=GpuStatus(build.START_NS, "GPU-0", processes=()))
    return build.scene(build.run(trained), gpus=[free])


def batch_headroom() -> Scene:
    return build.scene(_run_with_memory(20), gpus=[build.gpu(utilization=60)])


def memory_near_limit() -> Scene:
    return build.scene(_run_with_memory(60, reserved_gib=78.5))


def alloc_retries() -> Scene:
    return build.scene(_run_with_memory(70, alloc_retries=6))


def power_capped() -> Scene:
    capped = build.gpu(utilization=99, power=395, power_limit_watts=400.0, reason_bit_shares={0x4: 0.8})
    return build.scene(build.run(build.rank()), gpus=[capped])


def clocks_locked_low() -> Scene:
    locked = build.gpu(power=400.0, sm_clock_mhz=build.stats([1200.0] * 60))
    return build.scene(build.run(build.rank()), gpus=[locked])


def comm_bound() -> Scene:
    gpus = [_linked(i, rx=4.02e9, utilization=95.0) for i in range(4)]
    ranks = [
        build.rank(
            step=0.05, gap=0.0, gpus=(i,), pid=100 + i, loader=build.loader(batch_bytes=1_000_000),
            facts={"rank": i, "world_size": 4},
        )
        for i in range(4)
    ]  # fmt: skip
    return build.scene(build.run(*ranks), gpus=gpus)


def ddp_misconfig() -> Scene:
    line = stacks.line("forward", 70, 0.2, leaf="torch/nn/parallel/replicate.py:replicate")
    seen = stacks.watched({"forward": 0.6, "backward": 0.4}, lines=[line])
    return build.scene(build.run(stacks.sampled(seen, loader=stacks.from_outside(), gpus=(0, 1))))


def idle_gpu_allocated() -> Scene:
    holder = GpuProcess(host_pid=4711, pid=4711, memory_bytes=3 * GIB)
    held = GpuStatus(build.START_NS, "GPU-1", processes=(holder,))
    idle = build.gpu(1, utilization=0.0, latest_status=held)
    return build.scene(build.run(build.rank(gpus=(0,))), gpus=[build.gpu(0), idle])


def telemetry_gap() -> Scene:
    return build.scene(quality=build.quality(received_records=950, dropped_records=50))


def xid_unplaced() -> Scene:
    gone = XidEvent(time_ns=build.START_NS + 60 * build.SECOND, uuid=None, xid=79, text="PCI:0000:b3:00")
    return build.scene(gpus=[build.gpu(0), build.gpu(1)], xids=(gone,))


def link_errors() -> Scene:
    lossy = build.gpu(
        latest_health=GpuHealth(time_ns=build.START_NS, uuid="GPU-0", nvlink_count=18, nvlink_active=18),
        latest_status=GpuStatus(build.START_NS, "GPU-0", pcie_generation=5, pcie_width=16),
        links=LinkErrors(60.0, nvlink_recoveries=3),
    )
    return build.scene(build.run(build.rank()), gpus=[lossy])


def warmup_long() -> Scene:
    current_line = stacks.current_line(12, since=0, phase="other", text="index(files)")
    seen = stacks.watched({"other": 1.0}, current_line=current_line)
    starting = build.rank(
        process=build.process(latest={"age_seconds": 700.0}), steps=1, steps_total=0, warm=False, stacks=seen
    )
    return build.scene(build.run(starting))


SCENES: dict[str, Callable[[], Scene]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        worker_affinity_pinned,
        bursty_prefetch,
        noisy_neighbour,
        epoch_too_short,
        slow_collate_ipc,
        pin_thread_bound,
        worker_memory_growth,
        loader_overhead_floor,
        host_memory_pressure,
        numa_misplaced,
        h2d_bound,
        pcie_degraded,
        debug_mode_on,
        cudnn_benchmark,
        channels_last_off,
        shape_misaligned,
        gpu_unused,
        batch_headroom,
        memory_near_limit,
        alloc_retries,
        power_capped,
        clocks_locked_low,
        comm_bound,
        ddp_misconfig,
        idle_gpu_allocated,
        telemetry_gap,
        xid_unplaced,
        link_errors,
        warmup_long,
    )
}
"""By rule, the picture that makes it speak."""


def _starved(made_by: Any, *, host: Any, **fields: Any) -> Scene:
    loader = build.loader(num_workers=made_by.count)
    trained = build.rank(step=0.1, wait=0.04, gap=0.04, loader=loader, workers=made_by, **fields)
    return build.scene(build.run(trained), gpus=[build.gpu(utilization=60)], host=host)


def _linked(
    index: int = 0, *, rx: float | None = None, utilization: float, generation: int = 4, width: int = 16
) -> GpuWindow:
    status = GpuStatus(build.START_NS, f"GPU-{index}", pcie_generation=generation, pcie_width=width)
    return build.gpu(index, utilization=utilization, pcie_rx_bytes_per_second=rx, latest_status=status)


def _kernels(loader: dict[str, Any], **fields: Any) -> Scene:
    facts = {"model": build.model(**(CNN | fields)), "torch": "2.13.0+cu130"}
    return build.scene(build.run(build.rank(gap=0.0, loader=build.loader(**loader), facts=facts)))


def _run_with_memory(peak_gib: float, *, reserved_gib: float | None = None, alloc_retries: int = 0) -> Any:
    totals = MemoryTotals(
        allocated_peak_bytes=int(peak_gib * GIB),
        reserved_peak_bytes=int((reserved_gib or peak_gib) * GIB),
        total_bytes=80 * GIB,
        alloc_retries=alloc_retries,
        out_of_memory=0,
    )
    return build.run(build.rank(gap=0.0, memory=totals))
