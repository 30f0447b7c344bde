"""All that is known of one GPU, and the reason for everything that is not."""

from __future__ import annotations

from dataclasses import fields

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.panels.evidence import Evidence, evidence_lines
from gpuwatch.dashboard.panels.gpu_row import power_limit, slowed_by
from gpuwatch.dashboard.panels.page import Page
from gpuwatch.dashboard.text import Line
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.wording import status_words
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.samples import GpuHealth, GpuSample, GpuStatus

_HIDDEN = {"time_ns", "uuid", "utilization_ring", "power_ring", "unavailable", "processes", "event_reasons"}
_UNITS = {
    "percent": say.percent,
    "watts": lambda value: f"{value:.1f} W",
    "celsius": say.celsius,
    "mhz": say.megahertz,
    "bytes": say.byte_size,
    "joules": lambda value: f"{value / 1e3:,.1f} kJ".replace(",", " "),
    "seconds": lambda value: "instant" if value == 0 else say.seconds(value),
    "ns": lambda value: say.seconds(value / 1e9),
}


def gpu_page(gpu: GpuNow, view: View, width: int, look: Look, charts: list[Evidence]) -> list[Line]:
    """The page of one GPU."""
    snapshot = view.snapshot
    assert snapshot is not None, "a GPU came with a snapshot"
    page = Page(width, look)
    page.heading(f"GPU {gpu.facts.index}  {say.escape(gpu.facts.name)}", right=gpu.facts.uuid)
    if gpu.status != "live":
        page.prose(status_words(gpu, snapshot), look.critical if gpu.status == "lost" else look.warning)
    _facts(page, gpu)
    if charts:
        page.heading("History", right=say.span(view.window_seconds))
        page.add(evidence_lines(charts, width, look))
    _sample(page, "Every poll", gpu.latest, snapshot)
    if gpu.latest is not None:
        page.pair("slowed by", slowed_by(gpu, gpu.latest)[0])
    _sample(page, "Every 5 s", gpu.latest_status, snapshot)
    _sample(page, "Every 30 s", gpu.latest_health, snapshot)
    return page.lines


def _facts(page: Page, gpu: GpuNow) -> None:
    facts = gpu.facts
    page.pair("PCI bus", facts.pci_bus_id or say.UNKNOWN)
    capability = facts.compute_capability
    page.pair("compute capability", say.UNKNOWN if capability is None else f"{capability[0]}.{capability[1]}")
    memory = say.byte_size(facts.memory_total_bytes)
    page.pair("memory", f"{memory}, unified with the host's" if facts.memory_unified else memory)
    limit, default = power_limit(gpu), facts.power_limit_default_watts
    text = say.of_limit(limit, None, "W")
    page.pair("power limit", text if default is None else f"{text}, default {default:.0f} W")
    page.pair(
        "largest clocks",
        f"SM {say.megahertz(facts.sm_clock_max_mhz)}, memory {say.megahertz(facts.memory_clock_max_mhz)}",
    )
    generation, lanes = facts.pcie_generation_max, facts.pcie_width_max
    page.pair("PCIe at most", say.UNKNOWN if generation is None or lanes is None else f"gen {generation} x{lanes}")
    if facts.mig:
        page.pair("MIG", "on" if facts.mig_parent is None else f"an instance of {facts.mig_parent}")
    for name, reason in facts.unavailable.items():
        page.pair(_label(name)[0], f"{say.UNKNOWN}  ({reason})", page.look.dim)


def _sample(page: Page, title: str, sample: GpuSample | GpuStatus | GpuHealth | None, snapshot: Snapshot) -> None:
    """One lane's newest reading with its age."""
    if sample is None:
        page.heading(title, right="not read yet")
        return
    page.heading(title, right=f"{say.age(snapshot.time_ns - sample.time_ns)} old")
    for field in fields(sample):
        if field.name in _HIDDEN:
            continue
        label, unit = _label(field.name)
        value = getattr(sample, field.name)
        if value is not None:
            page.pair(label, _said(value, unit))
        else:
            reason = sample.unavailable.get(field.name, "not reported by this GPU or driver")
            page.pair(label, f"{say.UNKNOWN}  ({reason})", page.look.dim)


def _label(name: str) -> tuple[str, str]:
    """A field's name as words, and its unit."""
    words = name.split("_")
    return (" ".join(words[:-1]), words[-1]) if words[-1] in _UNITS else (" ".join(words), "")


def _said(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _UNITS[unit](value) if unit else say.count(value)  # type: ignore[no-untyped-call]
    return str(value)
