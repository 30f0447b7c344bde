"""The report as plain text for a terminal: no colour, no escape sequences, 100 columns where words can wrap."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from gpuwatch.report import model, words
from gpuwatch.text import aligned, printable, printable_lines, wrapped


def render_text(report: model.Report) -> str:
    """The whole document."""
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
        for text in _details(finding):
            lines += wrapped(text, "    ")
        lines += _code(finding.fix)
    return lines or ["  none"]


def _details(finding: model.Finding) -> Iterable[str]:
    if finding.numbers:
        yield f"numbers: {'; '.join(finding.numbers)}"
    if finding.ruled_out:
        yield "ruled out: " + "; ".join(f"{each.cause} ({each.reason})" for each in finding.ruled_out)
    yield from finding.confidence_notes
    if finding.behind:
        yield f"after {finding.behind} is solved"
    yield from words.promises(finding)
    if finding.fix and finding.fix.trial:
        yield f"prove it first: {finding.fix.trial}"
    if finding.verify:
        yield f"verify: {finding.verify}"
    fix = finding.fix
    if fix is not None:
        yield words.fix_sentence(fix)
        reason = words.by_hand(fix)
        if reason:
            yield f"by hand: {reason}"


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
