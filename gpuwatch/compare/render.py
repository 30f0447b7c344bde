"""A comparison as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.compare.document import Tables
from gpuwatch.text.escape import code_span, markdown, printable
from gpuwatch.text.paragraphs import wrapped

_FINDINGS_HEADING = ("", "finding", "", "before", "after")


def render_text(shown: Tables) -> str:
    """For a terminal: no colour, no escape sequences."""
    blocks = [
        wrapped(f"gpuwatch compare: {shown.headline}", ""),
        [line for side, about in shown.sides for line in wrapped(f"{side:6} {about}")],
        _aligned(shown.heading, shown.rows, right=(1, 2)),
        ["FINDINGS", *_aligned(_FINDINGS_HEADING, shown.findings)] if shown.findings else [],
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
        _table(shown.heading, [tuple(map(markdown, row)) for row in shown.rows], right=4),
        *_section("Findings", shown.findings),
        "\n".join(f"- **{outcome}** {markdown(sentence)}" for outcome, sentence in shown.gates),
        "\n".join(f"- {side}: {markdown(about)}" for side, about in shown.sides),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, found: Sequence[tuple[str, ...]]) -> list[str]:
    if not found:
        return []
    rows = [(row[0], code_span(row[1]), *map(markdown, row[2:])) for row in found]
    return [f"## {title}", _table(_FINDINGS_HEADING, rows)]


def _table(heading: Sequence[str], rows: Sequence[tuple[str, ...]], right: int = 0) -> str:
    rule = ["---"] * (len(heading) - right) + ["--:"] * right
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *rows))


def _aligned(heading: Sequence[str], rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    cells = [tuple(heading), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(heading))]
    aligned = [
        [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in cells
    ]
    return [f"  {'  '.join(row)}".rstrip() for row in aligned]
