"""The health family: XID events and memory errors."""

import pytest

from gpuwatch.diagnosis.finding import Severity
from gpuwatch.samples import GpuHealth, XidEvent
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
