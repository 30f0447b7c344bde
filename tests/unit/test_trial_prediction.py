"""What the rules promised is set beside the measurement of just the same change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queued_runs import queued
from scene_builder import gpu, host, loader, machine, process, rank, run, scene

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.cases import run_case_of
from gpuwatch.diagnosis.finding import CallEdit, Edit, Finding, Fix, Gain, Level, ModelEdit, SetupEdit, Severity
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial.changes import Arm, arms_of
from gpuwatch.trial.prediction import predict

GAIN = Gain(1.3, 1.6)


def arm(*changes: str) -> Arm:
    return arms_of(list(changes))[1]


def starved(load: float, compute: float) -> Scene:
    """A run on a GPU that loads its batches itself, waiting for storage."""
    trained = rank(step=load + compute, wait=load, gap=load, loader=loader(num_workers=0), wait_cpu_share=0.02)
    return scene(run(trained), gpus=[gpu(utilization=50)])


def crowded() -> Scene:
    """A run on two cores of which loading and training both want all."""
    trained = rank(
        step=0.08,
        wait=0.05,
        device="cpu",
        loader=loader(num_workers=0, batch_bytes=100_000),
        wait_cpu_share=1.0,
        facts={"torch_threads": 2, "cpu_affinity": 2},
        process=process(cores=2, tree_cores=1.4, main_thread_cores=1.0),
    )
    return scene(run(trained), gpus=[], host=host(cpu_percent=70), machine=machine(2))


def finding(rule: str, edit: Edit) -> Finding:
    return Finding(
        rule, Severity.WARNING, Level.E2, "it is slow", (), "firing", 0, fix=Fix("do it", edit=edit), gain=GAIN
    )


WORKERS = finding("workers-zero", CallEdit("DataLoader", "t.py", 3, {"num_workers": "4", "persistent_workers": "True"}))
TF32 = finding("tf32-off", SetupEdit("t.py", 'torch.set_float32_matmul_precision("high")'))
COMPILE = finding("compile-off", ModelEdit("t.py", 3, "{model}.compile()"))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (("num_workers=4",), "workers-zero"),
        (("num_workers=4", "persistent_workers=true"), "workers-zero"),
        (("num_workers=4", "prefetch_factor=8"), None),
        (("num_workers=4", "tf32=true"), None),
        (("tf32=true",), "tf32-off"),
        (("tf32=false",), None),
        (("compile=true",), "compile-off"),
        (("env.A=1",), None),
    ],
)
def test_only_the_very_change_that_a_finding_asks_for_has_its_gain(changes: tuple[str, ...], rule: str | None) -> None:
    quiet = replace(starved(0.2, 0.1), runs=())
    found = predict(arm(*changes), quiet, [WORKERS, TF32, COMPILE])
    assert (found.rule if found else None) == rule
    assert found is None or found.gain == GAIN


def test_any_queue_is_promised_what_the_model_of_it_says_of_just_that_one() -> None:
    long = [0.5 if place % 40 == 20 else 0.005 for place in range(800)]
    moment = queued(long, 0.02)
    blamed = finding("slow-samples", CallEdit("DataLoader", "t.py", 3, {"prefetch_factor": "8"}))
    found = [
        predict(arm(*changes), moment, [blamed])
        for changes in (("prefetch_factor=2",), ("prefetch_factor=4",), ("prefetch_factor=8",), ("in_order=false",))
    ]
    gains = [each.gain for each in found if each is not None and each.rule == "slow-samples"]
    assert [round(middle(gain), 1) for gain in gains] == [1.0, 1.2, 1.4, 1.4]
    assert predict(arm("prefetch_factor=8"), moment, []) is None, "no rule blames the queue"


def test_another_number_of_workers_is_promised_what_the_formula_says() -> None:
    moment = starved(0.2, 0.1)
    found = predict(arm("num_workers=1"), moment, [])
    case = run_case_of(moment, moment.runs[0])
    starvation = starvation_of(case)
    assert found is not None and starvation is not None
    cost = step_cost(case, starvation)
    assert cost is not None
    assert (found.rule, found.gain) == ("workers-zero", cost.gain(1))


def test_nothing_is_promised_where_the_rules_would_not() -> None:
    assert predict(arm("num_workers=2"), crowded(), []) is None
    assert predict(arm("num_workers=2"), starved(0.001, 0.1), []) is None
    assert predict(arm("num_workers=0"), starved(0.2, 0.1), []) is None
    assert predict(arm("num_workers=2"), None, []) is None
    assert predict(Arm(), starved(0.2, 0.1), [WORKERS]) is None
