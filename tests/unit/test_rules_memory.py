"""The memory family: headroom, nearly full, and an allocator that retries."""

import pytest

from gpuwatch.diagnosis.finding import Level, Severity
from gpuwatch.timeline.windows import MemoryTotals
from tests.unit import scene_builder as build

GIB = 2**30


def memory_run(peak_gib, *, reserved_gib=None, **fields):
    totals = MemoryTotals(
        allocated_peak_bytes=int(peak_gib * GIB),
        reserved_peak_bytes=int((reserved_gib or peak_gib) * GIB),
        total_bytes=80 * GIB,
        alloc_retries=fields.pop("alloc_retries", 0),
        out_of_memory=fields.pop("out_of_memory", 0),
    )
    return build.run(build.rank(step=0.2, gap=0.0, memory=totals, **fields))


def test_headroom_doubles_the_batch_and_says_what_would_fill_the_memory():
    moment = build.scene(memory_run(20), gpus=[build.gpu(utilization=60)])
    draft = build.check("batch-headroom", build.run_case(moment))
    assert draft.fires
    assert draft.fix.value == 64
    # 0.4 GB of weights and state; (0.9 * 80 - 0.37) / (20 - 0.37) * 32 = 116, down to a multiple of 8.
    assert "about 112 would fill" in draft.fix.text


@pytest.mark.parametrize(
    ("peak_gib", "utilization", "holding"),
    [
        pytest.param(20, 60, {"data-starvation"}, id="a starved run gets no more samples from a bigger batch"),
        pytest.param(20, 97, set(), id="a saturated GPU"),
        pytest.param(60, 60, set(), id="memory in use"),
    ],
)
def test_headroom_is_silent(peak_gib, utilization, holding):
    moment = build.scene(memory_run(peak_gib), gpus=[build.gpu(utilization=utilization)])
    assert build.check("batch-headroom", build.run_case(moment, holding=holding)) is None


def test_nearly_full_prefers_what_torch_reserved_over_what_the_driver_counts():
    moment = build.scene(memory_run(60, reserved_gib=78.5))
    draft = build.check("memory-near-limit", build.gpu_case(moment))
    assert (draft.severity, draft.level) == (Severity.WARNING, Level.E2)
    assert any("tensors needed at most 60.0 GiB" in measure.text for measure in draft.evidence)


def test_nearly_full_without_a_hook_is_hardware_evidence():
    gpu = build.gpu(memory_used_bytes=build.stats([75 * GIB]))
    draft = build.check("memory-near-limit", build.gpu_case(build.scene(gpus=[gpu])))
    assert (draft.severity, draft.level, draft.fires) == (Severity.INFO, Level.E0, True)


def test_nearly_full_is_silent_with_room_or_without_a_reading():
    roomy = build.gpu(memory_used_bytes=build.stats([40 * GIB]))
    unknown = build.gpu(memory_used_bytes=None)
    for gpu in (roomy, unknown):
        assert build.check("memory-near-limit", build.gpu_case(build.scene(gpus=[gpu]))) is None


def test_retries_fire_from_one_in_a_hundred_steps():
    often = build.scene(memory_run(70, alloc_retries=6))
    assert build.check("alloc-retries", build.run_case(often)).fires
    once = build.scene(memory_run(70, alloc_retries=1))
    assert not build.check("alloc-retries", build.run_case(once)).fires
    never = build.scene(memory_run(70))
    assert build.check("alloc-retries", build.run_case(never)) is None


def test_an_out_of_memory_error_fires_at_once():
    moment = build.scene(memory_run(70, out_of_memory=1))
    assert build.check("alloc-retries", build.run_case(moment)).fires
