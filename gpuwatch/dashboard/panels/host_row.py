"""The machine's CPU side in a line or two: where data pipelines run out of breath."""

from __future__ import annotations

from gpuwatch.dashboard import braille
from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.history import Trace
from gpuwatch.dashboard.panels.columns import Columns
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.monitor.snapshot import Snapshot

OLD_NS = 5_000_000_000
"""The host is read once a second, or once in the interval that was asked for, which is rarely longer."""


def host_row(
    snapshot: Snapshot, height: int, columns: Columns, look: Look, cpu: Trace, io_pressure: Trace
) -> list[Line]:
    """CPU, memory and disk in words; with a second line also the history of CPU and I/O pressure, 0-100 %."""
    words = _words(snapshot)
    old_ns = 0 if snapshot.host is None else snapshot.time_ns - snapshot.host.time_ns
    lines = []
    for y in range(height):
        writer = LineWriter(columns.width, look).to(1)
        if y == 0:
            writer.left("host", columns.name, look.strong).to(writer.cells + columns.gap)
        writer.to(1 + columns.name + columns.gap)
        if y == 0 and old_ns > OLD_NS:
            writer.put(f"{say.age(old_ns)} old   ", look.warning)
        for name, value in words[y]:
            if writer.cells + len(name) + len(value) + 4 > columns.left_width:
                break
            writer.put(f"{name} ", look.dim).put(f"{value}   ", look.text)
        if height > 1:
            _chart(writer, y, columns.chart_1, "CPU 0-100 %", cpu, columns.chart_width, look)
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
        writer.chart(braille.area(trace.mean, low=0, high=100, unicode=look.glyphs.unicode)[0], look.other)


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
