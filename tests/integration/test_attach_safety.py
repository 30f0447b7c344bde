"""Being read changes nothing for the target: what it prints, how it ends, what memory it has."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.reader.attach import Interpreter, attach
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.attached import (
    STEPS,
    TARGETS,
    attached_as_soon_as_possible,
    held,
    needs_training,
    pipes_of,
    reporting,
    running,
    training,
    wait_until_attached,
)
from tests.integration.command_line import PATIENCE_SECONDS, ROOT, gpuwatch, lonely_environment

READING_MONITOR = TARGETS / "reading_monitor.py"
ENOUGH_LOOKS = 20


def undisturbed(steps: int) -> tuple[str, int]:
    """What the target prints when nobody reads it, and its peak memory in kilobytes."""
    run = subprocess.run([sys.executable, str(STEPS), str(steps)], capture_output=True, text=True, check=True)
    return run.stdout, int(run.stderr)


def test_short_targets_read_from_exec_to_exit_end_as_always() -> None:
    printed, _ = undisturbed(12)
    for _ in range(16):
        with running(STEPS, "12", "--hold", "6") as target:
            looks = read_until_gone(target)
            out, _ = target.communicate(timeout=PATIENCE_SECONDS)
        assert (target.returncode, out) == (0, printed)
        assert looks >= ENOUGH_LOOKS


def read_until_gone(target: subprocess.Popen[str]) -> int:
    """Reads all its threads without a pause; lets the target go on after some looks. Returns how many succeeded."""
    interpreter = attached_as_soon_as_possible(target.pid)
    looks = 0
    with pytest.raises(CannotReadError) as refusal:
        while True:
            looks += bool(interpreter.main_stack()) and bool(interpreter.stacks())
            if looks == ENOUGH_LOOKS:
                go_on(target)
                looks += 1
    interpreter.close()
    assert refusal.value.reason in (Reason.GONE, Reason.ZOMBIE)
    return looks


def go_on(target: subprocess.Popen[str]) -> None:
    """Ends the hold that it stands in, or will come to."""
    assert target.stdin is not None
    target.stdin.write("\n")
    target.stdin.flush()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_reader_killed_or_stopped_amid_a_read_leaves_the_target_as_it_was(sent: signal.Signals) -> None:
    steps = 300
    printed, peak_kilobytes = undisturbed(steps)
    moments = random.Random(int(sent))
    for _ in range(3):
        # It is there from the monitor's first look to the signal, however late either comes.
        with running(STEPS, str(steps), "--hold", "1", str(steps)) as target:
            assert target.stdout is not None
            before = [target.stdout.readline()]
            with reading(target.pid) as monitor:
                go_on(target)
                before += [target.stdout.readline() for _ in range(moments.randint(steps // 2, steps - 1))]
                assert monitor.poll() is None
                monitor.send_signal(sent)
                go_on(target)
                rest = target.stdout.read()  # communicate() would miss what readline() has read ahead
                _, peak = target.communicate(timeout=PATIENCE_SECONDS)
        assert (target.returncode, "".join(before) + rest) == (0, printed)
        assert int(peak) < 1.1 * peak_kilobytes


@contextmanager
def reading(pid: int) -> Iterator[subprocess.Popen[str]]:
    """A process that reads the target all the time, once it does."""
    root = str(Path(__file__).parents[2])
    monitor = subprocess.Popen(
        [sys.executable, str(READING_MONITOR), str(pid)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert monitor.stdout is not None
        assert monitor.stdout.readline() == "ready\n"
        yield monitor
    finally:
        monitor.kill()
        monitor.communicate()


@needs_training
def test_training_is_the_same_with_the_command_reading_it_killed_and_stopped(tmp_path: Path) -> None:
    """The numbers it prints follow from every random number it draws, here and in its workers."""
    alone = trained(tmp_path, ())
    attended = trained(tmp_path, (signal.SIGKILL, signal.SIGSTOP))
    assert attended == alone


def trained(folder: Path, signals: tuple[signal.Signals, ...]) -> tuple[str, int]:
    """What the training prints after its first epoch, and its exit code; a monitor per signal meets that signal."""
    with (
        training(folder, "--workers", "2", "--epochs", "10", stops_itself=True) as target,
        ExitStack() as monitors,
    ):
        assert target.stdout is not None
        watching = [monitors.enter_context(reporting(folder, target.pid)) for _ in signals]
        for monitor in watching:
            wait_until_attached(monitor, target.pid)
            assert pipes_of(monitor.pid).isdisjoint(pipes_of(target.pid))
        target.send_signal(signal.SIGCONT)
        printed = ""
        for monitor, sent in zip(watching, signals, strict=True):
            printed += target.stdout.readline()
            monitor.send_signal(sent)
        printed += target.stdout.read()
        return printed, target.wait(timeout=PATIENCE_SECONDS)


CHANGING = TARGETS / "changing.py"
NOT_POSSIBLE = 77
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    )


needs_namespaces = pytest.mark.skipif(
    not can_unshare(), reason="making namespaces takes unshare (util-linux) and the right to use it"
)


def functions(interpreter: Interpreter) -> list[str]:
    """Where the main thread stands, innermost first."""
    stack = interpreter.main_stack()
    return [frame.code.name for frame in stack.frames] if stack else []


@needs_namespaces
def test_pid_that_was_given_to_another_process_is_not_followed() -> None:
    result = subprocess.run(
        [*UNSHARE, sys.executable, str(TARGETS / "pid_reuse.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    if result.returncode == NOT_POSSIBLE:
        pytest.skip(f"the next pid cannot be chosen here: {result.stdout.strip()}")
    assert (result.returncode, result.stdout.strip()) == (0, "gone"), result.stderr


@contextmanager
def changing() -> Iterator[tuple[subprocess.Popen[str], Interpreter]]:
    """A target that waits to be told what to become, and its reader, which has seen it once."""
    with running(CHANGING) as target:
        assert said(target)[0] == "ready"
        interpreter = attach(target.pid)
        try:
            assert functions(interpreter) == ["before_the_change", "<module>"]
            yield target, interpreter
        finally:
            interpreter.close()


def tell(target: subprocess.Popen[str], word: str) -> None:
    assert target.stdin is not None
    target.stdin.write(f"{word}\n")
    target.stdin.flush()


def said(target: subprocess.Popen[str]) -> list[str]:
    assert target.stdout is not None
    return target.stdout.readline().split()


def test_child_of_a_fork_is_another_process_with_its_own_stack() -> None:
    with changing() as (target, interpreter):
        tell(target, "fork")
        child = int(said(target)[1])
        assert functions(interpreter) == ["before_the_change", "<module>"]
        of_child = attach(child)
        # The parent tells of its child before the child has got to its function.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while functions(of_child) != ["in_the_child", "before_the_change", "<module>"]:
            assert time.monotonic() < deadline
        assert of_child.start_ticks >= interpreter.start_ticks
        of_child.close()
        tell(target, "child may end")
        tell(target, "parent too")
        target.communicate(timeout=PATIENCE_SECONDS)
        assert target.returncode == 0


def test_program_that_took_its_place_is_seen_after_attaching_again_and_never_mixed_with_the_old_one() -> None:
    with changing() as (target, interpreter):
        tell(target, "exec")
        assert said(target) == ["again", str(target.pid)]
        try:
            assert functions(interpreter) in ([], ["after_the_exec", "<module>"])
        except CannotReadError as refusal:
            assert refusal.reason in (Reason.GONE, Reason.NOT_READY)
        anew = attach(target.pid)
        assert functions(anew) == ["after_the_exec", "<module>"]
        anew.close()
        target.communicate("\n", timeout=PATIENCE_SECONDS)
        assert target.returncode == 0


def test_reading_through_the_exec_never_shows_a_function_that_is_not_there() -> None:
    with changing() as (target, interpreter):
        tell(target, "exec")
        seen: set[str] = set()
        while "after_the_exec" not in seen:  # that it comes is the assertion
            looked = functions_of_its_own(interpreter)
            if looked is None:
                interpreter.close()
                interpreter = attached_as_soon_as_possible(target.pid)
            else:
                seen.update(looked)
        interpreter.close()
        assert seen <= {"before_the_change", "after_the_exec", "<module>"}
        target.communicate("\n", timeout=PATIENCE_SECONDS)
        assert target.returncode == 0


def functions_of_its_own(interpreter: Interpreter) -> list[str] | None:
    """Without the imports of a Python that starts; None where the process has become another program."""
    try:
        stack = interpreter.main_stack()
    except CannotReadError:
        return None
    return [frame.code.name for frame in stack.frames if frame.code.file == str(CHANGING)] if stack else []


def test_daemon_is_not_taken_for_the_process_it_came_from() -> None:
    with changing() as (target, interpreter):
        tell(target, "daemonise")
        daemon = int(said(target)[1])
        target.wait(timeout=PATIENCE_SECONDS)
        with pytest.raises(CannotReadError) as refusal:
            interpreter.main_stack()
        assert refusal.value.reason == Reason.GONE
        of_daemon = attach(daemon)
        assert functions(of_daemon)[0] == "in_the_daemon"
        of_daemon.close()
        target.communicate("\n", timeout=PATIENCE_SECONDS)


CONTAINER = """\
set -e
root=$1 script=$2 python=$3
mount -t tmpfs none "$root"
for folder in bin lib lib64 usr etc "$(echo "$python" | cut -d/ -f2)"; do
  if [ -d "/$folder" ] && [ ! -e "$root/$folder" ]; then
    mkdir "$root/$folder"
    mount --rbind "/$folder" "$root/$folder"
  fi
