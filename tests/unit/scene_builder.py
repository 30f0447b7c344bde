"""Builds the scenes that rule and engine tests judge, from what one would say of a run in words.

    starved = scene(run(rank(step=0.2, wait=0.12, gap=0.08, loader=loader(num_workers=4))), gpus=[gpu(utilization=58)])
    draft = check("workers-too-few", run_case(starved, holding={"data-starvation"}))
    names = fired(starved)

Times are seconds, shares 0..1, utilization percent. Every builder takes the dataclass's own field names as
further keywords, which win over what it derives. A value that varies is given as a sequence, one per step or
per utilization sample; it is repeated to fill the window.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from gpuwatch.diagnosis.finding import Draft, Finding
from gpuwatch.diagnosis.rule import GpuCase, MachineCase, RunCase, gpu_case_of, run_case_of
from gpuwatch.samples import (
    GpuFacts,
    GpuSample,
    HostSample,
    LoaderFacts,
    MachineFacts,
    ModelFacts,
    ProcessSample,
    RunFacts,
)
from gpuwatch.timeline.windows import (
    EpochTotals,
    GpuWindow,
    HostWindow,
    PhaseTotals,
    ProcessTotals,
    Quality,
    RankWindow,
    RunWindow,
    Scene,
    Stats,
    StepColumns,
    WorkerTotals,
)

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
SCRIPT = "/home/user/train.py"


def stats(values: Iterable[float]) -> Stats:
    """The usual figures of some values."""
    ordered = sorted(values)

    def rank_at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Stats(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        sigma=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        p5=rank_at(0.05),
        p50=rank_at(0.5),
        p95=rank_at(0.95),
        min=ordered[0],
        max=ordered[-1],
    )


def filled(value: float | Sequence[float], count: int) -> list[float]:
    """`count` values: the one value, or the sequence repeated."""
    if isinstance(value, int | float):
        return [float(value)] * count
    return [float(v) for v in islice(cycle(value), count)]


def loader(**fields: Any) -> LoaderFacts:
    """A training loader built at train.py:88: four workers, batches of 32 of 20 MB."""
    usual: dict[str, Any] = {
        "loader": 1,
        "file": SCRIPT,
        "line": 88,
        "num_workers": 4,
        "batch_size": 32,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 2,
        "in_order": True,
        "start_method": "fork",
        "batches_per_epoch": 5000,
        "batch_bytes": 20_000_000,
        "role": "train",
    }
    if fields.get("num_workers") == 0:
        usual |= {"persistent_workers": False, "prefetch_factor": None}
    return LoaderFacts(**(usual | fields))


def process(
    *, cores: float = 16, pid: int = 4711, latest: dict[str, Any] | None = None, **fields: Any
) -> ProcessTotals:
    """The trainer's process tree; `cores` is what it may use (affinity, quota)."""
    sample = {
        "time_ns": START_NS,
        "pid": pid,
        "start_ticks": 1,
        "state": "R",
        "affinity_cores": int(cores),
        "cpu_capacity_cores": float(cores),
    }
    usual: dict[str, Any] = {"main_thread_cores": 0.5, "tree_cores": 2.0, "run_delay_share": 0.0}
    shown = usual | fields
    shown.setdefault("tree_cores_lately", shown["tree_cores"])
    return ProcessTotals(latest=ProcessSample(**(sample | (latest or {}))), **shown)


def workers(count: int = 4, **fields: Any) -> WorkerTotals:
    """DataLoader workers that compute all the time."""
    usual: dict[str, Any] = {"cpu_cores": 0.95, "blocked_share": 0.0, "busy_share": 0.97}
    return WorkerTotals(count=count, **(usual | fields))


def model(**fields: Any) -> ModelFacts:
    """A plain float32 model with AdamW."""
    usual: dict[str, Any] = {"parameters": 25_000_000, "parameter_bytes": 100_000_000, "float32_share": 1.0}
    return ModelFacts(**(usual | fields))


def phase(kind: str, **fields: Any) -> PhaseTotals:
    """Phase totals of one kind; give at least count, seconds and share."""
    usual: dict[str, Any] = {"count": 2, "seconds": 6.0, "share": 0.1, "longest_seconds": 3.0}
    return PhaseTotals(kind=kind, **(usual | fields))


def epochs(**fields: Any) -> EpochTotals:
    """Epoch starts that cost nothing."""
    usual: dict[str, Any] = {
        "count": 3,
        "excess_seconds": 0.0,
        "share": 0.0,
        "first_wait_seconds": 0.01,
        "usual_wait_seconds": 0.01,
    }
    return EpochTotals(**(usual | fields))


