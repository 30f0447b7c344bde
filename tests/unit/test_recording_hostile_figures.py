"""Figures of recordings whose parts do not fit together, or whose numbers nobody measured."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from gpuwatch.recording.chunks import inflated
from gpuwatch.recording.columns import ColumnReader, DamagedError, check_of, write_column
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.rollups import Hour
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.stretch import summarize, unpaused
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import GpuSample, PhaseSpan, RunFacts, Sample, StackTally, StepEnd, WorkerFetch
from gpuwatch.timeline.columns import MINUTE_NS

SECOND = 1_000_000_000
START = 7_200 * SECOND


def test_minutes_of_pauses_are_those_that_each_pause_reaches_back_over() -> None:
    rng = random.Random(5)
    for _ in range(50):
        made = [minute * MINUTE_NS for minute in rng.sample(range(100), 60)]
        pauses = [(rng.randrange(100) * MINUTE_NS, rng.random() * 400) for _ in range(5)]
        paused = {at // MINUTE_NS - back for at, seconds in pauses for back in range(1 + int(seconds // 60))}
        assert unpaused(made, pauses) == {at for at in made if at // MINUTE_NS not in paused}


@pytest.mark.parametrize("seconds", [1e300, float("inf"), float("nan"), -1e300, -1.0])
def test_a_pause_of_an_impossible_length_takes_no_time(seconds: float) -> None:
    made = [minute * MINUTE_NS for minute in range(5)]
    assert unpaused(made, [(3 * MINUTE_NS, seconds)]) <= set(made)


def test_a_run_on_a_gpu_that_never_introduced_itself_has_its_other_figures(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a.gpuwatch", RecordingMeta("node", "0", started_wall=1.7e9))
    for tick in range(200):
        now = START + tick * SECOND // 4
        samples: list[Sample] = [GpuSample(now, "GPU-9", energy_joules=float(tick))]
        if not tick:
            samples.append(RunFacts(now, "7.8", 7, 8, ("python", "a.py"), gpu_uuids=("GPU-9",)))
        samples.append(StepEnd("7.8", tick, now - SECOND // 4, now, 0.01, samples=8))
        writer.add(samples, now, 1.7e9 + tick / 4)
    writer.close()
    with Recording(tmp_path / "a.gpuwatch") as recording:
        (run,) = summarize(recording, recording.start_ns, recording.end_ns).runs
    assert run.steps > 100
    assert run.energy_joules_per_sample is None


def test_columns_of_one_blob_together_claim_no_more_values_than_a_minute_has() -> None:
    out = bytearray()
    for _ in range(8):
        write_column([1.5, 1.5], out)
    reader = ColumnReader(bytes(out))
    assert len(reader.read(1 << 20)) == 1 << 20, "one equal value takes a few bytes, however often it comes"
    with pytest.raises(DamagedError):
        for _ in range(7):
            reader.read(1 << 20)


def test_what_inflates_to_more_than_any_chunk_has_is_cut_off() -> None:
    assert len(inflated(zlib.compress(bytes(1 << 24), 9))) == 1 << 24
    with pytest.raises(DamagedError):
        inflated(zlib.compress(bytes(1 << 26), 9))


GOOD = StepEnd("7.8", 1, 2, 3, 0.5)
BAD: list[object] = [
    StepEnd("7.8", "1", 2, 3, 0.5),  # type: ignore[arg-type]
    StepEnd("7.8", 1, 2, 3, "x"),  # type: ignore[arg-type]
    StepEnd(["7.8"], 1, 2, 3, 0.5),  # type: ignore[arg-type]
    StepEnd("7.8", True, 2, 3, 0.5),
    StepEnd("7.8", 2**70, 2, 3, 0.5),
    RunFacts(1, "7.8", 7, 8, ["python"]),  # type: ignore[arg-type]
    RunFacts(1, "7.8", 7, 8, ("python", 1)),  # type: ignore[arg-type]
    RunFacts(1, "7.8", 7, 8, (), model="large"),  # type: ignore[arg-type]
    GpuSample(1, "GPU", utilization_ring=((1,),)),  # type: ignore[arg-type]
    PhaseSpan("7.8", [1], 1, 2),  # type: ignore[arg-type]
    StackTally("7.8", 0, 1, 5, {1: 2}, {}),  # type: ignore[arg-type,call-arg]
]


@pytest.mark.parametrize("sample", BAD, ids=repr)
def test_values_of_other_types_than_their_fields_do_not_fit(sample: object) -> None:
    assert not check_of(type(sample))((sample,))


def test_values_of_the_types_of_their_fields_fit() -> None:
    for sample in (
        GOOD,
        RunFacts(1, "7.8", 7, 8, ("python",)),
        GpuSample(1, "GPU", utilization_ring=((1, 5.0), (2, 6))),
    ):
        assert check_of(type(sample))((sample,))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_numbers_as_large_as_a_file_can_hold_are_summarized(tmp_path: Path, number: int) -> None:
    writer = RecordingWriter(tmp_path / "a.gpuwatch", RecordingMeta("node", "0", started_wall=1.7e9))
    for tick in range(1, 20):
        now = START + tick * SECOND
        writer.add(
            [
                RunFacts(now, "7.8", number, number, ("python", "a.py")),
                WorkerFetch("7.8", number, number, now - SECOND, now, loader=number),
                StepEnd("7.8", number, now - SECOND, now, 0.01, number, number, number, number),
            ],
            now,
            1.7e9 + tick,
        )
    writer.close()
    with Recording(tmp_path / "a.gpuwatch") as recording:
        assert summarize(recording, recording.start_ns, recording.end_ns).runs


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\0" * 400, None, "x", 7])
def test_what_is_no_hour_is_damaged(data: object) -> None:
    with pytest.raises(DamagedError):
        Hour(0, data)
