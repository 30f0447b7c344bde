"""Expected against found: what was missed, what was said without cause, and what the change really brought."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import LEAST_WATCH_SECONDS, Case, Variant
from benchmarks.gpu.seen import WARNED

LEAST_STEPS = 30
"""The gate of the rules."""

Found = Mapping[str, Mapping[str, Any]]
"""Rule -> a `Seen` as JSON."""


@dataclass(slots=True)
class Row:
    """One line of the table, as it is written to table.json."""

    id: str
    title: str
    verdict: str = ""  # "ok", "WRONG", "unsure", "told" (a question answered), "failed", "skipped", "not run"
    seconds: float = 0.0
    must: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    samples_per_second: float | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)
    stream: str | None = None
    trace: str | None = None


def judge(case: Case, found: Found, known: Collection[str]) -> tuple[str, list[str]]:
    """ "ok" or "WRONG", and why. Rules that are not written yet cannot be missed, but are named."""
    fired = frozenset(found)
    warned = frozenset(rule for rule, seen in found.items() if seen["severity"] in WARNED)
    missed = sorted(case.must - fired)
    remarks = _said("MISSED", (rule for rule in missed if rule in known))
    remarks += _said("FALSE", sorted((warned - case.must - case.may) | (fired & case.never)))
    is_wrong = bool(remarks)
    remarks += _said("no such rule yet:", (rule for rule in missed if rule not in known))
    if case.names_line is not None and fired & case.must:
        place = _place_of(case)
        if not _names(found, case, place):
            is_wrong = True
            remarks.append(f"LINE {place} not named")
    return ("WRONG" if is_wrong else "ok"), remarks


def doubts(case: Case, figures: Mapping[str, Any], seconds: float) -> list[str]:
    """Why silence proves nothing: the rules were not asked twice about enough steps, or nobody saw the GPU."""
    told = []
    if not case.must and seconds < LEAST_WATCH_SECONDS:
        told.append(f"silence of only {seconds:.0f} s")
    if not case.must and (figures.get("steps") or 0) < LEAST_STEPS:
        told.append(f"silence over only {figures.get('steps') or 0} steps")
    if figures.get("nvml") != "ok":
        told.append(f"NVML {figures.get('nvml') or 'said nothing'}")
    return told


def change(variant: Variant, before: float | None, after: float | None, found: Found) -> dict[str, Any]:
    """One fix: measured against promised."""
    measured = after / before if before and after else None
    promise = found.get(variant.promised_by or "", {})
    low, high = promise.get("gain_low"), promise.get("gain_high")
    error = (low + high) / 2 / measured - 1 if measured and low is not None and high is not None else None
    return {
        "label": variant.label,
        "samples_per_second": after,
        "measured": measured,
        "promised_by": variant.promised_by,
        "low": low,
        "high": high,
        "error": error,
    }


def truth_errors(marks: list[dict[str, float]], began: float, ended: float, phases: Mapping[str, float]) -> list[str]:
    """What the stacks said of each phase, against what the training's own clocks say of the same stretch."""
    within = [mark for mark in marks if began <= mark["at"] <= ended]
    if len(within) < 2:
        return ["its own clocks wrote too little"]
    first, last = within[0], within[-1]
    wall = last["at"] - first["at"]
    said = []
    for name in sorted(set(last) - {"at", "gpu_idle"}):
        true = (last[name] - first.get(name, 0.0)) / wall
        seen = phases.get(name, 0.0)
        said.append(f"{name} {100 * true:.1f}>{100 * seen:.1f}")
    idle = (last["gpu_idle"] - first["gpu_idle"]) / wall
    return ["truth>stacks, %: " + " ".join(said), f"GPU idle in waits by its own events {100 * idle:.1f}%"]


def _said(word: str, rules: Iterable[str]) -> list[str]:
    names = ", ".join(rules)
    return [f"{word} {names}"] if names else []


def _place_of(case: Case) -> str:
    lines = case.path.read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if case.names_line and case.names_line in line)
    return f"{case.path.name}:{number}"


def _names(found: Found, case: Case, place: str) -> bool:
    """Whether any of the rules it is about speaks of that line, in its fix or in its words."""
    for rule in case.must & frozenset(found):
        seen = found[rule]
        fix = f"{Path(seen['file'] or '').name}:{seen['line']}"
        if fix == place or any(place in text for text in (seen["summary"], *seen["evidence"])):
            return True
    return False
