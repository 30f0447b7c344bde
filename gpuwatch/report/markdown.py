"""The report as Markdown (GitHub's dialect). Everything that is not this file's own words is escaped."""

from __future__ import annotations

from gpuwatch.numbers import faster
from gpuwatch.report import model, words
from gpuwatch.text import code_block, code_span, markdown, markdown_table


def render_markdown(report: model.Report) -> str:
    """The whole document."""
    parts = [
        "# gpuwatch report",
        markdown(words.subtitle(report)),
        *(f"> **{markdown(line)}**" for line in words.banner(report)),
        "## Verdict",
        "\n".join(verdict_line(*line) for line in words.verdict_lines(report)),
        "## Findings",
        *([finding_part(finding) for finding in report.findings] or ["None."]),
        "## Checklist",
        table_part(words.checklist_table(report)),
        "## GPUs",
        *_rows(words.gpu_table(report), "No GPU was seen."),
        "## Runs",
        *_rows(words.runs(report), "No training run was seen."),
        bullets(words.loader_lines(report)),
        *(_block(block) for block in words.stack_blocks(report)),
        "## History",
        _history(report),
        "## Data quality",
        bullets(words.quality_lines(report)),
        "## Environment",
        bullets(words.environment_lines(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_step_summary(report: model.Report) -> str:
    """The whole part; it begins with a heading of the third level, like those of other steps."""
    findings = report.findings
    parts = [
        "### gpuwatch",
        *(f"> **{markdown(line)}**" for line in words.banner(report)),
        "\n".join(verdict_line(*line) for line in words.verdict_lines(report)),
        *([finding_part(findings[0])] if findings else []),
        _folded(f"Findings ({len(findings)})", [finding_part(finding) for finding in findings[1:]]),
        _folded("Checklist", [table_part(words.checklist_table(report))]),
        _folded("GPUs", _rows(words.gpu_table(report))),
        _folded("Runs", _rows(words.runs(report))),
        _folded("Data quality", [bullets(words.quality_lines(report))]),
        markdown(words.subtitle(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short_step_summary(report: model.Report) -> str:
    """The verdict alone, where the whole does not fit."""
    lines = (verdict_line(*line) for line in words.verdict_lines(report))
    return "### gpuwatch\n\n" + "\n".join(lines) + "\n"


def _rows(table: words.Table, *empty: str) -> list[str]:
    return [table_part(table), bullets(table.notes)] if table.rows else list(empty)


def _folded(title: str, parts: list[str]) -> str:
    """What opens at a click. GitHub reads Markdown in it only behind an empty line."""
    if not parts:
        return ""
    return "\n\n".join([f"<details><summary>{markdown(title)}</summary>", *filter(None, parts), "</details>"])


def verdict_line(word: str, sentence: str, change: str) -> str:
    """A sentence of the verdict as an item of a list."""
    line = f"- **{word}** {markdown(sentence)}"
    return f"{line}  \n  {code_span(change)}" if change else line


def finding_part(finding: model.Finding) -> str:
    """One finding with its numbers, fix, gain and proof."""
    title = f"### {finding.severity.upper()} {code_span(finding.rule)} ({finding.level})"
    facts = [f"- {markdown(text)}" for text in finding.numbers]
    facts += [f"- not {markdown(each.cause)}: {markdown(each.reason)}" for each in finding.ruled_out]
    if finding.behind:
        facts.append(f"- after {code_span(finding.behind)} is solved")
    facts += [f"- {markdown(note)}" for note in finding.confidence_notes]
    parts = [title, markdown(finding.summary), "\n".join(facts), _fix(finding.fix), _gain(finding)]
    if finding.fix and finding.fix.trial:
        parts.append(f"**Prove it first:** {code_span(finding.fix.trial)}")
    if finding.verify:
        parts.append(f"**Verify:** {markdown(finding.verify)}")
    return "\n\n".join(part for part in parts if part)


def _fix(fix: model.Fix | None) -> str:
    if fix is None:
        return ""
    place = words.place(fix)
    parts = [f"**Fix{f' ({code_span(place)})' if place else ''}:** {markdown(fix.text)}"]
    if fix.diff:
        parts.append(code_block(fix.diff, "diff"))
    elif fix.code:
        parts.append(code_block(fix.code, "python"))
    reason = words.by_hand(fix)
    if reason:
        parts.append(f"**By hand:** {markdown(reason)}")
    return "\n\n".join(parts)


def _gain(finding: model.Finding) -> str:
    gain = finding.gain
    if gain is not None:
        cap = f", {gain.cap}" if gain.cap else ""
        planned = words.plan_text(finding.plan)
        step = f" ({planned})" if planned else ""
        return f"**Gain:** {faster(gain.low, gain.high)}{markdown(cap)}{step}"
    return f"**Hint:** {markdown(finding.hint)}" if finding.hint else ""


def _block(block: words.Block) -> str:
    parts = [f"### {block.title} ({markdown(block.about)})", *map(markdown, block.sentences)]
    return "\n\n".join([*parts, table_part(block.table)] if block.table.rows else parts)


def table_part(table: words.Table) -> str:
    """A table; its notes are left to the caller."""
    return markdown_table(table.heading, [[*map(markdown, row)] for row in table.rows])


def _history(report: model.Report) -> str:
    found = words.sparks(report)
    width = max((len(spark.label) for spark in found), default=0)
    lines = [f"{spark.label:{width}} {spark.blocks} {spark.scale}" for spark in found]
    return code_block("\n".join(lines)) if lines else "Nothing was measured."


def bullets(lines: list[str] | tuple[str, ...]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {markdown(line)}" for line in lines)
