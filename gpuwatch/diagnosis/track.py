"""The history of one rule on one subject: what it takes to report a finding, and to clear it.

Two evaluations in, six out: on a stream that fluctuates around its threshold this gave 1 flip an hour in
simulation, a single threshold 188.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwatch.diagnosis.finding import Draft, Severity, State
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.timeline.columns import SECOND_NS

EVALUATION_NS = 5 * SECOND_NS
"""The usual time between two evaluations. One that follows sooner than half of it sees nearly the same
window: it brings new numbers, but is not a second confirmation."""
HOLD_NS = 30 * SECOND_NS
INCIDENT_NS = 600 * SECOND_NS
"""Fires again within this time: the same incident. Not judged for as long: forgotten."""


@dataclass(slots=True)
class Track:
    """One rule on one subject. `state` is None while all is well."""

    state: State | None = None
    draft: Draft | None = None  # the newest one; the last one while clearing
    window_seconds: float = 0.0
    since_ns: int = 0
    incidents: int = 0
    _streak: int = 0
    _fired_ns: int = 0
    _counted_ns: int | None = None
    _judged_ns: int = 0
    _over_ns: int | None = None
    _other_severity: Severity | None = None
    _other_streak: int = 0

    def judge(self, rule: Rule, draft: Draft | None, now_ns: int, window_seconds: float) -> None:
        """Takes what the rule found in one evaluation."""
        self._judged_ns = now_ns
        witness = self._counted_ns is None or now_ns - self._counted_ns >= EVALUATION_NS // 2
        if draft is not None:
            self.draft, self.window_seconds = self._with_lasting_severity(rule, draft, witness), window_seconds
        if draft is not None and draft.fires:
            self._condition_holds(1 if draft.is_certain else rule.fire_after, now_ns, witness)
        elif self.state in ("firing", "clearing"):
            self._condition_gone(rule, draft, now_ns, witness)
        else:
            self._forget()
        if witness:
            self._counted_ns = now_ns

    def holds(self) -> bool:
        """Whether the condition holds by the last word, a firing one until it falls below the clearing threshold."""
        return self.state in ("pending", "firing")

    def absent(self, now_ns: int) -> bool:
        """Takes note that the subject was not judged. True: nothing worth keeping is left."""
        if now_ns - self._judged_ns < INCIDENT_NS:
            return False
        self._forget()
        return True

    def end(self, now_ns: int) -> None:
        """The subject is gone."""
        if self.state is not None:
            self._over(now_ns)

    def _with_lasting_severity(self, rule: Rule, draft: Draft, witness: bool) -> Draft:
        """The draft with the severity that the finding has shown so far, until another one lasts: two in, six out.

        One without a gain is not weighed by it, and changes at once.
        """
        shown = self.draft.severity if self.draft is not None and self.state in ("firing", "clearing") else None
        if shown is None or draft.gain is None or shown in (draft.severity, draft.stays):
            self._other_severity, self._other_streak = None, 0
            return draft if draft.stays is not shown or shown is None else replace(draft, severity=shown)
        if draft.severity is not self._other_severity:
            self._other_severity, self._other_streak, witness = draft.severity, 0, True
        self._other_streak += int(witness)
        is_worse = draft.severity.order < shown.order
        if self._other_streak < (rule.fire_after if is_worse else rule.clear_after):
            return replace(draft, severity=shown)
        self._other_severity, self._other_streak = None, 0
        return draft

    def _condition_holds(self, fire_after: int, now_ns: int, witness: bool) -> None:
        if self.state in ("firing", "clearing"):
            self.state, self._streak = "firing", 0
            return
        if self.state is None:
            self.state, self._streak, witness = "pending", 0, True
            if self._over_ns is None or now_ns - self._over_ns > INCIDENT_NS:
                self.since_ns, self._over_ns = now_ns, None
        self._streak += int(witness)
        if self._streak >= fire_after:
            self.state, self._streak, self._fired_ns = "firing", 0, now_ns
            self.incidents += self._over_ns is None
            self._over_ns = None

    def _condition_gone(self, rule: Rule, draft: Draft | None, now_ns: int, witness: bool) -> None:
        if draft is not None:
            self.state, self._streak = "firing", 0
            return
        if self.state == "firing":
            self.state, witness = "clearing", True
        self._streak += int(witness)
        if self._streak >= rule.clear_after and now_ns - self._fired_ns >= HOLD_NS:
            self._over(now_ns)

    def _over(self, now_ns: int) -> None:
        if self.state in ("firing", "clearing"):
            self._over_ns = now_ns
        self._forget()

    def _forget(self) -> None:
        self.state, self.draft, self._streak = None, None, 0
