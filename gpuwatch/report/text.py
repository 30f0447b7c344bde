"""The report as plain text for a terminal, and as Markdown.

Plain text has no colour, no escape sequences, and 100 columns where words can wrap. Markdown is GitHub's dialect, in
which everything that is not this file's own words is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from gpuwatch.numbers import faster
from gpuwatch.report import model, words
from gpuwatch.text import aligned, code_block, code_span, markdown, markdown_table, printable, printable_lines, wrapped


def render_text(report: model.Report) -> str:
    """The whole document as plain text."""
    blocks = [
        [f"gpuwatch report: {printable(words.subtitle(report))}", *map(printable, words.banner(report))],
        ["VERDICT", *_verdict(report)],
        ["FINDINGS", *_findings(report)],
        ["CHECKLIST", *_table(words.checklist_table(report))],
        ["GPUS", *(_table(words.gpu_table(report)) or ["  no GPU was seen"])],
        ["RUNS", *(_table(words.runs(report)) or ["  no training run was seen"])],
        _block("LOADERS", words.loader_lines(report)),
        *(_stack_block(block) for block in words.stack_blocks(report)),
        ["HISTORY", *_history(report)],
        _block("DATA QUALITY", words.quality_lines(report)),
        _block("ENVIRONMENT", words.environment_lines(report)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1 or block[0].startswith("gpu")) + "\n"


def _verdict(report: model.Report) -> list[str]:
    lines: list[str] = []
    for word, sentence, change in words.verdict_lines(report):
        lines += wrapped(f"{word} {sentence}")
        lines += [f"    {printable(change)}"] if change else []
    return lines


def _block(title: str, lines: Iterable[str]) -> list[str]:
    return [title, *(part for line in lines for part in wrapped(line))]


def _stack_block(block: words.Block) -> list[str]:
    said = [part for line in (block.about, *block.sentences) for part in wrapped(line)]
    return [block.title.upper(), *said, *_table(block.table)]


def _findings(report: model.Report) -> list[str]:
    lines: list[str] = []
    for finding in report.findings:
        lines += wrapped(f"{finding.severity.upper()} {finding.rule} ({finding.level}): {finding.summary}")
        for text in words.details(finding):
            lines += wrapped(text, "    ")
        lines += _code(finding.fix)
    return lines or ["  none"]


def _code(fix: model.Fix | None) -> list[str]:
    if fix is None:
        return []
    code = fix.diff or fix.code or ""
    return [f"      {line}" for line in printable_lines(code)] if code else []


def _table(table: words.Table) -> list[str]:
    """Columns as wide as their cells; a heading takes as many lines as that makes it."""
    if not table.rows:
        return []
    rows = [tuple(map(printable, row)) for row in table.rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    headings = [textwrap.wrap(cell, max(width, 12)) for cell, width in zip(table.heading, widths, strict=True)]
    height = max(map(len, headings))
    headings = [[""] * (height - len(lines)) + lines for lines in headings]
    rows = [*zip(*headings, strict=True), *rows]
    return [f"  {line}".rstrip() for line in aligned(rows)] + [part for note in table.notes for part in wrapped(note)]


def _history(report: model.Report) -> list[str]:
    found = words.sparks(report)
    width = max((len(printable(spark.label)) for spark in found), default=0)
    lines = [f"  {printable(spark.label):{width}} {spark.blocks} {spark.scale}" for spark in found]
    return lines or ["  nothing was measured"]


def render_markdown(report: model.Report) -> str:
    """The whole document as Markdown: ten lines for a pull request, and the rest folded.

    Open stand the verdict, the line to change and the figures before and after it. A job's summary is the same.
    """
    first, *others = words.verdict_lines(report)
    figures = words.before_after(report)
    parts = [
        *(f"> **{markdown(line)}**" for line in words.banner(report)),
        f"### gpuwatch: {first[0]} {markdown(first[1])}",
        *_remedy(report, first[2]),
        _table_part(figures) if figures.rows else "",
        "\n".join(_verdict_line(*line) for line in others),
        _folded(f"Findings ({len(report.findings)})", _finding_parts(report)),
        _folded(
            "Figures",
            [
                *("#### Checklist", _table_part(words.checklist_table(report))),
                *("#### GPUs", *_rows(words.gpu_table(report), "No GPU was seen.")),
                *("#### Runs", *_rows(words.runs(report), "No training run was seen.")),
                _bullets(words.loader_lines(report)),
                *(_section(block) for block in words.stack_blocks(report)),
                *("#### History", _sparks(report)),
            ],
        ),
        _folded(
            "Data quality and environment",
            [
                markdown(words.subtitle(report)),
                *("#### Data quality", _bullets(words.quality_lines(report))),
                *("#### Environment", _bullets(words.environment_lines(report))),
            ],
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def short_step_summary(report: model.Report) -> str:
    """The verdict alone, where the whole does not fit."""
    lines = (_verdict_line(*line) for line in words.verdict_lines(report))
    return "### gpuwatch\n\n" + "\n".join(lines) + "\n"


def _rows(table: words.Table, *empty: str) -> list[str]:
    return [_table_part(table), _bullets(table.notes)] if table.rows else list(empty)


def _folded(title: str, parts: list[str]) -> str:
    """What opens at a click. GitHub reads Markdown in it only behind an empty line, and none in the title."""
    if not parts:
        return ""
    return "\n\n".join([f"<details><summary>{title}</summary>", *filter(None, parts), "</details>"])


def _verdict_line(word: str, sentence: str, change: str) -> str:
    """A sentence of the verdict as an item of a list."""
    line = f"- **{word}** {markdown(sentence)}"
    return f"{line}  \n  {code_span(change)}" if change else line


_MOST_CHANGED_LINES = 6
"""Of a diff among the open lines; a longer one is folded with its finding."""


def _remedy(report: model.Report, change: str) -> list[str]:
    """Where to change what, of the first line of the verdict."""
    line = report.verdict[0]
    finding = words.finding_behind(report, line)
    fix = finding.fix if finding is not None else None
    if fix is None:
        return [code_span(change)] if change else []
    place = words.place(fix)
    parts = [f"{code_span(place)}: {markdown(fix.text)}" if place else markdown(fix.text)]
    rows = (fix.diff or "").split("\n")
    changed = [row for row in rows if row[:1] in ("+", "-") and not row.startswith(("+++", "---"))]
    if 0 < len(changed) <= _MOST_CHANGED_LINES:
        parts.append(code_block("\n".join(changed), "diff"))
    elif fix.code and not changed and "\n" not in fix.code:
        parts.append(code_block(fix.code, "python"))
    return parts


def _finding_parts(report: model.Report) -> list[str]:
    """All findings; what several have in common, such as a cause that was ruled out, stands with the first."""
    said: set[tuple[str | None, str]] = set()
    parts: list[str] = []
    for finding in report.findings:
        parts += _finding_part(finding, said)
    return parts


def _finding_part(finding: model.Finding, said: set[tuple[str | None, str]]) -> list[str]:
    """One finding with its numbers, fix, gain and proof, without what its run was already said to have."""

    def fresh_of(lines: Iterable[str]) -> list[str]:
        fresh = [line for line in lines if line and (finding.run, line) not in said]
        said.update((finding.run, line) for line in fresh)
        return fresh

    facts = fresh_of(
        [
            *(f"- {markdown(text)}" for text in finding.numbers),
            *(f"- not {markdown(each.cause)}: {markdown(each.reason)}" for each in finding.ruled_out),
            *(f"- {markdown(text)}" for text in words.remarks(finding)),
        ]
    )
    promised = [_fix(finding.fix), _gain(finding)]
    if finding.fix and finding.fix.trial:
        promised.append(f"**Prove it first:** {code_span(finding.fix.trial)}")
    if finding.verify:
        promised.append(f"**Verify:** {markdown(finding.verify)}")
    title = f"#### {finding.severity.upper()} {code_span(finding.rule)} ({finding.level})"
    return [title, markdown(finding.summary), "\n".join(facts), *fresh_of(promised)]


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


def _section(block: words.Block) -> str:
    parts = [f"#### {block.title} ({markdown(block.about)})", *map(markdown, block.sentences)]
    return "\n\n".join([*parts, _table_part(block.table)] if block.table.rows else parts)


def _table_part(table: words.Table) -> str:
    """A table; its notes are left to the caller."""
    return markdown_table(table.heading, [[*map(markdown, row)] for row in table.rows])


def _sparks(report: model.Report) -> str:
    found = words.sparks(report)
    width = max((len(spark.label) for spark in found), default=0)
    lines = [f"{spark.label:{width}} {spark.blocks} {spark.scale}" for spark in found]
    return code_block("\n".join(lines)) if lines else "Nothing was measured."


def _bullets(lines: list[str] | tuple[str, ...]) -> str:
    """Lines as a list."""
    return "\n".join(f"- {markdown(line)}" for line in lines)
