"""The fixes of a report as one patch, and what of them has to be made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Edit, Finding, Fix
from gpuwatch.report.observation import Observation

if TYPE_CHECKING:
    from gpuwatch.edits.workspace import Origin

NO_EDIT = "the fix is not the change of one call"
NOT_HERE = "the source file is not on this machine"


@dataclass(frozen=True, slots=True)
class FixPatch:
    """The patch as bytes, empty where there is none, and one line per fix that it does not hold."""

    data: bytes
    by_hand: tuple[str, ...]


def fix_patch(seen: Observation) -> FixPatch:
    """The patch of all findings' fixes, worst first; those that come after another finding wait for their turn."""
    from gpuwatch.edits.apart import combined_patch

    edits: list[tuple[Edit, Origin]] = []
    owners: list[Finding] = []
    by_hand: dict[str, list[str]] = {}  # the same fix of several findings is listed once
    for finding in seen.snapshot.findings:
        fix = finding.fix
        if fix is None:
            continue
        if finding.behind is not None:
            why = f"not in the patch: change {finding.behind} first, then look again"
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
