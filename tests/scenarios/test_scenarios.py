"""A part of the suite: what must be found is found, and nothing is said of runs that are well."""

from __future__ import annotations

import functools
import random
from math import sqrt
from statistics import fmean
from typing import Any

import pytest

from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.samples import BatchCount, BatchWait, GpuGap, RunMemory, Sample, StackTally, StepEnd, WorkerFetch
from tests.scenarios.__main__ import main
from tests.scenarios.attached import EVERY
from tests.scenarios.catalogue import SCENARIOS
from tests.scenarios.job import PERTURBATION, Job, Loading, perturbed
from tests.scenarios.judged import START_NS, Judged
from tests.scenarios.playing import play_one
from tests.scenarios.score import scored
from tests.scenarios.stream import SECOND_NS, StreamSource
from tests.scenarios.training import Training
from tests.scenarios.truth import factor, truth_of

FOUND = ("01-w0-heavy", "04-few-3of16", "08-quota", "09-io-bound", "13-ckpt-stall", "17-launch-bound", "27-shared")
WELL = ("H01", "H03", "H05", "H11", "H14", "H22")
FOUND_OUTSIDE = ("attached-01-w0-heavy", "attached-04-few-3of16", "attached-09-io-bound", "attached-13-ckpt-stall")
WELL_OUTSIDE = ("attached-H01", "attached-H03", "attached-H14")
OUT_OF_ORDER: dict[str, Any] = {"in_order": False}
KNOWN = frozenset(rule.id for rule in all_rules())


@functools.cache
def played(scenario: str, seed: int) -> Judged:
    return play_one((scenario, seed))


@pytest.mark.parametrize("scenario", [*FOUND, *FOUND_OUTSIDE])
def test_problem_is_found_in_time_with_its_cause_unsaid_after_it_and_without_a_false_warning(scenario: str) -> None:
    score = scored([played(scenario, 1)], KNOWN)
    assert not score.missed
    assert not score.stayed
    assert not score.false
    assert score.right_causes == len(score.causes)


@pytest.mark.parametrize("scenario", [*WELL, *WELL_OUTSIDE])
def test_nothing_is_warned_of_where_all_is_well(scenario: str) -> None:
    judged = played(scenario, 1)
    assert judged.begun is not None
    assert judged.trouble is None
    assert not scored([judged], KNOWN).false


def test_gain_of_workers_is_what_the_same_job_gains_with_them() -> None:
    (promise,) = (one for one in played("04-few-3of16", 1).promises if one.rule == "workers-too-few")
    assert promise.real > 1.3
    assert promise.low * 0.85 <= promise.real <= promise.high * 1.15


def test_seen_from_outside_no_step_and_no_wait_is_reported_but_batches_are_counted() -> None:
    source = StreamSource(Job(Loading(workers=2, cpu_seconds=0.4)), "outside", START_NS, hooked=False)
    found = list(source.collect(START_NS + 20 * SECOND_NS))
    kinds = {type(sample) for sample in found}
    assert kinds.isdisjoint({StepEnd, BatchWait, GpuGap, WorkerFetch, RunMemory})
    counts = [sample.batches for sample in found if isinstance(sample, BatchCount)]
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(20.0 / 0.2, rel=0.1)
    tallies = [sample for sample in found if isinstance(sample, StackTally)]
    waited = sum(tally.phases.get("wait", 0) for tally in tallies) / sum(tally.samples for tally in tallies)
    assert waited == pytest.approx(truth_of(Job(Loading(workers=2, cpu_seconds=0.4)), "outside").wait_share, abs=0.06)
    assert sum(tally.rejected for tally in tallies) > 0


def test_wait_behind_queued_kernels_costs_nothing_and_a_sync_exposes_it() -> None:
    hidden = Job(Loading(workers=0, cpu_seconds=0.06))
    truth = truth_of(hidden, "hidden")
    assert truth.wait_share > 0.4
    assert truth.gap_share < 0.01
    assert truth_of(hidden.with_computing(asks=True), "exposed").gap_share > 0.25


