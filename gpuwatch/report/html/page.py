"""Puts the page together from the report, the template and the vendored chart library.

The page names the hashes of its own script and style in its policy, so whatever a process calls itself, no other
script runs; and all text is escaped by the template engine, so it does not even get that far.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gpuwatch.metrics import BY_SERIES
from gpuwatch.numbers import faster, rate
from gpuwatch.report import model, words
from gpuwatch.report.html.charts import chart_plan, lanes
from gpuwatch.text import json_text, printable

SPARK_WIDTH, SPARK_HEIGHT = 120, 28
_SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
_STYLES = ("vendor/uPlot.min.css", "page.css")
_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


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
    return resources.files("gpuwatch.report.html").joinpath(name).read_text(encoding="utf-8")


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
        "diff_lines": _diff_lines,
        "figure": rate,
    }


def _verdicts(report: model.Report) -> Iterator[Verdict]:
    for line, (word, sentence, change) in zip(report.verdict, words.verdict_lines(report), strict=True):
        tone = line.severity or ("ok" if line.judged else "unknown")
        if line.gain is not None:  # it is shown next to the sentence
            sentence = sentence.removesuffix(f" ({faster(line.gain.low, line.gain.high)})")
        yield Verdict(tone, word, sentence, _behind(report, line), change)


def _behind(report: model.Report, line: model.VerdictLine) -> model.Finding | None:
    """The finding that a line of the verdict speaks of."""
    same = [each for each in report.findings if (each.rule, each.gpu) == (line.rule, line.gpu)]
    return next((each for each in same if each.run in (line.run, None)), None)


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
