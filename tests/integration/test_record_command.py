from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.recording.reader import Recording
from gpuwatch.samples import RunFacts, StepEnd
from tests.integration.command_line import PATIENCE_SECONDS, gpuwatch, lonely_environment

PYTHON = sys.executable

COUNTS_SIGNALS = """\
import os, select, signal, sys
seen = []
def say(text):  # a print that a signal breaks into cannot be entered again
    os.write(1, text.encode() + b"\\n")
def take(number, frame):
    seen.append(number)
    say(f"took {signal.Signals(number).name} {len(seen)}")
for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), take)
say("ready")
while not select.select([sys.stdin], [], [], 0.1)[0]:  # Python takes a signal just before a long read after that read
    pass
sys.exit(40 + len(seen))
"""


@contextmanager
def running(folder: Path, *arguments: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is stopped by the test."""
    process = subprocess.Popen(
        [PYTHON, "-m", "gpuwatch", "record", *arguments], env=lonely_environment(folder), cwd=folder, **streams
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_SECONDS)


def read_until(descriptor: int, wanted: str) -> str:
    got = ""
    while wanted not in got:
        ready, _, _ = select.select([descriptor], [], [], PATIENCE_SECONDS)
        assert ready, f"{wanted!r} never came, only {got!r}"
        got += os.read(descriptor, 4096).decode()
    return got


def is_closed(path: Path) -> bool:
    with Recording(path) as recording:
        return recording.meta.ended


def test_a_simulated_machine_is_recorded_without_waiting_for_it(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "record", "--simulate", "starved", "--duration", "60", "-o", str(tmp_path / "a.gpuwatch"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "recorded 1:00 into" in done.stderr
    with Recording(tmp_path / "a.gpuwatch") as recording:
        assert recording.meta.label == "SIMULATED starved"
        assert recording.end_ns - recording.start_ns == pytest.approx(60e9, abs=2e9)
        assert {span.rule for span in recording.findings(recording.start_ns, recording.end_ns)} >= {"data-starvation"}
    assert stat.S_IMODE((tmp_path / "a.gpuwatch").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    path.write_text("precious")
    command = ("record", "--simulate", "starved", "--duration", "5", "-o", str(path))
    done = gpuwatch(tmp_path, *command)
    assert (done.returncode, done.stdout, path.read_text()) == (2, "", "precious")
    assert "exists" in done.stderr and "--force" in done.stderr
    assert gpuwatch(tmp_path, *command, "--force").returncode == 0
    assert is_closed(path)


def test_without_a_name_it_is_the_moment_in_the_current_folder(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "record", "--simulate", "starved", "--duration", "5", cwd=tmp_path)
    assert done.returncode == 0
    (path,) = tmp_path.glob("gpuwatch-*-*.gpuwatch")
    assert is_closed(path)


def test_a_commands_streams_and_exit_code_are_its_own(tmp_path: Path) -> None:
    script = "import sys; print(sys.stdin.read().upper()); print('oops', file=sys.stderr); sys.exit(7)"
    done = subprocess.run(
        [PYTHON, "-m", "gpuwatch", "record", "-o", "a.gpuwatch", "--", PYTHON, "-c", script],
        env=lonely_environment(tmp_path),
        cwd=tmp_path,
        input="words",
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (7, "WORDS\n")
    said = done.stderr.splitlines()
    assert "oops" in said
    assert all(line.startswith("gpuwatch: ") for line in said if line != "oops")
    with Recording(tmp_path / "a.gpuwatch") as recording:
        assert recording.meta.ended
        assert recording.meta.command == (PYTHON, "-c", script)


def test_the_command_has_the_hook_and_its_own_words_behind_the_dashes(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['PYTHONPATH'].split(':')[0]); print(sys.argv[1:])"
    done = gpuwatch(
        tmp_path, "record", "-o", "a.gpuwatch", "--", PYTHON, "-c", script, "--interval", "--", cwd=tmp_path
    )
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.endswith("gpuwatch/hook/site")
    assert second == "['--interval', '--']"


def test_the_command_gets_no_locale_that_only_python_has_set(tmp_path: Path) -> None:
    locale = {"LC_ALL": "", "LC_CTYPE": "C"}
    done = gpuwatch(tmp_path, "record", "-o", "a.gpuwatch", "--", "env", cwd=tmp_path, environment=locale)
    assert done.returncode == 0
    assert "LC_CTYPE=C" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [(("no-such-command-here",), 127, "not on PATH"), (("./plain.txt",), 126, "not executable")],
)
def test_a_command_that_cannot_be_started_leaves_nothing_behind(
    tmp_path: Path, command: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    done = gpuwatch(tmp_path, "record", "-o", "a.gpuwatch", "--", *command, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert not (tmp_path / "a.gpuwatch").exists()


def test_a_killed_command_is_reported_as_shells_do(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = gpuwatch(tmp_path, "record", "-o", "a.gpuwatch", "--", PYTHON, "-c", script, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert is_closed(tmp_path / "a.gpuwatch")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_without_a_command_signals_end_the_recording_properly(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "-o", "a.gpuwatch", "--simulate", "starved", stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        read_until(process.stderr.fileno(), "recording into")
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 130
    assert is_closed(tmp_path / "a.gpuwatch")


def test_what_batch_systems_send_reaches_the_command_which_ends_as_it_likes(tmp_path: Path) -> None:
    arguments = ("-o", "a.gpuwatch", "--", PYTHON, "-c", COUNTS_SIGNALS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(tmp_path, *arguments, **pipes) as process:
        assert process.stdout is not None and process.stdin is not None
        read_until(process.stdout.fileno(), "ready")
        for count, number in enumerate((signal.SIGUSR1, signal.SIGTERM), start=1):
            process.send_signal(number)
            read_until(process.stdout.fileno(), f"took {number.name} {count}")
        assert process.poll() is None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 42
    assert is_closed(tmp_path / "a.gpuwatch")


def test_signals_that_break_into_the_wait_for_the_command_do_not_hold_it_up(tmp_path: Path) -> None:
    script = "import os, signal, sys; [os.kill(os.getppid(), signal.SIGCHLD) for _ in range(100_000)]; sys.exit(41)"
    done = gpuwatch(tmp_path, "record", "-o", str(tmp_path / "a.gpuwatch"), "--", PYTHON, "-c", script)
    assert done.returncode == 41, done.stderr


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        [PYTHON, "-m", "gpuwatch", "record", "-o", "a.gpuwatch", "--", PYTHON, "-c", COUNTS_SIGNALS],
        env=lonely_environment(tmp_path),
        cwd=tmp_path,
        stdin=side,
        stdout=side,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(side)
    try:
        read_until(main, "ready")
        os.write(main, b"\x03")
        read_until(main, "took SIGINT 1")
        os.write(main, b"\n")
        assert process.wait(PATIENCE_SECONDS) == 41
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        os.close(main)
    assert is_closed(tmp_path / "a.gpuwatch")


def test_a_recorder_that_is_killed_leaves_the_command_alone(tmp_path: Path) -> None:
    arguments = ("-o", "a.gpuwatch", "--", PYTHON, "-c", COUNTS_SIGNALS + "print('unreached')")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(tmp_path, *arguments, **pipes) as process:
        assert process.stdout is not None and process.stdin is not None
        read_until(process.stdout.fileno(), "ready\n")
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stdout.read() == b""  # its end of the pipe closed: it has gone on to its own end
    with Recording(tmp_path / "a.gpuwatch") as recording:
        assert not recording.meta.ended


LOOP = """\
import sys, time
import gpuwatch
step = 0
while step != int(sys.argv[1]):
    time.sleep(0.005)
    gpuwatch.step(8)
    step += 1
    if step == 20:
        print("trains", flush=True)
"""


def test_another_training_beside_the_command_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    other = subprocess.Popen(
        [PYTHON, "-m", "gpuwatch", "run", PYTHON, "loop.py", "-1"],
        env=lonely_environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        read_until(other.stdout.fileno(), "trains")
        in_a_shell = f"{PYTHON} loop.py 300; exit 3"
        done = gpuwatch(tmp_path, "record", "-o", "a.gpuwatch", "--", "sh", "-c", in_a_shell, cwd=tmp_path)
        assert done.returncode == 3
        assert "are not its children" not in done.stderr
        beside = gpuwatch(tmp_path, "record", "-o", "b.gpuwatch", "--", "sleep", "10", cwd=tmp_path)
        assert "none of them was started by sleep" in beside.stderr
    finally:
        other.kill()
        other.communicate()
    with Recording(tmp_path / "a.gpuwatch") as recording:
        found = list(recording.samples(recording.start_ns, recording.end_ns))
    (run,) = {sample.pid for sample in found if isinstance(sample, RunFacts)}
    assert run != other.pid
    steps = [sample for sample in found if isinstance(sample, StepEnd)]
    assert {sample.trainer.partition(".")[0] for sample in steps} == {str(run)}
    assert min(sample.number for sample in steps) <= 2 and len(steps) > 200


def test_a_duration_ends_the_recording_but_not_the_command(tmp_path: Path) -> None:
    arguments = ("-o", "a.gpuwatch", "--duration", "1", "--", PYTHON, "-c", COUNTS_SIGNALS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with running(tmp_path, *arguments, **pipes) as process:
        assert process.stderr is not None and process.stdin is not None
        read_until(process.stderr.fileno(), "the command continues")
        assert is_closed(tmp_path / "a.gpuwatch")
        assert process.poll() is None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--attach", "1", "--", "ls"), "--attach cannot be combined with a command"),
        (("--simulate", "starved", "--", "ls"), "--simulate cannot be combined with a command"),
        (("--record-max", "some"), "is not a size such as 500M"),
        (("-o", "nowhere/a.gpuwatch", "--simulate", "starved"), "there is no folder"),
        (("-o", ".", "--simulate", "starved"), "is not a file"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = gpuwatch(tmp_path, "record", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_replay_without_a_terminal_names_what_works_there(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "replay", "a.gpuwatch", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpuwatch report a.gpuwatch" in done.stderr


def test_a_recording_that_is_removed_ends_the_watch_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    with running(tmp_path, "-o", str(path), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        read_until(process.stderr.fileno(), "Ctrl-C ends it")
        path.unlink()
        said = process.communicate(timeout=PATIENCE_SECONDS)[1].decode()
    assert process.returncode == 2
    assert "was removed while it was written; start a new one" in said and "replay" not in said
    assert not list(tmp_path.glob("a.gpuwatch*"))


def test_a_recording_that_is_removed_is_reported_at_once_and_the_command_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.gpuwatch"
    command = ("-o", str(path), "--", "sh", "-c", "read line; exit 6")
    with running(tmp_path, *command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        read_until(process.stderr.fileno(), "it ends with the command")
        path.unlink()
        read_until(process.stderr.fileno(), "was removed while it was written; start a new one; the command continues")
        process.communicate(b"go\n", timeout=PATIENCE_SECONDS)
    assert process.returncode == 6


def test_dashes_without_a_command_are_refused_and_not_taken_for_a_watch(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "record", "-o", str(tmp_path / "a.gpuwatch"), "--")
    assert done.returncode == 2 and "no command follows --" in done.stderr
    assert not (tmp_path / "a.gpuwatch").exists()


def test_a_recording_that_could_not_be_written_to_its_end_fails_and_says_what_is_missing(tmp_path: Path) -> None:
    words = (PYTHON, "-m", "gpuwatch", "record", "--simulate", "starved", "--duration", "200", "-o", "a.gpuwatch")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 200; exec "$@"', "sh", *words],
        env=lonely_environment(tmp_path, PYTHONDONTWRITEBYTECODE="1"),  # Python would keep the half that has room
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    first, *_, last = done.stderr.splitlines()[1:-1]
    assert "recording stopped at" in first and "it resumes when" in first
    assert "recording stopped at" in last and "later samples are missing" in last
    assert done.stderr.count("it resumes when") == 1
    with Recording(tmp_path / "a.gpuwatch") as recording:
        assert recording.end_ns > recording.start_ns
