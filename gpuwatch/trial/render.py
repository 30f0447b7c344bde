"""The result of a trial for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuwatch.statistics.interval import geometric_mean
from gpuwatch.text.escape import code_block, code_span, markdown, printable
from gpuwatch.trial import wording
from gpuwatch.trial.results import ArmResult, TrialResult, scatter

_TERMINAL_COLUMNS = 80
_LONGEST_LABEL = 24


def render_text(result: TrialResult) -> str:
    """For a terminal."""
    rows = [_header(result), *(_row(each, result) for each in result.arms)]
    sentences = [printable(line) for first, more in _sentences(result) for line in (first, *(f"    {m}" for m in more))]
    lines = [*map(printable, _title(result)), "", *_table(rows), "", *sentences]
    if result.patch:
        lines += ["", "The best arm as a patch (`git apply` takes this whole text):", "", *_patch_lines(result)]
    return "\n".join(lines) + "\n"


def render_markdown(result: TrialResult) -> str:
    """For a pull request or a job's summary: the verdict first."""
    head, *rows = [_header(result), *(_row(each, result) for each in result.arms)]
    lines = [f"### gpuwatch trial: {_headline(result, markdown)}", "", f"{code_span(' '.join(result.command))}  ", ""]
    lines += ["| " + " | ".join(map(markdown, head)) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(map(markdown, row)) + " |" for row in rows]
    lines += [""]
    for first, more in _sentences(result):
        lines.append(f"- {markdown(first)}")
        if more:
            lines += ["", code_block("\n".join(printable(line.strip()) for line in more)), ""]
    if result.patch:
        text = "\n".join(_patch_lines(result)).expandtabs(4)
        lines += ["", "<details><summary>The best arm as a patch</summary>", "", code_block(text, "diff"), "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def _title(result: TrialResult) -> list[str]:
    marked = ["INCOMPLETE: stopped before its end"] if result.interrupted else []
    runs = "one run of each arm" if result.runs_per_arm == 1 else f"{result.runs_per_arm} runs of each arm, alternating"
    long = f"{result.seconds:g} s" if result.seconds is not None else f"{result.steps} steps"
    return [*marked, " ".join(result.command), f"{runs}; {long} of settled training each"]


def _headline(result: TrialResult, escape: Callable[[str], str] = str) -> str:
    best = result.best
    marked = " (INCOMPLETE)" if result.interrupted else ""
    if best is not None:
        return f"{escape(best.arm.label)} is faster, {escape(wording.change(best.judgement))}{marked}"
    if not result.compares:
        return f"nothing could be compared{marked}"
    words = list(dict.fromkeys(wording.verdict(each.judgement) for each in result.arms[1:]))
    return f"{escape(words[0] if len(words) == 1 else 'nothing is faster for sure')}{marked}"


def _header(result: TrialResult) -> tuple[str, ...]:
    return ("arm", wording.UNITS[result.metric], "run to run", "change", "verdict")


def _row(each: ArmResult, result: TrialResult) -> tuple[str, ...]:
    rates = each.rates(result.metric)
    runs = f" n={len(rates)}" if rates and len(rates) != result.runs_per_arm else ""
    is_first = each is result.arms[0]
    return (
        each.arm.label,
        wording.speed(geometric_mean(rates)),
        wording.share(scatter(rates)) + runs,
        "" if is_first else wording.change(each.judgement),
        "" if is_first else wording.verdict(each.judgement),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns side by side: figures to the right, the rest to the left.

    What makes a line too long for a terminal has one of its own: a long label before its figures, a verdict below them.
    """
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    is_long = [len(row[0]) > _LONGEST_LABEL for row in rows]
    beside = [("", *row[1:]) if long else row for row, long in zip(rows, is_long, strict=True)]
    widths = [max(len(row[place]) for row in beside) for place in range(len(rows[0]))]
    for row, (label, *_), long in zip(beside, rows, is_long, strict=True):
        if long:
            yield f"  {label}"
        line = _line(row, widths)
        if len(line) <= _TERMINAL_COLUMNS:
            yield line
        else:
            yield from (_line(row[:-1], widths[:-1]), f"      {row[-1]}")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if place in (1, 2) else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return f"  {'  '.join(cells)}".rstrip()


def _sentences(result: TrialResult) -> list[tuple[str, tuple[str, ...]]]:
    """Everything that the table does not say: sentences, each with the lines that belong below it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    best = result.best
    if best is not None:
        alike = result.like_best
        unsure = f"; not distinguishable from {' and '.join(each.arm.label for each in alike)}" if alike else ""
        interval = f"(95 % interval of {_n(best, result)})"
        found.append((f"Best: {best.arm.label}, {wording.change(best.judgement)} {interval}{unsure}", ()))
    for each in result.arms:
        said = wording.against_prediction(each)
        found += [(said, ())] if said else []
        found += [(f"{each.arm.label}: {sentence}", ()) for sentence in each.ineffective]
        if each.failure is not None:
            found.append((f"{each.arm.label}: {wording.failure(each.failure)}", each.failure.last_lines))
    rest: list[str] = []
    if len(result.arms) > 2 and any(each.judgement.interval is not None for each in result.arms):
        rest.append(f"{len(result.arms) - 1} arms were compared with the first: verdicts are stricter for it (Holm)")
    rest += [*result.notes, *(f"By hand: {sentence}" for sentence in result.by_hand)]
    return [*found, *((sentence, ()) for sentence in rest)]


def _patch_lines(result: TrialResult) -> list[str]:
    """The patch as it may be shown: tabs, blanks and carriage returns at the ends of lines are part of it."""
    lines = result.patch.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    shown = ["\t".join(map(printable, line.removesuffix("\r").split("\t"))) for line in lines]
    return [text + "\r" * line.endswith("\r") for text, line in zip(shown, lines, strict=True)]


def _n(each: ArmResult, result: TrialResult) -> str:
    return f"{len(result.arms[0].rates(result.metric))}+{len(each.rates(result.metric))} runs"
