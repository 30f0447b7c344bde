"""The engine: scene after scene through all rules, out come the findings that lasted; and why a rule was silent.

It holds no clock: time is what the scenes say. The same scenes give the same findings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpuwatch.diagnosis.finding import Draft, Finding, Level, Severity
from gpuwatch.diagnosis.gates import Track, may_be_critical, may_judge
from gpuwatch.diagnosis.plan import Placed, planned, settle, time_shares
from gpuwatch.diagnosis.rule import AnyCase, MachineCase, Rule, Subject, gpu_case_of, run_case_of, same_case_in
from gpuwatch.diagnosis.rules import all_rules, in_order
from gpuwatch.diagnosis.thresholds import SYMPTOMS, Settings
from gpuwatch.timeline.windows import RunWindow, Scene


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a rule is about: a run, a GPU, or the machine (empty key)."""

    kind: Subject
    key: str
    place: int  # in the scene
    gpus: frozenset[str] | None  # concerned; None: all


class Engine:
    """Judges scenes as they come, at regular intervals or not. A clock that goes back resets it.

    All rules are imported at the first scene, not before: that takes 70 ms, which the first screen has no use for.
    """

    def __init__(self, rules: Sequence[Rule] | None = None, settings: Settings | None = None) -> None:
        self._given = None if rules is None else in_order(rules)
        self._settings = settings or Settings()
        self._tracks: dict[tuple[str, str], Track] = {}
        self._last_ns: int | None = None

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        rules = all_rules() if self._given is None else self._given
        return tuple(rule for rule in rules if rule.id not in self._settings.ignored or rule.id in SYMPTOMS)

    @cached_property
    def _order(self) -> dict[str, int]:
        return {rule.id: place for place, rule in enumerate(self._rules)}

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        """The findings that fire or are clearing, worst first, those behind another one last."""
        if self._last_ns is not None and scene.now_ns < self._last_ns:
            self._tracks.clear()
        self._last_ns = scene.now_ns
        subjects, newest, advised = _subjects(scene), NewestHalf(scene), self._advised()
        holding: list[set[str]] = [set() for _ in subjects]
        around = [[holding[place] for place in places] for places in _neighbours(subjects)]
        for rule in self._rules:
            for subject, names, seen in zip(subjects, holding, around, strict=True):
                if subject.kind == rule.subject:
                    case = _case(scene, subject, frozenset().union(*seen), self._settings, advised)
                    if self._judge(rule, subject, case, newest):
                        names.add(rule.id)
        self._forget_absent(subjects, scene.now_ns)
        return planned(settle(list(self._said(subjects)), self._order), time_shares(scene))

    @property
    def pending(self) -> tuple[tuple[str, str], ...]:
        """(rule, subject) whose condition held at the last evaluation, but not for long enough yet."""
        return tuple(key for key, track in self._tracks.items() if track.state == "pending")

    def _advised(self) -> Mapping[str, Mapping[str, int]]:
        """By subject and rule the number that was named at the last evaluation.

        All rules of an evaluation see the same ones: a cause is asked by the rule above it too, which repeats its fix.
        """
        named: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (rule, subject), track in self._tracks.items():
            fix = track.draft.fix if track.draft is not None else None
            if fix is not None and isinstance(fix.value, int):
                named[subject][rule] = fix.value
        return named

    def _judge(self, rule: Rule, subject: _Subject, case: AnyCase, newest: NewestHalf) -> bool:
        """Runs the rule, if it may judge, and returns whether its condition holds."""
        key = (rule.id, subject.key)
        track = self._tracks.get(key)
        if may_judge(rule, case):
            draft: Draft | None = rule.check(case)
            if draft is None and track is None:
                return False
            if draft is not None and draft.severity is Severity.CRITICAL and not may_be_critical(rule, case):
                draft = replace(draft, severity=Severity.WARNING)
            track = track or self._tracks.setdefault(key, Track())
            if draft is not None and (draft.fires or track.state is not None) and newest.is_clear(rule, case):
                draft = None
            track.judge(rule, draft, case.now_ns, case.window_seconds)
        return track is not None and track.holds()

    def _forget_absent(self, subjects: Sequence[_Subject], now_ns: int) -> None:
        present = {subject.key for subject in subjects}
        for key, track in list(self._tracks.items()):
            if key[1] not in present:
                track.end(now_ns)
            if track.absent(now_ns):
                del self._tracks[key]

    def _said(self, subjects: Sequence[_Subject]) -> Iterator[Placed]:
        for rule in self._rules:
            if rule.id in self._settings.ignored:
                continue
            for subject in subjects:
                track = self._tracks.get((rule.id, subject.key))
                if subject.kind == rule.subject and track is not None and track.state in ("firing", "clearing"):
                    yield Placed(_finding(rule, subject, track), rule, subject.gpus)


def _subjects(scene: Scene) -> tuple[_Subject, ...]:
    return (
        *(_Subject("run", run.id, place, frozenset(run.gpu_uuids)) for place, run in enumerate(scene.runs)),
        *(_Subject("gpu", gpu.facts.uuid, place, frozenset((gpu.facts.uuid,))) for place, gpu in enumerate(scene.gpus)),
        _Subject("machine", "", 0, None),
    )


