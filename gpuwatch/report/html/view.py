"""The page's words: the report's own tables and sentences, arranged for a reader who may stop at any line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuwatch.report import about_lines, stack_tables, tables
from gpuwatch.report.observation import Json
from gpuwatch.report.patch import NO_EDIT, NOT_HERE
from gpuwatch.report.verdict import gain_text, plan_text
from gpuwatch.text.numbers import rate

SPARK_WIDTH, SPARK_HEIGHT = 120, 28
_SPARKS = {
    "gpu.utilization_percent": ("utilization", 100.0),
    "gpu.power_watts": ("power", None),
    "run.wait_share": ("wait for data", 1.0),
    "run.step_seconds": ("step time", None),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence of the verdict and, of the finding behind it, what to change."""

    tone: str
    word: str
    sentence: str
    finding: Json | None
    change: str


@dataclass(frozen=True, slots=True)
class Spark:
    """A small curve for a table's cell, as the points of a polyline per unbroken piece."""

    label: str
    pieces: tuple[str, ...]


def page_view(report: Json) -> dict[str, Any]:
    """Everything the template shows but the charts."""
    verdicts = list(_verdicts(report))
    return {
        "title": f"gpuwatch report: {report['verdict'][0]['sentence']}",
        "about": report["gpuwatch"],
        "subtitle": tables.subtitle(report),
        "banner": tables.banner(report),
        "first": verdicts[0],
        "others": verdicts[1:],
        "findings": report["findings"],
        "checklist": report["checklist"],
        "gpus": tables.gpu_table(report),
        "gpu_sparks": [_sparks(report, gpu["uuid"]) for gpu in report["gpus"]],
        "runs": stack_tables.runs(report),
        "run_sparks": [_sparks(report, run["id"]) for run in report["runs"]],
        "loaders": tables.loader_lines(report),
        "blocks": stack_tables.stack_blocks(report),
        "quality": about_lines.quality_lines(report),
        "environment": about_lines.environment_lines(report),
        "gain": lambda gain: gain_text(gain["low"], gain["high"]),
        "plan": plan_text,
        "place": tables.place,
        "by_hand": _by_hand,
        "diff_lines": _diff_lines,
        "figure": rate,
    }


def _verdicts(report: Json) -> Iterator[Verdict]:
    for line, (word, sentence, change) in zip(report["verdict"], tables.verdict_lines(report), strict=True):
        tone = line["severity"] or ("ok" if line["judged"] else "unknown")
        if line["gain"] is not None:  # it stands beside the sentence
            sentence = sentence.removesuffix(f" ({gain_text(line['gain']['low'], line['gain']['high'])})")
        yield Verdict(tone, word, sentence, _behind(report, line), change)


def _behind(report: Json, line: Json) -> Json | None:
    """The finding that a line of the verdict speaks of."""
    same = [each for each in report["findings"] if (each["rule"], each["gpu"]) == (line["rule"], line["gpu"])]
    return next((each for each in same if each["run"] in (line["run"], None)), None)


def _by_hand(fix: Json) -> str | None:
    """Why there is no diff, where the reader can do something about it."""
    reason: str | None = fix["no_diff_reason"]
    return None if reason in (NO_EDIT, NOT_HERE) else reason


def _diff_lines(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff, each with what it does."""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith(("+++", "---", "diff ", "index ")):
            yield "file", line
        else:
            yield {"+": "added", "-": "removed", "@": "hunk"}.get(line[:1], "same"), line


def _sparks(report: Json, key: str) -> list[Spark]:
    found = []
    for history in report["history"]:
        known = [value for value in history["mean"] if value is not None]
        if history["key"] != key or history["series"] not in _SPARKS or not known:
            continue
        label, top = _SPARKS[history["series"]]
        found.append(Spark(label, tuple(_pieces(history["mean"], top or max(known) * 1.05 or 1.0))))
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
