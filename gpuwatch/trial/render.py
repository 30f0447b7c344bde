"""The result of a trial as JSON, for a terminal and for Markdown, and its best arm as a patch of the user's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch import numbers
from gpuwatch.diagnosis.advice.fixes import loader_fix, model_edit, setup_edit
from gpuwatch.diagnosis.finding import Edit
from gpuwatch.edits.source import process_started
from gpuwatch.samples import LoaderFacts
from gpuwatch.statistics import Interval, geometric_mean
from gpuwatch.text import aligned, code_block, code_span, markdown, markdown_table, printable
from gpuwatch.trial.changes import LOADER, Arm
from gpuwatch.trial.results import ArmResult, Failure, Judgement, Metric, RunResult, TrialResult, scatter

_FACTOR_FROM = 1.5
"""A change by so much and more is given as a factor: "+190%" is harder to read than "2.9x"."""
_HOPELESS = 9.0
"""A change by ten times would have been missed: that is no figure to plan by."""

UNITS: dict[Metric, str] = {"samples_per_second": "samples/s", "steps_per_second": "steps/s"}


def speed_words(rate: float | None) -> str:
    """Three digits of a speed."""
    return "-" if rate is None else numbers.rate(rate)


def share_words(part: float | None) -> str:
    """1.2%."""
    return "-" if part is None else f"{100 * part:.1f}%"


def change_words(judgement: Judgement) -> str:
    """The change with its interval: "2.90x [2.71, 3.10]" or "+18.4% [+15.9, +21.0]"."""
    ratio, interval = judgement.ratio, judgement.interval
    if ratio is None:
        return "-"
    as_factor = max(ratio, 1 / ratio) >= _FACTOR_FROM
    ends = "" if interval is None else f" [{_one(interval.low, as_factor)}, {_one(interval.high, as_factor)}]"
    unit = "x" if as_factor else "%"
    return f"{_one(ratio, as_factor)}{unit}{ends}"


def _one(factor: float, as_factor: bool) -> str:
    return f"{factor:.2f}" if as_factor else f"{round(100 * (factor - 1), 1) + 0.0:+.1f}"


def verdict_words(judgement: Judgement) -> str:
    """The word, with what it leaves open."""
    if judgement.verdict == "no detectable change" and judgement.detectable is not None:
        if judgement.detectable > _HOPELESS:
            return "no detectable change (runs scatter too much to see one: more --runs)"
        return f"no detectable change (detectable: >= {_least(judgement.detectable)})"
    if judgement.verdict == "anecdote":
        return "single run per side: not significant; it takes two runs of each arm for an interval"
    if judgement.verdict == "too small to matter":
        return "differs, by less than --min-effect"
    return judgement.verdict


def _least(part: float) -> str:
    if part >= 1:
        return f"{1 + part:.2g}x: more --runs"
    return f"{100 * part:.1f}%" if part < 0.1 else f"{100 * part:.0f}%"


def against_prediction(each: ArmResult) -> str | None:
    """Such as "predicted 2.4-3.3x, measured 2.90x [2.71, 3.10]"; None where no rule spoke of the change."""
    ratio, interval = each.judgement.ratio, each.judgement.interval
    if each.prediction is None or ratio is None:
        return None
    gain = each.prediction.gain
    digits = 1 if gain.high >= _FACTOR_FROM else 2
    said = "-".join(dict.fromkeys(f"{factor:.{digits}f}" for factor in (gain.low, gain.high)))
    ends = "" if interval is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{each.arm.label}: predicted {said}x ({each.prediction.rule}), measured {ratio:.2f}x{ends}"


def failure_words(each: Failure) -> str:
    """Why; what it printed last follows."""
    return f"{each.reason}{'; its last lines:' if each.last_lines else ''}"


SCHEMA_VERSION = 1
Json = dict[str, Any]


def document(result: TrialResult, version: str) -> Json:
    """All of it.

    Args:
        result: of the trial.
        version: of gpuwatch.
    """
    best = result.best
    return {
        "gpuwatch": {"version": version, "schema": SCHEMA_VERSION, "incomplete": result.interrupted},
        "trial": {
            "command": list(result.command),
            "metric": result.metric,
            "unit": UNITS[result.metric],
            "runs_per_arm": result.runs_per_arm,
            "steady_seconds": result.seconds,
            "steady_steps": result.steps,
            "min_effect": result.min_effect,
            "scratch": result.scratch,
        },
        "arms": [_arm(each, result.metric) for each in result.arms],
        "best": None if best is None else best.arm.label,
        "like_best": [each.arm.label for each in result.like_best],
        "patch": result.patch.decode("utf-8", "backslashreplace") or None,
        "by_hand": list(result.by_hand),
        "notes": list(result.notes),
    }


def _arm(each: ArmResult, metric: Metric) -> Json:
    rates = each.rates(metric)
    judgement = each.judgement
    promised = each.prediction
    return {
        "label": each.arm.label,
        "changes": {change.name: change.value for change in each.arm.changes},
        "runs": [_run(run, metric) for run in each.runs],
        "mean": geometric_mean(rates),
        "scatter": scatter(rates),
        "verdict": judgement.verdict,
        "verdict_words": verdict_words(judgement),
        "change": judgement.ratio,
        "interval": interval_document(judgement.interval),
        "detectable": judgement.detectable,
        "predicted": promised and {"low": promised.gain.low, "high": promised.gain.high, "rule": promised.rule},
        "ineffective": list(each.ineffective),
        "failure": _failure(each.failure),
    }


def interval_document(interval: Interval | None) -> Json | None:
    """An interval in JSON."""
    if interval is None:
        return None
    return {
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "p_value": interval.p_value,
        "runs_before": interval.runs_before,
        "runs_after": interval.runs_after,
    }


def _run(run: RunResult, metric: Metric) -> Json:
    steady, thermal = run.steady, run.thermal
    return {
        "place": run.place,
        "counts": run.counts,
        metric: getattr(steady, metric) if steady is not None else None,
        "steps": steady.steps if steady is not None else 0,
        "seconds": round(steady.seconds, 3) if steady is not None else 0.0,
        "gpu_celsius": thermal.celsius if thermal is not None else None,
        "gpu_slowed_by": list(thermal.slowed_by) if thermal is not None else [],
    }


def _failure(failure: Failure | None) -> Json | None:
    if failure is None:
        return None
    return {"reason": failure.reason, "exit_code": failure.exit_code, "last_lines": list(failure.last_lines)}


_TERMINAL_COLUMNS = 80
_LONGEST_LABEL = 24


def render_text(result: TrialResult) -> str:
    """For a terminal."""
    rows = [_header(result), *(_row(each, result) for each in result.arms)]
    sentences = [printable(line) for first, more in _sentences(result) for line in (first, *(f"    {m}" for m in more))]
    lines = [*map(printable, _title(result)), "", *_table(rows), "", *sentences]
    if result.patch:
        lines += ["", "The best arm as a patch (`git apply` takes this whole text):", "", *patch_lines(result.patch)]
    return "\n".join(lines) + "\n"


def render_markdown(result: TrialResult) -> str:
    """For a pull request or a job's summary: the verdict first."""
    head, *rows = [_header(result), *(_row(each, result) for each in result.arms)]
    lines = [f"### gpuwatch trial: {_headline(result, markdown)}", "", f"{code_span(' '.join(result.command))}  ", ""]
    lines += [markdown_table([*map(markdown, head)], [[*map(markdown, row)] for row in rows]), ""]
    for first, more in _sentences(result):
        lines.append(f"- {markdown(first)}")
        if more:
            lines += ["", code_block("\n".join(printable(line.strip()) for line in more)), ""]
    if result.patch:
        text = "\n".join(patch_lines(result.patch)).expandtabs(4)
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
        return f"{escape(best.arm.label)} is faster, {escape(change_words(best.judgement))}{marked}"
    if not result.compares:
        return f"nothing could be compared{marked}"
    words = list(dict.fromkeys(verdict_words(each.judgement) for each in result.arms[1:]))
    return f"{escape(words[0] if len(words) == 1 else 'nothing is certainly faster')}{marked}"


