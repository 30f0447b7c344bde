"""The report's `findings`: what is wrong, its numbers, the fix with a diff, the gain, the proof."""

from __future__ import annotations

from datetime import datetime, timezone

from gpuwatch.diagnosis.finding import Finding, Fix, PlanStep
from gpuwatch.report.observation import Json, Observation, figure
from gpuwatch.report.patch import NO_EDIT, NOT_HERE, edits_of, origin_of
from gpuwatch.report.trial_command import trial_command
from gpuwatch.text.escape import encodable


def finding_section(seen: Observation) -> list[Json]:
    """All findings, worst first."""
    return [_finding(seen, finding) for finding in seen.snapshot.findings]


def _finding(seen: Observation, finding: Finding) -> Json:
    gain = finding.gain
    stood = seen.stood.get((finding.rule, finding.run, finding.gpu))
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "level": finding.level.name,
        "run": finding.run,
        "gpu": finding.gpu,
        "summary": encodable(finding.summary),
        "evidence": {measure.name: _value(measure.value) for measure in finding.evidence},
        "numbers": [encodable(measure.text) for measure in finding.evidence],
        "ruled_out": [{"cause": each.cause, "reason": encodable(each.reason)} for each in finding.ruled_out],
        "fix": _fix(seen, finding),
        "gain": None if gain is None else {"low": figure(gain.low), "high": figure(gain.high), "cap": gain.cap},
        "plan": _plan(finding.plan),
        "hint": finding.hint,
        "verify": encodable(finding.verify),
        "since": iso_time(seen.snapshot.wall_time_at(finding.since_ns)),
        "state": "over" if stood is not None and stood.is_over else finding.state,
        "stood_seconds": None if stood is None else figure(stood.seconds),
        "behind": finding.behind,
        "window_seconds": figure(finding.window_seconds),
        "confidence_notes": list(finding.confidence_notes),
    }


def _plan(step: PlanStep | None) -> Json | None:
    if step is None:
        return None
    then, together = ({"low": figure(gain.low), "high": figure(gain.high)} for gain in (step.then, step.together))
    return {"number": step.number, "of": step.of, "then": then, "together": together}


def _fix(seen: Observation, finding: Finding) -> Json | None:
    fix = finding.fix
    if fix is None:
        return None
    diff, reason = _diff(seen, finding, fix)
    trial = trial_command(fix, next((run for run in seen.scene.runs if run.id == finding.run), None))
    return {
        "text": encodable(fix.text),
        "code": None if fix.code is None else encodable(fix.code),
        "diff": diff,
        "no_diff_reason": reason,
        "file": None if fix.file is None else encodable(fix.file),
        "line": fix.line,
        "value": _value(fix.value),
        "trial": None if trial is None else encodable(trial),
    }


def _value(value: float | int | str | None) -> float | int | str | None:
    return encodable(value) if isinstance(value, str) else figure(value)


def _diff(seen: Observation, finding: Finding, fix: Fix) -> tuple[str | None, str | None]:
    if fix.edit is None:
        return None, NO_EDIT
    origin = origin_of(seen, finding)
    if origin is None:
        return None, NOT_HERE
    from gpuwatch.edits.apart import edit_diff

    diff = edit_diff(edits_of(fix), origin.read, origin.folder, origin.command)
    return (
        None if diff.text is None else encodable(diff.text),
        None if diff.reason is None else encodable(diff.reason),
    )


def iso_time(wall_time: float) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(wall_time, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
