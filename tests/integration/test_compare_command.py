"""`gpuwatch compare` from the command line, over recordings and reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.__main__ import main
from tests.integration.simulated_recordings import (
    FIXED,
    fixed_scenario,
    record,
    record_samples,
    recording_monitor,
)

_SECONDS = 60


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three runs of a starved training, and three of the same with workers."""
    folder = tmp_path_factory.mktemp("recordings")
    for side in ("before", "after"):
        (folder / side).mkdir()
    with fixed_scenario():
        for seed in range(3):
            record_samples(folder / "before" / f"{seed}.gpuwatch", "starved", _SECONDS, seed=seed)
            record_samples(folder / "after" / f"{seed}.gpuwatch", FIXED, _SECONDS, seed=seed)
    record_samples(folder / "healthy.gpuwatch", "healthy", _SECONDS)
    yield folder


@pytest.fixture(autouse=True)
def no_job_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def _compared(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["compare", *map(str, arguments)])
    shown = capsys.readouterr()
    return int(code), shown.out, shown.err


def _rows(text: str) -> dict[str, list[str]]:
    """Cells by label, of the text format."""
    lines = [line.strip() for line in text.splitlines() if "  " in line.strip()]
    return {
        parts[0]: parts[1:] for line in lines if (parts := [part.strip() for part in line.split("  ") if part.strip()])
    }


