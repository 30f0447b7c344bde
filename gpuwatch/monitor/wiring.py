"""Puts monitors together: over this machine, or over a simulated one.

Sources are imported here, inside the functions: a demo needs no NVML, and a live monitor no simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.rule import Settings
from gpuwatch.monitor.clock import CatchUpClock, Clock, SystemClock, VirtualClock
from gpuwatch.monitor.monitor import Monitor, OwnCost
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.timeline.timeline import Timeline

if TYPE_CHECKING:
    from gpuwatch.samples import Sample
    from gpuwatch.sources.nvml.source import NvmlSource

_VIRTUAL_START_NS = 86_400_000_000_000  # any, but always the same: a simulated report is reproducible


TakeNvml = Callable[[], "tuple[NvmlSource, list[Sample]]"]


def live_monitor(
    *,
    interval_seconds: float = 1.0,
    attach_pid: int | None = None,
    timeline: Timeline | None = None,
    settings: Settings | None = None,
    hook_folder: Path | None = None,
    nvml: TakeNvml | None = None,
) -> Monitor:
    """A monitor of all GPUs and hooked runs here, or of one process tree and its GPUs; `attach` changes that later.

    Args:
        interval_seconds: between two polls.
        attach_pid: the root of the tree. Those in it that train without a hook are watched from outside.
        timeline: to feed; one that also records, for instance.
        settings: which rules speak, and from which thresholds on.
        hook_folder: where hooked runs are met; None: wherever they are.
        nvml: gives the source of the GPUs where it has been started already, with what it has said so far.
    """
    clock = SystemClock()
    timeline = timeline or Timeline(started_ns=clock.now_ns(), interval_seconds=interval_seconds)
    # The child asks the driver while this process still imports the rest: the first number comes 0.2 s sooner.
    take_nvml = nvml or _started_nvml(interval_seconds)
    from gpuwatch.monitor.focus import Focus
    from gpuwatch.sources.discovery.source import DiscoverySource
    from gpuwatch.sources.hook_link.source import HookLinkSource
    from gpuwatch.sources.host.source import HostSource
    from gpuwatch.sources.stacks import StackSource, StackTarget

    focus = Focus(timeline)
    focus.attach(attach_pid)
    host = HostSource(interval_seconds, targets=focus.host_targets, known_workers=timeline.worker_pids)
    stacks = StackSource(
        lambda: [
            *(StackTarget(pid, hooked=True) for pid in focus.hooked()),
            *(StackTarget(pid, hooked=False) for pid in focus.unhooked()),
        ]
    )
    discovery = DiscoverySource(hooked=timeline.live_trainer_pids, gpu_processes=timeline.gpus_by_pid)
    gpus, said = take_nvml()
    for sample in said:
        timeline.add(sample)
    return Monitor(
        [gpus, host, HookLinkSource(hook_folder), stacks, discovery],
        origin=Origin("live", "LIVE"),
        clock=clock,
        engine=Engine(settings=settings),
        focus=focus,
        interval_seconds=interval_seconds,
        timeline=timeline,
        own_cost=OwnCost(),
    )


def _started_nvml(interval_seconds: float) -> TakeNvml:
    from gpuwatch.sources.nvml.source import NvmlSource

    source = NvmlSource(interval_seconds)
    said = list(source.collect(time.monotonic_ns()))
    return lambda: (source, said)


def simulated_monitor(
    scenario: str,
    *,
    seed: int = 0,
    virtual: bool = False,
    history_seconds: float = 0.0,
    interval_seconds: float = 1.0,
    settings: Settings | None = None,
) -> Monitor:
    """A monitor of a made-up machine; its origin says so at all times.

    Args:
        scenario: one of `gpuwatch.sources.simulator.SCENARIOS`.
        seed: the same seed gives the same run.
        virtual: whether time jumps from event to event, instead of passing.
        history_seconds: past that is lived through at once at the start, evaluations included; not if virtual.
        interval_seconds: between two polls.
        settings: which rules speak, and from which thresholds on.
    """
    from gpuwatch.sources.simulator.source import SimulatorSource

    clock: Clock
    clock = VirtualClock(_VIRTUAL_START_NS, time.time()) if virtual else CatchUpClock(round(history_seconds * 1e9))
    source = SimulatorSource(scenario, seed=seed, start_ns=clock.now_ns(), interval_seconds=interval_seconds)
    return Monitor(
        [source],
        origin=Origin("simulated", f"SIMULATED {scenario}"),
        clock=clock,
        engine=Engine(settings=settings),
        focus=source.focus,
        interval_seconds=interval_seconds,
        own_cost=None if virtual else OwnCost(),
    )
