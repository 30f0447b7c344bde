"""The power family: heat, brakes and limits."""

import pytest

from gpuwatch.diagnosis.finding import Severity
from tests.unit import scene_builder as build


def hot_gpu(share, *, clock=1600.0, **fields):
    return build.gpu(
        throttle_shares={"sw-thermal": share},
        sm_clock_mhz=build.stats([clock]),
        temperature_celsius=build.stats([88.0]),
        **fields,
    )


@pytest.mark.parametrize(("share", "severity"), [(0.06, Severity.WARNING), (0.3, Severity.CRITICAL)])
def test_heat_is_a_warning_and_from_a_quarter_of_the_time_critical(share, severity):
    draft = build.check("thermal-throttle", build.gpu_case(build.scene(gpus=[hot_gpu(share)])))
    assert draft.fires
    assert draft.severity is severity
    assert draft.gain.high == pytest.approx(1900 / 1600, abs=0.01)


def test_heat_that_costs_no_clock_is_not_reported():
    assert build.check("thermal-throttle", build.gpu_case(build.scene(gpus=[hot_gpu(0.3, clock=1890)]))) is None


def test_heat_between_the_thresholds_holds():
    draft = build.check("thermal-throttle", build.gpu_case(build.scene(gpus=[hot_gpu(0.03)])))
    assert not draft.fires


def test_a_power_brake_blames_the_supply():
    gpu = build.gpu(reason_bit_events={0x80: 9}, reason_bit_shares={0x80: 0.05})
    draft = build.check("hw-slowdown", build.gpu_case(build.scene(gpus=[gpu])))
    assert draft.fires and draft.severity is Severity.CRITICAL
    assert "PSU" in draft.fix.text


def test_a_single_sample_of_a_state_change_does_not_fire():
    gpu = build.gpu(reason_bit_events={0x8: 1}, reason_bit_shares={0x8: 0.01})
    assert not build.check("hw-slowdown", build.gpu_case(build.scene(gpus=[gpu]))).fires


def test_a_brake_that_stays_on_fires_though_it_rose_only_once():
    gpu = build.gpu(reason_bit_events={0x40: 1}, reason_bit_shares={0x40: 1.0})
    assert build.check("hw-slowdown", build.gpu_case(build.scene(gpus=[gpu]))).fires


def test_at_its_own_limit_a_gpu_is_healthy():
    gpu = build.gpu(utilization=99, power=690, reason_bit_shares={0x4: 0.8})
    draft = build.check("power-capped", build.gpu_case(build.scene(gpus=[gpu])))
    assert draft.severity is Severity.INFO and "healthy" in draft.summary and draft.fix is None


def test_at_a_lowered_limit_the_default_is_named():
    gpu = build.gpu(utilization=99, power=395, power_limit_watts=400.0, reason_bit_shares={0x4: 0.8})
    draft = build.check("power-capped", build.gpu_case(build.scene(gpus=[gpu])))
    assert draft.severity is Severity.WARNING
    assert draft.fix.value == 700.0 and "-pl 700" in draft.fix.code


def test_below_its_limit_nothing_is_said():
    gpu = build.gpu(utilization=99, power=500, reason_bit_shares={0x4: 0.8})
    assert build.check("power-capped", build.gpu_case(build.scene(gpus=[gpu]))) is None