def test_before_and_after_are_the_table_of_a_fix(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recordings / "before/0.gpuwatch", recordings / "after/0.gpuwatch"
    code, text, _ = _compared(capsys, before, after)
    rows = _rows(text)
    assert code == 0
    assert rows["samples/s"][2].startswith("+") and rows["samples/s"][3].endswith("x")
    assert rows["GPU utilization, mean (%)"][2].endswith("points")
    assert float(rows["GPU utilization, sigma (points)"][0]) > float(rows["GPU utilization, sigma (points)"][1])
    assert rows["wait for data, per batch (ms)"][2].startswith("-")
    assert float(rows["step, median (ms)"][0]) > float(rows["step, median (ms)"][1])
    assert "single run per side, not significant" in text


@pytest.mark.parametrize("form", ["folders", "dashes", "options"])
def test_several_runs_a_side_have_an_interval(recordings: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    before, after = (sorted((recordings / side).iterdir()) for side in ("before", "after"))
    arguments: list[object] = {
        "folders": [recordings / "before", recordings / "after"],
        "dashes": [*before, "--", *after],
        "options": [part for each in before for part in ("--before", each)]
        + [part for each in after for part in ("--after", each)],
    }[form]
    code, text, _ = _compared(capsys, "--format", "json", *arguments)
    document = json.loads(text)
    rate = document["metrics"][0]
    assert code == 0
    assert [len(document[side]) for side in ("before", "after")] == [3, 3]
    assert rate["name"] == "samples_per_second" and rate["verdict"] == "better"
    assert 1 < rate["interval"]["low"] < rate["ratio"] < rate["interval"]["high"]
    assert not document["anecdote"]


def test_the_same_runs_on_both_sides_show_no_difference(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recordings / "before"
    code, text, _ = _compared(capsys, folder, folder, "--fail-if", "samples_per_second<-0.1%")
    assert code == 0
    assert "no detectable change" in text and _rows(text)["samples/s"][3] == "~"


def test_another_batch_size_leaves_samples_per_second(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = _compared(capsys, recordings / "before/0.gpuwatch", recordings / "healthy.gpuwatch")
    assert code == 0
    assert "only samples/s are compared: different batch size: 64 before, 256 after" in " ".join(text.split())
    assert _rows(text)["step, median (ms)"][2:] == ["-", "-"]
    assert _rows(text)["samples/s"][3].endswith("x")


def test_a_regression_fails_the_gate_on_stderr(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recordings / "after/0.gpuwatch", recordings / "before/0.gpuwatch"
    code, text, said = _compared(capsys, before, after, "--fail-if", "samples_per_second<-3%")
    assert code == 1
    assert "gpuwatch: samples_per_second changed by -" in said and "single run per side" in said
    assert "FAILED samples_per_second changed by -" in text
    code, _, said = _compared(
        capsys, recordings / "after", recordings / "before", "--fail-if", "samples_per_second<-3%"
    )
    assert code == 1 and "p = " in said
    assert _compared(capsys, after, before, "--fail-if", "samples_per_second<-3%")[0] == 0


def test_a_gate_that_cannot_decide_is_exit_code_two(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = recordings / "before/0.gpuwatch", recordings / "healthy.gpuwatch"
    code, text, said = _compared(capsys, *files, "--fail-if", "step_p50_ms>3%")
    assert code == 2 and "cannot be compared" in said and "UNKNOWN" in text


def test_recordings_that_hold_nothing_are_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = record_samples(tmp_path / "empty.gpuwatch", "starved", 0)
    code, text, said = _compared(capsys, empty, empty)
    assert code == 2 and "nothing could be compared" in said
    assert _rows(text)["samples/s"] == ["-", "-", "-", "-"]


def test_markdown_goes_to_the_summary_of_a_job(
    recordings: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("# before\n")
    code, text, _ = _compared(capsys, recordings / "before", recordings / "after", "--format", "md")
    assert code == 0
    assert (tmp_path / "summary.md").read_text() == "# before\n" + text
    assert "| samples/s |" in text


def test_findings_are_gone_after_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "before.gpuwatch", "starved", 150)
    with fixed_scenario():
        record(tmp_path / "after.gpuwatch", FIXED, 150)
    _, text, _ = _compared(capsys, tmp_path / "before.gpuwatch", tmp_path / "after.gpuwatch", "--format", "json")
    fates = {found["rule"]: found["fate"] for found in json.loads(text)["findings"]}
    assert fates["data-starvation"] == "gone"


def test_a_report_is_compared_with_a_recording(
    recordings: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert main(["report", "--simulate", "starved", "--duration", "60", "--format", "json", "-o", str(report)]) == 0
    capsys.readouterr()
    code, text, _ = _compared(capsys, report, recordings / "after/0.gpuwatch")
    assert code == 0
    assert "only samples/s" not in text
    before, after, *_ = _rows(text)["wait for data, per batch (ms)"]
    assert float(before) > float(after)
    assert "-" not in _rows(text)["GPU utilization, mean (%)"][:2]


def test_a_recording_that_is_still_written_is_compared_and_said(
    recordings: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monitor = recording_monitor(tmp_path / "now.gpuwatch", "starved", 45)
    try:
        code, text, _ = _compared(capsys, recordings / "before/0.gpuwatch", tmp_path / "now.gpuwatch")
    finally:
        monitor.stop()
    assert code == 0
    assert "it is still being written or was cut off" in " ".join(text.split())
    assert _rows(text)["samples/s"][1] != "-"


def test_one_recording_is_compared_with_itself_at_another_time(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recordings / "before/0.gpuwatch"
    code, text, _ = _compared(capsys, file, file, "--before-to", "30", "--after-from", "30", "--format", "json")
    document = json.loads(text)
    assert code == 0
    assert [document[side][0]["seconds"] for side in ("before", "after")] == [pytest.approx(30, abs=1)] * 2
    assert 0.9 < document["metrics"][0]["ratio"] < 1.1


def test_options_behind_the_dashes_are_reported_where_they_stand(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = _compared(capsys, recordings / "healthy.gpuwatch", "--", "--format")
    assert code == 2 and "there is no file --format: options come before `--`" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which files are before"),
        (["one.gpuwatch"], "which files are before"),
        (["a", "b", "c"], "which files are before"),
        (["--", "a.gpuwatch"], "the before side is empty"),
        (["a", "--before", "b", "--after", "c"], "a is on neither side"),
        (["nowhere.gpuwatch", "nowhere.gpuwatch"], "there is no file nowhere.gpuwatch"),
        (["{empty}", "{empty}"], "there is no recording (*.gpuwatch) or report (*.json) in the folder"),
        (["{text}", "{text}"], "neither a recording nor a report's JSON"),
        (["{nothing}", "{nothing}"], "nothing.gpuwatch is empty: nothing was recorded"),
        (["{report}", "{report}", "--from", "5"], "is not a recording: --from and --to"),
        (["a", "b", "--fail-if", "samples_per_sec<-3%"], "did you mean 'samples_per_second'"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_two(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "report").write_text("{}")
    (tmp_path / "nothing.gpuwatch").touch()
    places = {name.partition(".")[0]: str(tmp_path / name) for name in ("empty", "text", "report", "nothing.gpuwatch")}
    code, text, said = _compared(capsys, *(each.format(**places) for each in arguments))
    assert (code, text) == (2, "")
    assert said.startswith("gpuwatch: ") and says in said and said.count("\n") == 1


def test_a_recording_that_is_too_short_for_the_part_is_named(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = next(recordings.rglob("*.gpuwatch"))
    code, out, err = _compared(capsys, recording, recording, "--from", "90000")
    assert (code, out) == (2, "") and f"{recording}: nothing was recorded --from 90000" in err
