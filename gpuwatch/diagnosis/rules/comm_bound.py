"""GPUs spend much of the step exchanging gradients.

Means:
    After each backward pass every GPU sends and receives about twice the size of the gradients. Over PCIe, without
    NVLink, that takes a good part of a step; what is not hidden behind the backward pass is lost.
Evidence:
    The bytes that NVML counts into the GPU less the loader's batches, over what its PCIe link carries at its peak: the
    least share of the time that the exchange takes; and that these bytes fit the run's gradients. How much of it is
    hidden is measured neither by the hook nor by NVML: this is a hint only.
Fires:
    10% of the link.
Clears:
    Below 6%.
Not when:
    One rank; traffic that does not fit the gradients (offloading, pipelines) or parameters that are not known; exchange
    over NVLink or the network, which is not counted here. Waiting for a slow rank is straggler-rank.
Causes:
    Gradient accumulation without no_sync(), a slow link (PCIe without NVLink), small buckets, or
    find_unused_parameters.
Fix:
    With gradient accumulation model.no_sync() for all micro-steps but the last; else 16-bit gradients
    (bf16_compress_hook), gradient_as_bucket_view=True, or a larger batch per step.
Gain:
    A hint: nothing where the exchange is hidden; at most the time that the bytes take at the link's peak rate, more
    where the link is slower than that.
Verify:
    The link's share, and samples per second.
Source:
    kineto's communication share above 10%; PyTorch's tuning guide (no_sync); DDP communication hooks; a ring moves
    2 (n - 1) / n of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.stream import batches_per_step
from gpuwatch.diagnosis.advice.transfer import traffic_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import megabytes, percent
from gpuwatch.timeline.windows import GpuWindow

LEAST_FIT, MOST_FIT = 0.4, 2.5
"""Exchanged over expected bytes: half for compressed gradients, twice for gradients kept in wider numbers."""
UNSYNCED_FIT = 0.6
"""Of one exchange per micro-step: then each of them is exchanged."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of the time passes with exchanging gradients: reported from here on")
    clear_share: float = threshold(0.06, "until less does", bounded_by="fire_share")


@rule(
    "comm-bound",
    family="multi_gpu",
    subject="run",
    level=Level.E3,
    after=("data-starvation", "straggler-rank", "pcie-degraded"),
    behind=("data-starvation", "straggler-rank", "pcie-degraded"),
    needs_gpu=True,
    thresholds=Thresholds,
)
def comm_bound(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    facts, world = rank.facts, rank.facts.world_size
    traffic = traffic_of(case, rank)
    if traffic is None or traffic.batches is None or not world or world < 2 or not rank.steps:
        return None
    gradients = facts.model.parameter_bytes
    if not gradients or rank.train_seconds <= 0:
        return None
    exchanged = max(0.0, traffic.received - traffic.batches)
    share = min(1.0, exchanged / traffic.peak)
    per_step = exchanged * rank.train_seconds / rank.steps
    expected = 2.0 * (world - 1) / world * gradients
    micro = batches_per_step(rank)
    fit = per_step / expected
    if share < limits.clear_share or not LEAST_FIT <= fit <= MOST_FIT * micro:
        return None
    unsynced = micro > 1 and fit >= UNSYNCED_FIT * micro
    saved = share * (1.0 - 1.0 / micro if unsynced else 0.5)
    return Draft(
        summary=(
            f"The ranks of {case.run.title} exchange {megabytes(per_step)} per step over PCIe, which takes at least "
            f"{percent(share)} of the time"
        ),
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            share_measure("exchange_share", share, "PCIe link in use by the exchange"),
            Measure("exchange_bytes_per_step", round(per_step), f"{megabytes(per_step)} per step into each GPU"),
            Measure("gradient_bytes", round(expected), f"a ring of {world} moves {megabytes(expected)} of gradients"),
            *_nvlink(traffic.gpu),
        ),
        fires=share >= limits.fire_share,
        fix=_unsynced_fix(micro) if unsynced else _compressed_fix(per_step),
        hint=(
            f"1.0-{without(saved):.2f}x if the link ran at its peak and nothing were hidden: how much of the exchange "
            "is hidden behind the backward pass is not measured"
        ),
        ruled_out=(RuledOut("batches", f"they are {traffic.batches / 1e9:.2g} of {traffic.received / 1e9:.3g} GB/s"),),
        verify="The link's share is down, samples per second are up",
        chart=("run.samples_per_second", "gpu.utilization_percent"),
    )


def _nvlink(gpu: GpuWindow) -> tuple[Measure, ...]:
    active = gpu.latest_health.nvlink_active if gpu.latest_health else None
    return () if active is None else (Measure("nvlink_active", active, f"{gpu_name(gpu)} has {active} NVLinks up"),)


def _unsynced_fix(micro: int) -> Fix:
    return Fix(
        text=f"Exchange gradients once per step: no_sync() for the first {micro - 1} of its {micro} backward passes",
        code=f"with model.no_sync() if (i + 1) % {micro} else contextlib.nullcontext():\n    loss.backward()",
        value=micro - 1,
    )


def _compressed_fix(per_step: float) -> Fix:
    return Fix(
        text=f"Send gradients in 16 bits, {megabytes(per_step / 2)} per step, or take larger steps",
        code=(
            "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook\n"
            "model.register_comm_hook(None, bf16_compress_hook)"
        ),
        value=round(per_step / 2),
    )
