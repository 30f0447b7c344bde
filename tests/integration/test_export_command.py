"""`gpuwatch export`: what other tools get of a recording."""

from __future__ import annotations

import csv
import io
import json
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.__main__ import main
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import FindingRecord, RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.samples import (
    BatchWait,
    GpuFacts,
    GpuLost,
    GpuSample,
    PhaseSpan,
    RunFacts,
    Sample,
    StepEnd,
    TrainerEnded,
    WorkerFetch,
    XidEvent,
)
from tests.integration.simulated_recordings import record, record_samples, recording_monitor

Event = dict[str, Any]

_HOSTILE = 'x\x1b]0;t\x07"<script>,\n=cmd|\u202e\udcff'
_S = 1_000_000_000


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run that evaluates and saves, with findings."""
    return record(tmp_path_factory.mktemp("recordings") / "run.gpuwatch", "fluctuation", 120)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of everything that a trace shows, with names that mean harm, and edges that do not fit."""
    path = tmp_path_factory.mktemp("hostile") / "run.gpuwatch"
    trainer = "4711.1"
    samples: list[Sample] = [
        GpuFacts(1 * _S, "GPU-1", 0, _HOSTILE),
        RunFacts(1 * _S, trainer, 4711, 1, (_HOSTILE, _HOSTILE), cwd=_HOSTILE),
        GpuSample(2 * _S, "GPU-1", utilization_percent=50.0, utilization_ring=((_S // 2, 10.0), (2 * _S, 60.0))),
        GpuSample(3 * _S, "GPU-1", utilization_percent=float("nan"), utilization_ring=((2 * _S, 60.0), (3 * _S, 70.0))),
        BatchWait(trainer, 1, "train", 2 * _S, 2 * _S + 500, 0),
        WorkerFetch(trainer, 99, 0, 2 * _S, 3 * _S, 0.5),
        PhaseSpan(trainer, "eval", 2 * _S + 400, None),
        PhaseSpan(trainer, "gc", 2 * _S + 450, 2 * _S + 460),
        PhaseSpan(trainer, "eval", 2 * _S + 400, 3 * _S - 200, file=_HOSTILE, line=3),
        StepEnd(trainer, 1, 2 * _S + 100, 3 * _S, 4e-7),
        StepEnd(trainer, 1, 2 * _S + 100, 3 * _S, 4e-7),  # sent twice
        BatchWait(trainer, 1, "train", 3 * _S, 4 * _S + 700, 0),  # ends after its step
        StepEnd(trainer, 2, 3 * _S - 50, 4 * _S, 0.9),
        PhaseSpan(trainer, "checkpoint", 4 * _S, None),
        XidEvent(4 * _S, None, 79, _HOSTILE),
        GpuLost(4 * _S, "GPU-1", _HOSTILE),
        TrainerEnded(trainer, 5 * _S, "killed"),
    ]
    writer = RecordingWriter(path, RecordingMeta(hostname=_HOSTILE, version="0", label="LIVE", command=(_HOSTILE,)))
    for second in range(1, 6):
        writer.add([each for each in samples if _at(each) == second], second * _S, 1.8e9 + second)
        if second == 3:
            writer.add_findings(
                3 * _S, [FindingRecord("k", "data-starvation", "critical", "firing", trainer, None, b"{}")]
            )
    writer.close()
    return path


def _at(sample: Sample) -> int:
    for name in ("time_ns", "end_ns", "start_ns"):
        if getattr(sample, name, None) is not None:
            return -(-int(getattr(sample, name)) // _S)
    return 0


def _exported(capsysbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[str, str]:
    assert main(["export", *map(str, arguments)]) == 0
    shown = capsysbinary.readouterr()
    return shown.out.decode(), shown.err.decode()


def _csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_on_stdout_is_the_gpus_and_says_what_else_there_is(
    recording: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text, said = _exported(capsysbinary, recording, "--csv")
    rows = _csv(text)
    assert len(rows) == pytest.approx(120, abs=3)
    assert {"time_seconds", "wall_time", "gpu_index", "utilization_percent", "power_watts"} <= rows[0].keys()
    assert 0 <= float(rows[0]["time_seconds"]) < 2 and 118 < float(rows[-1]["time_seconds"]) <= 120
    assert rows[0]["power_watts"] and "table gpu" in said and "step" in said


def test_csv_values_are_those_of_the_samples(recording: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, _ = _exported(capsysbinary, recording, "--csv", "--table", "step")
    rows = _csv(text)
    with Recording(recording) as opened:
        steps = list(opened.samples(opened.start_ns, opened.end_ns, kinds=[StepEnd]))
        start_ns = opened.start_ns + 1
    assert len(rows) == len(steps) > 50
    for row, step in zip(rows, steps, strict=True):
        assert isinstance(step, StepEnd)
        assert int(row["number"]) == step.number
        assert float(row["end_seconds"]) == pytest.approx((step.end_ns - start_ns) / 1e9, abs=1e-8)
        assert float(row["wait_seconds"]) == pytest.approx(step.wait_seconds)


def test_unknown_values_are_empty_and_never_zero(hostile: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, _ = _exported(capsysbinary, hostile, "--csv")
    rows = _csv(text)
    assert [row["utilization_percent"] for row in rows] == ["50.0", ""]
    assert {row["power_watts"] for row in rows} == {""}


def test_a_folder_gets_a_file_per_kind_of_sample(
    recording: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    _exported(capsysbinary, recording, "--csv", "-o", f"{tmp_path}/tables/")
    found = {path.name: _csv(path.read_text()) for path in (tmp_path / "tables").iterdir()}
    assert {"gpu.csv", "step.csv", "host.csv", "run.csv", "loader.csv", "phase.csv", "finding.csv"} <= found.keys()
    assert all(found.values())
    assert found["run.csv"][0]["model_parameters"] and found["run.csv"][0]["command"].startswith("python")
    assert all(row["rule"] for row in found["finding.csv"])


def test_parquet_has_types_and_nulls(hostile: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    _exported(capsysbinary, hostile, "--parquet", "-o", tmp_path / "gpu.parquet")
    table = parquet.read_table(tmp_path / "gpu.parquet")
    assert str(table.schema.field("utilization_percent").type) == "double"
    assert table.column("utilization_percent").to_pylist() == [50.0, None]
    _exported(capsysbinary, hostile, "--parquet", "-o", tmp_path)
    assert parquet.read_table(tmp_path / "step.parquet").column("number").to_pylist() == [1, 1, 2]


def test_parquet_without_pyarrow_says_how_to_get_it(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", str(hostile), "--parquet", "-o", str(tmp_path / "x.parquet")]) == 2
    assert "pip install 'gpuwatch[parquet]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def _scalars(folder: Path) -> tuple[dict[str, list[tuple[float, int, float]]], dict[str, str]]:
    """What a folder of events holds: wall time, step and value by tag, and the texts."""
    from tensorboardX.proto.event_pb2 import Event as Logged

    (path,) = folder.glob("events.out.tfevents.*")
    data, scalars, texts = path.read_bytes(), defaultdict(list), {}
    while data:
        (length,) = struct.unpack_from("<Q", data)
        event = Logged.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            if value.HasField("tensor"):
                texts[value.tag] = value.tensor.string_val[0].decode()
            else:
                scalars[value.tag].append((event.wall_time, event.step, value.simple_value))
    return scalars, texts


def test_tensorboard_gets_the_curves_and_findings_at_their_wall_times(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(recording), "--tensorboard", "-o", str(tmp_path / "logs")]) == 0
    scalars, texts = _scalars(tmp_path / "logs")
    with Recording(recording) as opened:
        began, ended = opened.wall_time(opened.start_ns), opened.wall_time(opened.end_ns)
        findings = {each.rule for each in opened.findings(opened.start_ns, opened.end_ns) if each.is_active}
    utilization = scalars["gpuwatch/gpu0/utilization_percent"]
    (share,) = (values for tag, values in scalars.items() if tag.endswith("/wait_share"))
    assert all(0.0 <= value <= 1.0 for _, _, value in share)
    assert 0.0 <= min(utilization)[2] < 50.0 < max(value for _, _, value in utilization) <= 100.0
    assert all(began <= wall <= ended and 0 <= step <= 120 for wall, step, _ in utilization)
    assert utilization == sorted(utilization)
    assert {tag.split("/")[2] for tag in texts} <= findings and texts
    count = sum(map(len, scalars.values()))
    assert f"{count:,} scalars" in capsys.readouterr().err


def test_tensorboard_needs_a_folder_and_its_library(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(recording), "--tensorboard"]) == 2
    assert "give -o FOLDER" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["export", str(recording), "--tensorboard", "-o", str(tmp_path / "logs")]) == 2
    assert "pip install 'gpuwatch[tensorboard]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_json_lines_hold_everything_in_order(recording: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, _ = _exported(capsysbinary, recording, "--jsonl")
    lines = [json.loads(line) for line in text.splitlines()]
    with Recording(recording) as opened:
        count = sum(1 for _ in opened.samples(opened.start_ns, opened.end_ns))
    kinds = [line["type"] for line in lines]
    assert len([kind for kind in kinds if kind != "finding_span"]) >= count
    assert {"gpu_sample", "step_end", "host_sample", "run_facts", "phase_span", "finding_span"} <= set(kinds)
    gpu = next(line for line in lines if line["type"] == "gpu_sample")
    assert gpu["utilization_ring"] and gpu["power_watts"] > 0


@pytest.mark.parametrize("form", ["--csv", "--jsonl", "--chrome-trace"])
def test_hostile_names_steer_no_terminal(
    hostile: Path, form: str, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    text, _ = _exported(capsysbinary, hostile, form, *(["--table", "run"] if form == "--csv" else []))
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    if form == "--csv":
        [row] = _csv(text)
        assert row["cwd"].startswith("x\\x1b]0;t") and row["trainer"] == "4711.1"
    elif form == "--jsonl":
        assert any(json.loads(line).get("cwd", "").startswith("x\x1b]0;t") for line in text.splitlines())


def _trace(capsysbinary: pytest.CaptureFixture[bytes], path: Path, *arguments: object) -> list[Event]:
    text, _ = _exported(capsysbinary, path, "--chrome-trace", *arguments)
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ms"
    events: list[Event] = document["traceEvents"]
    return events


def _check_structure(events: list[Event]) -> None:
    """What the Trace Event Format asks for, and that slices of one track lie within each other or apart."""
    assert {event["ph"] for event in events} <= set("MXCbei")
    timed = [event for event in events if event["ph"] != "M"]
    assert events[: len(events) - len(timed)] == [event for event in events if event["ph"] == "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in timed)
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in timed} <= named
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in timed:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
    assert tracks.keys() <= threads
    for slices in tracks.values():
        open_until: list[float] = []
        for event in slices:
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-3, event
            open_until.append(end)
    spans = [event for event in timed if event["ph"] in "be"]
    opened: dict[tuple[str, int], float] = {}
    for event in spans:
        key = (event["cat"], event["id"])
        if event["ph"] == "b":
            assert key not in opened
            opened[key] = event["ts"]
        else:
            assert event["ts"] >= opened.pop(key)
    assert not opened


def _slices(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["name"].startswith(name)]


def test_the_trace_is_well_formed_and_holds_all_tracks(
    recording: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    events = _trace(capsysbinary, recording)
    _check_structure(events)
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]}
    assert any(name.startswith("GPU 0 NVIDIA") for name in names)
    assert any(name.startswith("train.py (pid ") for name in names)
    assert {"training", "eval", "checkpoint"} <= names
    assert len(_slices(events, "step ")) > 50 and _slices(events, "wait for data") and _slices(events, "eval")
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert {"utilization (%)", "power (W)", "memory (GiB)", "CPU (%)"} <= counters
    assert any(event["ph"] == "b" for event in events)


def test_steps_and_gpus_share_one_axis(recording: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    events = _trace(capsysbinary, recording)
    with Recording(recording) as opened:
        start_ns = opened.start_ns + 1
        step = next(
            each
            for each in opened.samples(opened.start_ns, opened.end_ns, kinds=[StepEnd])
            if isinstance(each, StepEnd) and each.number == 20
        )
    [shown] = _slices(events, "step 20")[:1]
    assert shown["ts"] == pytest.approx((step.start_ns - start_ns) / 1e3, abs=0.01)
    assert shown["dur"] == pytest.approx((step.end_ns - step.start_ns) / 1e3, abs=0.01)
    waits = [each for each in _slices(events, "wait") if shown["ts"] <= each["ts"] < shown["ts"] + shown["dur"]]
    assert step.wait_seconds is not None
    assert sum(each["dur"] for each in waits if each["tid"] == shown["tid"]) == pytest.approx(
        step.wait_seconds * 1e6, rel=0.01, abs=1
    )


def test_edges_that_do_not_fit_make_no_crossing_slices(
    hostile: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    events = _trace(capsysbinary, hostile)
    _check_structure(events)
    assert [event["name"] for event in _slices(events, "step")] == ["step 1", "step 2"]
    assert len(_slices(events, "make a batch")) == 1
    use = [event["args"]["value"] for event in events if event["name"] == "utilization (%)"]
    assert use == [60.0, 70.0]  # not the value from before the recording, and none of them twice
    [checkpoint] = _slices(events, "checkpoint")
    assert checkpoint["dur"] == pytest.approx(1e6, abs=1)  # it lasts until the recording ends
    assert {"i"} == {event["ph"] for event in events if event["name"].startswith(("Xid", "GPU lost", "training k"))}


def test_a_part_stays_on_the_recordings_axis(recording: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, _ = _exported(capsysbinary, recording, "--csv", "--from", "30", "--to", "60")
    times = [float(row["time_seconds"]) for row in _csv(text)]
    assert 29 <= times[0] <= 31.5 and 58.5 <= times[-1] <= 60.5
    events = _trace(capsysbinary, recording, "--from", "30", "--to", "60")
    _check_structure(events)
    assert max(event["ts"] for event in _slices(events, "step")) < 61e6


def test_a_recording_that_is_still_written_is_exported(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monitor = recording_monitor(tmp_path / "now.gpuwatch", "starved", 20)
    try:
        _check_structure(_trace(capsysbinary, tmp_path / "now.gpuwatch"))
        text, _ = _exported(capsysbinary, tmp_path / "now.gpuwatch", "--csv", "--table", "step")
    finally:
        monitor.stop()
    assert len(_csv(text)) > 20


def test_an_empty_stretch_of_a_table_is_a_header(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = record_samples(tmp_path / "run.gpuwatch", "starved", 5)
    text, _ = _exported(capsysbinary, path, "--csv", "--table", "xid")
    assert text == "time_seconds,wall_time,gpu_index,uuid,xid,text\n"


@pytest.fixture
def places(tmp_path: Path, hostile: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "text").write_text("hello\n")
    yield {"file": str(hostile), "text": str(tmp_path / "text"), "folder": str(tmp_path)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{file}"], "--csv"),
        (["{file}", "--csv", "--jsonl"], "not allowed with"),
        (["{file}", "--csv", "--table", "gpus"], "did you mean 'gpu'"),
        (["{file}", "--jsonl", "--table", "gpu"], "--table is for --csv and --parquet"),
        (["{file}", "--jsonl", "-o", "{folder}"], "is a folder"),
        (["{file}", "--csv", "-o", "{text}/tables/"], "cannot be made (Not a directory): give another -o"),
        (["{file}", "--parquet"], "cannot be written to a pipe"),
        (["{file}", "--csv", "--from", "900"], "nothing was recorded"),
        (["{text}", "--csv"], "text"),
        (["{folder}/nowhere.gpuwatch", "--csv"], "nowhere.gpuwatch"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_two(
    arguments: list[str], says: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *(each.format(**places) for each in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and shown.err.startswith("gpuwatch: ") and shown.err.count("\n") == 1


def test_what_was_over_before_the_recording_began_is_no_slice_of_no_length(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    writer = RecordingWriter(tmp_path / "a.gpuwatch", RecordingMeta("node07", "0.1.0"))
    told = [
        PhaseSpan("1.1", "gc", _S, 2 * _S),
        StepEnd("1.1", 1, _S, 2 * _S, 0.1),
        StepEnd("1.1", 2, 9 * _S, 11 * _S, 0.1),
    ]
    writer.add(told, 10 * _S, 1_700_000_010.0)
    writer.add([], 12 * _S, 1_700_000_012.0)
    writer.close()
    events = _trace(capsysbinary, tmp_path / "a.gpuwatch")
    assert [event["name"] for event in events if event["ph"] == "X"] == ["step 2"]
    text, _ = _exported(capsysbinary, tmp_path / "a.gpuwatch", "--csv", "--table", "phase")
    assert float(_csv(text)[0]["end_seconds"]) == -8
