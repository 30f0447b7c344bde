"""What shows only over a session: recompilations, memory that creeps up, steps that became slower."""

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, Severity
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.timeline.windows import MemoryTotals, Pace, PaceBlock, PeakGrowth, Recompiles
from tests.unit import scene_builder as build

GIB = 2**30
SIZES = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 6"


def moment_of(*, loader=None, model=None, **fields):
    members = fields.pop("members", None)
    rank = build.rank(
        gap=0.0,
        loader=build.loader(**(loader or {})),
        facts={"model": build.model(**(model or {}))},
        **fields,
    )
    return build.scene(build.run(*(members or (rank,))))


def storm(count=6, seconds=60.0, over=600.0, **fields):
    return moment_of(recompiles=Recompiles(count, seconds, seconds / over, over), **fields)


def judged(rule, moment):
    return build.check(rule, build.run_case(moment))


def test_a_storm_names_reason_function_and_what_it_costs():
    model = {"recompile_reason": SIZES, "recompile_file": "/home/user/model.py", "recompile_line": 40}
    draft = judged("recompile-storm", storm(model=model))
    assert draft.fires and draft.severity is Severity.WARNING
    assert "recompiled 6 times in 10.0 min and took 10% of the time (model.py:40)" in draft.summary
    # Of six in 10 min one more or less is chance.
    assert draft.gain.high == pytest.approx(1 / (1 - 0.1 * 7 / 6), abs=0.001)
    assert draft.gain.low == pytest.approx(1 / (1 - 0.1 * 5 / 6), abs=0.001)
    assert "dynamic=True" in draft.fix.code


def test_a_fifth_of_the_time_is_critical():
    assert judged("recompile-storm", storm(seconds=120.0)).severity is Severity.CRITICAL


def test_only_the_last_batch_is_smaller_so_it_is_dropped():
    loader = {"batch_shapes": 1, "batches_inspected": 5, "drop_last": False}
    draft = judged("recompile-storm", storm(loader=loader, model={"recompile_reason": SIZES}))
    assert draft.fix.edit == CallEdit("DataLoader", build.SCRIPT, 88, {"drop_last": "True"})


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("0/1: GLOBAL_STATE changed: grad_mode", "once for training and once for evaluation"),
        ("0/2: L['step'] == 7", "as a tensor"),
        (None, "TORCH_LOGS=recompiles"),
    ],
)
def test_the_fix_follows_the_reason(reason, words):
    assert words in judged("recompile-storm", storm(model={"recompile_reason": reason})).fix.text


@pytest.mark.parametrize(("count", "seconds", "over"), [(2, 60.0, 600.0), (6, 29.0, 600.0), (6, 30.0, 59.0)])
def test_few_compilations_cheap_ones_and_a_short_look_do_not_fire(count, seconds, over):
    assert not judged("recompile-storm", storm(count, seconds, over)).fires


@pytest.mark.parametrize("found", [None, Recompiles(0, 0.0, 0.0, 600.0)])
def test_no_compilation_is_no_storm(found):
    assert judged("recompile-storm", moment_of(recompiles=found)) is None


def test_the_worst_rank_speaks_for_the_run():
    members = [
        build.rank(gap=0.0, pid=100 + i, gpus=(i,), recompiles=Recompiles(4, seconds, seconds / 600, 600.0))
        for i, seconds in enumerate((0.4, 66.0))
    ]
    assert "11% of the time" in judged("recompile-storm", moment_of(members=members)).summary


def growing(
    quarters_mib=(300, 300, 300, 300), *, steps=1_000, start_gib=10.0, peak_gib=12.0, total_gib=80, seconds=600.0
):
    growth = PeakGrowth(seconds, steps, int(start_gib * GIB), tuple(mib * 2**20 for mib in quarters_mib))
    memory = MemoryTotals(
        allocated_peak_bytes=int(peak_gib * GIB), total_bytes=total_gib * GIB if total_gib else None, growth=growth
    )
    return judged("gpu-memory-creep", moment_of(memory=memory))


def test_a_leak_is_reported_with_the_time_until_memory_is_full():
    draft = growing((450, 450, 450, 450))
    assert draft.fires
    assert draft.fix.value == pytest.approx(68 * 1024 / 1800 * 600, rel=0.01)
    assert "1.8 GiB more in 1,000 steps; at this pace it is full in" in draft.summary
    assert draft.gain is None


def test_a_slow_leak_fires_where_memory_is_full_within_the_hour():
    assert not growing(steps=10_000).fires, "0.12% per 100 steps, full in 9 h"
    assert growing(steps=10_000, peak_gib=76.0).fires


