"""The report for the summary page of a CI job: the verdict open, everything else folded away."""

from __future__ import annotations

from gpuwatch.report import about_lines, stack_tables, tables
from gpuwatch.report.markdown import bullets, finding_part, table_part, verdict_line
from gpuwatch.report.observation import Json
from gpuwatch.text.escape import markdown


def render_step_summary(report: Json) -> str:
    """The whole part; it begins with a heading of the third level, beside those of other steps."""
    findings = report["findings"]
    parts = [
        "### gpuwatch",
        *(f"> **{markdown(line)}**" for line in tables.banner(report)),
        "\n".join(verdict_line(*line) for line in tables.verdict_lines(report)),
        *([finding_part(findings[0])] if findings else []),
        _folded(f"Findings ({len(findings)})", [finding_part(finding) for finding in findings[1:]]),
        _folded("Checklist", [table_part(tables.checklist_table(report))]),
        _folded("GPUs", _rows(tables.gpu_table(report))),
        _folded("Runs", _rows(stack_tables.runs(report))),
        _folded("Data quality", [bullets(about_lines.quality_lines(report))]),
        markdown(tables.subtitle(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short_step_summary(report: Json) -> str:
    """The verdict alone, where the whole does not fit."""
    lines = (verdict_line(*line) for line in tables.verdict_lines(report))
    return "### gpuwatch\n\n" + "\n".join(lines) + "\n"


def _rows(table: tables.Table) -> list[str]:
    return [table_part(table), bullets(table.notes)] if table.rows else []


def _folded(title: str, parts: list[str]) -> str:
    """What opens at a click. GitHub reads Markdown in it only behind an empty line."""
    if not parts:
        return ""
    return "\n\n".join([f"<details><summary>{markdown(title)}</summary>", *filter(None, parts), "</details>"])
