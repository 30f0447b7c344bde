"""Rules wait for the warm-up and for enough steps, samples or counted batches; hardware rules do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_engine_hysteresis import a_rule

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Draft, Finding, Level, Severity
from gpuwatch.diagnosis.gates import have_spoken, steps_known
from gpuwatch.diagnosis.rule import GpuCase, MachineCase, RunCase
from gpuwatch.timeline.windows import RankWindow, Scene
from tests.unit.scene_builder import START_NS, gpu, later, loader, rank, run, scene
from tests.unit.stack_windows import from_outside, sampled, watched


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


SECOND_NS = 1_000_000_000


def rank_of(batches: int = 150, **seen: Any) -> RankWindow:
    stacks = watched({"wait": 0.3}, **seen)
    return replace(sampled(replace(stacks, batches=batches)), steps=batches, steps_total=batches, warm=batches >= 10)


def picture(**seen: Any) -> Scene:
    return scene(run(rank_of(**seen)), window=20.0)


def test_six_hundred_samples_of_the_stack_are_enough_and_one_less_is_not() -> None:
    assert said(picture(samples=599)) == ()
    assert said(picture(samples=600)) != ()


def test_thirty_counted_batches_are_enough_and_one_less_is_not() -> None:
    assert said(picture(batches=29)) == ()
    assert said(picture(batches=30)) != ()


def test_slow_steps_are_judged_after_a_minute() -> None:
    assert said(picture(batches=4, seconds=40.0)) == ()
    assert said(picture(batches=4, seconds=59.0)) != ()


def test_a_counter_that_does_not_move_is_a_standstill_and_not_a_slow_step() -> None:
    assert said(picture(batches=1, seconds=59.0)) == ()
    assert said(picture(batches=0, batches_per_second=0.0, seconds=59.0)) == ()


def test_without_a_counter_half_a_minute_is_enough() -> None:
    unknown = {"batches": 0, "batches_per_second": None}
    assert said(picture(seconds=20.0, **unknown)) == ()
    assert said(picture(seconds=31.0, **unknown)) != ()


def test_before_ten_batches_nothing_is_judged_but_by_time() -> None:
    cold = replace(rank_of(batches=40), warm=False)
    assert said(scene(run(cold))) == ()


def test_the_strongest_word_takes_fifty_batches_or_a_minute() -> None:
    assert said(picture(batches=49))[0].severity is Severity.WARNING
    assert said(picture(batches=50))[0].severity is Severity.CRITICAL
    assert said(picture(batches=12, seconds=59.0))[0].severity is Severity.CRITICAL


def test_without_stacks_a_sampled_run_is_not_judged_but_its_gpu_is_by_time() -> None:
    blind = scene(run(replace(rank_of(), stacks=None)), gpus=[gpu()])
    assert said(blind) == ()
    assert said(blind, subject="gpu") != ()
    assert said(replace(blind, window_seconds=20.0), subject="gpu") == ()


def test_its_steps_are_known_as_soon_as_batches_are_counted() -> None:
    assert steps_known(run(rank_of(batches=1)))
    assert not steps_known(run(rank_of(batches=0)))


def test_a_run_that_ended_gets_nothing_new() -> None:
    assert said(scene(run(replace(rank_of(), ended="exited")))) == ()


def test_too_few_samples_neither_clear_nor_fire() -> None:
    engine = Engine([a_rule(always)])
    moment = scene(run(rank_of()))
    engine.evaluate(moment)
    (finding,) = engine.evaluate(later(moment, 5))
    few = scene(run(rank_of(samples=100)))
    assert engine.evaluate(later(few, 60)) == (finding,)


@pytest.mark.parametrize(
    ("seen", "spoken"),
    [
        ({"samples": 600, "seconds": 12.0}, False),
        ({"samples": 1500, "seconds": 20.0, "batches": 100}, True),
        ({"samples": 1500, "seconds": 20.0, "batches": 40}, False),
        ({"samples": 6000, "seconds": 60.0, "batches": 3}, True),
        ({"samples": 500, "seconds": 60.0}, False),
    ],
    ids=["just enough", "asked twice", "the thirtieth batch has just come", "slow steps", "never enough"],
)
def test_silence_counts_once_the_rules_were_asked_twice(seen: dict[str, Any], spoken: bool) -> None:
    assert have_spoken(rank_of(**seen), START_NS + 1_000 * SECOND_NS, START_NS) is spoken


def test_it_also_holds_for_a_loader_known_by_its_hook() -> None:
    assert said(scene(run(sampled(watched({"wait": 0.3}), loader=loader())))) != ()
    assert said(scene(run(sampled(watched({"wait": 0.3}), loader=from_outside(num_workers=0))))) != ()
