"""The result of `gpuwatch tune`: for a terminal, as Markdown and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuwatch.statistics import geometric_mean
from gpuwatch.text import aligned, code_block, code_span, markdown, markdown_table, printable
from gpuwatch.trial.changes import Arm
from gpuwatch.trial.render import (
    SCHEMA_VERSION,
    UNITS,
    change_words,
    interval_document,
    patch_lines,
    speed_words,
    verdict_words,
)
from gpuwatch.trial.tuning import PLAIN, Attempt, Tuning

_HEADING = ("tried", "change", "outcome")
_LONGEST_LABEL = 40
MOST_RUNS = 20
"""What is tried so often takes hours already."""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The search at its end, and what it leaves to do: a patch, and sentences for what no patch can hold.

    `seconds` or `steps` of settled training are what each run was watched for.
    """

    tuning: Tuning
    seconds: float | None
    steps: int | None
    patch: bytes = b""
    by_hand: tuple[str, ...] = ()


def headline(result: TuneResult) -> str:
    """The outcome in one sentence."""
    return f"{_outcome(result.tuning)}{_incomplete(result.tuning)}"


def _outcome(tuning: Tuning) -> str:
    if tuning.is_proved:
        before, after = (speed_words(geometric_mean(tuning.rates(arm))) for arm in (Arm(), tuning.kept))
        return f"{tuning.kept.label}: {change_words(tuning.total)}, from {before} to {after} {UNITS[tuning.metric]}"
    if tuning.kept.changes:
        return f"nothing is certainly faster than the unchanged program: {verdict_words(tuning.total)}"
    unproved = [each for each in tuning.attempts if (each.judgement.ratio or 1.0) >= PLAIN]
    if unproved:
        found = max(unproved, key=lambda each: each.judgement.ratio or 1.0)
        return (
            f"not proved: {found.candidate.label} seems to be {found.judgement.ratio:.2f}x as fast, but runs of one "
            f"setting differ too much; try --runs {MOST_RUNS // 2} or longer runs with --seconds"
        )
    if tuning.attempts:
        return f"nothing to gain: nothing that was tried is faster by {100 * tuning.min_effect:g}% or more"
    return "nothing to gain: no finding of the first run advises a setting that could be tried"


def _incomplete(tuning: Tuning) -> str:
    if tuning.interrupted:
        return " (INCOMPLETE: stopped before its end)"
    return " (INCOMPLETE: the budget was used up)" if tuning.ran_out else ""


def render_text(result: TuneResult) -> str:
    """For a terminal."""
    tuning = result.tuning
    lines = [printable(" ".join(tuning.command)), _effort(result), ""]
    rows = [tuple(printable(cell) for cell in _row(each)) for each in tuning.attempts]
    if rows:
        short = [("", *row[1:]) if len(row[0]) > _LONGEST_LABEL else row for row in rows]
        head, *table = aligned([_HEADING, *short])
        lines.append(f"  {head}")
        for row, line in zip(rows, table, strict=True):
            lines += [f"  {row[0]}", f"  {line}"] if len(row[0]) > _LONGEST_LABEL else [f"  {line}"]
        lines.append("")
    lines.append(f"Result: {printable(headline(result))}")
    lines += [printable(sentence) for sentence in _sentences(result)]
    if result.patch:
        lines += ["", "As a patch (`git apply` takes this whole text):", "", *patch_lines(result.patch)]
    return "\n".join(lines) + "\n"


def render_markdown(result: TuneResult) -> str:
    """For a pull request: the result first."""
    tuning = result.tuning
    lines = [f"### gpuwatch tune: {markdown(headline(result))}", "", f"{code_span(' '.join(tuning.command))}  "]
    lines += [_effort(result), ""]
    if tuning.attempts:
        rows = [[*map(markdown, _row(each))] for each in tuning.attempts]
        lines += [markdown_table([*_HEADING], rows), ""]
    lines += [f"- {markdown(sentence)}" for sentence in _sentences(result)]
    if result.patch:
        text = "\n".join(patch_lines(result.patch)).expandtabs(4)
        lines += ["", "<details><summary>As a patch</summary>", "", code_block(text, "diff"), "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def document(result: TuneResult, version: str) -> dict[str, Any]:
    """All of it as JSON; `version` is gpuwatch's."""
    tuning, total = result.tuning, result.tuning.total
    return {
        "gpuwatch": {"version": version, "schema": SCHEMA_VERSION, "incomplete": tuning.interrupted or tuning.ran_out},
        "tune": {
            "command": list(tuning.command),
            "metric": tuning.metric,
            "unit": UNITS[tuning.metric],
            "runs": tuning.runs_made,
            "steady_seconds": result.seconds,
            "steady_steps": result.steps,
            "min_effect": tuning.min_effect,
        },
        "attempts": [_attempt(each) for each in tuning.attempts],
        "kept": {change.name: change.value for change in tuning.kept.changes} if tuning.is_proved else {},
        "total": {
            "verdict": total.verdict,
            "change": total.ratio,
            "interval": interval_document(total.interval),
            "before": geometric_mean(tuning.rates(Arm())),
            "after": geometric_mean(tuning.rates(tuning.kept)),
        },
        "patch": result.patch.decode("utf-8", "backslashreplace") or None,
        "by_hand": list(result.by_hand),
        "notes": list(tuning.notes),
    }


def _attempt(each: Attempt) -> dict[str, Any]:
    gain = each.candidate.gain
    return {
        "changes": {change.name: change.value for change in each.candidate.changes},
        "rule": each.candidate.rule,
        "predicted": None if gain is None else {"low": gain.low, "high": gain.high},
        "outcome": each.outcome,
        "reason": each.reason,
        "verdict": each.judgement.verdict,
        "change": each.judgement.ratio,
        "interval": interval_document(each.judgement.interval),
    }


def _effort(result: TuneResult) -> str:
    long = f"{result.seconds:g} s" if result.seconds is not None else f"{result.steps} steps"
    count = result.tuning.runs_made
    return f"{count} run{'' if count == 1 else 's'}, {long} of settled training each"


def _row(each: Attempt) -> tuple[str, str, str]:
    words: str = each.outcome
    if each.outcome == "dropped":
        is_single = each.judgement.verdict == "anecdote"
        words = f"dropped: {'slower in its first run' if is_single else verdict_words(each.judgement)}"
        needed = each.runs_needed
        if needed is not None and needed <= MOST_RUNS:
            words += f"; --runs {needed} would show {100 * ((each.judgement.ratio or 1.0) - 1.0):.0f}%"
        return each.candidate.label, change_words(each.judgement), words
    return each.candidate.label, change_words(each.judgement), f"{words}: {each.reason}" if each.reason else words


def _sentences(result: TuneResult) -> list[str]:
    tuning = result.tuning
    found = []
    if tuning.is_proved:
        before, after = (len(tuning.rates(arm)) for arm in (Arm(), tuning.kept))
        found.append(f"In brackets: the 95% interval, here of {before} runs before and {after} after")
    found += [
        f"{each.candidate.label}: predicted {each.candidate.gain.low:.2f}-{each.candidate.gain.high:.2f}x "
        f"({each.candidate.rule}), measured {each.judgement.ratio:.2f}x"
        for each in tuning.attempts
        if each.candidate.gain is not None and each.judgement.ratio is not None
    ]
    return [*found, *tuning.notes, *(f"By hand: {sentence}" for sentence in result.by_hand)]
