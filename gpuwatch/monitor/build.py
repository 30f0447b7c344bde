"""Builds snapshots: cheap, once a second. Windows of the scene are cut only when rules are evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.monitor.run_now import run_now
from gpuwatch.monitor.snapshot import GpuNow, Origin, RecordingNow, Snapshot
from gpuwatch.timeline.gpu import REASON_HARDWARE, THROTTLES, GpuHistory, recent_utilization, status_of
from gpuwatch.timeline.runs import gpus_of
from gpuwatch.timeline.stats import mean_and_sigma
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.wall_times import Anchor
from gpuwatch.timeline.windows import Scene

_RECENT_NS = 60 * SECOND_NS
_FELT_SHARE = 0.05  # of the time between two polls: below it a counter's step is not worth a word


def gpu_now(gpu: GpuHistory, timeline: Timeline, now_ns: int) -> GpuNow:
    """The latest of one GPU whose facts are known, and its last minute's utilization."""
    assert gpu.facts is not None
    status = status_of(gpu, now_ns, timeline.interval_seconds, timeline.nvml)
    recent = recent_utilization(gpu, now_ns - _RECENT_NS, now_ns)
    mean, sigma = mean_and_sigma(recent) if recent else (None, None)
    return GpuNow(
        facts=gpu.facts,
        status=status.word,
        status_reason=status.reason,
        status_since_ns=status.since_ns,
        latest=gpu.latest,
        latest_status=gpu.latest_status,
        latest_health=gpu.latest_health,
        throttled_by=throttled_by(gpu),
        utilization_mean_percent=mean,
        utilization_sigma_percent=sigma,
    )


def throttled_by(gpu: GpuHistory) -> tuple[str, ...]:
    """What slows the GPU down now: by the latest mask, and by what the counters gained since the poll before.

    The bit for a hardware slowdown says no cause; it is named only where neither heat nor the brake is.
    """
    if gpu.latest is None:
        return ()
    mask = gpu.latest.event_reasons or 0
    slowing = (each.word for each in THROTTLES.values() if mask & each.bit or _gained(gpu, each.counter))
    words = list(dict.fromkeys(slowing))
    if mask & REASON_HARDWARE and "heat" not in words and "hardware brake" not in words:
        words.append("hardware brake")
    return tuple(words)


def _gained(gpu: GpuHistory, counter: str) -> bool:
    if len(gpu.polls) < 2:
        return False
    before, after = gpu.polls[counter][-2:]
    between_ns = gpu.polls.times[-1] - gpu.polls.times[-2]
    return bool(after - before > _FELT_SHARE * between_ns)


_ENDED_SHOWN_NS = 600 * SECOND_NS  # an ended run stays on the screen for 10 min


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the last evaluation found."""

    scene: Scene | None = None
    findings: tuple[Finding, ...] = ()


def build_snapshot(
    timeline: Timeline,
    *,
    now_ns: int,
    wall_time: float,
    origin: Origin,
    evaluation: Evaluation,
    next_evaluation_ns: int | None = None,
    only_pids: frozenset[int] | None = None,
    attached_pid: int | None = None,
    notices: tuple[str, ...] = (),
    recording: RecordingNow | None = None,
    wall_anchors: tuple[Anchor, ...] = (),
) -> Snapshot:
    """The state of everything at `now_ns`."""
    with timeline.lock:
        runs = timeline.runs(now_ns, _ENDED_SHOWN_NS, only_pids)
        used = {run.id: gpus_of(run, timeline.gpus, timeline.processes) for run in runs}
        gpus = timeline.gpus_in_order({uuid for uuids in used.values() for uuid in uuids} if only_pids else None)
        index = {gpu.uuid: gpu.facts.index for gpu in gpus if gpu.facts}
        return Snapshot(
            time_ns=now_ns,
            wall_time=wall_time,
            started_ns=now_ns if timeline.started_ns is None else timeline.started_ns,
            origin=origin,
            machine=timeline.machine,
            nvml=timeline.nvml,
            host=timeline.host.latest,
            gpus=tuple(gpu_now(gpu, timeline, now_ns) for gpu in gpus),
            runs=tuple(
                run_now(run, tuple(index[uuid] for uuid in used[run.id] if uuid in index), timeline.processes, now_ns)
                for run in runs
            ),
            findings=in_order(evaluation.findings),
            scene=evaluation.scene,
            next_evaluation_seconds=(
                None if next_evaluation_ns is None else max(0.0, (next_evaluation_ns - now_ns) / SECOND_NS)
            ),
            candidates=timeline.candidates,
            searched=timeline.searched,
            attached_pid=attached_pid,
            notices=notices,
            recording=recording,
            wall_anchors=wall_anchors,
        )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that fire or clear, worst first, those behind another last."""
    shown = [finding for finding in findings if finding.state != "pending"]
    return tuple(sorted(shown, key=lambda finding: (finding.behind is not None, finding.severity.order)))
