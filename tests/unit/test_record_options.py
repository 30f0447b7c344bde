from __future__ import annotations

import pytest

from gpuwatch.cli.arguments import parse
from gpuwatch.cli.errors import GpuwatchError


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500 * 2**20), ("1G", 2**30), ("1.5g", 3 * 2**29), ("2097152", 2**21), ("64 MiB", 64 * 2**20)],
)
def test_a_files_most_is_read_as_people_write_sizes(text: str, size: int) -> None:
    assert parse(["record", "--record-max", text]).record_max == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "10X", "1023K"])
def test_what_is_no_size_of_a_recording_is_refused(text: str) -> None:
    with pytest.raises(GpuwatchError, match="--record-max"):
        parse(["record", f"--record-max={text}"])


def test_behind_the_dashes_everything_belongs_to_the_command() -> None:
    parsed = parse(["--interval", "0.5", "record", "-o", "a.gpuwatch", "--", "sh", "-c", "x", "--", "-o", "b"])
    assert parsed.command_line == ["sh", "-c", "x", "--", "-o", "b"]
    assert (parsed.output, parsed.interval) == ("a.gpuwatch", 0.5)
    assert parse(["record"]).command_line == []


@pytest.mark.parametrize(("text", "speed"), [("4", 4.0), ("0.25", 0.25), ("60x", 60.0)])
def test_the_speed_of_a_replay(text: str, speed: float) -> None:
    assert parse(["replay", "a.gpuwatch", "--speed", text]).speed == speed


@pytest.mark.parametrize("text", ["0", "61", "fast", "nan"])
def test_a_speed_that_cannot_be_played_is_refused(text: str) -> None:
    with pytest.raises(GpuwatchError, match="--speed"):
        parse(["replay", "a.gpuwatch", "--speed", text])
