"""The findings that a recording holds: where they stood, and what the engine does not know of them behind a seek."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch._version import __version__
from gpuwatch.diagnosis.finding import Finding, Severity
from gpuwatch.diagnosis.registry import all_rules
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.diagnosis.standing import in_order
from gpuwatch.monitor.finding_records import from_blob, severity_of
from gpuwatch.monitor.parts import Judge
from gpuwatch.monitor.snapshot import ReplayMark
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.types import FindingSpan
from gpuwatch.timeline.run_history import RAW_NS
from gpuwatch.timeline.windows import Scene

_LEARNED_NS = RAW_NS
_DEFAULTS = Settings()
_STANDS = ("firing", "clearing")
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
            if span.state in _STANDS and not self._is_set_aside(span.rule) and (severity := severity_of(span))
        ]
        self._holds_any = bool(spans)

    def has_last_word(self, rule: str) -> bool:
        """Whether the rule that judged then is that of now: what it did not say was not so."""
        is_by_us = self._recording.meta.version == __version__ and self._holds_any
        return is_by_us and not self._is_set_aside(rule)

    @property
    def marks(self) -> tuple[ReplayMark, ...]:
        """When they stood."""
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
        """Those that stood at a moment, as they were last written: once a minute."""
        standing = {place.stretch for place in self._places if _covers(place, now_ns)}
        if not standing <= self._read.keys():
            spans = [span for span in self._recording.findings(now_ns, now_ns) if _stretch(span) in standing]
            self._read = dict.fromkeys(standing) | {_stretch(span): _finding(span) for span in spans}
        ignored = self._settings.ignored
        return [
            replace(finding, behind=None) if finding.behind in ignored else finding
            for stretch, finding in self._read.items()
            if finding is not None and stretch in standing
        ]

    def _is_set_aside(self, rule: str) -> bool:
        return rule in self._settings.ignored or rule in self._settings.thresholds


class RecordedJudge:
    """An engine that was started in the middle of a recording.

    It has lived through two minutes when it is first heard, while some rules look at a quarter of an hour and more. As
    long as it knows less than the engine that judged then, the recording has the last word on what stood and how bad it
    was; the engine gives the fresh figures, for the recording keeps a finding's words once a minute.

    Args:
        engine: judges the scenes.
        recorded: the findings as they stood.
        heard_from_ns: before this moment the findings are not shown, and the recording need not be asked.
        knows_since_ns: when the engine's past begins.
    """

    def __init__(self, engine: Judge, recorded: RecordedFindings, heard_from_ns: int, knows_since_ns: int) -> None:
        self._engine = engine
        self._recorded = recorded
        self._heard_from_ns = heard_from_ns
        self._learned_ns = knows_since_ns + _LEARNED_NS

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        """The findings as they stood then."""
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
