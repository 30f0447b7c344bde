from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.schema import RecordingMeta
from gpuwatch.recording.writer import RecordingWriter
from tests.dashboard.pseudo_terminal import PseudoTerminal
from tests.integration.simulated_recordings import record_samples
from tests.unit.sample_builder import at, host

COMMAND = "tests.dashboard.command_main"


@pytest.mark.parametrize(("ends", "code"), [("q", 0), ("\x03", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_however_the_dashboard_ends_its_recording_is_closed(tmp_path: Path, ends: str, code: int) -> None:
    with PseudoTerminal(COMMAND, str(tmp_path), "demo", "starved") as terminal:
        terminal.read_until("Findings")
        terminal.type(b"r")
        terminal.read_until("REC 0")  # a demo lives through two minutes first, and records them too
        if ends.startswith("SIG"):
            terminal.send(signal.Signals[ends])
        else:
            terminal.type(ends.encode())
        assert terminal.wait() == code
        assert terminal.is_restored
        assert b"gpuwatch: recorded " in terminal.output
    (path,) = tmp_path.glob("*.gpuwatch")
    with Recording(path) as recording:
        assert recording.meta.ended


def test_a_recording_is_played_on_a_terminal(tmp_path: Path) -> None:
    record_samples(tmp_path / "run.gpuwatch", "starved", 90)
    with PseudoTerminal(COMMAND, str(tmp_path), "replay", "run.gpuwatch", "--from", "1:00") as terminal:
        terminal.read_until("PLAY 1x")
        terminal.type(b" ")
        terminal.read_until("PAUSED 1x")
        terminal.type(b">")
        terminal.read_until("PAUSED 2x")
        terminal.type(b"q")
        assert terminal.wait() == 0
        assert terminal.is_restored


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such.gpuwatch",), "no-such.gpuwatch does not exist"),
        (("notes.txt",), "notes.txt"),
        (("empty.gpuwatch",), "holds no samples"),
        (("host.gpuwatch",), "holds neither a GPU nor a training run"),
        (("run.gpuwatch", "--from", "2:00"), "--from 2:00 is outside the recording"),
        (("run.gpuwatch", "--speed", "100"), "is not between 0.25 and 60"),
    ],
)
def test_what_cannot_be_played_is_one_sentence_on_the_normal_screen(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    record_samples(tmp_path / "run.gpuwatch", "starved", 5)
    record_samples(tmp_path / "empty.gpuwatch", "starved", 0)
    with closing(RecordingWriter(tmp_path / "host.gpuwatch", RecordingMeta("node", "0"))) as writer:
        writer.add([host(1)], at(1), 1.0)
        writer.add([host(2)], at(2), 2.0)
    (tmp_path / "notes.txt").write_text("no recording")
    with PseudoTerminal(COMMAND, str(tmp_path), "replay", *arguments) as terminal:
        assert terminal.wait() == 2
        after = terminal.output.rpartition(b"\x1b[?1049l")[2].decode()
        assert after.count("gpuwatch: ") == 1
        assert words in after