def test_workers_too_slow_set_the_pace_together() -> None:
    three = Job(Loading(workers=3, cpu_seconds=0.6))
    assert factor(three, three.with_loading(workers=6), "pace") == pytest.approx(2.0, rel=0.05)


def test_out_of_order_the_other_batches_pass_a_slow_one() -> None:
    job = Job(Loading(workers=4, cpu_seconds=0.2, slow_share=0.012, slow_times=40.0))
    ideal = factor(job, job.ideal(), "queue")
    deeper, passing = (factor(job, job.with_loading(**loading), "queue") for loading in ({"prefetch": 8}, OUT_OF_ORDER))
    assert 1.05 < deeper < passing
    assert passing == pytest.approx(ideal, rel=0.1)
    even = Job(Loading(workers=4, cpu_seconds=0.2))
    assert factor(even, even.with_loading(**OUT_OF_ORDER), "queue") == pytest.approx(1.0, abs=0.02)


def test_gain_of_another_queue_is_set_beside_the_same_jobs_in_that_queue() -> None:
    streams = [play_one(("11-slow-samples", seed), clearing=False) for seed in range(1, 9)]
    promises = [one for stream in streams for one in stream.promises if one.rule == "slow-samples"]
    assert len(promises) == len(streams)
    assert all(one.real > 1.5 for one in promises)
    # How many slow items ten minutes hold is chance, of which the range covers 1.3 deviations: 81% of the draws, 6.5
    # of 8; the mean of the middles has little of it.
    assert sum(one.low <= one.real <= one.high for one in promises) >= 6
    middle, real = fmean(sqrt(one.low * one.high) for one in promises), fmean(one.real for one in promises)
    assert middle == pytest.approx(real, rel=0.05)


def test_a_gap_is_known_two_steps_later_however_long_its_own_step_was() -> None:
    job = Job(Loading(workers=1, cpu_seconds=0.02, slow_share=0.05, slow_times=200.0))
    known: list[tuple[float, int, float]] = []
    ends: dict[int, float] = {}

    def emit(moment: float, sample: Sample) -> None:
        if isinstance(sample, GpuGap):
            known.append((moment, sample.number, sample.seconds))
        elif isinstance(sample, StepEnd):
            ends[sample.number] = moment

    training = Training(job, "gaps", emit=emit)
    while len(ends) < 100:
        training.advance()
    assert [step for _, step, _ in known] == list(range(1, 99))
    assert any(seconds > 3.0 for _, _, seconds in known)
    assert all(ends[step + 1] < moment < ends[step + 2] + 0.5 for moment, step, _ in known)


def test_every_perturbed_quantity_stays_within_its_bounds() -> None:
    job = SCENARIOS["16-eval-cpu-heavy"].job
    for seed in range(20):
        drawn = perturbed(job, random.Random(seed))
        for was, now in (
            (job.loading.cpu_seconds, drawn.loading.cpu_seconds),
            (job.computing.gpu_seconds, drawn.computing.gpu_seconds),
            (job.pauses[0].seconds, drawn.pauses[0].seconds),
        ):
            assert abs(now / was - 1.0) <= PERTURBATION
        assert drawn.pauses[0].kind == "eval"
        assert drawn.loading.workers == job.loading.workers


def test_labels_name_rules_that_exist() -> None:
    named = set().union(*(one.must | one.may | one.never for one in EVERY.values()))
    assert named <= KNOWN
    assert {one.cause for one in EVERY.values() if one.cause} <= named


def test_command_prints_the_table_and_refuses_unknown_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "H02", "--seeds", "3", "--jobs", "1"]) == 0
    assert "0 warnings in 0.0 simulated hours" in capsys.readouterr().out
    assert main(["--scenario", "no-such"]) == 2
    assert "no-such" in capsys.readouterr().err
