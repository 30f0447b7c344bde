"""Commands under limits, in odd places and with odd clocks: a figure or a sentence, never a traceback or a hang."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nvml_sim
import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.recording.reader import Recording
from tests.faults.conftest import Place, SideBySide, Unprivileged
from tests.faults.live import command, dashboard, environment, wait_until

WATCH = ("watch", "--duration", "2")
WATTS = b"500/700 W"


def sound(done: subprocess.CompletedProcess[bytes], codes: set[int]) -> None:
    """What is true of every command, whatever befalls it."""
    said = done.stderr.decode(errors="replace")
    assert done.returncode in codes, (done.returncode, said[-2000:])
    assert "Traceback" not in said and "internal error" not in said, said[-2000:]


LIMITS = {
    "64 descriptors": "ulimit -n 64",
    "20 descriptors": "ulimit -n 20",
    "files of 0 bytes": "ulimit -f 0",
    "no core files and 600 MB of addresses": "ulimit -c 0; ulimit -v 600000",
    "a small stack": "ulimit -s 512",
}


def limited(place: Place, limit: str) -> subprocess.CompletedProcess[bytes]:
    done = command(place.folder, place.driver, *WATCH, before=["sh", "-c", f'{limit}; exec "$@"', "sh"])
    assert isinstance(done, subprocess.CompletedProcess)
    return done


def test_a_limit_is_kept_or_said(side_by_side: SideBySide) -> None:
    def check(place: Place, limit: str) -> None:
        done = limited(place, limit)
        sound(done, {0, 2})
        said = WATTS in done.stdout or b"GPUs unknown: " in done.stdout or done.stderr.strip()
        assert said, "no figure and no sentence"

    side_by_side(check, LIMITS)


def test_hardly_any_descriptors_are_a_sentence(side_by_side: SideBySide) -> None:
    def check(place: Place, descriptors: int) -> None:
        done = limited(place, f"ulimit -n {descriptors}")
        if b"Fatal Python error" in done.stderr or b"Too many open files" in done.stderr.split(b"\n")[0]:
            return  # Python itself does not start, or gpuwatch has said it
        sound(done, {0, 2})

    side_by_side(check, {f"{number} descriptors": number for number in (4, 6, 8, 10, 12, 14)})


def test_no_more_processes_is_a_sentence(unprivileged: Unprivileged, nvml_library: Path) -> None:
    """Not as root, who has no limit of processes."""
    library = unprivileged.folder / "library"
    library.mkdir(0o755)
    shutil.copy(nvml_library / nvml_sim.LIBRARY, library)
    driver = SimulatedDriver(unprivileged.folder, library)
    before = [*unprivileged.words, "bash", "-c", 'ulimit -u 1; exec "$@"', "bash"]
    done = command(unprivileged.folder, driver, *WATCH, before=before, more=unprivileged.env)
    sound(done, {0, 2})
    assert b"cannot be started" in done.stdout, (done.stdout, done.stderr)


def test_a_folder_that_was_removed_is_no_hindrance(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = command(tmp_path, simulated_driver, *WATCH, before=["sh", "-c", f'cd {gone}; rmdir {gone}; exec "$@"', "sh"])
    sound(done, {0})
    assert WATTS in done.stdout


def test_any_umask_is_survived(side_by_side: SideBySide) -> None:
    def check(place: Place, mask: str) -> None:
        kept = place.folder / "a.gpuwatch"
        words = ("record", "-o", str(kept), "--duration", "2")
        done = command(place.folder, place.driver, *words, before=["sh", "-c", f'umask {mask}; exec "$@"', "sh"])
        sound(done, {0, 2})
        assert kept.stat().st_mode & 0o077 == 0, "others could read it"
        sound(command(place.folder, place.driver, "report", str(kept)), {0, 2})

    side_by_side(check, {mask: mask for mask in ("0777", "0000")})


PLACES = {
    "the runtime folder is a file": {"XDG_RUNTIME_DIR": "FILE", "GPUWATCH_DIR": ""},
    "the gpuwatch folder is a file": {"GPUWATCH_DIR": "FILE"},
    "the configuration folder is a file": {"XDG_CONFIG_HOME": "FILE"},
    "no folder exists": {"HOME": "/nonexistent", "TMPDIR": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent"},
    "empty names": {"HOME": "", "TMPDIR": "", "XDG_RUNTIME_DIR": "", "GPUWATCH_DIR": "", "PATH": ""},
}


def test_odd_places_are_survived(side_by_side: SideBySide) -> None:
    def check(place: Place, more: dict[str, str]) -> None:
        file = place.folder / "file"
        file.write_text("")
        more = {name: value.replace("FILE", str(file)) for name, value in more.items()}
        done = command(place.folder, place.driver, *WATCH, more=more)
        sound(done, {0, 2})
        assert WATTS in done.stdout, done.stderr

    side_by_side(check, PLACES)


NO_TEXT = {
    "file": [b"report", b"\xff\xfe.gpuwatch"],
    "command": [b"\xff"],
    "number": [b"watch", b"--interval", b"\xff"],
    "rule": [b"explain", b"\xff\x1b[31m"],
}


def test_arguments_that_are_no_text_are_a_sentence(side_by_side: SideBySide) -> None:
    def check(place: Place, arguments: list[bytes]) -> None:
        done = command(place.folder, None, *arguments)  # type: ignore[arg-type]
        sound(done, {2})
        assert b"\x1b" not in done.stderr and b"\xff" not in done.stderr

    side_by_side(check, NO_TEXT)


def private_mounts(script: str) -> list[str]:
    """A command line in front of a command that gives it mounts of its own."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting needs root's rights in a mount namespace (unshare -m)")
    words = ["unshare", "-m", "sh", "-c", f'{script.strip()} || exit 99; exec "$@"', "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True)
    if tried.returncode == 99:
        pytest.skip(f"this mount is not permitted here: {tried.stderr.strip()}")
    return words


MOUNTS = {
    "no /dev/shm": "mount -t tmpfs -o ro none /dev/shm",
    "a read-only home and temporary folder": 'mount -t tmpfs -o ro none "$HOME"',
    "processes of others hidden": "mount -t proc -o hidepid=2 none /proc",
    "no /sys": "mount -t tmpfs none /sys",
}


def test_a_machine_without_a_usual_mount_is_watched(side_by_side: SideBySide) -> None:
    def check(place: Place, before: list[str]) -> None:
        home = place.folder / "home"
        home.mkdir()
        more = {"HOME": str(home), "TMPDIR": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        done = command(place.folder, place.driver, *WATCH, before=before, cwd="/", more=more)
        sound(done, {0})
        assert WATTS in done.stdout

    side_by_side(check, {name: private_mounts(script) for name, script in MOUNTS.items()})


READ_ONLY = """
mount --make-rprivate / || exit 99
while read -r _ place kind _; do
  case "$kind" in proc | sysfs | devpts | cgroup*) continue ;; esac
  mount -o remount,bind,ro "$(printf '%b' "$place")" || exit 99
done < /proc/self/mounts
for place in / /tmp "$HOME" "$TMPDIR" "$PWD"; do
  ! touch "$place/gpuwatch-test" 2> /dev/null || exit 98
done
"""
"""Every mount but the kernel's own, and it is tried out."""
STEPS = """
import gpuwatch
gpuwatch.watch()
for step in range(3):
    gpuwatch.step(1)
    print(step)
raise SystemExit(3)
"""


def cannot_write(said: bytes, place: Path) -> bool:
    """One sentence that names the place and why."""
    return said.count(b"\n") == 1 and str(place).encode() in said


def test_a_machine_on_which_nothing_can_be_written_is_watched(side_by_side: SideBySide, tmp_path: Path) -> None:
    """What each command cannot write is said; a hooked training, which cannot leave word of itself, is as without."""
    before = private_mounts(READ_ONLY)
    runtime = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "GPUWATCH_DIR": ""}
    folder = tmp_path / "gpuwatch"
    (tmp_path / "train.py").write_text(STEPS)

    def check(place: Place, words: list[str]) -> None:
        done = command(place.folder, place.driver, *words, before=before, cwd=tmp_path, more=runtime)
        file = tmp_path / "file"
        if words[0] == "watch":
            sound(done, {0})
            assert WATTS in done.stdout and cannot_write(done.stderr, folder), done.stderr
        elif words[0] == "run":
            assert (done.returncode, done.stdout, done.stderr) == (3, b"0\n1\n2\n", b"")
        elif "-o" in words:
            sound(done, {2})
            assert cannot_write(done.stderr, file if words[0] == "record" else tmp_path), done.stderr
        else:
            sound(done, {0})
            assert f"cannot make {folder}: Read-only file system" in done.stdout.decode()

    cases = (
        "watch --duration 1",
        "report --duration 1",
        "report --duration 1 -o file",
        "record -o file",
        "doctor --json",
    )
    hooked = ["run", "--", sys.executable, "train.py"]
    side_by_side(
        check, {case: case.replace("file", str(tmp_path / "file")).split() for case in cases} | {"run": hooked}
    )


def test_a_dashboard_that_cannot_write_says_so_and_goes_on(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    before = private_mounts(READ_ONLY)
    more = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "GPUWATCH_DIR": ""}
    with dashboard(tmp_path, simulated_driver, before=before, more=more, directory=tmp_path) as terminal:
        terminal.read_until("500")
        terminal.read_until("Read-only")  # the folder in which runs would link themselves
        terminal.type(b"r")
        terminal.read_until("read-only")  # the recording
        terminal.type(b"q")
        terminal.end(0)
    assert not list(tmp_path.glob("*.gpuwatch")), "a disk that cannot be written holds no recording"


CLOCK_JUMPS = """
import sys, time
from gpuwatch.monitor import clock
real, began = time.time, time.monotonic()
def jumping():
    passed = time.monotonic() - began
    return real() + (3600 if 1 < passed < 2 else -3600 if passed >= 2 else 0)
time.time = jumping
from gpuwatch.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_jumps_an_hour_each_way_changes_no_duration(
    simulated_driver: SimulatedDriver, tmp_path: Path
) -> None:
    kept = tmp_path / "a.gpuwatch"
    jumping = tmp_path / "jumping.py"
    jumping.write_text(CLOCK_JUMPS)
    before = ["bash", "-c", f'exec "$1" {jumping} "${{@:4}}"', "bash"]  # in place of `python -m gpuwatch`
    done = command(tmp_path, simulated_driver, "record", "-o", str(kept), "--duration", "4", before=before)
    sound(done, {0})
    report = command(tmp_path, simulated_driver, "report", str(kept), "--format", "json")
    sound(report, {0, 2})
    said = json.loads(report.stdout)
    assert 2 <= find(said, "duration_seconds") <= 30


def find(content: dict[str, object], key: str) -> float:
    """The first value of this name, at any depth."""
    waiting: list[object] = [content]
    while waiting:
        now = waiting.pop(0)
        if isinstance(now, dict):
            if isinstance(now.get(key), int | float):
                return float(now[key])
            waiting += now.values()
        elif isinstance(now, list):
            waiting += now
    raise AssertionError(f"{key} is nowhere in {str(content)[:500]}")


def test_gpus_that_cannot_be_read_are_unknown_and_not_none(side_by_side: SideBySide) -> None:
    def check(place: Place, fault: str) -> None:
        place.driver.write(f"fault nvmlInit* * {fault}")
        done = command(place.folder, place.driver, "watch", "--duration", "6")
        sound(done, {0, 2})
        assert b"no GPU" not in done.stdout
        assert b"GPUs unknown: " in done.stdout, done.stdout

    side_by_side(check, {fault: fault for fault in ("hang", "error 999", "abort")})


CROWD = """
import ctypes, os, signal, sys
for _ in range(3000):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
        signal.pause()
print(flush=True)
sys.stdin.read()
"""


def test_three_thousand_processes_do_not_hold_up_the_figures(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CROWD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as crowd:
        assert crowd.stdin is not None and crowd.stdout is not None
        try:
            if not crowd.stdout.readline():
                pytest.skip("3,000 processes exceed a limit of this machine (ulimit -u, or the container's pids.max)")
            done = command(tmp_path, simulated_driver, *WATCH)
        finally:
            crowd.kill()
    sound(done, {0})
    assert WATTS in done.stdout


FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def anchors_in(path: Path) -> int:
    with Recording(path) as recording:
        return len(recording.wall_anchors)


@pytest.mark.skipif(FAKETIME is None, reason="another wall clock needs libfaketime: apt-get install faketime")
def test_a_wall_clock_that_is_set_while_it_records_changes_no_duration(
    simulated_driver: SimulatedDriver, tmp_path: Path
) -> None:
    """For every call of the C library; the monotonic clock goes on, as where an administrator sets the time."""
    clock = tmp_path / "clock"
    clock.write_text("+0")
    kept = tmp_path / "a.gpuwatch"
    env = environment(
        tmp_path,
        simulated_driver,
        LD_PRELOAD=str(FAKETIME),
        FAKETIME_TIMESTAMP_FILE=str(clock),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    words = [sys.executable, "-m", "gpuwatch", "record", "-o", str(kept)]
    began = time.monotonic()
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE) as recorder:
        assert recorder.stderr is not None and b"recording into" in recorder.stderr.readline()
        for anchors, hours in enumerate((1, -1), 2):
            clock.write_text(f"{hours:+}h")
            wait_until(lambda anchors=anchors: anchors_in(kept) == anchors)  # type: ignore[misc]
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(60) == 130
    most_seconds = time.monotonic() - began
    with Recording(kept) as recording:
        assert 0 < (recording.end_ns - recording.start_ns) / 1e9 <= most_seconds
        jumps = [wall - time_ns / 1e9 for time_ns, wall in recording.wall_anchors]
        assert [round((jump - jumps[0]) / 3600, 2) for jump in jumps] == [0, 1, -1]
    report = command(tmp_path, simulated_driver, "report", str(kept), "--format", "json")
    sound(report, {0, 2})
    assert 0 < find(json.loads(report.stdout), "duration_seconds") <= most_seconds
