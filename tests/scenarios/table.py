"""What the suite found, for a terminal and for the documentation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from tests.scenarios.figures import Rows, percent, rules_table, tables, within
from tests.scenarios.score import Miss, Score, middle_error


def text(score: Score, outside: Score, seeds: Sequence[int], seconds: float) -> str:
    """For a terminal; with every false warning and miss by its numbers. `outside`: of runs without a hook."""
    played = score.streams + outside.streams
    parts = [f"{played} simulated streams, seeds {_ranges(seeds)}, in {seconds:.0f} s"]
    if score.streams:
        parts += _of_hooked(score)
    if outside.streams:
        parts += ["", f"{outside.streams} of them without a hook", *_gates_outside(outside)]
        parts += ["", _plain(*rules_table(outside)[1:]), "", *_wrong_outside(outside)]
    return "\n".join(parts)


def _of_hooked(score: Score) -> list[str]:
    parts = _gates(score)
    for title, header, rows in tables(score):
        parts += ["", title, _plain(header, rows)]
    parts += ["", "False warnings", *_false_lines(score), "", "Missed or late", *_missed_lines(score, score.missed)]
    parts += ["", "Still there 60 s after the end", *_missed_lines(score, score.stayed)]
    parts += ["", "Wrong causes", *_cause_lines(score)]
    if score.wrong_never:
        parts += [
            "",
            "Reported where it must never be",
            *(f"  {one.scenario} seed {one.seed}: {one.said.rule}" for one in score.wrong_never),
        ]
    if score.troubles:
        parts += [
            "",
            "gpuwatch's own trouble",
            *(f"  {one.scenario} seed {one.seed}: {what}" for one, what in score.troubles),
        ]
    return parts


def markdown(score: Score, outside: Score, seeds: Sequence[int]) -> str:
    """For the documentation. `outside`: of runs without a hook."""
    parts = [
        "# How often the diagnosis is right",
        "",
        "`python -m tests.scenarios --even --write` wrote this page. All trainings on it are simulated: a queueing",
        "model of workers, launches, kernels, sensors and /proc makes streams of samples, and the real timeline and",
        "rules judge them. The model shares assumptions with the rules. So these figures show that the rules are",
        "consistent and how they compare with simpler ones; they are not the accuracy on real trainings. Each stream",
        "has a label: the rules that must fire and those that may. If a random draw makes the label wrong (a run that",
        "is no longer starved, for example), the stream is drawn again.",
        "",
        f"{score.streams} streams, seeds {_ranges(seeds)}, every physical quantity off by up to 30%; "
        f"{score.redrawn} of them drawn again.",
        "A rule counts as right if it fires within 90 s of the onset or of the 30th step, whichever is later (longer",
        "if its definition needs longer); any other warning is a false one.",
        "",
        "- In seeds up to 8 the cause disappears while the job continues, and the time is measured until the finding",
        "  ends (columns `gone in 60 s`, `until gone`). Rules that by their definition stay for minutes or until a",
        "  restart are left out of that. slow-samples stays until its window holds no slow item, because slow items",
        "  come at random and an earlier end would often be taken back.",
        "- A flip is a finding that ends and returns while its cause is still there.",
        "- `delay` is the time from the onset to the finding, `p95` its 95th percentile. A `stray hint` is a finding",
        "  of severity info from a rule that is not in the label.",
        "- A gain's error is the distance of the middle of the promised range from the gain of the simulated fix. For",
        "  slow items that gain is taken over 150 of them; a window holds 3 to 7.",
        "",
        *(f"- {line}" for line in _gates(score)),
    ]
    for title, header, rows in tables(score):
        parts += ["", f"## {title}", "", _piped(header, rows)]
    parts += ["", "## False warnings", "", *_listed(_false_lines(score, short=True))]
    parts += ["", "## Missed or late", "", *_listed(_missed_lines(score, score.missed))]
    parts += ["", "## Still there 60 s after the end", "", *_listed(_missed_lines(score, score.stayed))]
    parts += ["", "## Wrong causes", "", *_listed(_cause_lines(score))]
    if outside.streams:
        parts += [
            "",
            "## Without a hook",
            "",
            f"{outside.streams} of the same streams, seen as `gpuwatch --attach` sees a run: 100 samples a second of",
            "the training thread's stack and 20 of each worker (half of that with more than eight), 1% of them",
            "inconsistent, the loaders' counters once a second, /proc and NVML. Steps, waits and CUDA event pairs are",
            "not known, so rules that read single steps (slow-samples) are not in the labels, and all evidence is E1",
            "(stacks and /proc).",
            "",
            *_listed(_gates_outside(outside)),
            "",
            _piped(*rules_table(outside)[1:]),
            "",
            *_listed(_wrong_outside(outside)),
        ]
    return "\n".join(parts) + "\n"


def _gates(score: Score) -> list[str]:
    causes = len(score.causes)
    errors = [error for _, error in score.ideal_errors]
    middles = [middle_error(promise) for _, promise in score.promises]
    flips = score.flips_per_hour
    return [
        f"healthy: {score.healthy_warnings} warnings in {score.healthy_hours:.1f} simulated hours (goal 0 in 10)",
        f"recall {percent(score.recall)} (goal 95%), precision {percent(score.precision)} "
        f"(goal 95%), macro F1 {percent(score.macro_f1)}",
        f"right cause, given data-starvation: {score.right_causes} of {causes}"
        + (f" ({percent(score.right_causes / causes)}, goal 85%)" if causes else ""),
        f"speedup 1/(1-S), from the starved share S of the time, compared with an ideal loader: within 15% in "
        f"{within(errors)} of {len(errors)} (goal 90%)",
        f"middle of the promised range compared with the simulated fix: within 15% in "
        f"{within(middles)} of {len(middles)}"
        + (f" ({percent(within(middles) / len(middles))}, goal 90%)" if middles else ""),
        f"gone within 60 s of the end of their cause: {sum(rule.cleared for rule in score.rules.values())} of "
        f"{len(score.clearings)} findings",
        "flips per hour on the borderline stream: "
        + (f"median {median(flips):.0f}, most {max(flips):.0f} (goal 1)" if flips else "not played"),
    ]


def _gates_outside(score: Score) -> list[str]:
    """Those of the gates that stacks and counters can meet."""
    causes = len(score.causes)
    middles = [middle_error(promise) for _, promise in score.promises]
    return [
        f"healthy: {score.healthy_warnings} warnings in {score.healthy_hours:.1f} simulated hours",
        f"recall {percent(score.recall)}, precision {percent(score.precision)}",
        f"right cause, given data-starvation: {score.right_causes} of {causes}",
        f"middle of the promised range compared with the simulated fix: within 15% in "
        f"{within(middles)} of {len(middles)}",
        f"gone within 60 s of the end of their cause: {sum(rule.cleared for rule in score.rules.values())} of "
        f"{len(score.clearings)} findings",
    ]


def _wrong_outside(score: Score) -> list[str]:
    """Whatever went wrong, in one list."""
    lists = {
        "false": _false_lines(score, short=True) if score.false else [],
        "missed or late": _missed_lines(score, score.missed) if score.missed else [],
        "still there 60 s after the end": _missed_lines(score, score.stayed) if score.stayed else [],
        "wrong cause": _cause_lines(score) if score.right_causes < len(score.causes) else [],
    }
    return [f"{title}: {line}" for title, lines in lists.items() for line in lines] or ["nothing went wrong"]


def _false_lines(score: Score, *, short: bool = False) -> list[str]:
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in score.false:
        groups[one.scenario, one.said.rule].append(one)
    lines = []
    for (scenario, rule), found in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = found[0]
        behind = Counter(one.said.behind for one in found if one.said.behind)
        shown = f" (behind {', '.join(behind)} in {sum(behind.values())})" if behind else ""
        seeds = ", ".join(str(one.seed) for one in found)
        numbers = "" if short else f" {_numbers(first.said.numbers)}"
        lines.append(
            f"{scenario}, seeds {seeds}: {rule}{shown} at {first.said.first:.0f} s: {first.said.summary}{numbers}"
        )
    return lines or ["none"]


def _missed_lines(score: Score, misses: Sequence[Miss]) -> list[str]:
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for one in misses:
        groups[one.scenario, one.rule].append(one)
    lines = []
    for (scenario, rule), found in sorted(groups.items(), key=lambda item: -len(item[1])):
        built = "" if score.rules[rule].built else " (not built yet)"
        lines.append(f"{scenario}: {rule}{built}: " + ", ".join(f"seed {one.seed} {one.why}" for one in found))
    return lines or ["none"]


def _cause_lines(score: Score) -> list[str]:
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for one, expected in score.causes:
        if one.cause != expected:
            groups[one.scenario, expected, str(one.cause)].append(one.seed)
    return [
        f"{scenario}: {named} instead of {expected}, seeds {', '.join(map(str, seeds))}"
        for (scenario, expected, named), seeds in groups.items()
    ] or ["none"]


def _numbers(numbers: dict[str, Any]) -> str:
    return "[" + ", ".join(f"{name}={value}" for name, value in list(numbers.items())[:8]) + "]"


def _ranges(seeds: Sequence[int]) -> str:
    step = 2 if len(seeds) > 1 and all(b - a == 2 for a, b in pairwise(seeds)) else 1
    if len(seeds) > 2 and all(b - a == step for a, b in pairwise(seeds)):
        return f"{seeds[0]} to {seeds[-1]}" + (" in steps of 2" if step == 2 else "")
    return ", ".join(map(str, seeds))


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _plain(header: list[str], rows: Rows) -> str:
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]

    def pad(row: list[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "  ".join(("", first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)))

    return "\n".join(pad(row).rstrip() for row in [header, *rows])


def _piped(header: list[str], rows: Rows) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
