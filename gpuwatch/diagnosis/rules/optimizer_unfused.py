"""The optimizer step launches many small kernels.

Means:
    Updating the weights is little arithmetic in many launches: without a fused kernel one per operation and group of
    tensors, and the training thread launches nothing else in the meantime.
Evidence:
    Hook: the optimizer's share of the step on the training thread, one of the optimizers that have a fused kernel, and
    fused not set.
Fires:
    10% of the step.
Clears:
    Below 5%, or fused.
Not when:
    Training on the CPU; optimizers of other libraries and offloaded ones; torch older than 2.0 (SGD: 2.3). A GPU that
    is busy throughout hides the launches: then nothing is gained.
Causes:
    fused is not given, which is the default, or foreach=True excludes it.
Fix:
    fused=True in the optimizer's call; foreach=True, where it is given, must go.
Gain:
    A hint: at most half of the optimizer's share, which is a guess; 3-5% were reported. torch's own default on CUDA
    (foreach) already merges much of it.
Verify:
    The optimizer's share is down, samples per second are up.
Source:
    torch.optim documentation (fused before foreach before the plain loop); the 3-5% of a real case.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import torch_version
from gpuwatch.diagnosis.advice.fixes import call_code, optimizer_edit
from gpuwatch.diagnosis.advice.gains import without
from gpuwatch.diagnosis.advice.sampled import trains_on
from gpuwatch.diagnosis.advice.starvation import train_busy_percent
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold

SAVED_SHARE = 0.5
FUSED_SINCE = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3)}


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.10, "of a step that the optimizer takes: reported from here on")
    clear_share: float = threshold(0.05, "until it takes less", bounded_by="fire_share")


@rule(
    "optimizer-unfused",
    family="precision",
    subject="run",
    level=Level.E2,
    after=("launch-bound",),
    behind=("data-starvation",),
    thresholds=Thresholds,
)
def optimizer_unfused(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    model, share = rank.facts.model, rank.optimizer_share
    since, version = FUSED_SINCE.get(model.optimizer or ""), torch_version(rank.facts.torch)
    if trains_on(case) != "cuda" or model.optimizer_fused is not False or share is None or share < limits.clear_share:
        return None
    if since is None or version is None or version < since:
        return None
    assert model.optimizer is not None
    busy = train_busy_percent(case)
    return Draft(
        summary=f"{model.optimizer} takes {share * 100:.0f}% of each step of {case.run.title} and is not fused",
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            share_measure("optimizer_share", share, "optimizer on the training thread"),
            Measure("optimizer_fused", "False", f"{model.optimizer} without fused=True"),
            *(() if busy is None else (Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy"),)),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(case),
        hint=(
            f"1.0-{without(SAVED_SHARE * share):.2f}x if half of it goes, which is a guess; 3-5% were reported, "
            "and nothing where the GPU is busy throughout"
        ),
        verify="The optimizer's share is down, samples per second are up",
        chart=("run.step_seconds", "gpu.utilization_percent"),
    )


def _fix(case: RunCase) -> Fix:
    model = case.run.critical.facts.model
    assert model.optimizer is not None
    must_go = model.optimizer_foreach is True
    return Fix(
        text="Let one kernel update the weights" + (", and remove foreach=True: the two exclude each other" * must_go),
        code=call_code({"fused": "True"}, f"torch.optim.{model.optimizer}"),
        file=model.optimizer_file,
        line=model.optimizer_line,
        value="True",
        edit=None if must_go else optimizer_edit(model, fused="True"),
    )
