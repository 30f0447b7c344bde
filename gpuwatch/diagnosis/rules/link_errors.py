"""NVLink or PCIe is losing packets.

Means:
    What arrives damaged is sent again, so results stay right, but collectives and copies take longer, and a link that
    keeps failing goes down in the end. A link that is down leaves its share of the bandwidth to the others.
Evidence:
    NVLink's state and its counters of CRC errors, replays and recoveries, and PCIe's replay counter, over the newest
    minute; which links were up earlier in this session.
Fires:
    100 CRC errors a second, a replay or a recovery on NVLink, a link that was up and no longer is while the GPU works,
    or more PCIe replays than a bit error rate of 1e-12 makes on those lanes. Information: some links are up and
    others never were.
Clears:
    Clean for 10 minutes.
Not when:
    No link at all is up: a single card has nothing at its other end. An idle GPU may put its links down. PCIe replays
    that pcie-degraded reports.
Causes:
    A bridge, baseboard or riser that is not seated; a link that was shut down; a slot with too weak a signal.
Fix:
    Reset the GPU or restart the machine; if the errors come back, reseat bridge, baseboard or riser.
    NCCL_P2P_DISABLE=1 only as a test of whether the link is what slows the job down.
Gain:
    A hint: at most what communication costs.
Verify:
    Ten minutes without a new error, all links up (nvidia-smi nvlink -s).
Source:
    DCGM's health watch (CRC 100 a second; replays and recoveries 1; PCIe 0.96 per lane and minute at generation 4);
    Meta's health-validation nvlink check (no inactive link).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.transfer import excess_replays
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, listed
from gpuwatch.timeline.windows import GpuWindow

TEN_MINUTES = 120  # evaluations, 5 s apart


@dataclass(frozen=True, slots=True)
class Thresholds:
    crc_errors_per_second: float = threshold(100.0, "of an NVLink: reported from here on")
    repeats: int = threshold(1, "replays or recoveries of an NVLink: reported from here on", least=1)
    used_percent: float = threshold(5.0, "utilization above which inactive links count as lost")


@rule(
    "link-errors",
    family="health",
    subject="gpu",
    level=Level.E0,
    after=("pcie-degraded",),
    gated=False,
    clear_after=TEN_MINUTES,
    thresholds=Thresholds,
)
def link_errors(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    if gpu.status == "lost":
        return None
    found = [*_nvlink_errors(gpu, limits), *_lost_links(gpu, limits)]
    if "pcie-degraded" not in case.holding:
        found += _pcie_errors(gpu)
    never_up = _never_up(gpu)
    if not found and not never_up:
        return None
    said = found or never_up
    return Draft(
        summary=f"{gpu_name(gpu)}: {listed(measure.text for measure in said)}",
        severity=Severity.WARNING if found else Severity.INFO,
        level=Level.E0,
        evidence=(*found, *never_up),
        fix=Fix(
            text=(
                "Reset the GPU or restart the machine; if the errors come back, reseat bridge, baseboard or riser"
                if found
                else "No action if the card has fewer bridges than slots for them; otherwise reseat them"
            ),
            code="nvidia-smi nvlink -s; nvidia-smi nvlink -e",
        ),
        hint="at most what communication between the GPUs costs" if found else None,
        verify="Ten minutes without a new error, all links up",
        chart=("gpu.utilization_percent",),
    )


def _nvlink_errors(gpu: GpuWindow, limits: Thresholds) -> list[Measure]:
    links = gpu.links
    if links is None:
        return []
    crc = links.nvlink_crc_errors_per_second or 0.0
    repeats = (
        ("nvlink_replays", links.nvlink_replays or 0, "repeated packets"),
        ("nvlink_recoveries", links.nvlink_recoveries or 0, "had to be trained again"),
    )
    found = [
        Measure(name, count, f"NVLink {words} {_times(count)} in {links.seconds:.0f} s")
        for name, count, words in repeats
        if count >= limits.repeats
    ]
    if crc >= limits.crc_errors_per_second:
        found.append(
            Measure("nvlink_crc_errors_per_second", round(crc, 1), f"NVLink has {crc:.0f} CRC errors a second")
        )
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{grouped(count)} times"


def _lost_links(gpu: GpuWindow, limits: Thresholds) -> list[Measure]:
    lost = gpu.links.nvlink_lost if gpu.links else None
    busy = gpu.utilization.mean if gpu.utilization else None
    if not lost or busy is None or busy < limits.used_percent:
        return []
    return [Measure("nvlink_lost", lost, f"{_links(lost)} went down while gpuwatch watched")]


def _never_up(gpu: GpuWindow) -> list[Measure]:
    health, lost = gpu.latest_health, gpu.links.nvlink_lost if gpu.links else None
    if health is None or not health.nvlink_count or not health.nvlink_active:
        return []
    down = health.nvlink_count - health.nvlink_active - (lost or 0)
    if down <= 0:
        return []
    return [Measure("nvlink_down", down, f"{down} of {health.nvlink_count} NVLinks down since before gpuwatch started")]


def _links(count: int) -> str:
    return "one NVLink" if count == 1 else f"{count} NVLinks"


def _pcie_errors(gpu: GpuWindow) -> list[Measure]:
    replays = excess_replays(gpu)
    if replays is None:
        return []
    text = f"{replays[0]:.0f} PCIe packets a minute are sent again, {replays[1]:.0f} are usual"
    return [Measure("pcie_replays_per_minute", round(replays[0], 1), text)]
