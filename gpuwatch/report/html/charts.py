"""What the page draws: which curves share a chart, their drawing without a script, and the lanes above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwatch.metrics import METRICS, Metric
from gpuwatch.numbers import duration_words, rate
from gpuwatch.report import model

WIDTH, HEIGHT = 560, 140
_STATIC_POINTS = 280
_MOST_LANES = 16
_NARROWEST_BAND = 0.003  # of the chart: many narrower ones are a grey veil, and the lanes show them


@dataclass(frozen=True, slots=True)
class Line:
    """One curve as the page draws it without a script."""

    subject: str
    color: int
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart; `island` is what the script needs to redraw it, with `places` in the report's series."""

    title: str
    unit: str
    low: str
    high: str
    start: str
    end: str
    lines: tuple[Line, ...]
    bands: tuple[tuple[float, float, str], ...]
    island: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lane:
    """A finding or a phase over the time of the charts; bars as (start, width) in percent."""

    name: str
    about: str
    tone: str
    bars: tuple[tuple[float, float], ...]
    said: str


def chart_plan(report: model.Report) -> list[Chart]:
    """All charts of which something is known."""
    return [chart for metric in METRICS if metric.chart and (chart := _chart(report, metric)) is not None]


def lanes(report: model.Report) -> list[Lane]:
    """Findings, worst first, then phases."""
    extent = _extent(report)
    if extent is None:
        return []
    start, end = extent
    by_name: dict[tuple[str, str, str], list[model.Span]] = {}
    for span in report.spans or ():
        subject = _subject(report, span.run or span.gpu or "")
        by_name.setdefault((span.kind, span.name, subject), []).append(span)
    found = [_lane(name, subject, spans, start, end) for (_, name, subject), spans in by_name.items()]
    return sorted(found, key=lambda lane: _TONES.index(lane.tone) if lane.tone in _TONES else len(_TONES))[:_MOST_LANES]


_TONES = ("critical", "warning", "info", "hint")


def _lane(name: str, subject: str, spans: Sequence[model.Span], start: float, end: float) -> Lane:
    tones = [span.severity for span in spans if span.severity]
    bars = tuple(
        (
            round(100 * (span.start_seconds - start) / (end - start), 2),
            round(max(0.3, 100 * (span.end_seconds - span.start_seconds) / (end - start)), 2),
        )
        for span in spans
    )
    total = sum(span.end_seconds - span.start_seconds for span in spans)
    times = f", {len(spans)} times" if len(spans) > 1 else ""
    tone = min(tones, key=_TONES.index) if tones else f"phase-{name}"
    return Lane(name, subject, tone, bars, f"{duration_words(total)}{times}")


def _subject(report: model.Report, key: str) -> str:
    for run in report.runs:
        if run.id == key:
            return f"{run.title} ({run.pid})"
    return next((f"GPU {gpu.index}" for gpu in report.gpus if gpu.uuid == key), "")


def _extent(report: model.Report) -> tuple[float, float] | None:
    ends = [
        (each.start_seconds, each.start_seconds + each.bucket_seconds * len(each.mean))
        for each in (report.series or ())
    ]
    if not ends:
        return None
    start, end = min(low for low, _ in ends), max(high for _, high in ends)
    return (start, end) if end > start else None


def _chart(report: model.Report, metric: Metric) -> Chart | None:
    places = [place for place, each in enumerate(report.series or ()) if each.series == metric.series]
    curves = [(report.series or [])[place] for place in places]
    known = [
        value
        for each in curves
        for line in (each.mean, each.min, each.max)
        for value in line or ()
        if value is not None
    ]
    extent = _extent(report)
    if not known or extent is None:
        return None
    low, high = _scale(metric, min(known) * metric.shown_factor, max(known) * metric.shown_factor)
    start, end = extent
    return Chart(
        title=metric.title[0].upper() + metric.title[1:],
        unit=metric.shown_unit,
        low=rate(low),
        high=rate(high),
        start=clock(start),
        end=clock(end),
        lines=tuple(
            Line(
                _subject(report, each.key) or each.subject,
                color % 8,
                " ".join(_path(each, metric.shown_factor, low, high, start, end)),
            )
            for color, each in enumerate(curves)
        ),
        bands=tuple(
            (
                round(WIDTH * (span.start_seconds - start) / (end - start), 1),
                round(WIDTH * (span.end_seconds - span.start_seconds) / (end - start), 1),
                f"phase-{span.name}",
            )
            for span in (report.spans or ())
            if span.kind == "phase" and span.end_seconds - span.start_seconds >= (end - start) * _NARROWEST_BAND
        ),
        island={
            "series": metric.series,
            "unit": metric.shown_unit,
            "factor": metric.shown_factor,
            "places": places,
            "low": 0 if metric.from_zero and metric.top is None else low,
            "high": high,
        },
    )


def _scale(metric: Metric, least: float, greatest: float) -> tuple[float, float]:
    if metric.from_zero:
        top = greatest * 1.08 or 1.0 if metric.top is None else max(metric.top * metric.shown_factor, greatest)
        return 0.0, top
    room = max((greatest - least) * 0.15, greatest * 0.02, 1.0)
    return least - room, greatest + room


def _path(curve: model.Curve, factor: float, low: float, high: float, start: float, end: float) -> Iterator[str]:
    """The mean as an SVG path, broken where nothing was measured, of about as many points as can be seen."""
    every = max(1, -(-len(curve.mean) // _STATIC_POINTS))
    pen = "M"
    for place in range(0, len(curve.mean), every):
        known = [value for value in curve.mean[place : place + every] if value is not None]
        if not known:
            pen = "M"
            continue
        at = curve.start_seconds + curve.bucket_seconds * (place + min(every, len(curve.mean) - place) / 2)
        x = WIDTH * (at - start) / (end - start)
        y = HEIGHT * (1 - (sum(known) / len(known) * factor - low) / (high - low))
        yield f"{pen}{x:.1f} {y:.1f}"
        pen = "L"


def clock(value: float) -> str:
    """Seconds since the beginning as a clock says them: "0:45", "1:02:03"."""
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