def test_a_slow_leak_whose_end_is_not_known_does_not_fire():
    assert not growing(steps=10_000, total_gib=None).fires


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"quarters_mib": (1200, 0, 0, 0)}, id="one jump, as the first evaluation makes"),
        pytest.param({"quarters_mib": (700, 300, 150, 50)}, id="peaks of random lengths rise ever less"),
        pytest.param({"quarters_mib": (400, 400, 400, 0)}, id="no rise any more"),
        pytest.param({"quarters_mib": (0, 0, 0, 0)}, id="flat"),
        pytest.param({"quarters_mib": (400, 400, -100, 400)}, id="the peak was reset"),
        pytest.param({"steps": 799}, id="too few steps"),
    ],
)
def test_memory_that_does_not_creep(fields):
    assert growing(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"quarters_mib": (120, 120, 120, 120), "start_gib": 1.0}, id="under 512 MiB"),
        pytest.param({"start_gib": 40.0, "peak_gib": 41.2}, id="under 6%"),
    ],
)
def test_a_little_growth_holds_but_does_not_fire(fields):
    assert not growing(**fields).fires


def test_memory_without_growth_known_is_silent():
    assert judged("gpu-memory-creep", moment_of(memory=MemoryTotals(allocated_peak_bytes=GIB))) is None
    assert judged("gpu-memory-creep", moment_of()) is None


def slowed(now=0.11, *, best=0.1, best_parts=None, now_parts=None, means=(None, None), order=1, noise=0.005, **fields):
    first = PaceBlock(build.START_NS, build.START_NS + 10 * build.SECOND, 100, best, best_parts or {}, means[0])
    start = build.START_NS + order * 60 * build.SECOND
    second = PaceBlock(start, start + 11 * build.SECOND, 100, now, now_parts or {}, means[1])
    return moment_of(pace=Pace(first, second, 20, noise), **fields)


def test_a_slower_run_names_how_much_and_the_part_that_grew():
    moment = slowed(
        best_parts={"wait": 0.01, "forward": 0.03, "backward": 0.05},
        now_parts={"wait": 0.019, "forward": 0.03, "backward": 0.05},
    )
    draft = judged("step-time-regression", moment)
    assert draft.fires
    assert "take 110 ms, 10% longer than 110 s ago: its wait time grew" in draft.summary
    assert draft.fix.value == "wait" and "storage" in draft.fix.text
    assert (draft.gain.low, draft.gain.high) == (1.0, 1.1)


def test_a_loss_outside_of_the_known_parts_is_said_to_be_there():
    draft = judged("step-time-regression", slowed(best_parts={"wait": 0.01}, now_parts={"wait": 0.011}))
    assert draft.fix.value is None and "outside of the known parts" in draft.fix.text


@pytest.mark.parametrize(("now", "fires"), [(0.1085, True), (0.107, False), (0.1045, False)])
def test_eight_percent_fires_and_four_clears(now, fires):
    assert judged("step-time-regression", slowed(now)).fires is fires


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(slowed(0.103), id="3%"),
        pytest.param(slowed(noise=None), id="too few blocks to know how they usually differ"),
        pytest.param(slowed(order=0), id="the best is the newest"),
        pytest.param(slowed(loader={"batch_shapes": 3, "batches_inspected": 9}), id="inputs of several lengths"),
        pytest.param(moment_of(), id="pace not known"),
    ],
)
def test_a_run_that_keeps_its_pace_is_silent(moment):
    assert judged("step-time-regression", moment) is None


def test_a_run_whose_steps_always_waver_is_not_called_slower():
    assert not judged("step-time-regression", slowed(0.115, noise=0.04)).fires
    assert judged("step-time-regression", slowed(0.118, noise=0.04)).fires


def test_a_slower_run_stands_behind_the_heat_that_explains_it():
    hot = build.gpu(
        throttle_shares={"sw-thermal": 0.5}, sm_clock_mhz=build.stats([1500.0]), temperature_celsius=build.stats([88.0])
    )
    moment = build.scene(*slowed().runs, gpus=[hot])
    found = {finding.rule: finding for finding in build.findings(moment, evaluations=7)}
    assert found["step-time-regression"].behind == "thermal-throttle"
    assert any("1500 of 1900 MHz" in measure.text for measure in found["step-time-regression"].evidence)


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        ("recompile-storm", storm(), moment_of(recompiles=Recompiles(0, 0.0, 0.0, 600.0))),
        ("step-time-regression", slowed(), slowed(0.102)),
    ],
)
def test_it_clears(rule, bad, good):
    engine = Engine([rule_by_id(rule)])
    for number in range(6):
        said = engine.evaluate(build.later(bad, 5 * number))
    assert said
    for number in range(8):
        said = engine.evaluate(build.later(good, 30 + 5 * number))
    assert said == ()


def test_a_median_that_grew_while_steps_got_quicker_in_the_mean_is_no_regression():
    assert judged("step-time-regression", slowed(0.108, best=0.093, means=(0.22, 0.108))) is None
    assert judged("step-time-regression", slowed(0.108, best=0.093, means=(0.093, 0.108))).fires
