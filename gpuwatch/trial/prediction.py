"""What the rules promise for an arm, from a first run of the program as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.loader_queue import LoaderQueue, queue_model
from gpuwatch.diagnosis.advice.starvation import Starvation, starvation_of
from gpuwatch.diagnosis.advice.workers import LEAST_PROMISE, advise
from gpuwatch.diagnosis.finding import CallEdit, Edit, Finding, Gain, LoopEdit, ModelEdit, SettingsEdit, SetupEdit
from gpuwatch.diagnosis.rule import RunCase, run_case_of
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial.changes import Arm

WORKERS = ("workers-zero", "workers-too-few")
"""The rules that choose a number of workers by the same formula."""
QUEUES = ("slow-samples", "bursty-prefetch")
"""The rules that choose a queue by the same model."""
WAITS = "data-starvation"
"""The rule that names one of the causes of a wait, or none."""
_QUEUE = frozenset({"num_workers", "prefetch_factor", "in_order"})
_STATEMENTS = {
    'torch.set_float32_matmul_precision("high")': ("tf32", "True"),
    "torch.backends.cudnn.benchmark = True": ("cudnn_benchmark", "True"),
    "torch.backends.cudnn.benchmark = False": ("cudnn_benchmark", "False"),
}
_BESIDE = frozenset({"persistent_workers", "pin_memory", "prefetch_factor"})
"""What a fix may set along with its own change, and an arm may leave out."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The gain of a change, and the rule that promises it."""

    gain: Gain
    rule: str


def predict(arm: Arm, scene: Scene | None, findings: Sequence[Finding]) -> Prediction | None:
    """What was promised for just this change; None where no rule speaks of it."""
    if scene is None or not arm.changes:
        return None
    asked = {change.name: str(change.value) for change in arm.changes}
    blamed = _blamed(findings)
    queued = _of_queue(asked, scene, blamed)
    if queued is not None:
        return queued
    for finding in findings:
        if finding.gain is not None and finding.fix is not None and _is_of(finding.fix.edit, asked):
            return Prediction(finding.gain, finding.rule)
    if blamed not in (None, *WORKERS):
        return None  # what the run waits for is not that workers are too few: their number alone says nothing of it
    gain = _of_workers(asked, scene)
    return None if gain is None else Prediction(gain, WORKERS[0] if _workers_now(scene) == 0 else WORKERS[1])


def _blamed(findings: Sequence[Finding]) -> str | None:
    """The rule that says why the run waits for data, its parent where none does; None where it does not wait."""
    found = {finding.rule: finding for finding in findings}
    queue = next((rule for rule in QUEUES if rule in found), None)
    if queue is not None or WAITS not in found:
        return queue
    cause = next((measure.value for measure in found[WAITS].evidence if measure.name == "cause"), None)
    return str(cause) if cause is not None else WAITS


def _is_of(edit: Edit | None, asked: dict[str, str]) -> bool:
    """Whether the edit and the arm change the same."""
    match edit:
        case CallEdit() | LoopEdit() | SettingsEdit():
            keywords = {name.removeprefix("dataloader_"): text for name, text in edit.keywords.items()}
            own = keywords.items() - {item for item in keywords.items() if item[0] in _BESIDE}
            return own <= asked.items() <= keywords.items()
        case SetupEdit():
            return asked == dict([_STATEMENTS.get(edit.statement, ("", ""))])
        case ModelEdit():
            return ".compile(" in edit.statement and asked == {"compile": "True"}
        case _:
            return False


def _of_queue(asked: dict[str, str], scene: Scene, blamed: str | None) -> Prediction | None:
    """What the model of a loader's queue says of another depth and order; of a number of workers where it is to blame.

    The model vouches for itself: there is none where the batches as they were measured do not come to the loss.
    """
    if blamed is None or not scene.runs or not asked.keys() & _QUEUE or asked.keys() - _QUEUE - _BESIDE:
        return None
    is_queue = blamed in (*QUEUES, WAITS)
    workers = int(asked.get("num_workers", "1"))
    if workers < 1 or ("num_workers" in asked and not is_queue):
        return None
    case, starvation = _starved(scene)
    model = queue_model(case, starvation) if starvation is not None else None
    if model is None or ("num_workers" in asked and advise(case, model.cost).promise is None):
        return None
    queue = LoaderQueue(
        workers=int(asked.get("num_workers", model.present.workers)),
        prefetch=int(asked.get("prefetch_factor", model.present.prefetch)),
        in_order=asked.get("in_order", str(model.present.in_order)) == "True",
    )
    return Prediction(model.gain(queue), blamed if is_queue else WAITS)


def _starved(scene: Scene) -> tuple[RunCase, Starvation | None]:
    """The trial's run, and how much of its time it waits for data."""
    case = run_case_of(scene, scene.runs[0])
    return case, starvation_of(case)


def _workers_now(scene: Scene) -> int | None:
    loader = scene.runs[0].critical.train_loader if scene.runs else None
    return None if loader is None else loader.num_workers


def _of_workers(asked: dict[str, str], scene: Scene) -> Gain | None:
    """The rules' own formula for a number of workers that is not the one they chose."""
    workers = int(asked.get("num_workers", "0"))
    if not scene.runs or workers < 1 or asked.keys() - {"num_workers"} - _BESIDE:
        return None
    case, starvation = _starved(scene)
    cost = step_cost(case, starvation) if starvation is not None else None
    if cost is None:
        return None
    advice, gain = advise(case, cost), cost.gain(workers)
    # Where the rules promise nothing for their own number, there is no promise for another one.
    if advice.promise is None or middle(advice.gain) < LEAST_PROMISE or (advice.shared and gain.low < LEAST_PROMISE):
        return None
    return gain
