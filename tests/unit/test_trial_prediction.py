"""What the rules predicted is compared with the measurement of the same change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queued_runs import queued
from scene_builder import gpu, host, loader, machine, process, rank, run, scene

from gpuwatch.diagnosis.advice.cost import step_cost
from gpuwatch.diagnosis.advice.gains import middle
from gpuwatch.diagnosis.advice.loader_queue import LoaderQueue, QueueModel, queue_model
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import (
    CallEdit,
    Edit,
    Finding,
    Fix,
    Gain,
    Level,
    Measure,
    ModelEdit,
    SetupEdit,
    Severity,
)
from gpuwatch.diagnosis.rule import run_case_of
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial.changes import Arm, arms_of
from gpuwatch.trial.results import predict

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


LONG = [0.5 if place % 40 == 20 else 0.005 for place in range(800)]
"""Batches of which one in forty takes a hundred times as long."""
DEEPER = finding("slow-samples", CallEdit("DataLoader", "t.py", 3, {"prefetch_factor": "8"}))


def waiting(cause: str | None) -> Finding:
    """The parent of the data rules by itself, as it names a cause."""
    return replace(
        finding("data-starvation", CallEdit("DataLoader", "t.py", 3, {})), evidence=(Measure("cause", cause, "cause"),)
    )


def model_of(moment: Scene) -> QueueModel:
    case = run_case_of(moment, moment.runs[0])
    starvation = starvation_of(case)
    assert starvation is not None
    model = queue_model(case, starvation)
    assert model is not None
    return model


@pytest.mark.parametrize("found", [DEEPER, waiting("slow-samples"), waiting("bursty-prefetch"), waiting(None)])
def test_any_queue_is_promised_what_the_model_of_it_says_of_just_that_one(found: Finding) -> None:
    moment = queued(LONG, 0.02)
    told = [
        predict(arm(*changes), moment, [found])
        for changes in (("prefetch_factor=2",), ("prefetch_factor=4",), ("prefetch_factor=8",), ("in_order=false",))
    ]
    gains = [each.gain for each in told if each is not None]
    assert [round(middle(gain), 1) for gain in gains] == [1.0, 1.2, 1.4, 1.4]
    assert predict(arm("prefetch_factor=8"), moment, []) is None, "no rule says that it waits"


@pytest.mark.parametrize("found", [DEEPER, waiting("slow-samples"), waiting(None)])
@pytest.mark.parametrize(
    ("changes", "queue"),
    [
        (("num_workers=2",), LoaderQueue(2, 2)),
        (("num_workers=8",), LoaderQueue(8, 2)),
        (("num_workers=8", "persistent_workers=true"), LoaderQueue(8, 2)),
        (("num_workers=8", "prefetch_factor=4"), LoaderQueue(8, 4)),
        (("num_workers=3", "in_order=false"), LoaderQueue(3, 2, in_order=False)),
    ],
)
def test_where_the_queue_is_to_blame_a_number_of_workers_is_one_more_queue(
    found: Finding, changes: tuple[str, ...], queue: LoaderQueue
) -> None:
    moment = queued(LONG, 0.02)
    told = predict(arm(*changes), moment, [found])
    assert told is not None and told.gain == model_of(moment).gain(queue)


def test_more_workers_hide_part_of_the_slow_items_and_not_all_that_is_lost() -> None:
    moment = queued(LONG, 0.02)
    told = [predict(arm(f"num_workers={count}"), moment, [waiting("slow-samples")]) for count in (2, 8, 32)]
    two, eight, all_hidden = (each.gain for each in told if each is not None)
    assert two.high < 1.0 < eight.low < all_hidden.low
    assert eight.high < all_hidden.high
    assert all_hidden.cap == "then the GPU sets the pace"


def test_a_deeper_queue_is_said_to_bring_nothing_where_workers_are_too_slow() -> None:
    moment = queued([0.2] * 400, 0.02, busy_share=1.0)
    told = predict(arm("prefetch_factor=8"), moment, [waiting("workers-too-few")])
    assert told is not None and told.rule == "data-starvation"
    assert told.gain.low == 1.0 and told.gain.high < 1.06
    formula = predict(arm("num_workers=8"), moment, [waiting("workers-too-few")])
    assert formula is not None and formula.rule == "workers-too-few", "which knows what more of them cost"


@pytest.mark.parametrize("changes", ["prefetch_factor=8", "in_order=false", "num_workers=8"])
def test_nothing_is_promised_of_a_queue_whose_batches_do_not_explain_the_loss(changes: str) -> None:
    moment = queued(LONG, 0.02)
    member = moment.runs[0].critical
    assert member.workers is not None
    for times in ((), (0.005,) * 800, tuple(3 * each for each in LONG)):
        other = replace(member, workers=replace(member.workers, newest_batch_seconds=times))
        assert predict(arm(changes), replace(moment, runs=(run(other),)), [waiting("slow-samples")]) is None


def test_nothing_is_promised_of_workers_that_would_compete_with_the_training() -> None:
    making = [each * 2 for each in LONG]
    usual = queued(making, 0.02).runs[0].critical
    assert usual.workers is not None
    member = replace(
        usual,
        facts=replace(usual.facts, device="cpu", torch_threads=2, cpu_affinity=2),
        workers=replace(usual.workers, batch_cpu_seconds=usual.workers.batch_seconds),
        process=process(cores=2, tree_cores=1.9, main_thread_cores=1.0),
    )
    moment = scene(run(member), gpus=[], host=host(cpu_percent=95), machine=machine(2))
    assert model_of(moment).missed_seconds < 0.01
    assert predict(arm("num_workers=8"), moment, [waiting("slow-samples")]) is None
    assert predict(arm("prefetch_factor=8"), moment, [waiting("slow-samples")]) is not None


def test_another_number_of_workers_is_promised_what_the_formula_says() -> None:
    moment = starved(0.2, 0.1)
    found = predict(arm("num_workers=1"), moment, [])
    case = run_case_of(moment, moment.runs[0])
    starvation = starvation_of(case)
    assert found is not None and starvation is not None
    cost = step_cost(case, starvation)
    assert cost is not None
    assert (found.rule, found.gain) == ("workers-zero", cost.gain(1))


@pytest.mark.parametrize("cause", ["io-bound", "cpu-quota-throttled", "slow-collate-ipc", "epoch-too-short"])
def test_the_formula_is_silent_where_workers_are_not_what_is_too_few(cause: str) -> None:
    moment = queued([0.2] * 400, 0.02, busy_share=1.0)
    assert predict(arm("num_workers=8"), moment, [waiting("workers-too-few")]) is not None
    assert predict(arm("num_workers=8"), moment, [waiting(cause)]) is None


def test_nothing_is_promised_where_the_rules_would_not() -> None:
    assert predict(arm("num_workers=2"), crowded(), []) is None
    assert predict(arm("num_workers=2"), starved(0.001, 0.1), []) is None
    assert predict(arm("num_workers=0"), starved(0.2, 0.1), []) is None
    assert predict(arm("num_workers=2"), None, []) is None
    assert predict(Arm(), starved(0.2, 0.1), [WORKERS]) is None
