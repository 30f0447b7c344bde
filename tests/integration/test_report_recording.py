from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.foreign import whereabouts
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import checksum
from gpuwatch.recording.stretch import summarize
from gpuwatch.recording.writer import RecordingWriter
from gpuwatch.report.build import build_report
from gpuwatch.report.model import as_json
from gpuwatch.report.recorded import observe, process_started
from gpuwatch.samples import RunFacts, StepEnd, TrainerEnded
from tests.integration.command_line import gpuwatch
from tests.integration.recorded_files import META, TRAINER, batches, wall_at
from tests.integration.recorded_files import START_NS as FILE_START_NS
from tests.integration.recorded_sessions import START_NS, START_WALL_TIME, record
from tests.integration.simulated_recordings import record_samples
from tests.unit.test_report_document import check_schema


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes of the starved demo."""
    path = tmp_path_factory.mktemp("recorded") / "starved.gpuwatch"
    record(path, "starved", 120)
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty minutes of a run that evaluates and saves: more than is played."""
    path = tmp_path_factory.mktemp("recorded") / "long.gpuwatch"
    record(path, "fluctuation", 1200)
    return path


def report(path: Path, *arguments: str, **options: Any) -> Any:
    done = gpuwatch(path.parent, "report", str(path), *arguments, "--format", "json", **options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def whole(recording: Recording, *, with_curves: bool = False) -> Any:
    """The report of all of it."""
    return as_json(build_report(observe(recording, recording.start_ns, recording.end_ns, with_curves=with_curves)))


def worded(summary: str) -> str:
    """A sentence without its digits: the rules were asked at another second."""
    return re.sub(r"\d+", "#", summary)


def test_report_of_a_recording_has_the_findings_and_figures_of_the_live_one(tmp_path: Path) -> None:
    for scenario in ("starved", "fluctuation", "attached"):
        path = tmp_path / f"{scenario}.gpuwatch"
        live = record(path, scenario, 200)
        with Recording(path) as recording:
            document = as_json(
                build_report(observe(recording, recording.start_ns, recording.end_ns, with_curves=False))
            )
        check_schema(document)
        assert [(each["rule"], each["run"], each["gpu"]) for each in document["findings"]] == [
            (each.rule, each.run, each.gpu) for each in live.findings
        ]
        for found, was in zip(document["findings"], live.findings, strict=True):
            assert (worded(found["summary"]), found["severity"]) == (worded(was.summary), was.severity.value)
            assert found["fix"] is None or (found["fix"]["code"], found["fix"]["line"]) == (was.fix.code, was.fix.line)


def test_recording_says_what_it_is_and_that_it_was_made_up(starved: Path) -> None:
    document = report(starved)
    about = document["gpuwatch"]
    assert about["source"] == "recording"
    assert about["label"] == "RECORDING starved.gpuwatch (SIMULATED starved)"
    assert (about["started_at"], about["ended_at"][:16]) == ("2026-11-20T14:00:00Z", "2026-11-20T14:01")
    assert document["data_quality"]["problems"] == []
    text = gpuwatch(starved.parent, "report", str(starved), "--format", "text").stdout
    assert "these numbers are simulated" in text


def test_part_of_a_recording_is_reported_by_offsets_and_wall_times(starved: Path) -> None:
    utc = {"TZ": "UTC"}
    for options in (["--from", "30", "--to", "1:30"], ["--from", "14:00:30", "--to", "2026-11-20T14:01:30"]):
        document = report(starved, *options, environment=utc)
        assert document["gpuwatch"]["duration_seconds"] == pytest.approx(60, abs=0.1)
        assert document["gpuwatch"]["ended_at"] == "2026-11-20T14:01:30Z"
        assert document["findings"][0]["rule"] == "data-starvation"


def test_curves_of_a_part_count_from_the_beginning_of_the_recording(starved: Path) -> None:
    document = report(starved, "--from", "30", "--series")
    assert {round(each["start_seconds"]) for each in document["series"]} == {30}
    spans = {span["name"]: span for span in document["spans"]}
    assert spans["data-starvation"]["start_seconds"] >= 29.9


def test_long_recording_is_reported_from_its_minutes(long: Path) -> None:
    document = report(long, "--series")
    check_schema(document)
    assert document["gpuwatch"]["duration_seconds"] == pytest.approx(1200, abs=2)
    (gpu,), (run,) = document["gpus"], document["runs"]
    assert 0 <= gpu["utilization_percent"]["p5"] < gpu["utilization_percent"]["mean"]
    assert 50 < gpu["utilization_percent"]["mean"] < 85
    assert run["steps"] > 3000, "all of it, and not the last minutes"
    assert run["phases"]["eval"]["count"] > 30
    assert any("15 minutes" in problem for problem in document["data_quality"]["problems"])
    finding = next(each for each in document["findings"] if each["rule"] == "eval-stall")
    assert 600 < finding["stood_seconds"] <= 1200
    assert "min of 20 min" in finding["summary"]
    assert 19 <= len(document["series"][0]["mean"]) <= 20
    assert all(any(value is not None for value in each["mean"][:5]) for each in document["series"])
    assert {span["name"] for span in document["spans"]} >= {"eval", "eval-stall"}


def test_utilization_while_training_is_that_of_the_whole_long_part(long: Path, tmp_path: Path) -> None:
    steady = record_samples(tmp_path / "steady.gpuwatch", "starved", 1000)
    for path, is_known in ((steady, True), (long, False)):  # one that evaluates each minute is never only training
        with Recording(path) as recording:
            document = as_json(
                build_report(observe(recording, recording.start_ns, recording.end_ns, with_curves=False))
            )
            (gpu,) = summarize(recording, recording.start_ns, recording.end_ns).gpus
        told, counted = document["gpus"][0]["train_utilization_percent"], gpu.train_utilization_percent
        assert (told is not None, counted is not None) == (is_known, is_known)
        if counted is not None:
            assert (told["mean"], told["sigma"]) == pytest.approx((counted.mean, counted.sigma), rel=1e-3)


def test_finding_that_is_over_is_reported_with_how_long_it_stood(long: Path) -> None:
    with Recording(long) as recording:
        seen = observe(recording, recording.start_ns, recording.end_ns, with_curves=False)
    current_line = next(each for each in seen.snapshot.findings if each.rule == "eval-stall")
    key = (current_line.rule, current_line.run, current_line.gpu)
    over = replace(seen.durations[key], is_over=True, seconds=600.0)
    document = as_json(build_report(replace(seen, durations={key: over})))
    found = next(each for each in document["findings"] if each["rule"] == "eval-stall")
    assert (found["state"], found["stood_seconds"]) == ("over", 600)
    check_schema(document)


def test_run_that_ended_long_before_the_end_has_its_curves(tmp_path: Path) -> None:
    path = tmp_path / "ended.gpuwatch"
    writer = RecordingWriter(path, replace(META, command=()))
    for time_ns, batch in batches(1500):
        seconds = (time_ns - FILE_START_NS) / 1e9
        kept = batch if seconds < 400 else [each for each in batch if not isinstance(each, StepEnd)]
        ended = [TrainerEnded(TRAINER, time_ns, "killed")] if seconds == 400 else []
        writer.add([*kept, *ended], time_ns, wall_at(time_ns))
    writer.close()
    with Recording(path) as recording:
        seen = observe(recording, recording.start_ns, recording.end_ns, with_curves=True)
    document = as_json(build_report(seen, with_series=True))
    (run,) = document["runs"]
    assert (run["state"], run["ended"], run["steps"]) == ("ended (killed)", "killed", 400)
    for kind, share in (("series", 400 / 1500), ("history", 400 / 1500)):
        (steps,) = [each["mean"] for each in document[kind] if each["series"] == "run.step_seconds"]
        known = [value is not None for value in steps]
        assert sum(known) / len(known) == pytest.approx(share, abs=0.06)
        assert known == sorted(known, reverse=True), "known at the beginning, and then no more"


def test_run_without_gpus_that_ended_long_before_the_end_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cpu.gpuwatch"
    writer = RecordingWriter(path, replace(META, command=()))
    for time_ns, batch in batches(1500, gpus=0):
        seconds = (time_ns - FILE_START_NS) / 1e9
        kept = batch if seconds < 400 else [each for each in batch if not isinstance(each, StepEnd)]
        ended = [TrainerEnded(TRAINER, time_ns, "exited")] if seconds == 400 else []
        writer.add([*kept, *ended], time_ns, wall_at(time_ns))
    writer.close()
    document = report(path)
    assert [(run["state"], run["steps"]) for run in document["runs"]] == [("ended", 400)]
    (line,) = document["verdict"]
    assert (line["judged"], line["sentence"]) == (True, "train.py (4711): nothing to change (exact, 400 steps)")
    reasons = {rule["reason"] for rule in document["rules"] if not rule["judged"]}
    assert reasons == {"no GPU was seen", "no GPU of this run was seen"}


def test_ranks_of_a_long_attached_run_are_reported_from_its_minutes(tmp_path: Path) -> None:
    path = tmp_path / "attached.gpuwatch"
    record_samples(path, "attached", 1000)
    with Recording(path) as recording:
        document = whole(recording)
    (run,) = document["runs"]
    (rank,) = run["ranks"]
    assert (rank["steps"], rank["data_wait_share"]) == (run["steps"], run["data_wait_share"])
    assert run["steps"] > 3000 > run["stacks"]["batches"], "stacks are of the last minutes"


def test_findings_in_words_that_nobody_here_knows_are_left_out_and_told(long: Path, tmp_path: Path) -> None:
    path = tmp_path / "newer.gpuwatch"
    shutil.copyfile(long, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for row in connection.execute("SELECT * FROM finding").fetchall():
            *values, _ = row
            if values[5] == "eval-stall":
                values[9] = values[9].replace(b'"level":', b'"level":"new","was":')
                connection.execute(
                    "UPDATE finding SET blob = ?, crc = ? WHERE id = ?", (values[9], checksum(values), values[0])
                )
    with Recording(path) as recording:
        seen = observe(recording, recording.start_ns, recording.end_ns, with_curves=True)
    document = as_json(build_report(seen, with_series=True))
    assert "eval-stall" in {span["name"] for span in document["spans"]}
    assert any("does not know" in problem and "eval-stall" in problem for problem in seen.problems)


def rewritten(connection: sqlite3.Connection, table: str, place: int, value: object) -> None:
    """One column of a table as somebody may have written it, with a checksum that holds."""
    for row in connection.execute(f"SELECT * FROM {table}").fetchall():
        values = list(row[:-1])
        values[place] = value
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, checksum(values)))


