"""The GPU runs on a slower PCIe link than it should.

Means:
    Fewer lanes or an older generation than card and slot can do: each copy takes that much longer. Usually a riser, a
    slot that shares its lanes, or a BIOS setting. Packets that must be sent again slow it down too, and point to the
    connection itself.
Evidence:
    Link width and generation as the driver reports them under load, compared with the most that card and slot allow;
    and replays a minute compared with what the specification's bit error rate of 1e-12 makes on those lanes (15.4 at
    generation 4 x16, 30.7 at 5 x16).
Fires:
    Narrower, slower or more replays than that for 30 s while utilization is above 50%.
Clears:
    Restored for a minute.
Not when:
    The GPU is idle: the link then slows down to save power. Virtual machines and MIG hide the link.
Causes:
    Fewer lanes (a riser, a shared slot), a slower generation, or packets that are sent again.
Fix:
    Reseat the card, try another slot, look at the BIOS's lane settings; lspci -vv shows LnkSta against LnkCap.
    Until then smaller copies (uint8, cast on the GPU).
Gain:
    None by itself: only what copies cost could be won, and only where they are not hidden behind computing.
Verify:
    Width and generation at their maximum under load, replays within the limit.
Source:
    NVML's link documentation, DCGM's health watch (0.96 replays per lane and minute at generation 4, 1.92 at 5).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.transfer import excess_replays
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.timeline.windows import GpuWindow

THIRTY_SECONDS = 6  # evaluations
A_MINUTE = 12


@dataclass(frozen=True, slots=True)
class Thresholds:
    loaded_percent: float = threshold(50.0, "utilization above which a link is judged")


@rule(
    "pcie-degraded",
    family="transfer",
    subject="gpu",
    level=Level.E0,
    fire_after=THIRTY_SECONDS,
    clear_after=A_MINUTE,
    thresholds=Thresholds,
)
def pcie_degraded(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu, facts = case.gpu, case.gpu.facts
    busy = gpu.utilization.mean if gpu.utilization else None
    now = gpu.latest.utilization_percent if gpu.latest else None
    status = gpu.latest_status
    if facts.mig or status is None or busy is None or busy <= limits.loaded_percent or (now is not None and now == 0.0):
        return None
    lost = [
        (what, has, most)
        for what, has, most in (
            ("lanes", status.pcie_width, facts.pcie_width_max),
            ("generation", status.pcie_generation, facts.pcie_generation_max),
        )
        if has is not None and most is not None and has < most
    ]
    replays = excess_replays(gpu)
    if not lost and replays is None:
        return None
    words = " and ".join(
        f"{has} lanes of {most}" if what == "lanes" else f"generation {has} of {most}" for what, has, most in lost
    )
    return Draft(
        summary=f"{gpu_name(gpu)} runs on a slower PCIe link than it should: {words or _replay_words(replays)}",
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(
            *(Measure(f"pcie_{what}", has, f"PCIe {what} {has}, could be {most}") for what, has, most in lost),
            *_replay_measures(gpu, replays),
            Measure("utilization_percent", round(busy, 1), f"under load ({busy:.0f}% busy)"),
        ),
        fix=Fix(
            text=(
                "Reseat the card and check riser and cable: packets get lost on the way; lspci shows the link"
                if replays
                else "Reseat the card or use another slot, and look at the BIOS's lane settings; lspci shows the link"
            ),
            code=f"sudo lspci -vv -s {facts.pci_bus_id} | grep -E 'LnkCap|LnkSta'" if facts.pci_bus_id else None,
        ),
        hint="no figure: it costs what copies cost that are not hidden behind computation",
        ruled_out=(RuledOut("power saving at idle", f"the GPU is {busy:.0f}% busy"),),
        verify="Width and generation at their maximum under load, replays within the limit",
        chart=("gpu.utilization_percent",),
    )


def _replay_words(replays: tuple[float, float] | None) -> str:
    return f"{replays[0]:.0f} packets a minute are sent again, {replays[1]:.0f} are usual" if replays else ""


def _replay_measures(gpu: GpuWindow, replays: tuple[float, float] | None) -> tuple[Measure, ...]:
    rate = gpu.links.pcie_replays_per_minute if gpu.links else None
    if rate is None:
        return ()
    text = _replay_words(replays) or f"{rate:.0f} packets a minute are sent again, which is usual"
    return (Measure("pcie_replays_per_minute", round(rate, 1), text),)
