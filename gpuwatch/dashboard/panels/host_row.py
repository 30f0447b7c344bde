"""The machine's CPU side in a line or two: where data pipelines run out of breath."""

from __future__ import annotations

from gpuwatch.dashboard import braille
from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.history import Trace
from gpuwatch.dashboard.panels.columns import Columns
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.monitor.snapshot import Snapshot


def host_row(
    snapshot: Snapshot, height: int, columns: Columns, look: Look, cpu: Trace, io_pressure: Trace
) -> list[Line]:
    """CPU, memory and disk in words, CPU and I/O pressure over the charts' time; both charts are 0-100 %."""
    unicode = look.glyphs.unicode
    cpu_rows = braille.area(cpu.mean, low=0, high=100, height=height, unicode=unicode)
    io_rows = braille.area(io_pressure.mean, low=0, high=100, height=height, unicode=unicode)
    words = _words(snapshot)
    lines = []
    for y in range(height):
        writer = LineWriter(columns.width, look).to(1)
        if y == 0:
            writer.left("host", columns.name, look.strong).to(writer.cells + columns.gap)
        writer.to(1 + columns.name + columns.gap)
        for name, value in words[y]:
            if writer.cells + len(name) + len(value) + 4 > columns.left_width:
                break
            writer.put(f"{name} ", look.dim).put(f"{value}   ", look.text)
        writer.to(columns.chart_1).chart(cpu_rows[y], look.other)
        if columns.chart_2 is not None:
            writer.to(columns.chart_2).chart(io_rows[y], look.other)
        lines.append(writer.line())
    return lines


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
