"""The health family: XID events and memory errors."""

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rules import rule_by_id
from gpuwatch.samples import GpuHealth, GpuStatus, XidEvent
from gpuwatch.timeline.windows import LinkErrors
from tests.unit import scene_builder as build


def xid(number, *, at=60.0):
    return XidEvent(time_ns=build.START_NS + int(at * build.SECOND), uuid="GPU-0", xid=number)


def judged(*events, at=120.0):
    moment = build.scene(gpus=[build.gpu(xids=events)], at=at)
    return build.check("xid-error", build.gpu_case(moment))


def test_the_worst_error_is_named_with_its_age_and_action():
    draft = judged(xid(31), xid(79), xid(43))
    assert draft.severity is Severity.CRITICAL
    assert "XID 79: GPU has fallen off the bus, 60 s ago" in draft.summary
    assert "Restart the machine" in draft.fix.text


def test_an_unknown_number_is_still_reported():
    assert judged(xid(999)).severity is Severity.WARNING


def test_an_event_that_needs_no_action_is_forgotten_after_ten_minutes():
    assert judged(xid(43)) is not None
    assert judged(xid(43), at=60 + 601) is None
    assert judged(xid(79), at=60 + 601) is not None


def health(**fields):
    reading = GpuHealth(time_ns=build.START_NS, uuid="GPU-0", **fields)
    moment = build.scene(gpus=[build.gpu(latest_health=reading)])
    return build.check("ecc-or-remap", build.gpu_case(moment))


@pytest.mark.parametrize(
    "fields",
    [
        {"ecc_uncorrected_volatile": 1},
        {"remap_pending": True},
        {"remap_failed": True},
        {"retired_pages": 63},
        {"remapped_rows_uncorrectable": 512},
    ],
)
def test_uncorrected_errors_are_critical(fields):
    assert health(**fields).severity is Severity.CRITICAL


@pytest.mark.parametrize("fields", [{"retired_pages": 12}, {"ecc_corrected_volatile": 60_000_000}])
def test_many_corrected_errors_are_information(fields):
    assert health(**fields).severity is Severity.INFO


@pytest.mark.parametrize("fields", [{}, {"ecc_corrected_volatile": 40, "ecc_uncorrected_volatile": 0}])
def test_healthy_memory_and_cards_without_ecc_are_silent(fields):
    assert health(**fields) is None


def test_an_error_of_a_gpu_that_is_not_seen_is_reported_for_the_machine():
    gone = XidEvent(time_ns=build.START_NS + 60 * build.SECOND, uuid=None, xid=79, text="PCI:0000:b3:00")
    moment = build.scene(gpus=[build.gpu(0), build.gpu(1)], xids=(gone,))
    draft = build.check("xid-unplaced", build.machine_case(moment))
    assert draft.severity is Severity.CRITICAL
    assert "not among those seen reported XID 79" in draft.summary
    assert draft.fix.code == "nvidia-smi -L"
    assert "xid-unplaced" in build.fired(moment, evaluations=1)


def test_the_only_gpus_error_is_not_reported_twice():
    event = XidEvent(time_ns=build.START_NS, uuid=None, xid=79)
    assert build.check("xid-unplaced", build.machine_case(build.scene(gpus=[build.gpu()], xids=(event,)))) is None
    assert build.check("xid-unplaced", build.machine_case(build.scene(gpus=[]))) is None


def test_an_error_without_any_gpu_left_is_reported():
    event = XidEvent(time_ns=build.START_NS, uuid=None, xid=79)
    assert build.check("xid-unplaced", build.machine_case(build.scene(gpus=[], xids=(event,)))) is not None


def linked(*, holding=(), utilization=97.0, generation=5, width=16, count=18, active=18, **errors):
    gpu = build.gpu(
        utilization=utilization,
        latest_health=GpuHealth(time_ns=build.START_NS, uuid="GPU-0", nvlink_count=count, nvlink_active=active),
        latest_status=GpuStatus(time_ns=build.START_NS, uuid="GPU-0", pcie_generation=generation, pcie_width=width),
        links=LinkErrors(60.0, **errors) if errors else None,
    )
    return build.check("link-errors", build.gpu_case(build.scene(gpus=[gpu]), holding=holding))


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        pytest.param({"nvlink_crc_errors_per_second": 100.0}, "100 CRC errors a second", id="many CRC errors"),
        pytest.param({"nvlink_replays": 1}, "NVLink repeated packets once in 60 s", id="a replay"),
        pytest.param({"nvlink_recoveries": 3}, "trained again 3 times", id="recoveries"),
        pytest.param({"nvlink_lost": 2, "active": 16}, "2 NVLinks went down", id="links that were up"),
        pytest.param({"pcie_replays_per_minute": 31.0}, "31 PCIe packets a minute", id="PCIe replays"),
    ],
)
def test_links_that_lose_packets_are_a_warning(errors, words):
    draft = linked(**errors)
    assert draft.fires and draft.severity is Severity.WARNING
    assert words in draft.summary


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param({}, id="nothing known of errors"),
        pytest.param({"nvlink_crc_errors_per_second": 99.0}, id="CRC errors below the limit"),
        pytest.param({"nvlink_replays": 0, "nvlink_recoveries": 0, "nvlink_lost": 0}, id="clean"),
        pytest.param({"nvlink_lost": 18, "active": 0, "utilization": 0.0}, id="an idle GPU may put its links down"),
        pytest.param({"active": 0, "nvlink_lost": 0}, id="a single card has nothing at its other end"),
        pytest.param({"count": None, "active": None}, id="no NVLink"),
        pytest.param({"pcie_replays_per_minute": 30.0}, id="PCIe replays within the specification"),
        pytest.param({"pcie_replays_per_minute": 31.0, "holding": {"pcie-degraded"}}, id="told by pcie-degraded"),
        pytest.param({"pcie_replays_per_minute": 31.0, "generation": None}, id="generation unknown: no limit known"),
    ],
)
def test_links_are_silent(errors):
    assert linked(**errors) is None


def test_links_that_never_were_up_are_information():
    draft = linked(active=12, nvlink_lost=0)
    assert draft.severity is Severity.INFO
    assert "6 of 18 NVLinks down" in draft.summary


def test_lost_links_are_not_counted_as_never_up():
    draft = linked(active=16, nvlink_lost=2)
    assert "since before" not in draft.summary


def test_the_limit_of_replays_follows_generation_and_width():
    assert linked(pcie_replays_per_minute=16.0, generation=4) is not None
    assert linked(pcie_replays_per_minute=15.0, generation=4) is None
    assert linked(pcie_replays_per_minute=8.0, generation=4, width=8) is not None


def test_link_errors_clear_ten_clean_minutes_later():
    engine = Engine([rule_by_id("link-errors")])
    bad = build.scene(gpus=[build.gpu(links=LinkErrors(60.0, nvlink_replays=2))])
    good = build.scene(gpus=[build.gpu(links=LinkErrors(60.0, nvlink_replays=0))])
    engine.evaluate(bad)
    assert engine.evaluate(build.later(bad, 5))
    assert engine.evaluate(build.later(good, 10))
    for number in range(120):
        said = engine.evaluate(build.later(good, 15 + 5 * number))
    assert said == ()