@pytest.mark.parametrize(
    ("table", "place", "value"),
    [
        ("meta", 1, "0"),
        ("meta", 1, "NaN"),
        ("meta", 1, "1e300"),
        ("anchor", 2, 1e300),
        ("anchor", 2, None),
        ("anchor", 2, "noon"),
        ("finding", 6, "notice"),
        ("finding", 9, b'{"fix":[]}'),
    ],
)
def test_values_that_no_recorder_writes_end_no_report(
    starved: Path, tmp_path: Path, table: str, place: int, value: object
) -> None:
    path = tmp_path / "odd.gpuwatch"
    shutil.copyfile(starved, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        rewritten(connection, table, place, value)
    with Recording(path) as recording:
        document = whole(recording, with_curves=True)
    check_schema(document)
    assert document["runs"][0]["steps"] > 100


def test_recording_that_is_still_being_written_is_read_up_to_now(tmp_path: Path) -> None:
    path = tmp_path / "growing.gpuwatch"
    documents = []
    record(path, "starved", 90, meanwhile=lambda: documents.append(report(path)))
    (document,) = documents
    assert document["findings"][0]["rule"] == "data-starvation"
    assert any("still being written" in problem for problem in document["data_quality"]["problems"])
    assert document["gpuwatch"]["duration_seconds"] > 80


def test_torn_recording_is_reported_with_what_is_missing(starved: Path, tmp_path: Path) -> None:
    path = tmp_path / "torn.gpuwatch"
    path.write_bytes(starved.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE chunk SET data = zeroblob(length(data)) WHERE rowid = (SELECT max(rowid) FROM chunk)"
        )
    document = report(path)
    assert any("damaged" in problem for problem in document["data_quality"]["problems"])
    assert "damaged" in gpuwatch(tmp_path, "report", str(path)).stdout


def test_what_is_no_recording_is_one_sentence(tmp_path: Path, starved: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("no recording")
    pipe = tmp_path / "pipe.gpuwatch"
    os.mkfifo(pipe)
    wrong = (
        (tmp_path / "missing.gpuwatch", "missing.gpuwatch"),
        (other, "notes.txt"),
        (tmp_path, ""),
        (pipe, "a pipe"),
    )
    for file, said in wrong:
        done = gpuwatch(tmp_path, "report", str(file))
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr
    for arguments, said in (
        (["--from", "2:00:00"], "lasts 0:0"),
        (["--from", "soon"], "0:14:05"),
        (["--duration", "5"], "--from and --to"),
        (["--simulate", "starved"], "is for watching"),
        (["--attach", "1"], "is for watching"),
    ):
        done = gpuwatch(tmp_path, "report", str(starved), *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert "FILE" in gpuwatch(tmp_path, "report", "--from", "5").stderr


def test_patch_from_a_recording_is_made_of_the_source_as_it_was(tmp_path: Path) -> None:
    path, script = tmp_path / "live.gpuwatch", tmp_path / "train.py"
    record(path, "starved", 60, origin=Origin("live", "LIVE"))
    lines = ["import torch", *[""] * 86, "loader = DataLoader(data, num_workers=0)", ""]
    script.write_text("\n".join(lines))
    with Recording(path) as recording:
        seen = observe(recording, recording.start_ns, recording.end_ns, with_curves=False)
        facts = seen.scene.runs[0].critical.facts
        started = process_started(recording, facts)
        assert started is not None
        assert started <= START_WALL_TIME

        def diff(modified: float) -> str | None:
            os.utime(script, (modified, modified))
            assert seen.read_source is not None
            read = seen.read_source
            of = replace(facts, **whereabouts()._asdict())
            there = replace(seen, read_source=lambda named, not_newer, _: read(script, not_newer, of))
            found: str | None = as_json(build_report(there))["findings"][0]["fix"]["diff"]
            return found

        assert "+loader = DataLoader(data, num_workers=3" in (diff(started - 3600) or "")
        assert diff(time.time() + 3600 * 24 * 365 * 10) is None, "changed since"


def test_start_of_a_recorded_process_is_not_behind_its_first_word(starved: Path) -> None:
    with Recording(starved) as recording:
        facts = RunFacts(START_NS, "1.2", 1, 10**12, ("python",))
        assert process_started(recording, facts) == pytest.approx(START_WALL_TIME, abs=1)
        assert process_started(recording, replace(facts, start_ticks=0)) is None


def test_no_file_of_the_user_is_read_for_a_simulated_recording(starved: Path) -> None:
    with Recording(starved) as recording:
        assert observe(recording, recording.start_ns, recording.end_ns, with_curves=False).read_source is None


@pytest.mark.parametrize("first", [0, 60])
def test_thresholds_of_the_config_judge_a_recording_as_they_judge_live(
    starved: Path, tmp_path: Path, first: int
) -> None:
    lax = tmp_path / "lax.toml"
    lax.write_text("[rules.data-starvation]\nfire-share = 0.99\nclear-share = 0.98\ncritical-share = 1.0\n")
    part = ("--from", str(first)) if first else ()
    plain = {each["rule"] for each in report(starved, *part)["findings"]}
    judged = {each["rule"] for each in report(starved, *part, "--config", str(lax))["findings"]}
    assert "data-starvation" in plain and "data-starvation" not in judged


def test_a_long_report_says_that_its_findings_are_not_of_the_configs_thresholds(long: Path, tmp_path: Path) -> None:
    lax = tmp_path / "lax.toml"
    lax.write_text("[rules.low-util]\nfire-percent = 20\nhardly-percent = 10\nclear-percent = 25\n")
    problems = report(long, "--config", str(lax))["data_quality"]["problems"]
    assert any("judged during the recording" in each for each in problems)


@pytest.mark.parametrize("form", ["text", "md", "json"])
def test_report_of_a_recording_imports_no_library_that_it_does_not_show(starved: Path, form: str) -> None:
    heavy = ("jinja2", "textual", "rich", "scipy", "numpy", "psutil")
    script = (
        "import sys\n"
        "from gpuwatch.cli.dispatch import dispatch\n"
        f"code = dispatch(['report', {str(starved)!r}, '--format', {form!r}])\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")
