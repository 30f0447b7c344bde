"""The rows of the GPUs, in one painted widget that scrolls when there are more than fit, and the lines of the host.

One widget for all rows, not one each: Textual asks every widget on the screen for its lines in every frame, changed or
not, which at 8 GPUs cost a third of the frame (measured with 8.2.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from rich.style import Style
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
from gpuwatch.dashboard.panels.gpu_rows import (
    HOT_CELSIUS,
    Order,
    Row,
    numbers_of,
    power_limit,
    power_of,
    rows_of,
    total_of,
    utilization_of,
)
from gpuwatch.dashboard.panels.layout import Columns
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import OLD_STATUS_NS, View
from gpuwatch.dashboard.widgets import RepaintWanted, line_regions, without_ansi
from gpuwatch.dashboard.words import USE_WORDS, no_gpu_reason, process_words, status_words
from gpuwatch.monitor.snapshot import GpuNow, GpuUse, Snapshot
from gpuwatch.samples import GpuFacts, GpuSample
from gpuwatch.timeline.charts import Series


class OpenGpu(Message):
    """The user wants all that is known of one GPU."""

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid


def gpu_header(view: View, columns: Columns, look: Look, row_height: int = 1, *, focused: bool = False) -> Line:
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
        ("power 60 s" if columns.power >= 10 else "power 60s", columns.power),
        ("memory", columns.memory),
        ("temp", columns.temperature),
        ("SM clock", columns.clock),
        ("throttle" if columns.slowed >= 8 else "throt.", columns.slowed),
    ):
        if width:
            align = writer.left if title.startswith("thr") else writer.right
            align(title, width, look.heading).to(writer.cells + columns.gap, look.heading)
    for field in owner_fields(columns.owner):
        align = writer.right if field.right else writer.left
        align(field.title, field.width, look.heading).to(writer.cells + 1, look.heading)
    window = say.span(view.window_seconds)
    writer.to(columns.chart_1, look.heading)
    if columns.chart_2 is not None or (columns.owner and row_height == 1):
        full = f"util 0-100%, {window}"
        fitting = full if len(full) <= columns.chart_width else f"util, {window}"
        writer.put(fitting, look.heading, columns.chart_width)
    else:
        writer.put(f"util,power {window}", look.heading, columns.chart_width)
    if columns.chart_2 is not None:
        writer.to(columns.chart_2, look.heading).put(_power_range(view), look.heading, columns.chart_width)
    return writer.line(look.heading)


def _power_range(view: View) -> str:
    """The power charts' range, in watts where all GPUs share it."""
    limits = {power_limit(gpu) for gpu in view.snapshot.gpus} if view.snapshot else set()
    limit = limits.pop() if len(limits) == 1 else None
    return "power 0-limit" if limit is None else f"power 0-{limit:.0f} W"


def total_row(gpus: Sequence[GpuNow], columns: Columns, look: Look, hidden: int = 0) -> Line:
    """All GPUs as one: how many work, what they draw and hold. `hidden` rows are out of sight below."""
    total = total_of(gpus)
    writer = LineWriter(columns.width, look).to(1)
    writer.left(say.fitting(columns.name, f"{total.gpus} GPUs", f"all {total.gpus}"), columns.name, look.strong)
    writer.gap(columns.gap)
    if columns.meter:
        _meter(writer, total.utilization_percent, columns.meter, look)
        writer.gap(columns.gap)
    writer.right(say.percent(total.utilization_percent), columns.utilization, look.utilization)
    power = say.fitting(columns.power, *say.kilowatts(total.power_watts, total.power_limit_watts))
    writer.right(power, columns.power + columns.gap, look.power)
    used = total.memory_used_bytes
    whole = say.memory_of_total(used, total.memory_total_bytes, 0)
    writer.right(say.fitting(columns.memory, whole, *say.sizes(used)), columns.memory + columns.gap, look.text)
    hot = look.critical if (total.hottest_celsius or 0) >= HOT_CELSIUS else look.text
    writer.right(say.celsius(total.hottest_celsius), columns.temperature + columns.gap, hot)
    if columns.clock:
        writer.gap(columns.gap + columns.clock)
    if columns.slowed:
        said = f"{total.throttled} GPU{'' if total.throttled == 1 else 's'}" if total.throttled else "none"
        writer.gap(columns.gap).left(said, columns.slowed, look.warning if total.throttled else look.dim)
    writer.gap(columns.gap)
    uses = [(f"{hidden} row{'' if hidden == 1 else 's'} below", look.warning)] if hidden else []
    uses += [(f"{total.uses[use]} {USE_WORDS[use]}", _use_style(use, look)) for use in USE_WORDS if total.uses[use]]
    instances = sum(1 for gpu in gpus if gpu.facts.mig_parent is not None)
    uses += [(f"{instances} MIG instance{'' if instances == 1 else 's'}", look.dim)] if instances else []
    for place, (words, style) in enumerate(uses):
        if writer.room < len(words) + 3:
            break
        writer.put(f" {look.glyphs.dot} " if place else "", look.dim).put(words, style)
    return writer.line()


