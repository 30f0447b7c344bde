"""The report as one HTML file: nothing is fetched, nothing but gpuwatch's own script may run.

The page names the hashes of its own script and style in its policy, so whatever a process calls itself, no other
script runs; and all text is escaped by the template engine, so it does not even get that far.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gpuwatch.metrics import BY_SERIES, METRICS, Metric
from gpuwatch.numbers import clock, duration_words, faster, rate
from gpuwatch.report import model, words
from gpuwatch.text import json_text, printable

SPARK_WIDTH, SPARK_HEIGHT = 120, 28
_SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
_STYLES = ("vendor/uPlot.min.css", "page.css")
_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}

WIDTH, HEIGHT = 560, 140
_STATIC_POINTS = 280
_MOST_LANES = 16
_NARROWEST_BAND = 0.003  # of the chart: many narrower ones are a grey veil, and the lanes show them


def render_html(report: model.Report) -> str:
    """The whole page; with charts where the report holds their series."""
    scripts, styles = _together(_SCRIPTS), _together(_STYLES)
    plan = chart_plan(report)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            **page_view(report),
            policy=f"default-src 'none'; script-src {_hash(scripts)}; style-src {_hash(styles)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
            script=Markup(scripts),
            style=Markup(styles),
            lanes=lanes(report),
            charts=plan,
            island=_island(model.as_json(report)),
            chart_island=_island([chart.island for chart in plan]),
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Every text on its way into the page: control characters and the like become codes."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _read(name: str) -> str:
    return (resources.files("gpuwatch.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _together(names: tuple[str, ...]) -> str:
    """Several files as one element; a form feed or a lone CR would come out of the browser's parser as another text."""
    return "\n".join(_read(name).strip() for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _island(data: Any) -> Markup:
    """Data between script tags: no `<` can end them."""
    text = json_text(data, compact=True)
    return Markup(text.translate(_IN_SCRIPT))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence of the verdict and, of the finding behind it, what to change."""

    tone: str
    word: str
    sentence: str
    finding: model.Finding | None
    change: str


@dataclass(frozen=True, slots=True)
class Spark:
    """A small curve for a table's cell, as the points of a polyline per unbroken piece."""

    label: str
    pieces: tuple[str, ...]


def page_view(report: model.Report) -> dict[str, Any]:
    """Everything the template shows but the charts."""
    verdicts = list(_verdicts(report))
    return {
        "title": f"gpuwatch report: {report.verdict[0].sentence}",
        "about": report.gpuwatch,
        "subtitle": words.subtitle(report),
        "banner": words.banner(report),
        "first": verdicts[0],
        "others": verdicts[1:],
        "findings": report.findings,
        "checklist": report.checklist,
        "gpus": words.gpu_table(report),
        "gpu_sparks": [_sparks(report, gpu.uuid) for gpu in report.gpus],
        "runs": words.runs(report),
        "run_sparks": [_sparks(report, run.id) for run in report.runs],
        "loaders": words.loader_lines(report),
        "blocks": words.stack_blocks(report),
        "quality": words.quality_lines(report),
        "environment": words.environment_lines(report),
        "gain": lambda gain: faster(gain.low, gain.high),
        "plan": words.plan_text,
        "place": words.place,
        "by_hand": words.by_hand,
        "remarks": words.remarks,
        "diff_lines": _diff_lines,
        "figure": rate,
    }


def _verdicts(report: model.Report) -> Iterator[Verdict]:
    for line, (word, sentence, change) in zip(report.verdict, words.verdict_lines(report), strict=True):
        tone = line.severity or ("ok" if line.judged else "unknown")
        if line.gain is not None:  # it is shown next to the sentence
            sentence = sentence.removesuffix(f" ({faster(line.gain.low, line.gain.high)})")
        yield Verdict(tone, word, sentence, words.finding_behind(report, line), change)


def _diff_lines(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff, each with what it does."""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith(("+++", "---", "diff ", "index ")):
            yield "file", line
        else:
            yield {"+": "added", "-": "removed", "@": "hunk"}.get(line[:1], "same"), line


def _sparks(report: model.Report, key: str) -> list[Spark]:
    found = []
    for history in report.history:
        known = [value for value in history.mean if value is not None]
        if history.key != key or not known:
            continue
        metric = BY_SERIES[history.series]
        label, top = metric.label if metric.subject == "gpu" else metric.title, metric.top
        found.append(Spark(label, tuple(_pieces(history.mean, top or max(known) * 1.05 or 1.0))))
    return found


def _pieces(values: list[float | None], top: float) -> Iterator[str]:
    points: list[str] = []
    for place, value in enumerate(values):
        if value is None:
            if points:
                yield " ".join(points)
            points = []
            continue
        x = SPARK_WIDTH * (place + 0.5) / len(values)
        points.append(f"{x:.1f},{1 + (SPARK_HEIGHT - 2) * (1 - min(1.0, value / top)):.1f}")
    if points:
        yield " ".join(points)


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
