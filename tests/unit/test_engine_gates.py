"""Rules wait for the warm-up and for enough steps and samples; hardware rules do not."""

from __future__ import annotations

from dataclasses import replace

from scene_builder import gpu, later, rank, run, scene
from test_engine_hysteresis import a_rule

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Finding, Level, Severity
from gpuwatch.diagnosis.rule import GpuCase, MachineCase, RunCase
from gpuwatch.timeline.windows import Scene


def always(case: RunCase | GpuCase | MachineCase) -> Draft:
    return Draft("it is so", Severity.CRITICAL, Level.E3, ())


def said(moment: Scene, **fields: object) -> tuple[Finding, ...]:
    engine = Engine([a_rule(always, **fields)])
    engine.evaluate(moment)
    return engine.evaluate(later(moment, 5))


def test_no_verdict_before_the_warm_up_ends() -> None:
    assert said(scene(run(rank(warm=False)))) == ()
    assert said(scene(run(rank(warm=False))), gated=False) != ()


def test_no_verdict_on_steps_or_gpu_outside_of_the_training_loop() -> None:
    left = scene(run(replace(rank(), outside=True)), gpus=[gpu()])
    assert said(left) == () and said(left, subject="gpu") == ()
    assert said(left, gated=False) != ()


def test_thirty_steps_are_enough_in_any_time() -> None:
    assert said(scene(run(rank(steps=29, window=20.0)), window=20.0)) == ()
    assert said(scene(run(rank(steps=30, window=20.0)), window=20.0)) != ()


def test_critical_takes_fifty_steps() -> None:
    assert said(scene(run(rank(steps=49))))[0].severity is Severity.WARNING
    assert said(scene(run(rank(steps=50))))[0].severity is Severity.CRITICAL


def test_a_gpu_rule_waits_for_thirty_samples() -> None:
    few, enough = gpu(spacing=60 / 29), gpu(spacing=60 / 30)
    assert said(scene(gpus=[few]), subject="gpu") == ()
    assert said(scene(gpus=[enough]), subject="gpu") != ()


def test_a_gpu_without_utilization_counts_its_power_samples() -> None:
    assert said(scene(gpus=[gpu(utilization=None)]), subject="gpu") != ()


def test_a_gpu_rule_waits_for_the_warm_up_of_the_run_on_it() -> None:
    assert said(scene(run(rank(warm=False)), gpus=[gpu()]), subject="gpu") == ()
    assert said(scene(run(rank(warm=False)), gpus=[gpu()]), subject="gpu", gated=False) != ()


def test_a_run_rule_that_reads_the_gpu_waits_for_its_samples() -> None:
    trained = run(rank())
    assert said(scene(trained, gpus=[gpu(spacing=3.0)]), needs_gpu=True) == ()
    assert said(scene(trained, gpus=[]), needs_gpu=True) == ()
    assert said(scene(trained, gpus=[gpu(spacing=3.0)])) != ()


def test_a_run_without_a_hook_is_judged_by_time() -> None:
    unhooked = rank(steps=1, facts={"visibility": "process"})
    unhooked = replace(unhooked, steps=0, steps_total=0, warm=False)
    assert said(scene(run(unhooked), window=20.0)) == ()
    assert said(scene(run(unhooked), window=60.0)) != ()


def test_a_closed_gate_neither_clears_nor_fires() -> None:
    engine = Engine([a_rule(always)])
    moment = scene(run(rank()))
    idle = scene(run(rank(steps=3)))
    engine.evaluate(moment)
    assert engine.evaluate(later(idle, 5)) == ()
    (finding,) = engine.evaluate(later(moment, 10))
    assert engine.evaluate(later(idle, 300)) == (finding,)
    assert engine.evaluate(later(idle, 700)) == ()


def test_a_run_that_ended_keeps_what_was_found_and_gets_nothing_new() -> None:
    engine = Engine([a_rule(always, gated=False)])
    moment = scene(run(rank()))
    ended = scene(run(rank(ended="exited")))
    assert said(ended, gated=False) == ()
    engine.evaluate(moment)
    found = engine.evaluate(later(moment, 5))
    assert engine.evaluate(later(ended, 10)) == found
