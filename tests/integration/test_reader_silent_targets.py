"""A process that never answers who reads it is refused, and neither another nor the end of the program waits for it.

Its pages are withheld (userfaultfd), or its memory is locked by a system call that waits for a file system (FUSE).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch import foreign
from gpuwatch.foreign import answered, cpu_time_ns, in_time, read_of
from gpuwatch.procfs import read_stat
from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.samples import RunFacts, StackTally
from gpuwatch.sources.nvml.readings import PidMap
from gpuwatch.sources.stacks import StackSource, StackTarget
from gpuwatch.trial import process_guard
from tests.faults.live import command, dashboard, wait_until
from tests.integration.interpreters import TARGETS, require_reading

HANG = 60.0
SENTENCE = "does not answer reads of its memory"
Target = subprocess.Popen[str]


@contextmanager
def target(folder: Path, *words: str) -> Iterator[Target]:
    require_reading()
    folder.mkdir()
    started = [sys.executable, "-I", "-S", str(TARGETS / words[0]), *words[1:], str(folder)]
    process = subprocess.Popen(started, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said.startswith("refused"):
            pytest.skip(f"the kernel lets this user withhold no memory: {said.removeprefix('refused').strip()}")
        assert said.startswith("ready")
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Target]:
    with target(tmp_path / "silent", "hostile.py", "userfault") as process:
        yield process


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Target]:
    with target(tmp_path / "locked", "locked.py") as process:
        wait_until(lambda: (stat := read_stat("/proc", process.pid)) is not None and stat.state == "D")
        yield process


@pytest.fixture(params=["silent", "locked"])
def either(request: pytest.FixtureRequest) -> Target:
    process: Target = request.getfixturevalue(request.param)
    return process


@pytest.fixture
def innocent(tmp_path: Path) -> Iterator[Target]:
    with target(tmp_path / "innocent", "hostile.py", "innocent") as process:
        yield process


def test_it_is_refused_at_once_while_an_earlier_read_waits(silent: Target, innocent: Target) -> None:
    interpreter = attach(silent.pid)
    with pytest.raises(CannotReadError, match=SENTENCE) as refused:
        interpreter.main_stack()
    assert refused.value.reason is Reason.SILENT
    waiting = len(foreign._Work.unanswered)
    with pytest.raises(CannotReadError, match=SENTENCE):
        interpreter.main_stack()
    with pytest.raises(CannotReadError, match=SENTENCE):
        attach(silent.pid)
    interpreter.close()
    assert len(foreign._Work.unanswered) == waiting, "each try left another thread behind"
    other = attach(innocent.pid)
    assert other.main_stack() is not None
    other.close()


def test_the_thread_left_behind_ends_with_the_process(silent: Target) -> None:
    interpreter = attach(silent.pid)
    with pytest.raises(CannotReadError, match=SENTENCE):
        interpreter.main_stack()
    interpreter.close()
    silent.kill()
    silent.wait()
    until = time.monotonic() + HANG
    while any(work.pid == silent.pid for work in foreign._Work.unanswered):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_stacks_refuses_it_in_one_sentence(tmp_path: Path, either: Target) -> None:
    done = command(tmp_path, None, "stacks", str(either.pid), "--seconds", "60", text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"gpuwatch: process {either.pid} {SENTENCE}: ")
    assert done.stderr.count("\n") == 1


def test_a_report_of_it_ends_and_says_so(tmp_path: Path, either: Target) -> None:
    done = command(tmp_path, None, "report", "--attach", str(either.pid), "--duration", "5", text=True)
    assert done.returncode == 0, done.stderr
    assert f"process {either.pid} {SENTENCE}" in done.stdout


def test_the_others_are_listed_beside_it(tmp_path: Path, either: Target, innocent: Target) -> None:
    done = command(tmp_path, None, "--attach", text=True)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "sampled" in rows[str(innocent.pid)]
    assert str(either.pid) in done.stdout


def test_the_other_training_is_sampled_and_the_refusal_taken_back(silent: Target, innocent: Target) -> None:
    targets = [StackTarget(silent.pid, hooked=False), StackTarget(innocent.pid, hooked=False)]
    source = StackSource(lambda: targets)
    seen: list[str] = []
    looks: list[int] = []

    def collect(until: int, seen: list[int] | list[str]) -> None:
        end = time.monotonic() + HANG
        while len(seen) < until:
            assert time.monotonic() < end, (seen, looks)
            for sample in source.collect(time.monotonic_ns()):
                if isinstance(sample, StackTally) and sample.trainer.startswith(f"{innocent.pid}."):
                    looks.append(sample.samples)
                elif isinstance(sample, RunFacts) and sample.pid == silent.pid:
                    seen.append(sample.visibility)
                    assert (sample.how_to_see_more is not None and SENTENCE in sample.how_to_see_more) == (
                        sample.visibility == "process"
                    )
            time.sleep(0.02)

    try:
        collect(1, seen)
        assert seen == ["process"]
        before = len(looks)
        collect(before + 3, looks)
        assert all(count > 0 for count in looks)
        assert silent.stdin is not None
        silent.stdin.write("answer()\n")
        silent.stdin.flush()
        collect(2, seen)
        assert seen == ["process", "sampled"]
    finally:
        source.close()


def test_a_source_that_reads_it_closes_in_time(silent: Target) -> None:
    source = StackSource(lambda: [StackTarget(silent.pid, hooked=False)])
    until = time.monotonic() + HANG
    while not any(isinstance(sample, RunFacts) for sample in source.collect(time.monotonic_ns())):
        assert time.monotonic() < until
        time.sleep(0.02)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < HANG
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gpuwatch-stacks-")] == [
        f"gpuwatch-stacks-{silent.pid}"
    ]


def test_the_dashboard_goes_on_with_the_other_training_and_q_ends_it(
    tmp_path: Path, either: Target, innocent: Target
) -> None:
    has_locked = "locked.py" in str(either.args)
    with dashboard(tmp_path, None, "--attach", str(os.getpid())) as screen:
        if not has_locked:  # of a locked one not even its libraries are known, so it is no training
            screen.read_until(f"process {either.pid} {SENTENCE}")
        screen.read_until(f"({innocent.pid})")
        for _ in range(3):
            screen.reads_of("samples over")  # drawn again with each new number of samples
        screen.type(b"q")
        screen.end(0)
        assert screen.process.returncode == 0


def test_a_file_that_waits_is_given_up_and_its_process_left_alone_for_a_while(tmp_path: Path) -> None:
    for pid in (4_200_001, 4_200_002):
        (tmp_path / str(pid)).mkdir()
    os.mkfifo(tmp_path / "4200001" / "environ")  # to open it waits for a writer
    (tmp_path / "4200001" / "cmdline").write_bytes(b"python\0")
    (tmp_path / "4200002" / "cmdline").write_bytes(b"python\0")
    assert read_of(tmp_path, 4_200_001, "cmdline") == b"python\0"
    assert read_of(tmp_path, 4_200_001, "environ") is None
    assert read_of(tmp_path, 4_200_001, "cmdline") is None
    assert read_of(tmp_path, 4_200_002, "cmdline") == b"python\0"
    with open(tmp_path / "4200001" / "environ", "wb"):  # noqa: PTH123 - lets the reader go
        pass


def test_what_others_read_counts_as_the_cpu_time_of_who_asked() -> None:
    def work() -> int:
        end = time.thread_time_ns() + 50_000_000
        while time.thread_time_ns() < end:
            pass
        return threading.get_ident()

    began, own = cpu_time_ns(), time.thread_time_ns()
    assert in_time(4_200_003, work) != threading.get_ident()
    spent, own = cpu_time_ns() - began, time.thread_time_ns() - own
    assert spent >= 50_000_000 > own


def test_beyond_sixteen_that_wait_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_ANSWER_SECONDS", 0.05)
    answer, tried = threading.Event(), []

    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    for pid in range(5_000_000, 5_000_016):
        with pytest.raises(TimeoutError):
            answered(pid, answer.wait)
    with pytest.raises(TimeoutError, match="does not answer"):
        answered(5_000_016, lambda: tried.append(1))
    assert not tried
    answer.set()
    until = time.monotonic() + HANG
    while foreign._Work.unanswered or names().count("gpuwatch-foreign-read") > foreign._MOST_IDLE:
        assert time.monotonic() < until
        time.sleep(0.01)
    monkeypatch.setattr(foreign, "_ANSWER_SECONDS", HANG)
    assert answered(5_000_016, lambda: 1) == 1


def test_the_nvml_child_does_without_a_command_line_that_never_comes(tmp_path: Path) -> None:
    for name in ("self", "77", "78"):
        (tmp_path / name).mkdir()
    (tmp_path / "self/status").write_text("NSpid:\t5\t1\n")
    os.mkfifo(tmp_path / "77/cmdline")
    (tmp_path / "78/cmdline").write_bytes(b"python\0train.py\0")
    pids = PidMap(str(tmp_path))
    assert [pids.command(pid) for pid in (77, 78, 77)] == [None, "python train.py", None]
    assert [thread.name for thread in threading.enumerate()].count("gpuwatch-cmdline") == 1
    with open(tmp_path / "77/cmdline", "wb"):  # noqa: PTH123 - lets the reader go
        pass


def test_the_end_of_a_trial_passes_over_it(locked: Target, innocent: Target) -> None:
    place = "no-such-place"
    assert process_guard.members(innocent.pid, place) == process_guard.members(innocent.pid, place)
    assert locked.pid in process_guard._silent
    assert innocent.pid not in process_guard._silent
