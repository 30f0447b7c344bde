"""Copying batches to the GPU takes a large part of each step.

Means:
    A copy on the stream that also computes lets the GPU stand idle for as long as it takes. Floats take four times the
    bytes of the pixels that they were made from.
Evidence:
    The bytes that NVML counts into the GPU over what its link carries at its peak: the least share of the time that
    copies take; that the loader's batches are most of these bytes; and the idle time of the GPU in training that no
    wait for data explains. What can be recovered is at most the smaller of the two shares. Whether the GPU idles
    because of the copies is not measured, so this is likely, not proven.
Fires:
    10%; critical from 20% where it is proven. Where utilization is not known, a hint from 70% of the link.
Clears:
    Below 6%.
Not when:
    The bytes are not batches (offloading, gradients exchanged over PCIe) or the size of a batch is not known; the GPU
    is busy (copies are hidden behind computing); MIG. Unpinned memory and a degraded link come first.
Causes:
    Batches fatter than they need to be (float32 images), pageable memory (pageable-transfer), or a degraded link
    (pcie-degraded).
Fix:
    Send pixels as uint8 and cast on the GPU (a quarter of the bytes); else copy the next batch on a stream of its own
    while this one computes, from pinned memory with non_blocking=True.
Gain:
    At most 1 / (1 - h), to the extent that the GPU idles for the copies.
Verify:
    The link's share below 6%, or utilization up.
Source:
    TraceML@d5cec51 H2D_BOUND (10 and 20%); kineto's memory copy share; NVML's PCIe byte counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import from_share, without
from gpuwatch.diagnosis.advice.lines import hottest_of_thread
from gpuwatch.diagnosis.advice.sampled import rests_on, trains_on
from gpuwatch.diagnosis.advice.starvation import idle_outside_waits, starvation_of, train_busy_percent
from gpuwatch.diagnosis.advice.transfer import Traffic, traffic_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, TransferEdit, share_measure
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import megabytes, percent
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import RankWindow

BATCH_PART = 0.5
"""Of the received bytes: else something other than batches fills the link."""
IMAGE_DIMENSIONS = 4
PREFETCH = """copies = torch.cuda.Stream()
with torch.cuda.stream(copies):
    ahead = batch.to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(copies); ahead.record_stream(torch.cuda.current_stream())"""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of the time passes with copies: reported from here on")
    critical_share: float = threshold(0.20, "critical from here on", bounded_by="fire_share")
    clear_share: float = threshold(0.06, "until less does", bounded_by="fire_share")
    link_share: float = threshold(0.70, "of what the link can do, where copies are not timed: reported from here on")


@rule(
    "h2d-bound",
    family="transfer",
    subject="run",
    level=Level.E3,
    after=("data-starvation", "pageable-transfer", "pcie-degraded"),
    behind=("data-starvation", "pageable-transfer", "pcie-degraded"),
    needs_gpu=True,
    fades=True,
    by_loss=True,
    thresholds=Thresholds,
)
def h2d_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    traffic = traffic_of(case, rank) if trains_on(case) == "cuda" else None
    if traffic is None or traffic.batches is None or traffic.batches < BATCH_PART * traffic.received:
        return None
    busy, starvation = train_busy_percent(case), starvation_of(case)
    if busy is None or starvation is None:
        return _hint(rank, traffic, limits)
    idle = idle_outside_waits(rank, starvation, busy)
    share = min(traffic.link_share, idle)
    if share < limits.clear_share:
        return None
    return Draft(
        summary=(
            f"Copies fill {percent(traffic.link_share)} of the PCIe link of {gpu_name(traffic.gpu)}, which idles "
            f"{percent(idle)} of the time in addition to the waits for data"
        ),
        severity=Severity.CRITICAL if share >= limits.critical_share else Severity.WARNING,
        level=rests_on(rank, Level.E2),
        evidence=(
            *_measures(traffic),
            Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy in training"),
            Measure("recoverable_share", round(share, 4), f"at most {percent(share)} can be recovered"),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(rank),
        gain=from_share(0.0, share, "to the extent that the GPU idles for the copies"),
        ruled_out=(
            RuledOut("waiting for data", f"that explains {percent(starvation.share)}"),
            *_other_traffic(traffic),
        ),
        verify="The link's share below 6%, or utilization up",
        chart=("gpu.utilization_percent", "run.samples_per_second"),
    )


def _hint(rank: RankWindow, traffic: Traffic, limits: Thresholds) -> Draft | None:
    """The same where the GPU's idle time is not known: only a link that is nearly full says something."""
    if traffic.link_share < limits.link_share - 0.1:
        return None
    return Draft(
        summary=f"Copies fill {percent(traffic.link_share)} of the PCIe link of {gpu_name(traffic.gpu)}",
        severity=Severity.HINT,
        level=Level.E0,
        evidence=_measures(traffic),
        fires=traffic.link_share >= limits.link_share,
        fix=_fix(rank),
        hint=f"1.0-{without(traffic.link_share):.1f}x: whether the GPU idles for them is not known here",
        ruled_out=_other_traffic(traffic),
        verify="The link's share is down",
        chart=("run.samples_per_second",),
    )


def _measures(traffic: Traffic) -> tuple[Measure, ...]:
    received, peak = traffic.received / 1e9, traffic.peak / 1e9
    return (
        share_measure("link_share", traffic.link_share, "PCIe link in use"),
        Measure("pcie_rx_bytes_per_second", round(traffic.received), f"{received:.3g} of {peak:.3g} GB/s arrive"),
    )


def _other_traffic(traffic: Traffic) -> tuple[RuledOut, ...]:
    part = min(1.0, (traffic.batches or 0.0) / traffic.received) if traffic.received else 0.0
    return (RuledOut("other traffic", f"{percent(part)} of what arrives are the loader's batches"),)


def _fix(rank: RankWindow) -> Fix:
    loader, line = rank.train_loader, hottest_of_thread(rank.stacks, "copy")
    file, number = (line.file, line.line) if line is not None else (None, None)
    if loader is not None and loader.batch_bytes and _is_float_images(loader):
        less = loader.batch_bytes // 4
        return Fix(
            text=(
                f"Let the loader give uint8 and cast on the GPU: {megabytes(less)} instead of "
                f"{megabytes(loader.batch_bytes)} a batch"
            ),
            code="images = images.to(device, non_blocking=True).float().div_(255)",
            file=file,
            line=number,
            value=less,
        )
    blocks = line is not None and line.text is not None and "non_blocking" not in line.text
    pinned = loader is not None and loader.pin_memory is True
    edit = TransferEdit(file, number) if blocks and pinned and file and number else None
    return Fix(
        text="Copy the next batch on a stream of its own while this one computes; crop and cast before it is sent",
        code=PREFETCH,
        file=file,
        line=number,
        edit=edit,
    )


def _is_float_images(loader: LoaderFacts) -> bool:
    """Whether the first tensor of a batch is of 32-bit floats and has the dimensions of images."""
    first = (loader.batch_shape or "").partition("]")[0]
    kind, _, sizes = first.partition("[")
    return kind == "float32" and len(sizes.split(",")) >= IMAGE_DIMENSIONS
