from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.cli.output import GpuwatchError
from gpuwatch.cli.session import NothingSeen, explanation
from gpuwatch.samples import Candidate, NvmlState
from tests.unit.snapshot_builder import gpu, run, snapshot

ABSENT = NvmlState(time_ns=0, status="absent", reason="libnvidia-ml.so.1 was not found: install the driver.")


def test_is_sure_after_ten_seconds_without_anything() -> None:
    nothing = NothingSeen(patient=False)
    nothing.see(snapshot(seconds=9))
    assert not nothing.is_sure
    nothing.see(snapshot(seconds=10))
    assert nothing.is_sure


def test_is_never_sure_while_something_shows_or_the_user_waits() -> None:
    nothing = NothingSeen(patient=False)
    nothing.see(snapshot(gpu(), seconds=100))
    assert not nothing.is_sure
    nothing.see(snapshot(runs=(run(),), seconds=100))
    assert not nothing.is_sure
    patient = NothingSeen(patient=True)
    patient.see(snapshot(seconds=1000))
    assert not patient.is_sure


def test_a_run_that_has_left_the_screen_was_something() -> None:
    nothing = NothingSeen(patient=False)
    nothing.see(snapshot(runs=(run(),), seconds=100))
    nothing.see(snapshot(seconds=900))
    assert not nothing.is_sure
    nothing.refuse(snapshot(seconds=900))


def test_refuses_an_empty_snapshot_with_the_drivers_reason_and_the_way_to_get_going() -> None:
    with pytest.raises(GpuwatchError) as refused:
        NothingSeen(patient=False).refuse(snapshot(nvml=ABSENT))
    text = str(refused.value)
    for part in ("libnvidia-ml.so.1 was not found", "no training run", "gpuwatch run", "doctor", "demo"):
        assert part in text
    NothingSeen(patient=False).refuse(snapshot(gpu()))


def test_names_the_way_to_runs_without_the_hook_where_there_are_any() -> None:
    assert "--attach" not in explanation(snapshot(nvml=ABSENT))
    plain = Candidate(1, 1, ("python", "train.py"), "ada", 9.0, "sampled", "has torch loaded")
    assert "1 process trains here without it" in explanation(snapshot(nvml=ABSENT, candidates=(plain,)))
    both = snapshot(nvml=ABSENT, candidates=(plain, replace(plain, pid=2), replace(plain, pid=3, visibility="exact")))
    assert "2 processes train here without it (`gpuwatch --attach` lists them)" in explanation(both)
