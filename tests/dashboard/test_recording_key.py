from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.dashboard.words import recorded_words, recording_badge
from gpuwatch.monitor.snapshot import RecordingNow
from gpuwatch.recording.schema import CannotRecordError
from tests.dashboard import situations
from tests.dashboard.piloting import driven

NOW = RecordingNow(Path("/home/u/gpuwatch-20261120-140327.gpuwatch"), seconds=12.4, bytes=3_250_585)
FULL = "recording stopped at 14:03: no space left on /data; it resumes when there is room"


async def test_r_begins_a_recording_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven(situations.starved()) as driver:
        await driver.press("r")
        await driver.settle()
        (path,) = driver.monitor.recorded
        assert path.parent == tmp_path
        assert path.name.startswith("gpuwatch-") and path.suffix == ".gpuwatch"
        toast = " ".join(row.rpartition("▌")[2].strip() for row in driver.rows if "▌" in row[40:])
        assert f"{path.name}; r stops it" in " ".join(toast.split())


async def test_r_again_ends_it_and_says_what_has_become_of_it() -> None:
    async with driven(replace(situations.starved(), recording=NOW)) as driver:
        await driver.press("r")
        await driver.settle()
        assert driver.monitor.recordings_ended == 1
        assert driver.monitor.recorded == []
        assert "Recorded 0:12 into" in driver.text


async def test_while_it_records_the_top_bar_says_so_and_the_key_ends_it() -> None:
    async with driven(replace(situations.starved(), recording=NOW)) as driver:
        assert "REC 00:12 3.1 MiB" in driver.rows[0]
        assert "r end recording" in driver.rows[-1]


async def test_a_full_disk_is_reported_in_words_while_the_watch_goes_on() -> None:
    async with driven(replace(situations.healthy(), recording=replace(NOW, problem=FULL)), (160, 40)) as driver:
        assert "NOT RECORDING" in driver.rows[0]
        assert FULL in driver.text
        await driver.push(replace(situations.healthy(), recording=NOW))
        assert "NOT RECORDING" not in driver.rows[0]
        assert FULL not in driver.text


async def test_a_current_folder_that_was_removed_is_reported_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    async with driven(situations.starved()) as driver:
        folder.rmdir()
        await driver.press("r")
        await driver.settle()
        assert driver.monitor.recorded == []
        assert "No such file or directory" in driver.text


@pytest.mark.parametrize("error", [CannotRecordError("/x cannot be written: choose another."), ValueError("Twice.")])
async def test_what_cannot_be_recorded_is_reported_in_its_own_sentence(error: Exception) -> None:
    async with driven(situations.starved()) as driver:
        driver.monitor.refusal = error
        await driver.press("r")
        await driver.settle()
        assert str(error) in driver.text


def test_words_of_a_recording_name_what_is_missing_and_are_safe_to_show() -> None:
    assert recording_badge(replace(NOW, seconds=3725)) == "REC 1:02:05 3.1 MiB"
    bad = replace(NOW, path=Path("/tmp/\x1b[2Jx.gpuwatch"), problem="the disk is gone.")
    assert recorded_words(bad) == "Recorded 0:12 into /tmp/\\x1b[2Jx.gpuwatch (3.1 MiB). the disk is gone"