def rank(
    *,
    step: float | Sequence[float] = 0.2,
    wait: float | Sequence[float] = 0.0,
    gap: float | Sequence[float] | None = None,
    steps: int | None = None,
    batches: int = 1,
    window: float = 60.0,
    device: str | None = "cuda",
    gpus: Sequence[int] = (0,),
    loader: LoaderFacts | None = None,
    facts: dict[str, Any] | None = None,
    pid: int = 4711,
    **fields: Any,
) -> RankWindow:
    """One trainer: training step, wait inside it and GPU idle it caused, in seconds; `batches` go into a step.

    `gap=None` on "cuda" means that no event pairs are read, so the level is at most E2. Its workers have time to spare
    where nothing waits for them.
    """
    mean_step = step if isinstance(step, int | float) else statistics.fmean(step)
    count = steps if steps is not None else max(1, int(window / mean_step))
    periods = filled(step, count)
    waits = filled(wait, count)
    gaps = filled(gap, count) if gap is not None else [math.nan] * count
    train_loader = loader if loader is not None else _usual_loader()
    ends: list[int] = []
    clock = START_NS
    for period in periods:
        clock += int(period * SECOND)
        ends.append(clock)
    train_seconds = sum(periods)
    batch = float(train_loader.batch_size or 32) * batches
    run_facts: dict[str, Any] = {
        "time_ns": START_NS,
        "trainer": f"{pid}.1",
        "pid": pid,
        "start_ticks": 1,
        "command": ("python", "train.py"),
        "device": device,
        "gpu_uuids": tuple(f"GPU-{index}" for index in gpus) if device == "cuda" else (),
        "cpu_affinity": 16,
        "torch_threads": 8,
        "loaders": (train_loader,),
        "model": model(),
        "gpu_gap_measured": gap is not None,
    }
    derived: dict[str, Any] = {
        "step_seconds": stats(periods),
        "step_p99_session_seconds": sorted(periods)[int(0.99 * (count - 1))],
        "wait_share": sum(waits) / train_seconds,
        "steps_per_second": count / window if "visibility" not in (facts or {}) else None,
        "wait_seconds_per_batch": sum(waits) / count / batches,
        "settled_wait_share": sum(waits) / train_seconds,
        "gap_share": sum(gaps) / train_seconds if gap is not None else None,
        "samples_per_second": batch * count / train_seconds,
        "last_step_ns": ends[-1],
        "train_loader": train_loader,
        "workers": workers(train_loader.num_workers, busy_share=0.97 if any(waits) else 0.6)
        if train_loader.num_workers
        else None,
        "process": process(pid=pid),
        "epochs": epochs(),
        "steps_total": count + 100,
        "warm": True,
    }
    return RankWindow(
        **(
            {
                "trainer": f"{pid}.1",
                "facts": RunFacts(**(run_facts | (facts or {}))),
                "window_seconds": window,
                "train_seconds": train_seconds,
                "steps": count,
                "columns": StepColumns(
                    number=list(range(count)),
                    end_ns=ends,
                    period_seconds=periods,
                    wait_seconds=waits,
                    gap_seconds=gaps,
                    samples=[batch] * count,
                    epoch_position=[100 + i for i in range(count)],
                    settled=[True] * count,
                ),
            }
            | derived
            | fields
        )
    )


def _usual_loader() -> LoaderFacts:
    return loader()


def run(*ranks: RankWindow, **fields: Any) -> RunWindow:
    """A run of these ranks; the one with the largest wait is the critical one."""
    members = ranks or (rank(),)
    critical = max(members, key=lambda member: member.wait_share or 0.0)
    uuids = dict.fromkeys(uuid for member in members for uuid in member.facts.gpu_uuids)
    usual: dict[str, Any] = {
        "id": members[0].trainer,
        "title": "train.py",
        "critical": critical,
        "gpu_uuids": tuple(uuids),
        "samples_per_second": sum(member.samples_per_second or 0.0 for member in members),
    }
    return RunWindow(ranks=members, **(usual | fields))


def gpu(
    index: int = 0,
    *,
    utilization: float | Sequence[float] | None = 97.0,
    train_utilization: float | Sequence[float] | None = None,
    power: float | Sequence[float] | None = 600.0,
    window: float = 60.0,
    spacing: float = 0.5,
    facts: dict[str, Any] | None = None,
    latest: dict[str, Any] | None = None,
    **fields: Any,
) -> GpuWindow:
    """An H100 of 700 W at 97% and 600 W. `train_utilization` defaults to `utilization`; None: not reported."""
    count = int(window / spacing)
    in_training = utilization if train_utilization is None else train_utilization
    samples = None if in_training is None else filled(in_training, count)
    gpu_facts: dict[str, Any] = {
        "time_ns": START_NS,
        "uuid": f"GPU-{index}",
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "compute_capability": (9, 0),
        "memory_total_bytes": 80 * 2**30,
        "power_limit_watts": 700.0,
        "power_limit_default_watts": 700.0,
        "sm_clock_max_mhz": 1980,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
    }
    derived: dict[str, Any] = {
        "latest": GpuSample(**({"time_ns": START_NS, "uuid": f"GPU-{index}"} | (latest or {}))),
        "utilization": None if utilization is None else stats(filled(utilization, count)),
        "train_utilization": None if samples is None else stats(samples),
        "train_utilization_series": ()
        if samples is None
        else tuple((START_NS + int(i * spacing * SECOND), value) for i, value in enumerate(samples)),
        "sensor_window_seconds": 0.1,
        "power_watts": None if power is None else stats(filled(power, count)),
        "power_limit_watts": 700.0,
        "memory_used_bytes": stats([60.0 * 2**30]),
        "temperature_celsius": stats([60.0]),
        "sm_clock_mhz": stats([1900.0]),
        "sm_clock_cool_mhz": 1900.0,
    }
    return GpuWindow(facts=GpuFacts(**(gpu_facts | (facts or {}))), window_seconds=window, **(derived | fields))


