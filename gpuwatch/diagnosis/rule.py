"""What a rule is: one function over one case, with the page that explains it as its module's docstring.

A scene is cut into the cases that rules judge: one per run, one per GPU, one for the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Literal

from gpuwatch.diagnosis.finding import Draft, Gain, Level, Severity
from gpuwatch.diagnosis.thresholds import Settings
from gpuwatch.diagnosis.tree import SYMPTOM, Cause, cause_of_rule, judged_before
from gpuwatch.samples import MachineFacts
from gpuwatch.timeline.windows import GpuWindow, HostWindow, RunWindow, Scene

_USUAL = Settings()
LEAST_GAIN, LEAST_GAIN_LEFT = 1.05, 1.03
"""The high end of the gain from which a warning fires, and below which it ends: a twentieth of the time is a loss."""
CERTAIN_GAIN, LIKELY_GAIN = 1.01, 1.05
CERTAIN_GAIN_LEFT, LIKELY_GAIN_LEFT = 1.005, 1.03
"""The low end and the middle of the gain that a warning needs, and those below which one becomes a note again: a change
that may bring nothing is a note."""
_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scene as one of its subjects sees it. `holding`: rules whose condition holds for that subject now.

    `advised`: the number that each rule's finding of this subject has named so far, so that a new one differs
    from it only for a reason.
    """

    scene: Scene
    holding: frozenset[str] = frozenset()
    settings: Settings = _USUAL
    advised: Mapping[str, int] = field(default_factory=dict)

    @property
    def now_ns(self) -> int:
        """When the scene was taken, on the monotonic clock."""
        return self.scene.now_ns

    @property
    def window_seconds(self) -> float:
        """How long a stretch it holds."""
        return self.scene.window_seconds

    @property
    def host(self) -> HostWindow | None:
        """The machine's processors, memory and storage, where they are read."""
        return self.scene.host

    @property
    def machine(self) -> MachineFacts | None:
        """What does not change about the machine, where it is known."""
        return self.scene.machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCase(Case):
    """One run and the GPUs that it uses."""

    run: RunWindow
    gpus: tuple[GpuWindow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCase(Case):
    """One GPU, and the run that trains on it, if any."""

    gpu: GpuWindow
    run: RunWindow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCase(Case):
    """The machine and gpuwatch's own measurement."""


AnyCase = RunCase | GpuCase | MachineCase


Subject = Literal["run", "gpu", "machine"]


Family = Literal[
    "data",  # what keeps batches from being ready
    "hang",  # training that stopped, loudly or silently
    "health",  # what the driver reports about the hardware
    "host",  # the machine under the run: its cores, memory and nodes
    "launch",  # the launch of GPU work by the CPU
    "memory",  # of the GPU: what is free, and the allocator's troubles
    "multi_gpu",  # several GPUs and ranks in one job
    "phases",  # stretches that are not training: evaluation, checkpoints, garbage collection
    "power",  # heat, power limits and the clocks they take away
    "precision",  # compilation, and how much arithmetic a busy GPU really does
    "sharing",  # who else uses the GPU, and how far the measurement can be trusted
    "transfer",  # the way of a batch to the GPU: copies and the link
    "utilization",  # what utilization itself shows, and dips whose cause is not known
]


Check = Callable[[Any], "Draft | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the catalogue.

    `after` names rules that are judged first, because this one reads them in `case.holding`. `gated` rules wait
    for the warm-up and the step and sample counts of the window; hardware and hang rules are not gated. What `fades`
    is over as soon as the newest half of the window says so: for what lasts, not for what comes once in a while. An
    `early` one may judge from eight settled steps on, and itself ensures that its figure is certain enough.
    """

    id: str
    family: Family
    subject: Subject
    level: Level  # below it the rule may only say "likely"
    check: Check
    title: str
    page: str
    after: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()  # shown "after that" while one of these fires
    gated: bool = True
    fire_after: int = 2  # evaluations in a row
    clear_after: int = 6
    needs_gpu: bool = False  # reads how busy the GPU is in training: it waits for enough samples of that too
    fades: bool = False
    early: bool = False
    thresholds: type[Any] | None = None


def rule(
    id: str,
    *,
    family: Family,
    subject: Subject,
    level: Level,
    after: tuple[str, ...] = (),
    behind: tuple[str, ...] = (),
    gated: bool = True,
    fire_after: int = 2,
    clear_after: int = 6,
    needs_gpu: bool = False,
    fades: bool = False,
    early: bool = False,
    by_loss: bool = False,
    thresholds: type[Any] | None = None,
) -> Callable[[Callable[..., Draft | None]], Rule]:
    """Makes a Rule of the decorated function; title and page are its module's docstring.

    With `thresholds` the function takes an instance of them as its second argument, as the user set them. A rule
    `by_loss` warns of what is measured to be lost, however little of it the change that it knows may recover.
    """

    def make(function: Callable[..., Draft | None]) -> Rule:
        check = function if thresholds is None else _with_thresholds(id, function, thresholds())
        cause = cause_of_rule(id)
        if cause is not None:
            check = _in_the_tree(check, cause)
        if subject == "run":
            check = _worth_a_warning(check, by_loss)
        page = (sys.modules[check.__module__].__doc__ or "").strip()
        return Rule(
            id=id,
            family=family,
            subject=subject,
            level=level,
            check=check,
            title=page.split("\n", 1)[0],
            page=page,
            after=(*judged_before(id), *after),
            behind=behind,
            gated=gated,
            fire_after=fire_after,
            clear_after=clear_after,
            needs_gpu=needs_gpu,
            fades=fades,
            early=early,
            thresholds=thresholds,
        )

    return make


def _in_the_tree(function: Check, cause: Cause) -> Check:
    """Asks a cause of waits only where it may be the one."""

    @wraps(function)
    def check(case: Case) -> Draft | None:
        if (cause.needs_wait and SYMPTOM not in case.holding) or case.holding.intersection(cause.unless):
            return None
        return function(case)

    return check


def _worth_a_warning(function: Check, by_loss: bool) -> Check:
    """Drops warnings whose change brings next to nothing at best; those that may bring nothing become information.

    Rules about GPUs report a fault whatever it costs.
    """

    @wraps(function)
    def check(case: Case) -> Draft | None:
        draft = function(case)
        if draft is None or draft.gain is None or draft.severity not in (Severity.WARNING, Severity.CRITICAL):
            return draft
        if draft.gain.high < LEAST_GAIN_LEFT:
            return None
        gain = draft.gain
        draft = replace(draft, fires=draft.fires and gain.high >= LEAST_GAIN)
        if by_loss or _brings(gain, CERTAIN_GAIN, LIKELY_GAIN):
            return draft
        stays = draft.severity if _brings(gain, CERTAIN_GAIN_LEFT, LIKELY_GAIN_LEFT) else None
        return replace(draft, severity=Severity.INFO, stays=stays)

    return check


def _brings(gain: Gain, certain: float, likely: float) -> bool:
    return gain.low >= certain and gain.low * gain.high >= likely**2


def _with_thresholds(id: str, function: Callable[..., Draft | None], usual: Any) -> Check:
    @wraps(function)
    def check(case: Case) -> Draft | None:
        return function(case, case.settings.thresholds.get(id, usual))

    return check


def run_case_of(
    scene: Scene,
    run: RunWindow,
    holding: frozenset[str] = frozenset(),
    settings: Settings = _USUAL,
    advised: Mapping[str, int] = _NOTHING,
) -> RunCase:
    """One run with the GPUs it uses."""
    used = set(run.gpu_uuids)
    gpus = tuple(gpu for gpu in scene.gpus if gpu.facts.uuid in used)
    return RunCase(scene=scene, run=run, gpus=gpus, holding=holding, settings=settings, advised=advised)


def gpu_case_of(
    scene: Scene, gpu: GpuWindow, holding: frozenset[str] = frozenset(), settings: Settings = _USUAL
) -> GpuCase:
    """One GPU with the run that trains on it: of several, the one with the most steps in the window."""
    users = [run for run in scene.runs if gpu.facts.uuid in run.gpu_uuids]
    run = max(users, key=lambda run: (run.critical.ended is None, run.critical.steps), default=None)
    return GpuCase(scene=scene, gpu=gpu, run=run, holding=holding, settings=settings)


def same_case_in(scene: Scene, case: AnyCase) -> AnyCase | None:
    """The case of the same subject in another scene, with the same rules holding; None where it is not there."""
    if isinstance(case, RunCase):
        runs = [run for run in scene.runs if run.id == case.run.id]
        return run_case_of(scene, runs[0], case.holding, case.settings, case.advised) if runs else None
    if isinstance(case, GpuCase):
        gpus = [gpu for gpu in scene.gpus if gpu.facts.uuid == case.gpu.facts.uuid]
        return gpu_case_of(scene, gpus[0], case.holding, case.settings) if gpus else None
    return MachineCase(scene=scene, holding=case.holding, settings=case.settings)


def gpu_name(gpu: GpuWindow) -> str:
    """How a sentence names a GPU: by the index that `nvidia-smi` shows."""
    return f"GPU {gpu.facts.label}"
