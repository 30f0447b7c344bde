"""The power family: heat, brakes and limits."""

import pytest

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.samples import GpuHealth
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
    assert draft.severity is Severity.INFO and "(normal)" in draft.summary and draft.fix is None


def test_at_a_lowered_limit_the_default_is_named():
    gpu = build.gpu(utilization=99, power=395, power_limit_watts=400.0, reason_bit_shares={0x4: 0.8})
    draft = build.check("power-capped", build.gpu_case(build.scene(gpus=[gpu])))
    assert draft.severity is Severity.WARNING
    assert draft.fix.value == 700.0 and "-pl 700" in draft.fix.code


def test_below_its_limit_nothing_is_said():
    gpu = build.gpu(utilization=99, power=500, reason_bit_shares={0x4: 0.8})
    assert build.check("power-capped", build.gpu_case(build.scene(gpus=[gpu]))) is None


def locked_gpu(clock=1200.0, *, power=400.0, temperature=60.0, **fields):
    return build.gpu(
        power=power,
        sm_clock_mhz=build.stats(clock if isinstance(clock, list) else [clock] * 60),
        temperature_celsius=build.stats([temperature]),
        **fields,
    )


def clocks(gpu):
    return build.check("clocks-locked-low", build.gpu_case(build.scene(gpus=[gpu])))


def test_a_flat_low_clock_is_locked_and_the_command_gives_it_back():
    draft = clocks(locked_gpu())
    assert draft.fires
    assert "stays at 1200 MHz although it could do 1980 MHz: its clock is locked" in draft.summary
    assert (draft.fix.code, draft.fix.value) == ("sudo nvidia-smi -i 0 -rgc", 1980)
    assert (draft.gain.low, draft.gain.high) == (1.0, 1.65)


def test_an_application_clock_is_reported_by_the_drivers_own_reason():
    health = GpuHealth(time_ns=build.START_NS, uuid="GPU-0", application_clock_mhz=1755)
    draft = clocks(locked_gpu(1755.0, reason_bit_shares={0x2: 1.0}, latest_health=health))
    assert "application clock is set" in draft.summary
    assert draft.fix.code.endswith("-rac")
    assert any("1755 MHz" in measure.text and measure.name == "application_clock_mhz" for measure in draft.evidence)


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(locked_gpu(1600.0), id="81% of the highest, no reason given"),
        pytest.param(locked_gpu([1100.0, 1300.0] * 30), id="a clock that moves is not locked"),
        pytest.param(locked_gpu(1900.0, reason_bit_shares={0x2: 1.0}), id="set to nearly the highest"),
        pytest.param(locked_gpu(1755.0, reason_bit_shares={0x2: 0.5}), id="a reason that comes and goes"),
        pytest.param(locked_gpu(utilization=80.0), id="not busy"),
        pytest.param(locked_gpu(power=650.0), id="near its power limit"),
        pytest.param(locked_gpu(power=None), id="power not known"),
        pytest.param(locked_gpu(temperature=82.0), id="hot"),
        pytest.param(locked_gpu(throttle_shares={"sw-thermal": 0.5}), id="heat holds it down"),
        pytest.param(locked_gpu(reason_bit_shares={0x8: 1.0}), id="the hardware brakes"),
        pytest.param(locked_gpu(facts={"mig": True}), id="MIG"),
        pytest.param(locked_gpu(facts={"sm_clock_max_mhz": None}), id="highest clock not known"),
    ],
)
def test_a_clock_that_is_not_locked_low_is_not_reported(gpu):
    assert clocks(gpu) is None


def test_a_locked_clock_is_said_after_a_minute_and_gone_once_it_rises():
    moment, free = build.scene(gpus=[locked_gpu()]), build.scene(gpus=[locked_gpu(1950.0)])
    assert "clocks-locked-low" not in build.fired(moment, evaluations=11)
    assert "clocks-locked-low" in build.fired(moment, evaluations=12)
    assert clocks(free.gpus[0]) is None


def test_low_power_stands_behind_the_locked_clock_that_explains_it():
    found = {each.rule: each for each in build.findings(build.scene(gpus=[locked_gpu(power=300.0)]), evaluations=13)}
    assert found["low-power-high-util"].behind == "clocks-locked-low"
