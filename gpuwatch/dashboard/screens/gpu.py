"""All that is known of one GPU, and the reason for everything that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.lines import Line, Page
from gpuwatch.dashboard.panels.charts import Evidence, Grid, Trace, chart_cells, evidence_lines, values_per_cell
from gpuwatch.dashboard.panels.gpu_rows import power_limit
from gpuwatch.dashboard.panels.hardware import slowed_by
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.words import status_words
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.samples import GpuHealth, GpuSample, GpuStatus
from gpuwatch.timeline.charts import Series
from gpuwatch.timeline.windows import GpuWindow

_HIDDEN = {
    "time_ns",
    "uuid",
    "utilization_ring",
    "power_ring",
    "unavailable",
    "ages_seconds",
    "processes",
    "event_reasons",
    # Counters: their totals say nothing, what they gained is in the last minute's section.
    "energy_joules",
    "pcie_tx_bytes",
    "pcie_rx_bytes",
    "throttled_power_ns",
    "throttled_sw_thermal_ns",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
}
_SPELLED = {"sm": "SM", "pcie": "PCIe", "ecc": "ECC", "dram": "DRAM"}
_UNITS: dict[str, Callable[[float], str]] = {
    "percent": say.percent,
    "watts": lambda value: f"{value:.1f} W",
    "celsius": say.celsius,
    "mhz": say.megahertz,
    "bytes": say.byte_size,
    "seconds": lambda value: "instant" if value == 0 else f"{say.seconds(value)} mean",
}


def gpu_page(gpu: GpuNow, view: View, width: int, look: Look, charts: list[Evidence]) -> list[Line]:
    """The page of one GPU."""
    snapshot = view.snapshot
    assert snapshot is not None, "a GPU came with a snapshot"
    page = Page(width, look)
    page.heading(f"GPU {gpu.facts.label}  {say.escape(gpu.facts.name)}", right=gpu.facts.uuid)
    if gpu.status != "live":
        page.prose(status_words(gpu, snapshot), look.critical if gpu.status == "lost" else look.warning)
    _facts(page, gpu)
    if charts:
        page.heading("History", right=say.span(view.window_seconds))
        page.add(evidence_lines(charts, width, look))
    for window in snapshot.scene.gpus if snapshot.scene is not None else ():
        if window.facts.uuid == gpu.facts.uuid:
            _last_minute(page, window)
    _sample(page, "Every poll", gpu.latest, snapshot)
    if gpu.latest is not None:
        page.pair("throttle", slowed_by(gpu, gpu.latest)[0])
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
        instance = f"GPU instance {facts.mig_gpu_instance}, {facts.mig_profile}, of {facts.mig_parent}"
        page.pair("MIG", "on" if facts.mig_parent is None else instance)
    for name, reason in facts.unavailable.items():
        page.pair(_label(name)[0], f"{say.UNKNOWN}  ({reason})", page.look.dim)


def _last_minute(page: Page, window: GpuWindow) -> None:
    """The window that the rules judge."""
    page.heading("Judged window", right=say.span(window.window_seconds))
    for name, stats, said in (
        ("utilization", window.utilization, say.percent),
        ("in training steps only", window.train_utilization, say.percent),
        ("power", window.power_watts, _UNITS["watts"]),
        ("temperature", window.temperature_celsius, say.celsius),
        ("SM clock", window.sm_clock_mhz, say.megahertz),
    ):
        if stats is None:
            page.pair(name, f"{say.UNKNOWN}  (not measured in this window)", page.look.dim)
        else:
            spread = f"p5 {said(stats.p5)}, p95 {said(stats.p95)}, most {said(stats.max)}"
            page.pair(name, f"mean {said(stats.mean)} ±{stats.sigma:.0f}, {spread}, {stats.count} samples")
    energy = window.energy_joules
    page.pair("energy", say.UNKNOWN if energy is None else f"{energy / 1e3:.1f} kJ")
    received, sent = window.pcie_rx_bytes_per_second, window.pcie_tx_bytes_per_second
    page.pair("PCIe", f"received {say.byte_rate(received)}, sent {say.byte_rate(sent)}")
    slowed = ", ".join(f"{cause} {say.share(share)}" for cause, share in window.throttle_shares.items())
    page.pair("time throttled", slowed or say.UNKNOWN)
    for event in window.xids:
        page.pair("XID", f"{event.xid} {event.text}", page.look.warning)


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
            older = sample.ages_seconds.get(field.name) if isinstance(sample, GpuSample) else None
            age = f"  ({say.seconds(older)} older)" if older else ""
            page.pair(label, _said(value, unit) + age)
        else:
            reason = sample.unavailable.get(field.name, "not reported by this GPU or driver")
            page.pair(label, f"{say.UNKNOWN}  ({reason})", page.look.dim)


def _label(name: str) -> tuple[str, str]:
    """A field's name as words, and its unit."""
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    return (" ".join(words[:-1]), words[-1]) if words[-1] in _UNITS else (" ".join(words), "")


def _said(value: object, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _UNITS[unit](value) if unit else say.count(value)
    return str(value)


class GpuScreen(PageScreen):
    """All that is known of one GPU."""

    PLACE = "gpu"

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self._uuid = uuid
        self._traces: dict[Series, Trace] = {}

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        gpu = view.gpu(self._uuid)
        snapshot = view.snapshot
        if gpu is None or snapshot is None:
            return []
        cells = chart_cells(width) * values_per_cell(look.glyphs.unicode)
        grid = Grid.ending_at(snapshot.time_ns, view.window_seconds, cells)
        names = ("gpu.utilization_percent", "gpu.power_watts", "gpu.temperature_celsius")
        asked = [(Series(name, self._uuid), view.hold_ns()) for name in names]
        self._traces = self.dashboard.history.refresh(grid, asked, snapshot.time_ns) or self._traces
        subject, limit = f"GPU {gpu.facts.label}", power_limit(gpu)
        charts = [
            Evidence(
                subject,
                series.name,
                self._traces.get(series, Trace()),
                grid,
                snapshot.wall_time_at,
                limit if series.name == "gpu.power_watts" else None,
            )
            for series, _ in asked
        ]
        return gpu_page(gpu, view, width, look, charts)