def _case(
    scene: Scene,
    subject: _Subject,
    holding: frozenset[str],
    settings: Settings,
    advised: Mapping[str, Mapping[str, int]],
) -> AnyCase:
    if subject.kind == "run":
        return run_case_of(scene, scene.runs[subject.place], holding, settings, advised.get(subject.key, {}))
    if subject.kind == "gpu":
        return gpu_case_of(scene, scene.gpus[subject.place], holding, settings)
    return MachineCase(scene=scene, holding=holding, settings=settings)


def _neighbours(subjects: Sequence[_Subject]) -> list[list[int]]:
    """For each subject the places of those whose findings concern it: itself, its GPUs or runs, the machine."""
    return [
        [
            place
            for place, other in enumerate(subjects)
            if other is subject
            or other.gpus is None
            or subject.gpus is None
            or (other.kind != subject.kind and not other.gpus.isdisjoint(subject.gpus))
        ]
        for subject in subjects
    ]


def _finding(rule: Rule, subject: _Subject, track: Track) -> Finding:
    draft = track.draft
    assert draft is not None and track.state is not None
    return Finding(
        rule=rule.id,
        severity=draft.severity,
        level=draft.level,
        summary=draft.summary,
        evidence=draft.evidence,
        state=track.state,
        since_ns=track.since_ns,
        run=subject.key if subject.kind == "run" else None,
        gpu=subject.key if subject.kind == "gpu" else None,
        window_seconds=track.window_seconds,
        fix=draft.fix,
        gain=draft.gain,
        hint=draft.hint,
        ruled_out=draft.ruled_out,
        verify=draft.verify,
        chart=draft.chart,
        incidents=track.incidents,
    )


class NewestHalf:
    """The newest half of a scene's window, made when a rule that fires asks for it.

    A mean over a minute falls below a third of itself 40 s after its cause has gone; with the six evaluations that
    clear a finding it took 75 to 85 s, with the newest half asked as well for 60 s at most.
    """

    def __init__(self, scene: Scene) -> None:
        self._whole = scene

    @cached_property
    def _scene(self) -> Scene | None:
        return self._whole.newest_half() if self._whole.newest_half is not None else None

    def is_clear(self, rule: Rule, case: AnyCase) -> bool:
        """Whether a rule that fades has nothing to say of it, with enough in it to say something."""
        if not rule.fades or self._scene is None:
            return False
        newer = same_case_in(self._scene, case)
        return newer is not None and may_judge(rule, newer) and rule.check(newer) is None


_BEST_LEVELS = {"exact": Level.E3, "sampled": Level.E1, "process": Level.E0, "hardware": Level.E0}
"""The best evidence that each visibility of a run gives."""

SEEN_IN_STACKS = frozenset(
    {
        "data-starvation",
        "epoch-start-stall",
        "h2d-bound",
        "launch-bound",
        "loader-overhead-floor",
        "loop-code",
        "pageable-transfer",
        "straggler-rank",
        "sync-per-step",
        "workers-too-few",
    }
)
"""Rules that prefer the hook's timings and judge stacks as well."""
_SEEN_BY = {"process": "/proc", "hardware": "its GPU"}


def why_silent(rules: Iterable[Rule], scene: Scene, judged: Collection[str] = ()) -> dict[str, str | None]:
    """By rule id: why it could not judge; None where it judged one case at least.

    A run that has ended by now was judged while it ran.

    Args:
        rules: The rules in question.
        scene: What was seen.
        judged: Ids of runs that were judged while they were recorded, of which the scene holds figures and no steps.
    """
    scene = replace(scene, runs=tuple(map(_as_it_ran, scene.runs)))
    return {rule.id: _why_not(rule, scene, judged) for rule in rules}


def _as_it_ran(run: RunWindow) -> RunWindow:
    return replace(run, ranks=tuple(replace(rank, ended=None) for rank in run.ranks))


def _why_not(rule: Rule, scene: Scene, judged: Collection[str]) -> str | None:
    """Why a rule was silent because it could not judge; None where one case at least was judged and found well."""
    if rule.subject == "machine":
        return None if may_judge(rule, MachineCase(scene=scene)) else "too little was seen of the machine"
    if rule.subject == "gpu":
        if not scene.gpus:
            return "no GPU was seen"
        is_judged = any(may_judge(rule, gpu_case_of(scene, gpu)) for gpu in scene.gpus)
        return None if is_judged else "too little was seen of the GPUs and their runs"
    return _first_or_none([_why_not_run(rule, scene, run, run.id in judged) for run in scene.runs])


def _first_or_none(reasons: Sequence[str | None]) -> str | None:
    if not reasons:
        return "no training run was seen"
    return None if None in reasons else reasons[0]


def _why_not_run(rule: Rule, scene: Scene, run: RunWindow, was_judged: bool) -> str | None:
    visibility = run.critical.facts.visibility
    if rule.level > _BEST_LEVELS[visibility] and not (visibility == "sampled" and rule.id in SEEN_IN_STACKS):
        return _missing(rule.level, visibility)
    case = run_case_of(scene, run)
    if may_judge(rule, case):
        return None
    if rule.needs_gpu and not case.gpus:
        return "no GPU of this run was seen"
    return None if was_judged else "too few steps were seen after the warm-up"


def _missing(level: Level, visibility: str) -> str:
    if level > Level.E1:
        return "needs the hook in the training: start it with gpuwatch run"
    return f"needs the stacks of the training process, which was seen only through {_SEEN_BY[visibility]}"
