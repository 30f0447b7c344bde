"""Findings in a recording: as they are written, when they were active, and what the engine lacks after a seek.

Nothing of a finding is lost, edits included.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from gpuwatch import __version__
from gpuwatch.diagnosis.finding import Edit, Finding, Fix, Severity
from gpuwatch.diagnosis.plan import in_order
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.monitor.snapshot import ReplayMark
from gpuwatch.recording.schema import FindingRecord, FindingSpan
from gpuwatch.timeline.trainer import RAW_NS

if TYPE_CHECKING:
    from gpuwatch.monitor.monitor import Judge
    from gpuwatch.recording.reader import Recording
    from gpuwatch.timeline.windows import Scene


_SEVERITIES = {severity.value: severity for severity in Severity}
_EDITS: dict[str, type] = {cls.__name__: cls for cls in get_args(Edit)}


def to_record(finding: Finding) -> FindingRecord:
    """A finding as a row. JSON escapes what is no UTF-8 in the names of a user's files."""
    plain = msgspec.to_builtins(dataclasses.replace(finding, fix=None))
    plain["fix"] = None if finding.fix is None else _plain_fix(finding.fix)
    return FindingRecord(
        key="|".join((finding.rule, finding.run or "", finding.gpu or "")),
        rule=finding.rule,
        severity=finding.severity.value,
        state=finding.state,
        run=finding.run,
        gpu=finding.gpu,
        blob=json.dumps(plain, separators=(",", ":")).encode("ascii"),
    )


def severity_of(span: FindingSpan) -> Severity | None:
    """None for one that this version does not know."""
    return _SEVERITIES.get(span.severity)


def from_blob(blob: bytes) -> Finding:
    """The finding again.

    Raises:
        ValueError: this is not one, or not one that this version knows.
    """
    plain = json.loads(blob)
    if not isinstance(plain, dict):
        raise ValueError("not a finding")
    fix = plain.pop("fix", None)
    finding: Finding = _built(Finding, plain)
    return finding if fix is None else dataclasses.replace(finding, fix=_fix(fix))


def _plain_fix(fix: Fix) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fix)
    plain["edit"] = None if fix.edit is None else _plain_edit(fix.edit)
    plain["also"] = [_plain_edit(edit) for edit in fix.also]
    return plain


def _plain_edit(edit: Edit) -> dict[str, Any]:
    return {"kind": type(edit).__name__, **msgspec.to_builtins(edit)}


def _fix(plain: Any) -> Fix:
    if not isinstance(plain, dict):
        raise ValueError("not a fix")
    edit, also = plain.pop("edit", None), plain.pop("also", ())
    fix: Fix = _built(Fix, plain)
    return dataclasses.replace(fix, edit=None if edit is None else _edit(edit), also=tuple(map(_edit, also)))


def _edit(plain: Any) -> Edit:
    cls = _EDITS.get(str(plain.pop("kind", ""))) if isinstance(plain, dict) else None
    if cls is None:
        raise ValueError("an edit that this version does not know")
    made: Edit = _built(cls, plain)
    return made


def _built(cls: Any, plain: dict[str, Any]) -> Any:
    """One dataclass; msgspec knows no union of several, so what holds one is put together field by field."""
    hints = _hints(cls)
    try:
        return cls(**{name: msgspec.convert(value, hints[name]) for name, value in plain.items() if name in hints})
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"not a {cls.__name__}: {error}") from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


_LEARNED_NS = RAW_NS
_DEFAULTS = Settings()
_Key = tuple[str, "str | None", "str | None"]
_Stretch = tuple[str, int]
"""Key and start."""


@dataclass(frozen=True, slots=True)
class _Place:
    stretch: _Stretch
    start_ns: int
    end_ns: int | None
    severity: Severity


