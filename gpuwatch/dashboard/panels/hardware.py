"""The rows of the GPUs, in one painted widget that scrolls when there are more than fit, and the lines of the host.

One widget for all rows, not one each: Textual asks every widget on the screen for its lines in every frame, changed or
not, which at 8 GPUs cost a third of the frame (measured with 8.2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.filter import LineFilter
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import bindings
from gpuwatch.dashboard.lines import Line, LineWriter, blanks, selected
from gpuwatch.dashboard.panels.charts import Trace, area
from gpuwatch.dashboard.panels.layout import Columns
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import OLD_STATUS_NS, View
from gpuwatch.dashboard.widgets import RepaintWanted, line_regions, without_ansi
from gpuwatch.dashboard.words import no_gpu_reason, status_words
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.samples import GpuSample
from gpuwatch.timeline.charts import Series


class OpenGpu(Message):
    """The user wants all that is known of one GPU."""

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid


HOT_CELSIUS = 85
"""The checklist's limit; above it throttling is near on all current boards."""


def gpu_header(view: View, columns: Columns, look: Look, *, focused: bool = False) -> Line:
    """The column heads, with the charts' range and window; without a GPU, why there is none."""
    writer = LineWriter(columns.width, look)
    if view.snapshot is not None and not view.snapshot.gpus:
        reason = no_gpu_reason(view.snapshot) or "none has answered yet"
        return writer.put(f" no GPU: {reason}", look.heading).line(look.heading)
    head = look.bar_accent if focused else look.heading
    writer.to(1, look.heading).left("GPU", columns.name, head).to(writer.cells + columns.gap, look.heading)
    if columns.meter:
        writer.to(writer.cells + columns.meter + columns.gap, look.heading)
    for title, width in (
        ("util 60 s", columns.utilization),
        ("power", columns.power),
        ("memory", columns.memory),
        ("temp", columns.temperature),
        ("SM clock", columns.clock),
        ("slowed by" if columns.slowed > 8 else "slowed", columns.slowed),
    ):
        if width:
            align = writer.left if title.startswith("slowed") else writer.right
            align(title, width, look.heading).to(writer.cells + columns.gap, look.heading)
    window = say.span(view.window_seconds)
    if columns.chart_2 is None:
        writer.to(columns.chart_1, look.heading).put(f"util,power {window}", look.heading, columns.chart_width)
    else:
        writer.to(columns.chart_1, look.heading)
        full = f"util 0-100%, {window}"
        fitting = full if len(full) <= columns.chart_width else f"util, {window}"
        writer.put(fitting, look.heading, columns.chart_width)
        writer.to(columns.chart_2, look.heading).put(_power_range(view), look.heading, columns.chart_width)
    return writer.line(look.heading)


def _power_range(view: View) -> str:
    """The power charts' range, in watts where all GPUs share it."""
    limits = {power_limit(gpu) for gpu in view.snapshot.gpus} if view.snapshot else set()
    limit = limits.pop() if len(limits) == 1 else None
    return "power 0-limit" if limit is None else f"power 0-{limit:.0f} W"


def gpu_row(
    gpu: GpuNow, view: View, height: int, columns: Columns, look: Look, utilization: Trace, power: Trace
) -> list[Line]:
    """The lines of one GPU: numbers first, then details as far as there is height, charts over all of it."""
    snapshot = view.snapshot
    assert snapshot is not None, "a GPU came with a snapshot"
    # Rows this high would run into each other: their last line stays empty.
    drawn = height - 1 if height >= 3 and len(snapshot.gpus) > 1 else height
    util_rows, power_rows = _charts(gpu, drawn, columns, look, utilization, power)
    room = columns.left_width - _indent(columns)
    sick = _status_lines(gpu, snapshot, room)
    details = sick[1:] if sick else _details(gpu, snapshot.time_ns, room, look) if height > 1 else []
    lines = []
    for y in range(drawn):
        writer = LineWriter(columns.width, look)
        if y == 0:
            _first_line(writer, gpu, view, snapshot, columns, look, sick)
        elif y <= len(details):
            writer.to(_indent(columns)).put(details[y - 1], look.dim, columns.left_width - writer.cells)
        writer.to(columns.chart_1)
        if columns.chart_2 is None:
            style = look.utilization if y < len(util_rows) else look.power
            writer.chart((util_rows + power_rows)[y], style)
        else:
            writer.chart(util_rows[y], look.utilization).to(columns.chart_2).chart(power_rows[y], look.power)
        lines.append(writer.line())
    return lines + blanks(height - drawn, columns.width, look)