def _header(result: TrialResult) -> tuple[str, ...]:
    return ("arm", UNITS[result.metric], "run to run", "change", "verdict")


def _row(each: ArmResult, result: TrialResult) -> tuple[str, ...]:
    rates = each.rates(result.metric)
    runs = f" n={len(rates)}" if rates and len(rates) != result.runs_per_arm else ""
    is_first = each is result.arms[0]
    return (
        each.arm.label,
        speed_words(geometric_mean(rates)),
        share_words(scatter(rates)) + runs,
        "" if is_first else change_words(each.judgement),
        "" if is_first else verdict_words(each.judgement),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns side by side: figures to the right, the rest to the left.

    What makes a line too long for a terminal has one of its own: a long label before its figures, a verdict below them.
    """
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    is_long = [len(row[0]) > _LONGEST_LABEL for row in rows]
    narrow = [("", *row[1:]) if long else row for row, long in zip(rows, is_long, strict=True)]
    without_verdict = aligned([row[:-1] for row in narrow], (1, 2))
    for row, long, line, shorter in zip(rows, is_long, aligned(narrow, (1, 2)), without_verdict, strict=True):
        if long:
            yield f"  {row[0]}"
        if len(line) + 2 <= _TERMINAL_COLUMNS:
            yield f"  {line}"
        else:
            yield from (f"  {shorter}", f"      {row[-1]}")


def _sentences(result: TrialResult) -> list[tuple[str, tuple[str, ...]]]:
    """Everything that the table does not say: sentences, each with the lines that belong below it."""
    found: list[tuple[str, tuple[str, ...]]] = []
    best = result.best
    if best is not None:
        alike = result.like_best
        unsure = f"; not distinguishable from {' and '.join(each.arm.label for each in alike)}" if alike else ""
        interval = f"(95% interval of {_n(best, result)})"
        found.append((f"Best: {best.arm.label}, {change_words(best.judgement)} {interval}{unsure}", ()))
    for each in result.arms:
        said = against_prediction(each)
        found += [(said, ())] if said else []
        found += [(f"{each.arm.label}: {sentence}", ()) for sentence in each.ineffective]
        if each.failure is not None:
            found.append((f"{each.arm.label}: {failure_words(each.failure)}", each.failure.last_lines))
    rest: list[str] = []
    if len(result.arms) > 2 and any(each.judgement.interval is not None for each in result.arms):
        rest.append(f"{len(result.arms) - 1} arms were compared with the first, so verdicts are stricter (Holm)")
    rest += [*result.notes, *(f"By hand: {sentence}" for sentence in result.by_hand)]
    return [*found, *((sentence, ()) for sentence in rest)]


def patch_lines(patch: bytes) -> list[str]:
    """The patch as it may be shown: tabs, blanks and carriage returns at the ends of lines are part of it."""
    lines = patch.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    shown = ["\t".join(map(printable, line.removesuffix("\r").split("\t"))) for line in lines]
    return [text + "\r" * line.endswith("\r") for text, line in zip(shown, lines, strict=True)]


def _n(each: ArmResult, result: TrialResult) -> str:
    return f"{len(result.arms[0].rates(result.metric))}+{len(each.rates(result.metric))} runs"


@dataclass(frozen=True, slots=True)
class ArmPatch:
    """For `git apply`, and one sentence for each thing that is to be done by hand."""

    data: bytes
    by_hand: tuple[str, ...]


def patch_of(arm: Arm, probe: RunResult, folder: Path, read: Callable[[Path, float | None], bytes]) -> ArmPatch:
    """The changes that the hook made for an arm, as edits.

    Args:
        arm: the best one.
        probe: the run of the program as it is.
        folder: that the user works in.
        read: gives a file as it was when a process started.
    """
    # Here, not above: only for a trial that has something to change.
    from gpuwatch.edits.editor import combined_patch
    from gpuwatch.edits.workspace import Origin

    facts = probe.facts
    edits = list(_edits(arm, probe))
    words = [sentence for sentence, edit in edits if edit is None]
    named = [(sentence, edit) for sentence, edit in edits if edit is not None]
    started = process_started(facts.start_ticks) if facts is not None else None
    origin = Origin(lambda path: read(folder / path, started), folder, facts.command if facts is not None else ())
    patch = combined_patch([(edit, origin) for _, edit in named])
    failed = [
        f"{sentence} (not in the patch: {reason})"
        for (sentence, _), reason in zip(named, patch.reasons, strict=True)
        if reason is not None
    ]
    return ArmPatch(patch.data, tuple(dict.fromkeys([*failed, *words])))


def _edits(arm: Arm, probe: RunResult) -> Iterator[tuple[str, Edit | None]]:
    """What each change is in words, and as an edit where it can be one."""
    keywords = arm.of(LOADER)
    if keywords:
        texts = {name: repr(value) for name, value in keywords.items()}
        if probe.loader is not None and keywords.get("num_workers") == 0:
            texts |= _without_workers(probe.loader)
        fix = loader_fix(probe.loader, texts, "set these in the training's DataLoader", None)
        yield f"DataLoader(..., {', '.join(f'{name}={text}' for name, text in texts.items())})", fix.edit
    for name, value in arm.of(frozenset({"tf32", "cudnn_benchmark", "compile", "non_blocking"})).items():
        yield _switch(name, bool(value), probe)
    for name, value in arm.below("env.").items():
        yield f"export {name}={value}", None
    for name, value in arm.below("arg.").items():
        yield f"start it with --{name}{'' if value is None else f' {value}'}", None


def _without_workers(loader: LoaderFacts) -> dict[str, str]:
    """What the hook left out of the call because it cannot hold without workers."""
    left: dict[str, str] = {}
    if loader.persistent_workers:
        left["persistent_workers"] = "False"
    if loader.prefetch_factor is not None:
        left["prefetch_factor"] = "None"
    return left


def _switch(name: str, value: bool, probe: RunResult) -> tuple[str, Edit | None]:
    facts = probe.facts
    if name == "tf32":
        statement = f'torch.set_float32_matmul_precision("{"high" if value else "highest"}")'
        return statement, setup_edit(facts, statement) if facts is not None else None
    if name == "cudnn_benchmark":
        statement = f"torch.backends.cudnn.benchmark = {value}"
        return statement, setup_edit(facts, statement) if facts is not None else None
    if name == "compile":
        if not value:
            return "leave torch.compile out, or export TORCH_COMPILE_DISABLE=1", None
        return "model.compile(), before the optimizer", model_edit(facts.model, "{model}.compile()") if facts else None
    return f"{'' if value else 'no '}non_blocking=True where batches are copied to the GPU", None