class RecordedFindings:
    """All stretches of findings without their words, which are read when their time comes.

    Args:
        recording: that holds them.
        settings: the user's. Of a rule that they ignore nothing is taken, nor of one with other thresholds than then.
    """

    def __init__(self, recording: Recording, settings: Settings = _DEFAULTS) -> None:
        self._recording = recording
        self._settings = settings
        self._places: list[_Place] = []
        self._read: dict[_Stretch, Finding | None] = {}
        self.refresh()

    def refresh(self) -> None:
        """Takes note of what was written since."""
        spans = self._recording.findings(self._recording.start_ns, self._recording.end_ns)
        self._places = [
            _Place(_stretch(span), span.start_ns, span.end_ns, severity)
            for span in spans
            if span.is_active and not self._is_set_aside(span.rule) and (severity := severity_of(span))
        ]
        self._holds_any = bool(spans)

    def has_last_word(self, rule: str) -> bool:
        """Whether the rule that judged then is that of now: what it did not say was not so."""
        is_by_us = self._recording.meta.version == __version__ and self._holds_any
        return is_by_us and not self._is_set_aside(rule)

    @property
    def marks(self) -> tuple[ReplayMark, ...]:
        """When they were active."""
        end_ns = self._recording.end_ns
        return tuple(
            ReplayMark(place.start_ns, end_ns if place.end_ns is None else place.end_ns, place.severity)
            for place in self._places
        )

    def evaluation_known(self, until_ns: int) -> int | None:
        """The last moment up to this one at which a finding came, changed or went: the rules were asked then."""
        moments = [place.start_ns for place in self._places] + [place.end_ns or 0 for place in self._places]
        return max((moment for moment in moments if 0 < moment <= until_ns), default=None)

    def at(self, now_ns: int) -> list[Finding]:
        """Those that were active at a moment, as they were last written: once a minute."""
        active = {place.stretch for place in self._places if _covers(place, now_ns)}
        if not active <= self._read.keys():
            spans = [span for span in self._recording.findings(now_ns, now_ns) if _stretch(span) in active]
            self._read = dict.fromkeys(active) | {_stretch(span): _finding(span) for span in spans}
        ignored = self._settings.ignored
        return [
            replace(finding, behind=None) if finding.behind in ignored else finding
            for stretch, finding in self._read.items()
            if finding is not None and stretch in active
        ]

    def _is_set_aside(self, rule: str) -> bool:
        return rule in self._settings.ignored or rule in self._settings.thresholds


class RecordedJudge:
    """An engine that was started in the middle of a recording.

    It has lived through two minutes when it is first used, while some rules judge a quarter of an hour and more. As
    long as it knows less than the engine that judged then, the recording has the last word on what was active and how
    bad it was; the engine gives the fresh figures, for the recording keeps a finding's words once a minute.

    Args:
        engine: judges the scenes.
        recorded: the findings as they were then.
        heard_from_ns: before this moment the findings are not shown, and the recording need not be asked.
        knows_since_ns: when the engine's past begins.
    """

    def __init__(self, engine: Judge, recorded: RecordedFindings, heard_from_ns: int, knows_since_ns: int) -> None:
        self._engine = engine
        self._recorded = recorded
        self._heard_from_ns = heard_from_ns
        self._learned_ns = knows_since_ns + _LEARNED_NS

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        """The findings as they were then."""
        found = self._engine.evaluate(scene)
        if not self._heard_from_ns <= scene.now_ns < self._learned_ns:
            return found
        fresh = {_key(finding): finding for finding in found}
        recorded = {_key(finding): finding for finding in self._recorded.at(scene.now_ns)}
        merged = [_merged(fresh.get(key), finding) for key, finding in recorded.items()]
        merged += [
            finding
            for key, finding in fresh.items()
            if key not in recorded and not self._recorded.has_last_word(finding.rule)
        ]
        return in_order(merged, {rule.id: place for place, rule in enumerate(all_rules())})


def _merged(fresh: Finding | None, recorded: Finding) -> Finding:
    if fresh is None or (fresh.severity, fresh.state) != (recorded.severity, recorded.state):
        return recorded
    return replace(fresh, since_ns=recorded.since_ns, incidents=recorded.incidents, behind=recorded.behind)


def _covers(place: _Place, now_ns: int) -> bool:
    return place.start_ns <= now_ns and (place.end_ns is None or now_ns < place.end_ns)


def _key(finding: Finding) -> _Key:
    return (finding.rule, finding.run, finding.gpu)


def _finding(span: FindingSpan) -> Finding | None:
    """None for words that another version wrote and this one does not know."""
    try:
        return replace(from_blob(span.blob), state=span.state)  # type: ignore[arg-type]
    except ValueError:
        return None


def _stretch(span: FindingSpan) -> _Stretch:
    return (span.key, span.start_ns)