def _indent(columns: Columns) -> int:
    return 1 + columns.name + columns.gap


def _charts(
    gpu: GpuNow, height: int, columns: Columns, look: Look, utilization: Trace, power: Trace
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rows of both charts; where they are stacked they share the row's height."""
    unicode = look.glyphs.unicode
    stacked = columns.chart_2 is None
    util_height = height if not stacked else max(1, (height + 1) // 2)
    power_height = height if not stacked else height - util_height
    peaks = utilization.peak if util_height > 1 else None
    util_rows = area(utilization.mean, low=0, high=100, height=util_height, peaks=peaks, unicode=unicode)
    limit = power_limit(gpu) or power.largest or 1.0
    power_rows = area(power.mean, low=0, high=limit, height=power_height, unicode=unicode)
    return util_rows, power_rows


def power_limit(gpu: GpuNow) -> float | None:
    """The limit in force: the one of the 30 s lane, else the one read at start."""
    if gpu.latest_health is not None and gpu.latest_health.power_limit_watts is not None:
        return gpu.latest_health.power_limit_watts
    return gpu.facts.power_limit_watts


def _first_line(
    writer: LineWriter, gpu: GpuNow, view: View, snapshot: Snapshot, columns: Columns, look: Look, sick: list[str]
) -> None:
    """Name and numbers; a GPU without live numbers says so in words instead."""
    facts = gpu.facts
    index = str(facts.index)
    name = f"{index} {say.gpu_name(facts.name, columns.name - len(index) - 1)}"
    writer.to(1).left(name, columns.name + columns.gap, look.strong)
    if sick or gpu.latest is None:
        style = {"lost": look.critical, "stale": look.warning}.get(gpu.status, look.dim)
        writer.put(sick[0] if sick else say.UNKNOWN, style, columns.left_width - writer.cells)
        return
    if view.is_old(gpu.latest.time_ns):
        writer.put(f"{say.age(snapshot.time_ns - gpu.latest.time_ns)} old ", look.warning)
        _numbers(writer, gpu, gpu.latest, columns, look, skip_utilization=True)
        return
    _numbers(writer, gpu, gpu.latest, columns, look)


def _status_lines(gpu: GpuNow, snapshot: Snapshot, room: int) -> list[str]:
    """What stands in place of a GPU's numbers while there are none."""
    if gpu.status == "live" and gpu.latest is not None:
        return []
    return say.wrap(status_words(gpu, snapshot), max(10, room))


def _numbers(
    writer: LineWriter, gpu: GpuNow, latest: GpuSample, columns: Columns, look: Look, skip_utilization: bool = False
) -> None:
    gap = columns.gap
    mean = gpu.utilization_mean_percent if gpu.utilization_mean_percent is not None else latest.utilization_percent
    if skip_utilization:
        start = _indent(columns) + (columns.meter + gap if columns.meter else 0)
        writer.to(start + columns.utilization)
    else:
        if columns.meter:
            _meter(writer, mean, columns.meter, look)
            writer.gap(gap)
        writer.right(say.mean_and_sigma(mean, gpu.utilization_sigma_percent), columns.utilization, look.utilization)
    temperature = latest.temperature_celsius
    hot = look.critical if temperature is not None and temperature >= HOT_CELSIUS else look.text
    decimals = 1 if columns.memory > 9 else 0
    memory = say.memory_of_total(latest.memory_used_bytes, gpu.facts.memory_total_bytes, decimals)
    writer.right(say.of_limit(latest.power_watts, power_limit(gpu), "W"), columns.power + gap, look.power)
    writer.right(memory, columns.memory + gap, look.text)
    writer.right(say.celsius(temperature), columns.temperature + gap, hot)
    if columns.clock:
        writer.right(say.megahertz(latest.sm_clock_mhz), columns.clock + gap, look.text)
    if columns.slowed:
        words, slowed = slowed_by(gpu, latest)
        writer.gap(gap).left(words, columns.slowed, look.warning if slowed else look.dim)


def slowed_by(gpu: GpuNow, latest: GpuSample) -> tuple[str, bool]:
    """The causes that hold the clocks down, in words: "none" where that is known, a dash where it is not."""
    if gpu.throttled_by:
        return say.escape(", ".join(gpu.throttled_by)), True
    known = latest.event_reasons is not None or latest.throttled_power_ns is not None
    return ("none" if known else say.UNKNOWN), False


def _meter(writer: LineWriter, value: float | None, width: int, look: Look) -> None:
    """A horizontal bar of 0-100%."""
    filled = 0.0 if value is None else max(0.0, min(100.0, value)) / 100 * width
    whole = int(filled)
    parts = look.glyphs.bar_parts
    part = parts[int((filled - whole) * (len(parts) + 1)) - 1 :][:1] if parts and filled - whole >= 1 / 8 else ""
    writer.chart(look.glyphs.bar * whole + part, look.utilization)
    writer.chart(look.glyphs.bar_rest * (width - whole - len(part)), look.faint)


def _details(gpu: GpuNow, now_ns: int, width: int, look: Look) -> list[str]:
    """What is worth knowing in addition to the main columns, as many lines of `width` as it takes."""
    latest, status = gpu.latest, gpu.latest_status
    if latest is None or gpu.status == "lost":
        return []
    words = []
    if latest.sm_activity_percent is not None:
        words.append(f"SM active {say.percent(latest.sm_activity_percent)}")
    if latest.tensor_activity_percent is not None:
        words.append(f"tensor {say.percent(latest.tensor_activity_percent)}")
    if latest.memory_utilization_percent is not None:
        words.append(f"memory busy {say.percent(latest.memory_utilization_percent)}")
    if status is not None:
        if now_ns - status.time_ns > OLD_STATUS_NS:
            words.append(f"of {say.age(now_ns - status.time_ns)} ago:")
        if status.memory_clock_mhz is not None:
            words.append(f"memory clock {say.megahertz(status.memory_clock_mhz)}")
        if status.pcie_generation is not None and status.pcie_width is not None:
            words.append(f"PCIe {status.pcie_generation} x{status.pcie_width}")
        if status.fan_percent is not None:
            words.append(f"fan {say.percent(status.fan_percent)}")
    if latest.power_window_seconds is not None:
        window = latest.power_window_seconds
        words.append("power: instant" if window == 0 else f"power: {say.seconds(window)} mean")
    lines = _flow(words, width, look)
    for process in (status.processes or ()) if status else ():
        command = say.escape(process.command or f"host pid {process.host_pid}")
        pid = process.pid if process.pid is not None else process.host_pid
        lines.append(f"{pid} {command}  {say.byte_size(process.memory_bytes)}")
    return lines


def _flow(words: list[str], width: int, look: Look) -> list[str]:
    """Words joined by dots into as few lines as hold them."""
    joint = f" {look.glyphs.dot} "
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(joint) + len(word) <= width:
            lines[-1] += joint + word
        else:
            lines.append(word)
    return lines


Traces = dict[Series, Trace]

_NO_TRACE = Trace()


class GpuTable(ScrollView, can_focus=True):
    """The rows of all GPUs, with a cursor while it has the focus; only rows in sight are made."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("list")

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self._uuids: list[str] = []
        self._row_height = 1
        self._lines: dict[int, Line] = {}
        self._strips: dict[int, Strip] = {}

    def get_line_filters(self) -> Sequence[LineFilter]:
        return without_ansi(super().get_line_filters())

    def visible_gpus(self, view: View, window_lines: int, row_height: int) -> tuple[GpuNow, ...]:
        """The GPUs whose rows can be seen: only they need charts."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        first = int(self.scroll_offset.y) // max(1, row_height)
        return gpus[first : first + window_lines // max(1, row_height) + 2]

    def show(
        self, view: View, row_height: int, columns: Columns, look: Look, traces: Traces, visible: set[str]
    ) -> None:
        """Brings all visible rows up to date."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        self._row_height = max(1, row_height)
        self._uuids = [gpu.facts.uuid for gpu in gpus]
        self.cursor = max(0, min(self.cursor, len(gpus) - 1))
        size = Size(columns.width - 1, len(gpus) * row_height)
        if size != self.virtual_size:
            self.virtual_size = size
        lines: dict[int, Line] = {}
        for index, gpu in enumerate(gpus):
            uuid = gpu.facts.uuid
            if uuid not in visible:
                continue
            utilization = traces.get(Series("gpu.utilization_percent", uuid), _NO_TRACE)
            power = traces.get(Series("gpu.power_watts", uuid), _NO_TRACE)
            row = gpu_row(gpu, view, row_height, columns, look, utilization, power)
            if self.has_focus and index == self.cursor:
                row = [selected(line, look) for line in row]
            lines.update(enumerate(row, start=index * row_height))
        self._show_lines(lines, columns.width)

    def _show_lines(self, lines: dict[int, Line], width: int) -> None:
        old, self._lines = self._lines, lines
        if lines == old:
            return
        changed = sorted(y for y in lines.keys() | old.keys() if lines.get(y) != old.get(y))
        for y in changed:
            if y in lines:
                self._strips[y] = Strip(lines[y], width)
            else:
                del self._strips[y]
        top = int(self.scroll_offset.y)
        self.refresh(*line_regions([y - top for y in changed if y >= top], width))

    def render_line(self, y: int) -> Strip:
        strip = self._strips.get(y + int(self.scroll_offset.y))
        return Strip.blank(self.size.width, self.rich_style) if strip is None else strip

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Rows that come into sight need their content."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._ask_repaint()

    def on_click(self, event: events.Click) -> None:
        index = (event.y + int(self.scroll_offset.y)) // self._row_height
        if index < len(self._uuids):
            self.cursor = index
            self.action_open()

    def action_cursor(self, step: int) -> None:
        """Moves the cursor, and the window so that its row is seen."""
        if not self._uuids:
            return
        self.cursor = max(0, min(len(self._uuids) - 1, self.cursor + step))
        top, height = self.cursor * self._row_height, self.size.height
        seen_from = min(max(int(self.scroll_offset.y), top + self._row_height - height), top)
        self.scroll_to(y=seen_from, animate=False)
        self._ask_repaint()

    def action_open(self) -> None:
        if self._uuids:
            self.post_message(OpenGpu(self._uuids[self.cursor]))

    def on_focus(self) -> None:
        self._ask_repaint()

    def on_blur(self) -> None:
        self._ask_repaint()

    def _ask_repaint(self) -> None:
        self.post_message(RepaintWanted())


HOST_OLD_NS = 5_000_000_000
"""The host is read once a second, or once in the interval that was set, which is rarely longer."""


def host_row(
    snapshot: Snapshot, height: int, columns: Columns, look: Look, cpu: Trace, io_pressure: Trace
) -> list[Line]:
    """CPU, memory and disk in words; with a second line also the history of CPU and I/O pressure, 0-100%."""
    words = _words(snapshot)
    old_ns = 0 if snapshot.host is None else snapshot.time_ns - snapshot.host.time_ns
    lines = []
    for y in range(height):
        writer = LineWriter(columns.width, look).to(1)
        if y == 0:
            writer.left("host", columns.name, look.strong).to(writer.cells + columns.gap)
        writer.to(1 + columns.name + columns.gap)
        if y == 0 and old_ns > HOST_OLD_NS:
            writer.put(f"{say.age(old_ns)} old   ", look.warning)
        for name, value in words[y]:
            if writer.cells + len(name) + len(value) + 4 > columns.left_width:
                break
            writer.put(f"{name} ", look.dim).put(f"{value}   ", look.text)
        if height > 1:
            _chart(writer, y, columns.chart_1, "CPU 0-100%", cpu, columns.chart_width, look)
            if columns.chart_2 is not None:
                _chart(writer, y, columns.chart_2, "I/O pressure", io_pressure, columns.chart_width, look)
        lines.append(writer.line())
    return lines


def _chart(writer: LineWriter, y: int, column: int, title: str, trace: Trace, width: int, look: Look) -> None:
    """The title in the first line, the chart in the second."""
    writer.to(column)
    if y == 0:
        writer.put(title, look.dim, width)
    else:
        writer.chart(area(trace.mean, low=0, high=100, unicode=look.glyphs.unicode)[0], look.other)


def _words(snapshot: Snapshot) -> list[list[tuple[str, str]]]:
    host, machine = snapshot.host, snapshot.machine
    if host is None:
        return [[("CPU", say.UNKNOWN)], []]
    cores = f" of {machine.cpu_count} cores" if machine is not None else ""
    used = None
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
    first = [
        ("CPU", say.percent(host.cpu_percent) + cores),
        ("load", say.UNKNOWN if host.load_1m is None else f"{host.load_1m:.1f}"),
        ("memory", say.memory_of_total(used, host.memory_total_bytes)),
    ]
    second = [
        ("waiting for I/O", say.percent(host.cpu_iowait_percent)),
        ("I/O pressure", say.percent(host.pressure_io_percent)),
        ("disk read", say.byte_rate(host.disk_read_bytes_per_second)),
        ("network", say.byte_rate(host.network_receive_bytes_per_second)),
    ]
    return [first, second]
