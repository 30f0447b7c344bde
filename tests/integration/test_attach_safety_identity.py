"""A process is read only as long as it is the one that was attached, wherever it lives and whatever it becomes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.reader.attach import Interpreter, attach
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.attached import TARGETS, attached_as_soon_as_possible, running
from tests.integration.command_line import PATIENCE_SECONDS, ROOT

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
