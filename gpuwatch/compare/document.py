"""A comparison as a JSON document, as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwatch import __version__
from gpuwatch.compare.comparison import (
    HEADLINE,
    UNKNOWN,
    Change,
    Comparison,
    FindingChange,
    Judgement,
    Measured,
    gpus_in_words,
    number,
    percent,
    quantity,
    signed,
)
from gpuwatch.numbers import duration_words, grouped
from gpuwatch.report.model import figure
from gpuwatch.text import aligned, code_span, encodable, markdown, markdown_table, printable, wrapped

SCHEMA_VERSION = 1
ANECDOTE = "single run per side: not significant, the scatter between runs is not known; record three or more per side"


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything a renderer prints, as words that are not escaped yet."""

    headline: str
    notes: tuple[str, ...]
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    findings: tuple[tuple[str, ...], ...]  # fate, rule, severity, how long on each side
    gates: tuple[tuple[str, str], ...]  # outcome, sentence
    sides: tuple[tuple[str, str], ...]  # "before", what was measured


def document(comparison: Comparison, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """The whole comparison; `null` where something is not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "gpuwatch": {"version": __version__},
        "before": [_measured(each) for each in comparison.before],
        "after": [_measured(each) for each in comparison.after],
        "alike": comparison.likeness.alike,
        "anecdote": comparison.is_anecdote,
        "warnings": [encodable(text) for text in _warnings(comparison)],
        "metrics": [_change(change) for change in comparison.changes],
        "findings": [
            {
                "rule": found.rule,
                "severity": found.severity,
                "fate": found.fate,
                "runs_before": found.runs_before,
                "runs_after": found.runs_after,
                "stood_seconds_before": figure(found.seconds_before),
                "stood_seconds_after": figure(found.seconds_after),
            }
            for found in comparison.findings
        ],
        "gates": [
            {"fail_if": each.gate.text, "outcome": each.outcome, "sentence": encodable(each.sentence)}
            for each in judgements
        ],
    }


def tables(comparison: Comparison, judgements: Sequence[Judgement]) -> Tables:
    """The same in words."""
    return Tables(
        headline=_headline(comparison),
        notes=tuple(_warnings(comparison)),
        heading=("", "before", "after", "difference", "factor"),
        rows=tuple(_row(change) for change in comparison.changes),
        findings=tuple(_finding(found, comparison) for found in comparison.findings),
        gates=tuple((each.outcome.upper(), each.sentence) for each in judgements),
        sides=(
            *(("before", _about(each)) for each in comparison.before),
            *(("after", _about(each)) for each in comparison.after),
        ),
    )


def _headline(comparison: Comparison) -> str:
    change = comparison.change(HEADLINE.name)
    if change.ratio is None:
        return "samples/s are not known on both sides"
    runs = f"n = {len(change.values_before)} + {len(change.values_after)}"
    if change.interval is None:
        return f"samples/s {percent(change.ratio)} ({runs}: single run per side, not significant)"
    if change.interval.spans_no_change:
        could = "" if change.detectable is None else f"; would have detected {change.detectable * 100:.1f}% or more"
        return f"samples/s: no detectable change (p = {change.interval.p_value:.2g}, {runs}{could})"
    return f"samples/s {difference(change)}, {change.verdict} ({runs}, 95% interval)"


def _warnings(comparison: Comparison) -> list[str]:
    like = comparison.likeness
    warnings = [f"only samples/s are compared: {'; '.join(like.differences)}"] if like.differences else []
    warnings += [ANECDOTE] if comparison.is_anecdote else []
    warnings += like.notes
    return warnings + [
        f"{each.name}: {note}" for each in (*comparison.before, *comparison.after) for note in each.notes
    ]


def _row(change: Change) -> tuple[str, ...]:
    metric = change.metric
    label = f"{metric.label} ({metric.unit})" if metric.unit else metric.label
    before, after = number(change.before), number(change.after)
    return (label, before, after, difference(change), factor(change))


def _finding(found: FindingChange, comparison: Comparison) -> tuple[str, ...]:
    def side(runs: int, of: int, seconds: float | None) -> str:
        if not runs:
            return UNKNOWN
        count = f"{runs} of {of} runs" if of > 1 else "yes"
        return count if seconds is None else f"{count}, {duration_words(seconds)}"

    return (
        found.fate,
        found.rule,
        found.severity,
        side(found.runs_before, len(comparison.before), found.seconds_before),
        side(found.runs_after, len(comparison.after), found.seconds_after),
    )


def _about(each: Measured) -> str:
    subject = each.subject
    parts = [
        each.name,
        each.label,
        None if each.seconds is None else duration_words(each.seconds),
        subject.title,
        None if subject.batch_size is None else f"batch {subject.batch_size}",
        None if subject.model_parameters is None else f"{_millions(subject.model_parameters)} parameters",
        None if subject.autocast is None else f"autocast {subject.autocast or 'off'}",
        gpus_in_words(subject),
    ]
    return " · ".join(part for part in parts if part)


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 1e5 else grouped(count)


def _measured(each: Measured) -> dict[str, Any]:
    subject = each.subject
    return {
        "name": encodable(each.name),
        "label": encodable(each.label),
        "seconds": figure(each.seconds),
        "run": encodable(subject.title),
        "command": encodable(subject.command),
        "gpus": [encodable(name) for name in subject.gpu_names],
        "batch_size": subject.batch_size,
        "model_parameters": subject.model_parameters,
        "parameter_bits": subject.parameter_bits,
        "autocast": subject.autocast,
        "torch": encodable(subject.torch),
        "values": {change: figure(value) for change, value in each.values.items()},
    }


def _change(change: Change) -> dict[str, Any]:
    interval = change.interval
    return {
        "name": change.metric.name,
        "unit": change.metric.unit or "1/s",
        "before": figure(change.before),
        "after": figure(change.after),
        "compared": not change.withheld,
        "difference": figure(change.difference),
        "ratio": figure(change.ratio),
        "interval": None
        if interval is None
        else {
            "low": figure(interval.low),
            "high": figure(interval.high),
            "confidence": interval.confidence,
            "p_value": figure(interval.p_value),
        },
        "verdict": change.verdict,
        "detectable": figure(change.detectable),
    }


_FINDINGS_HEADING = ("", "finding", "", "before", "after")


def render_text(shown: Tables) -> str:
    """For a terminal: no colour, no escape sequences."""
    blocks = [
        wrapped(f"gpuwatch compare: {shown.headline}", ""),
        [line for side, about in shown.sides for line in wrapped(f"{side:6} {about}")],
        _indented(shown.heading, shown.rows, right=(1, 2)),
        ["FINDINGS", *_indented(_FINDINGS_HEADING, shown.findings)] if shown.findings else [],
        ["GATES", *(line for outcome, sentence in shown.gates for line in wrapped(f"{outcome} {sentence}"))]
        if shown.gates
        else [],
        [line for note in shown.notes for line in wrapped(note)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def render_markdown(shown: Tables) -> str:
    """For a pull request or a job's summary."""
    parts = [
        "# gpuwatch compare",
        f"**{markdown(shown.headline)}**",
        "\n".join(f"> {markdown(note)}" + "  " for note in shown.notes),
        markdown_table(shown.heading, [tuple(map(markdown, row)) for row in shown.rows], right=4),
        *_section("Findings", shown.findings),
        "\n".join(f"- **{outcome}** {markdown(sentence)}" for outcome, sentence in shown.gates),
        "\n".join(f"- {side}: {markdown(about)}" for side, about in shown.sides),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, found: Sequence[tuple[str, ...]]) -> list[str]:
    if not found:
        return []
    rows = [(row[0], code_span(row[1]), *map(markdown, row[2:])) for row in found]
    return [f"## {title}", markdown_table(_FINDINGS_HEADING, rows)]


def _indented(heading: Sequence[str], rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    return [f"  {line}".rstrip() for line in aligned([heading, *(tuple(map(printable, row)) for row in rows)], right)]


def difference(change: Change) -> str:
    """How much it changed, benchstat's `~` where the interval spans no change."""
    if change.difference is None:
        return UNKNOWN
    if change.interval is not None and change.interval.spans_no_change:
        return f"~ (p = {change.interval.p_value:.2g})"
    if change.metric.is_share:
        return f"{signed(change.difference)} points"
    if change.ratio is None:
        return f"{'+' if change.difference > 0 else ''}{quantity(change.difference, change.metric)}"
    if change.interval is None:
        return percent(change.ratio)
    low, high = (percent(bound).removesuffix("%") for bound in (change.interval.low, change.interval.high))
    return f"{percent(change.ratio)} [{low}, {high}]"


def factor(change: Change) -> str:
    """After over before."""
    if change.ratio is None or change.withheld:
        return UNKNOWN
    if change.interval is not None and change.interval.spans_no_change:
        return "~"
    return f"{change.ratio:.2f}x"
