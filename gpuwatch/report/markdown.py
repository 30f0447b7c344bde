"""The report as Markdown (GitHub's dialect). Everything that is not this file's own words is escaped."""

from __future__ import annotations

from gpuwatch.report import about_lines, stack_tables, tables
from gpuwatch.report.observation import Json
from gpuwatch.report.patch import NO_EDIT, NOT_HERE
from gpuwatch.report.verdict import gain_text, plan_text
from gpuwatch.text.escape import code_block, code_span, markdown


def render_markdown(report: Json) -> str:
    """The whole document."""
    parts = [
        "# gpuwatch report",
        markdown(tables.subtitle(report)),
        *(f"> **{markdown(line)}**" for line in tables.banner(report)),
        "## Verdict",
        "\n".join(verdict_line(*line) for line in tables.verdict_lines(report)),
        "## Findings",
        *([finding_part(finding) for finding in report["findings"]] or ["None."]),
        "## Checklist",
        table_part(tables.checklist_table(report)),
        "## GPUs",
        *_section(tables.gpu_table(report), "No GPU was seen."),
        "## Runs",
        *_section(stack_tables.runs(report), "No training run was seen."),
        bullets(tables.loader_lines(report)),
        *(_block(block) for block in stack_tables.stack_blocks(report)),
        "## History",
        _history(report),
        "## Data quality",
        bullets(about_lines.quality_lines(report)),
        "## Environment",
        bullets(about_lines.environment_lines(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdict_line(word: str, sentence: str, change: str) -> str:
    """A sentence of the verdict as an item of a list."""
    line = f"- **{word}** {markdown(sentence)}"
    return f"{line}  \n  {code_span(change)}" if change else line


def finding_part(finding: Json) -> str:
    """One finding with its numbers, fix, gain and proof."""
    title = f"### {finding['severity'].upper()} {code_span(finding['rule'])} ({finding['level']})"
    facts = [f"- {markdown(text)}" for text in finding["numbers"]]
    facts += [f"- not {markdown(each['cause'])}: {markdown(each['reason'])}" for each in finding["ruled_out"]]
    if finding["behind"]:
        facts.append(f"- after {code_span(finding['behind'])} is solved")
    facts += [f"- {markdown(note)}" for note in finding["confidence_notes"]]
    parts = [title, markdown(finding["summary"]), "\n".join(facts), _fix(finding["fix"]), _gain(finding)]
    if finding["fix"] and finding["fix"]["trial"]:
        parts.append(f"**Prove it first:** {code_span(finding['fix']['trial'])}")
    if finding["verify"]:
        parts.append(f"**Verify:** {markdown(finding['verify'])}")
    return "\n\n".join(part for part in parts if part)


def _fix(fix: Json | None) -> str:
    if fix is None:
        return ""
    place = tables.place(fix)
    parts = [f"**Fix{f' ({code_span(place)})' if place else ''}:** {markdown(fix['text'])}"]
    if fix["diff"]:
        parts.append(code_block(fix["diff"], "diff"))
    elif fix["code"]:
        parts.append(code_block(fix["code"], "python"))
    if fix["no_diff_reason"] and fix["no_diff_reason"] not in (NO_EDIT, NOT_HERE):
        parts.append(f"**By hand:** {markdown(fix['no_diff_reason'])}")
    return "\n\n".join(parts)


def _gain(finding: Json) -> str:
    gain = finding["gain"]
    if gain is not None:
        cap = f", {gain['cap']}" if gain["cap"] else ""
        planned = plan_text(finding.get("plan"))
        step = f" ({planned})" if planned else ""
        return f"**Gain:** {gain_text(gain['low'], gain['high'])}{markdown(cap)}{step}"
    return f"**Hint:** {markdown(finding['hint'])}" if finding["hint"] else ""


def _section(table: tables.Table, empty: str) -> list[str]:
    return [table_part(table), bullets(table.notes)] if table.rows else [empty]


def _block(block: stack_tables.Block) -> str:
    parts = [f"### {block.title} ({markdown(block.about)})", *map(markdown, block.sentences)]
    return "\n\n".join([*parts, table_part(block.table)] if block.table.rows else parts)


def table_part(table: tables.Table) -> str:
    """A table; its notes are left to the caller."""
    rows = [table.heading, tuple("---" for _ in table.heading)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"| {' | '.join(markdown(cell) for cell in row)} |" for row in table.rows]
    return "\n".join(lines)


def _history(report: Json) -> str:
    found = tables.sparks(report)
    width = max((len(spark.label) for spark in found), default=0)
    lines = [f"{spark.label:{width}} {spark.blocks} {spark.scale}" for spark in found]
    return code_block("\n".join(lines)) if lines else "Nothing was measured."


def bullets(lines: list[str] | tuple[str, ...]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {markdown(line)}" for line in lines)