done
mkdir "$root/proc"
mount -t proc none "$root/proc"
cp "$script" "$root/inside.py"
exec chroot "$root" "$python" /inside.py
"""


@needs_namespaces
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("chroot") is None, reason="another root directory takes root and chroot"
)
def test_target_in_another_pid_namespace_and_root_directory_is_read_from_the_host(tmp_path: Path) -> None:
    """Its interpreter's file is only there under /proc/PID/root, and its own pid is another one inside."""
    arguments = (str(tmp_path), str(CHANGING), str(Path(sys.executable).resolve()))
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", CONTAINER, "sh", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        words = said(process)
        assert words[:1] == ["ready"], process.communicate()[1]
        inside = int(words[1])
        (pid,) = (int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert inside != pid
        interpreter = attach(pid)
        stack = interpreter.main_stack()
        assert stack is not None
        assert [(frame.code.name, frame.code.file) for frame in stack.frames] == [
            ("before_the_change", "/inside.py"),
            ("<module>", "/inside.py"),
        ]
        interpreter.close()
        tell(process, "end")
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


BLAMES = {"data-starvation", "workers-zero", "workers-too-few", "worker-cpu-bound", "io-bound", "sync-per-step"}


def report_of(monitor: subprocess.Popen[str]) -> dict[str, Any]:
    out, complaint = monitor.communicate(timeout=PATIENCE_SECONDS)
    assert monitor.returncode == 0, complaint
    document: dict[str, Any] = json.loads(out)
    return document


@needs_training
@pytest.mark.parametrize("workers", [0, 2])
def test_training_killed_while_it_is_read_is_reported_as_ended(tmp_path: Path, workers: int) -> None:
    with training(tmp_path, "--workers", str(workers)) as target, reporting(tmp_path, target.pid) as monitor:
        wait_until_attached(monitor, target.pid)
        target.kill()
        target.wait()
        report = report_of(monitor)
    (run,) = report["runs"]
    assert (run["pid"], run["visibility"]) == (target.pid, "sampled")
    assert run["ended"] in ("killed", "exited", "lost")
    assert any("ended" in note for note in report["gpuwatch"]["notes"])


@needs_training
def test_training_that_comes_to_its_end_while_it_is_read_is_reported_as_ended(tmp_path: Path) -> None:
    with (
        training(tmp_path, "--epochs", "8", stops_itself=True) as target,
        reporting(tmp_path, target.pid) as monitor,
    ):
        wait_until_attached(monitor, target.pid)
        target.send_signal(signal.SIGCONT)
        assert target.stdout is not None
        out = target.stdout.read()
        _, complaint = target.communicate(timeout=PATIENCE_SECONDS)
        report = report_of(monitor)
    assert (target.returncode, len(out.splitlines()), complaint) == (0, 7, "")
    assert report["gpuwatch"]["notes"]


@needs_training
def test_stopped_training_is_not_taken_for_one_that_waits_for_data(tmp_path: Path) -> None:
    with training(tmp_path, "--noise", "8") as target, held(target):
        done = gpuwatch(tmp_path, "report", "--attach", str(target.pid), "--duration", "4", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert BLAMES.isdisjoint(finding["rule"] for finding in report["findings"])
    (run,) = report["runs"]
    assert run["data_wait_share"] is None


FORBIDDEN = ("ptrace", "process_vm_writev", "process_madvise", "pidfd_getfd")
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
FILES = ("open", "openat", "openat2", "creat")
BIRTHS = ("fork", "vfork", "clone", "clone3")

CALL = re.compile(r"^(?P<caller>\d+) +(?P<name>\w+)\((?P<arguments>.*)")
BIRTH = re.compile(rf"\b(?:{'|'.join(BIRTHS)})\b.* = (?P<child>\d+)$")
OF_PROCESS = re.compile(r'"/proc/(?P<pid>\d+)/(?P<file>[^"]*)"')


def tracer() -> tuple[str, ...]:
    """strace, stopping the command at the traced calls only where the kernel can choose them; nothing without it."""
    for command in (("strace", "-f", "--seccomp-bpf"), ("strace", "-f")):
        probe = [*command, "-e", "trace=openat", "-o", "/dev/null", "true"]
        if shutil.which("strace") and not subprocess.run(probe, capture_output=True).returncode:
            return command
    return ()


needs_strace = pytest.mark.skipif(
    not tracer(), reason="the monitor's system calls are seen with strace, where it may trace: apt-get install strace"
)


class Traced:
    """The calls of one command and all it started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        log = folder / "calls"
        # A call that this machine's kernel or strace does not know is left out with a question mark.
        calls = ",".join(f"?{name}" for name in ("process_vm_readv", *FORBIDDEN, *SIGNALS, *FILES, *BIRTHS))
        strace = [*tracer(), "-qq", "-s", "256", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(log)]
        self.result = subprocess.run(
            [*strace, sys.executable, "-m", "gpuwatch", *arguments],
            env=lonely_environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        lines = log.read_text(errors="replace").splitlines()
        self.calls = [match.group("caller", "name", "arguments") for line in lines if (match := CALL.match(line))]
        self.own_processes = {int(caller) for caller, _, _ in self.calls}
        self.own_processes |= {int(match["child"]) for line in lines if (match := BIRTH.search(line))}

    def of(self, *names: str) -> list[str]:
        """These calls, as strace writes them."""
        return [f"{name}({arguments}" for _, name, arguments in self.calls if name in names]

    def signals_to_others(self) -> list[str]:
        """Signals to any process or thread that is not the command's own."""
        return [
            call for call in self.of(*SIGNALS) if int(call.partition("(")[2].split(",")[0]) not in self.own_processes
        ]

    def opened(self, pid: int) -> list[tuple[str, str]]:
        """Files of one process's /proc folder, and how each was opened."""
        found = [(match, call) for call in self.of(*FILES) if (match := OF_PROCESS.search(call))]
        return [(match["file"], call) for match, call in found if int(match["pid"]) == pid]


@needs_strace
@needs_training
@pytest.mark.parametrize("workers", [0, 2])
def test_report_asks_nothing_of_the_kernel_that_could_reach_into_the_training(tmp_path: Path, workers: int) -> None:
    with training(tmp_path, "--workers", str(workers)) as target:
        traced = Traced(tmp_path, "report", "--attach", str(target.pid), "--duration", "5", "--format", "json")
        assert target.poll() is None
    assert traced.result.returncode == 0, traced.result.stderr
    (run,) = json.loads(traced.result.stdout)["runs"]
    assert run["visibility"] == "sampled", run["how_to_see_more"]
    assert any(f"process_vm_readv({target.pid}," in call for call in traced.of("process_vm_readv"))
    assert traced.of(*FORBIDDEN) == []
    assert traced.signals_to_others() == []
    opened = traced.opened(target.pid)
    assert [call for _, call in opened if not re.search(r"\bO_RDONLY\b", call)] == []
    assert [call for file, call in opened if re.fullmatch(r"(task/\d+/)?(mem|fd/.*|syscall|stack)", file)] == []