def host(*, latest: dict[str, Any] | None = None, window: float = 60.0, **fields: Any) -> HostWindow:
    """A calm host of 128 GB."""
    sample: dict[str, Any] = {
        "time_ns": START_NS,
        "memory_total_bytes": 128 * 2**30,
        "memory_available_bytes": 100 * 2**30,
        "shm_total_bytes": 64 * 2**30,
        "shm_used_bytes": 0,
    }
    usual: dict[str, Any] = {
        "cpu_percent": 20.0,
        "pressure_cpu_percent": 0.0,
        "pressure_io_percent": 0.0,
        "pressure_memory_percent": 0.0,
        "disk_queue_length": 0.1,
        "memory_available_share": 0.8,
    }
    return HostWindow(window_seconds=window, latest=HostSample(**(sample | (latest or {}))), **(usual | fields))


def machine(cores: int = 16, **fields: Any) -> MachineFacts:
    """A machine of this many cores."""
    usual: dict[str, Any] = {"time_ns": START_NS, "hostname": "node07", "kernel": "6.8", "cpu_count": cores}
    return MachineFacts(**(usual | fields))


def quality(**fields: Any) -> Quality:
    """A measurement without gaps."""
    usual: dict[str, Any] = {"poll_interval_seconds": 1.0, "gpu_samples": 60, "poll_gap_p95_seconds": 1.05}
    return Quality(**(usual | fields))


def scene(
    *runs: RunWindow,
    gpus: Sequence[GpuWindow] | None = None,
    at: float = 120.0,
    window: float = 60.0,
    **fields: Any,
) -> Scene:
    """The runs and GPUs `at` seconds after the start. Without `gpus`, one healthy GPU for each that a run names."""
    if gpus is None:
        gpus = [gpu(int(uuid.removeprefix("GPU-"))) for uuid in dict.fromkeys(u for r in runs for u in r.gpu_uuids)]
    usual: dict[str, Any] = {"machine": machine(), "host": host(), "quality": quality()}
    return Scene(
        now_ns=START_NS + int(at * SECOND),
        started_ns=START_NS,
        window_seconds=window,
        gpus=tuple(gpus),
        runs=runs,
        **(usual | fields),
    )


def later(moment: Scene, seconds: float) -> Scene:
    """The same picture, this many seconds later."""
    return replace(moment, now_ns=moment.now_ns + int(seconds * SECOND))


def run_case(moment: Scene, index: int = 0, *, holding: Iterable[str] = ()) -> RunCase:
    """What a run rule gets of this scene."""
    return run_case_of(moment, moment.runs[index], frozenset(holding))


def gpu_case(moment: Scene, index: int = 0, *, holding: Iterable[str] = ()) -> GpuCase:
    """What a GPU rule gets of this scene."""
    return gpu_case_of(moment, moment.gpus[index], frozenset(holding))


def machine_case(moment: Scene, *, holding: Iterable[str] = ()) -> MachineCase:
    """What a machine rule gets of this scene."""
    return MachineCase(scene=moment, holding=frozenset(holding))


def check(rule_id: str, case: RunCase | GpuCase | MachineCase) -> Draft | None:
    """The rule's word on one case, without gates and hysteresis."""
    from gpuwatch.diagnosis.rules import rule_by_id

    return rule_by_id(rule_id).check(case)


def findings(moment: Scene, *, evaluations: int = 3) -> tuple[Finding, ...]:
    """What a fresh engine with all rules says after some evaluations of the same picture, 5 s apart."""
    from gpuwatch.diagnosis.engine import Engine

    engine = Engine()
    said: tuple[Finding, ...] = ()
    for number in range(evaluations):
        said = engine.evaluate(later(moment, 5.0 * number))
    return said


def fired(moment: Scene, *, evaluations: int = 3) -> set[str]:
    """The ids of the rules that fire on this picture."""
    return {finding.rule for finding in findings(moment, evaluations=evaluations)}