def _use_style(use: GpuUse, look: Look) -> Style:
    return {"failing": look.critical, "held": look.warning, "busy": look.good}.get(use, look.dim)


def heat_lines(gpus: Sequence[GpuNow], width: int, look: Look) -> list[Line]:
    """One cell per GPU, eight together: tens of percent of utilization, "." where it is free, "!" where it fails."""
    whole = [gpu for gpu in gpus if gpu.facts.mig_parent is None]
    label = 8
    per_line = max(1, (width - label - 1) // 9) * 8
    lines = []
    for start in range(0, len(whole), per_line):
        writer = LineWriter(width, look).to(1).put("util/10" if start == 0 else str(whole[start].facts.index), look.dim)
        writer.to(label + 1)
        for place, gpu in enumerate(whole[start : start + per_line]):
            if place and place % 8 == 0:
                writer.gap(1)
            writer.put(*heat_cell(gpu, look))
        lines.append(writer.line())
    return lines


def heat_cell(gpu: GpuNow, look: Look) -> tuple[str, Style]:
    """A GPU in one character, and its colour."""
    percent = utilization_of(gpu)
    if gpu.use == "failing":
        return "!", look.critical
    if gpu.use == "free":
        return ".", look.faint
    if percent is None:
        return "?", look.dim
    style = look.warning if gpu.use == "held" or gpu.throttled_by else look.good if percent >= 50 else look.dim
    return str(min(9, int(percent // 10))), style


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
    details = sick[1:] if sick else _details(gpu, snapshot, columns, look) if height > 1 else []
    lines = []
    for y in range(drawn):
        writer = LineWriter(columns.width, look)
        if y == 0:
            _first_line(writer, gpu, view, snapshot, columns, look, sick)
        elif y <= len(details):
            writer.to(_indent(columns)).put(details[y - 1], look.dim, columns.left_width - writer.cells)
        writer.to(columns.chart_1)
        if not columns.chart_width:
            pass
        elif columns.chart_2 is None:
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


def _first_line(
    writer: LineWriter, gpu: GpuNow, view: View, snapshot: Snapshot, columns: Columns, look: Look, sick: list[str]
) -> None:
    """Name and numbers; a GPU without live numbers says so in words instead."""
    facts = gpu.facts
    writer.to(1).left(row_name(facts, columns.name), columns.name, look.strong).gap(columns.gap)
    if sick or gpu.latest is None:
        style = {"lost": look.critical, "stale": look.warning}.get(gpu.status, look.dim)
        writer.put(sick[0] if sick else say.UNKNOWN, style, columns.left_width - writer.cells)
        return
    if view.is_old(gpu.latest.time_ns):
        writer.put(f"{say.age(snapshot.time_ns - gpu.latest.time_ns)} old ", look.warning)
        _numbers(writer, gpu, gpu.latest, snapshot, columns, look, skip_utilization=True)
        return
    _numbers(writer, gpu, gpu.latest, snapshot, columns, look)


def _status_lines(gpu: GpuNow, snapshot: Snapshot, room: int) -> list[str]:
    """What stands in place of a GPU's numbers while there are none."""
    if gpu.status == "live" and gpu.latest is not None:
        return []
    return say.wrap(status_words(gpu, snapshot), max(10, room))


def _numbers(
    writer: LineWriter,
    gpu: GpuNow,
    latest: GpuSample,
    snapshot: Snapshot,
    columns: Columns,
    look: Look,
    skip_utilization: bool = False,
) -> None:
    gap = columns.gap
    mean = utilization_of(gpu)
    if skip_utilization:
        start = _indent(columns) + (columns.meter + gap if columns.meter else 0)
        writer.to(start + columns.utilization)
    else:
        if columns.meter:
            _meter(writer, mean, columns.meter, look)
            writer.gap(gap)
        idle = _idle_words(gpu, snapshot.time_ns)
        words = idle or say.mean_and_sigma(mean, gpu.utilization_sigma_percent)
        if (
            gpu.facts.mig_parent is not None and latest.sm_activity_percent is not None
        ):  # all that a MIG instance reports
            words = f"SM {say.percent(latest.sm_activity_percent)}"
        writer.right(words, columns.utilization, look.dim if idle else look.utilization)
    temperature = latest.temperature_celsius
    hot = look.critical if temperature is not None and temperature >= HOT_CELSIUS else look.text
    decimals = 1 if columns.memory > 9 else 0
    memory = say.memory_of_total(latest.memory_used_bytes, gpu.facts.memory_total_bytes, decimals)
    writer.right(say.of_limit(power_of(gpu), power_limit(gpu), "W"), columns.power + gap, look.power)
    writer.right(memory, columns.memory + gap, look.text)
    writer.right(say.celsius(temperature), columns.temperature + gap, hot)
    if columns.clock:
        writer.right(say.megahertz(latest.sm_clock_mhz), columns.clock + gap, look.text)
    if columns.slowed:
        words, slowed = slowed_by(gpu, latest)
        writer.gap(gap).left(words, columns.slowed, look.warning if slowed else look.dim)
    if columns.owner:
        _owner(writer.gap(gap), gpu, snapshot, columns.owner, look)


_IDLE_WORTH_SAYING_NS = 60_000_000_000


def _idle_words(gpu: GpuNow, now_ns: int) -> str:
    """Since when it does nothing: "idle 41m", "idle 41m+" where that is since before it was first seen."""
    if gpu.idle_since_ns is None or now_ns - gpu.idle_since_ns < _IDLE_WORTH_SAYING_NS:
        return ""
    minutes = (now_ns - gpu.idle_since_ns) // 60_000_000_000
    since = f"{minutes}m" if minutes < 100 else f"{minutes // 60}h" if minutes < 6000 else f"{minutes // 1440}d"
    return f"idle {since}{'+' if gpu.idle_when_found else ''}"


@dataclass(frozen=True, slots=True)
class OwnerField:
    """One column of a GPU's owner."""

    title: str
    width: int
    right: bool = False


@cache
def owner_fields(width: int) -> tuple[OwnerField, ...]:
    """What is said of a GPU's largest process: its pid and user first, then its command, its runtime, its memory."""
    if width < 12:
        return ()
    fields = [OwnerField("pid", 7, right=True), OwnerField("user", 8 if width >= 24 else width - 8)]
    if width >= 64:
        fields.append(OwnerField("holds", 8, right=True))
    if width >= 34:
        fields.append(OwnerField("time", 6, right=True))
    rest = width - sum(field.width + 1 for field in fields)
    return (*fields, OwnerField("command", rest)) if rest >= 6 else tuple(fields)


def _owner(writer: LineWriter, gpu: GpuNow, snapshot: Snapshot, width: int, look: Look) -> None:
    """Who has the GPU: its largest process, and how many more there are."""
    end = writer.cells + width
    processes = gpu.processes
    if not processes:
        status = gpu.latest_status
        reason = status.unavailable.get("processes", "") if processes is None and status is not None else ""
        words = say.escape(reason) or (say.UNKNOWN if processes is None else "free" if gpu.use == "free" else "")
        writer.put(words, look.dim, width).to(end)
        return
    said = process_words(processes[0], gpu, snapshot)
    more = f" +{len(processes) - 1}" if len(processes) > 1 else ""
    fields = owner_fields(width)
    for place, field in enumerate(fields):
        last = place == len(fields) - 1
        room = field.width - (len(more) if last else 0)
        style = look.accent if field.title == "pid" else look.text if field.title == "user" else look.dim
        (writer.right if field.right else writer.left)(said[field.title], room, style)
        writer.put(more if last else " ", look.dim)
    writer.to(end)


def row_name(facts: GpuFacts, width: int) -> str:
    """A GPU in the table: its index and its name as far as there is room, of a MIG instance its profile."""
    if facts.mig_profile is not None:
        profile = say.escape(facts.mig_profile)
        return say.fitting(width, f"{facts.label} {profile}", f"{facts.label} {profile.partition('.')[0]}")
    name = f"{facts.label} {say.gpu_name(facts.name, width - len(facts.label) - 1)}"
    return f"{name} MIG" if facts.mig and len(name) + 4 <= width else name


def group_row(row: Row, view: View, columns: Columns, look: Look) -> Line:
    """Several GPUs that are used alike: means over them, the hottest, and one cell for each."""
    snapshot = view.snapshot
    assert snapshot is not None, "a GPU came with a snapshot"
    count, first, total = len(row.gpus), row.gpus[0], total_of(row.gpus)
    gap = columns.gap
    writer = LineWriter(columns.width, look).to(1)
    indices = numbers_of(row.gpus)
    name = say.fitting(columns.name, f"{indices} ({count}x)", indices, f"{first.facts.index}+{count - 1}")
    writer.left(name, columns.name, look.strong).gap(gap)
    if columns.meter:
        _meter(writer, total.utilization_percent, columns.meter, look)
        writer.gap(gap)
    idle = _idle_words(first, snapshot.time_ns) if first.idle_since_ns is not None else ""
    utilization = idle or say.percent(total.utilization_percent)
    writer.right(utilization, columns.utilization, look.dim if idle else look.utilization)
    watts = None if total.power_watts is None else total.power_watts / count
    limit = None if total.power_limit_watts is None else total.power_limit_watts / count
    writer.right(say.of_limit(watts, limit, "W"), columns.power + gap, look.power)
    used = None if total.memory_used_bytes is None else total.memory_used_bytes / count
    whole = None if total.memory_total_bytes is None else total.memory_total_bytes / count
    decimals = 1 if columns.memory > 9 else 0
    writer.right(say.memory_of_total(used, whole, decimals), columns.memory + gap, look.text)
    writer.right(say.celsius(total.hottest_celsius), columns.temperature + gap, look.text)
    if columns.clock:
        writer.gap(gap + columns.clock)
    if columns.slowed and first.latest is not None:
        words, slowed = slowed_by(first, first.latest)
        writer.gap(gap).left(words, columns.slowed, look.warning if slowed else look.dim)
    _owner(writer.gap(gap), first, snapshot, columns.owner, look)
    if columns.chart_width >= 12:
        writer.to(columns.chart_1)
        for gpu in row.gpus[: columns.chart_width - 5]:
            writer.put(*heat_cell(gpu, look))
        writer.put(" mean", look.dim)
    return writer.line()


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


def _details(gpu: GpuNow, snapshot: Snapshot, columns: Columns, look: Look) -> list[str]:
    """What is worth knowing in addition to the main columns, as many lines of `width` as it takes."""
    latest, status, now_ns = gpu.latest, gpu.latest_status, snapshot.time_ns
    width = columns.left_width - _indent(columns)
    if latest is None or gpu.status == "lost":
        return []
    words: list[str] = []
    owners = [process_words(each, gpu, snapshot) for each in gpu.processes or ()]
    lines = [
        " ".join(said[name] for name in ("pid", "user", "holds", "time", "command") if said[name] != say.UNKNOWN)
        for said in owners[1 if columns.owner else 0 :]
    ]
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
    return [*lines[:2], *_flow(words, width, look), *lines[2:]]


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
        self.order: Order = "index"
        self.opened: set[str] = set()
        self._chosen: int | None = None  # by the last click: a second one opens it
        self._rows: list[Row] = []
        self._row_height = 1
        self._lines: dict[int, Line] = {}
        self._strips: dict[int, Strip] = {}

    def get_line_filters(self) -> Sequence[LineFilter]:
        return without_ansi(super().get_line_filters())

    def arranged(self, view: View, *, collapsed: bool) -> list[Row]:
        """The rows in the order that the user chose."""
        gpus = view.snapshot.gpus if view.snapshot else ()
        self._rows = rows_of(gpus, order=self.order, collapsed=collapsed, opened=self.opened)
        return self._rows

    def visible_gpus(self, window_lines: int, row_height: int) -> list[str]:
        """The UUIDs of the GPUs that have a row in sight to themselves: only they need charts."""
        first = int(self.scroll_offset.y) // max(1, row_height)
        seen = self._rows[first : first + window_lines // max(1, row_height) + 2]
        return [row.uuid for row in seen if len(row.gpus) == 1]

    def show(
        self, view: View, window_lines: int, row_height: int, columns: Columns, look: Look, traces: Traces
    ) -> None:
        """Brings all rows in sight up to date."""
        self._row_height = max(1, row_height)
        self.cursor = max(0, min(self.cursor, len(self._rows) - 1))
        size = Size(columns.width - 1, len(self._rows) * row_height)
        if size != self.virtual_size:
            self.virtual_size = size
        lines: dict[int, Line] = {}
        first = int(self.scroll_offset.y) // self._row_height
        for index in range(first, min(len(self._rows), first + window_lines // self._row_height + 2)):
            row, uuid = self._rows[index], self._rows[index].uuid
            if len(row.gpus) > 1:
                drawn = [group_row(row, view, columns, look)]
            else:
                utilization = traces.get(Series("gpu.utilization_percent", uuid), _NO_TRACE)
                power = traces.get(Series("gpu.power_watts", uuid), _NO_TRACE)
                drawn = gpu_row(row.gpus[0], view, row_height, columns, look, utilization, power)
            if self.has_focus and index == self.cursor:
                drawn = [selected(line, look) for line in drawn]
            lines.update(enumerate(drawn, start=index * row_height))
        self._show_lines(lines, columns.width)

    def rows_below(self, window_lines: int, row_height: int) -> int:
        """How many rows are out of sight below the window."""
        seen = (int(self.scroll_offset.y) + window_lines) // max(1, row_height)
        return max(0, len(self._rows) - seen)

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
        if index >= len(self._rows):
            return
        chosen, self._chosen, self.cursor = self._chosen, index, index
        self._ask_repaint()
        if chosen == index:
            self.action_open()

    def action_cursor(self, step: int) -> None:
        """Moves the cursor, and the window so that its row is seen."""
        if not self._rows:
            return
        self.cursor = max(0, min(len(self._rows) - 1, self.cursor + step))
        top, height = self.cursor * self._row_height, self.size.height
        seen_from = min(max(int(self.scroll_offset.y), top + self._row_height - height), top)
        self.scroll_to(y=seen_from, animate=False)
        self._ask_repaint()

    def action_open(self) -> None:
        """Opens the GPU, or the row of several so that each of its GPUs has its own."""
        if not self._rows:
            return
        row = self._rows[self.cursor]
        if len(row.gpus) > 1:
            self.opened.add(row.uuid)
            self._ask_repaint()
        else:
            self.post_message(OpenGpu(row.uuid))

    def toggle_order(self) -> Order:
        """Worst first or by index; rows that were opened close."""
        self.order = "worst" if self.order == "index" else "index"
        self.opened.clear()
        self.cursor = 0
        self._ask_repaint()
        return self.order

    def on_focus(self) -> None:
        self._ask_repaint()

    def on_blur(self) -> None:
        self._chosen = None
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
