"""The report's `findings` and `rules`, and the fixes as one patch.

A rule that had nothing to judge is no clean bill: a test report shows it as skipped, not as passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.engine import why_silent
from gpuwatch.diagnosis.finding import (
    Edit,
    Finding,
    Fix,
    PlanStep,
)
from gpuwatch.diagnosis.proof import proof_of
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.report import model
from gpuwatch.report.observation import Observation

if TYPE_CHECKING:
    from gpuwatch.edits.workspace import Origin

NO_EDIT = "the fix is not a change of one call"
NOT_HERE = "the source file is not on this machine"


def finding_section(seen: Observation) -> list[model.Finding]:
    """All findings, worst first."""
    return [_finding(seen, finding) for finding in seen.snapshot.findings]


def _finding(seen: Observation, finding: Finding) -> model.Finding:
    gain = finding.gain
    lasted = seen.durations.get((finding.rule, finding.run, finding.gpu))
    return model.Finding(
        rule=finding.rule,
        severity=finding.severity.value,
        level=finding.level.name,
        run=finding.run,
        gpu=finding.gpu,
        summary=finding.summary,
        evidence={measure.name: measure.value for measure in finding.evidence},
        numbers=[measure.text for measure in finding.evidence],
        ruled_out=[model.like(model.RuledOut, each) for each in finding.ruled_out],
        fix=_fix(seen, finding),
        gain=None if gain is None else model.like(model.Gain, gain),
        plan=_plan(finding.plan),
        hint=finding.hint,
        verify=finding.verify,
        since=iso_time(seen.snapshot.wall_time_at(finding.since_ns)),
        state="over" if lasted is not None and lasted.is_over else finding.state,
        stood_seconds=None if lasted is None else lasted.seconds,
        behind=finding.behind,
        window_seconds=finding.window_seconds,
        confidence_notes=list(finding.confidence_notes),
    )


def _plan(step: PlanStep | None) -> model.PlanStep | None:
    if step is None:
        return None
    then, together = (model.like(model.Factors, gain) for gain in (step.then, step.together))
    return model.PlanStep(step.number, step.of, then, together)


def _fix(seen: Observation, finding: Finding) -> model.Fix | None:
    fix = finding.fix
    if fix is None:
        return None
    diff, reason = _diff(seen, finding, fix)
    run = next((run for run in seen.scene.runs if run.id == finding.run), None)
    trainers = [rank.facts for rank in run.ranks] if run is not None else ()
    return model.Fix(
        text=fix.text,
        code=fix.code,
        diff=diff,
        no_diff_reason=reason,
        file=fix.file,
        line=fix.line,
        value=fix.value,
        trial=proof_of(finding, (), trainers).trial,
    )


def _diff(seen: Observation, finding: Finding, fix: Fix) -> tuple[str | None, str | None]:
    if fix.edit is None:
        return None, NO_EDIT
    origin = origin_of(seen, finding)
    if origin is None:
        return None, NOT_HERE
    from gpuwatch.edits.editor import edit_diff

    diff = edit_diff(edits_of(fix), origin.read, origin.folder, origin.command)
    return diff.text, diff.reason


def iso_time(wall_time: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(wall_time, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class FixPatch:
    """The patch as bytes, empty where there is none, and one line per fix that it does not hold."""

    data: bytes
    by_hand: tuple[str, ...]


def fix_patch(seen: Observation) -> FixPatch:
    """The patch of all findings' fixes, worst first; those that come after another finding wait for their turn."""
    from gpuwatch.edits.editor import combined_patch

    edits: list[tuple[Edit, Origin]] = []
    owners: list[Finding] = []
    by_hand: dict[str, list[str]] = {}  # the same fix of several findings is listed once
    for finding in seen.snapshot.findings:
        fix = finding.fix
        if fix is None:
            continue
        if finding.behind is not None:
            why = f"not in the patch: fix {finding.behind} first, then check again"
            by_hand.setdefault(why, []).append(finding.rule)
            continue
        origin = origin_of(seen, finding)
        if fix.edit is None or origin is None:
            why = NO_EDIT if fix.edit is None else NOT_HERE
            by_hand.setdefault(f"{fix.text}. Not in the patch: {why}", []).append(finding.rule)
            continue
        for edit in edits_of(fix):
            edits.append((edit, origin))
            owners.append(finding)
    patch = combined_patch(edits)
    for finding, reason in zip(owners, patch.reasons, strict=True):
        if reason is not None and finding.fix is not None:
            by_hand.setdefault(f"{finding.fix.text}. Not in the patch: {reason}", []).append(finding.rule)
    lines = (f"{', '.join(dict.fromkeys(rules))}: {words}" for words, rules in by_hand.items())
    return FixPatch(patch.data, tuple(lines))


def edits_of(fix: Fix) -> tuple[Edit, ...]:
    """All edits of a fix."""
    return fix.also if fix.edit is None else (fix.edit, *fix.also)


def origin_of(seen: Observation, finding: Finding) -> Origin | None:
    """The process that a finding is about, for reading its source; None where that is not on this machine."""
    # These modules take 20 ms to import: only for a report that has an edit to show.
    from gpuwatch.edits.workspace import Origin

    read = seen.read_source
    if read is None:
        return None
    run = next((run for run in seen.scene.runs if run.id == finding.run), None)
    facts = run.critical.facts if run else None
    started = seen.process_started(facts) if facts else None
    folder = Path(facts.cwd) if facts and facts.cwd else None

    def read_unchanged(path: Path) -> bytes:
        return read(path if folder is None else folder / path, started, facts)

    return Origin(read_unchanged, folder, facts.command if facts else ())


def rule_section(seen: Observation) -> list[model.JudgedRule]:
    """All rules by id, with what became of each."""
    found = {finding.rule for finding in seen.snapshot.findings}
    rules = sorted(all_rules(), key=lambda rule: rule.id)
    silent = why_silent(rules, seen.scene, seen.judged)
    reasons = {rule.id: None if rule.id in found else silent[rule.id] for rule in rules}
    reasons |= seen.left_out
    return [
        model.JudgedRule(
            rule=rule.id,
            family=rule.family,
            title=rule.title,
            judged=reasons[rule.id] is None,
            reason=reasons[rule.id],
        )
        for rule in rules
    ]
