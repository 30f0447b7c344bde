"""What the reader refuses, and with which reason: it must never guess."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.refusals import CannotReadError, Reason
from tests.integration.interpreters import Python, code, found, require_reading, running

HERE = Python(sys.version_info[1], (sys.executable,))
WAITING = "import sys; print('ready', flush=True); sys.stdin.read()"
NOBODY = 65534
PR_SET_DUMPABLE = 4


def refusal(pid: int) -> CannotReadError:
    with pytest.raises(CannotReadError) as refused:
        attach(pid).close()
    assert str(pid) in refused.value.sentence
    assert refused.value.cure
    return refused.value


def test_pid_that_nobody_has_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert refusal(process.pid).reason is Reason.GONE


def test_process_that_its_parent_has_not_waited_for_is_a_zombie() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        assert refusal(pid).reason is Reason.ZOMBIE
    finally:
        os.waitpid(pid, 0)


def test_program_that_is_not_python_is_refused_by_its_name() -> None:
    with running(["cat"]) as process:
        _until_exec(process.pid, "cat")
        error = refusal(process.pid)
    assert error.reason is Reason.NOT_PYTHON
    assert "cat" in error.sentence


def test_python_without_any_symbol_is_refused(tmp_path: Path) -> None:
    program = shutil.copy(shutil.which("cat") or "/bin/cat", tmp_path / "python3.11")
    with running([str(program)]) as process:
        _until_exec(process.pid, "python3.11")
        error = refusal(process.pid)
    assert error.reason is Reason.NO_SYMBOLS
    assert "_PyRuntime" in error.sentence


@pytest.mark.skipif(not Path("/proc/2/comm").exists(), reason="threads of the kernel are not visible here")
def test_thread_of_the_kernel_is_not_python() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may look at the kernel's threads")
    if Path("/proc/2/comm").read_text().strip() != "kthreadd":
        pytest.skip("pid 2 is not the kernel's here")
    assert refusal(2).reason is Reason.NOT_PYTHON


@pytest.mark.parametrize("name", ["python3.7", "python3.6", "python2.7"])
def test_python_older_than_the_oldest_known_is_refused(name: str) -> None:
    programs = sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}"))
    program = str(programs[0]) if programs else shutil.which(name)
    if program is None:
        pytest.skip(f"no {name} in pyenv or on PATH")
    text = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
    with code(Python(7, (program,)), text) as process:
        error = refusal(process.pid)
    assert error.reason is Reason.VERSION
    assert "older than 3.8" in error.sentence


FAKE = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <stdint.h>
#ifdef VERSION
const uint64_t Py_Version = VERSION;
struct { char cookie[8]; uint64_t version, free_threaded, offsets[500]; } _PyRuntime = {
    COOKIE, VERSION, FREE_THREADED, {1}};
#endif
#ifdef SYMBOL
int SYMBOL(void) { return 0; }
#endif
int main(void) {
    char byte;
    puts("ready");
    fflush(stdout);
    return read(0, &byte, 1) < 0;
}
"""


@contextmanager
def fake(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A program that exports what a Python of some kind exports."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (folder / "fake.c").write_text(FAKE)
    program = folder / "fake"
    subprocess.run(["gcc", "-rdynamic", *flags, "-o", str(program), str(folder / "fake.c")], check=True)
    with running([str(program)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def described(version: int, *, free_threaded: int = 0, cookie: str = "xdebugpy") -> list[str]:
    return [f"-DVERSION={version:#x}", f"-DFREE_THREADED={free_threaded}", f'-DCOOKIE="{cookie}"']


@pytest.mark.parametrize(
    ("flags", "reason", "words"),
    [
        (described(0x031000F0), Reason.VERSION, "newer than 3.15"),
        (described(0x030D00F0, free_threaded=1), Reason.BUILD, "free-threaded"),
        (described(0x030E00A7), Reason.VERSION, "pre-release"),
        (described(0x030D00F0), Reason.BUILD, "unusual build"),
        (described(0x030D00F0, cookie=""), Reason.NOT_READY, "still starting"),
        ([*described(0x030B00F0), "-DSYMBOL=_Py_NegativeRefcount"], Reason.BUILD, "debug build"),
        (["-DSYMBOL=pypy_main_startup"], Reason.NOT_PYTHON, "PyPy"),
    ],
    ids=["newer", "free-threaded", "pre-release", "other-order", "starting", "debug", "pypy"],
)
def test_python_of_an_unknown_kind_is_refused(tmp_path: Path, flags: list[str], reason: Reason, words: str) -> None:
    with fake(tmp_path, *flags) as process:
        error = refusal(process.pid)
    assert error.reason is reason
    assert words in error.sentence


def test_32_bit_program_is_refused(tmp_path: Path) -> None:
    """A 32-bit ELF file of one page whose only code is pause(), for the kernels that run it."""
    header = (
        b"\x7fELF\x01\x01\x01"
        + bytes(9)
        + b"\x02\x00\x03\x00\x01\x00\x00\x00\x54\x80\x04\x08\x34\x00\x00\x00"
        + bytes(8)
        + b"\x34\x00\x20\x00\x01\x00\x28\x00\x00\x00\x00\x00"
    )
    segment = b"".join(value.to_bytes(4, "little") for value in (1, 0, 0x08048000, 0x08048000, 0x5D, 0x5D, 5, 0x1000))
    pause_for_ever = b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7"
    program = tmp_path / "python3"
    program.write_bytes(header + segment + pause_for_ever)
    program.chmod(0o755)
    require_reading()
    try:
        process = subprocess.Popen([str(program)])
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")
    try:
        _until_exec(process.pid, "python3")
        error = refusal(process.pid)
    finally:
        process.kill()
        process.wait()
    if "machine" in error.sentence:
        pytest.skip("another processor's kernel")
    assert error.reason is Reason.BUILD
    assert "32-bit" in error.sentence


def test_debug_build_of_debian_is_refused() -> None:
    python = found().get(14)
    if python is None or python.root is None or not (python.root / "usr/bin/python3.14d").exists():
        pytest.skip("no python3.14d in $GPUWATCH_TEST_PYTHONS")
    with code(Python(14, (*python.command[:2], "/usr/bin/python3.14d"), python.root), WAITING) as process:
        assert refusal(process.pid).reason is Reason.BUILD


def in_child(user: int | None, task: Callable[[], dict[str, object]]) -> dict[str, object]:
    """What `task` gives in a fork of this process that runs as another user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            os.write(writing, json.dumps(task()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    answer: dict[str, object] = json.loads(text)
    return answer


def attempt(pid: int) -> dict[str, object]:
    try:
        interpreter = attach(pid)
    except CannotReadError as error:
        return {"reason": error.reason.value, "sentence": error.sentence, "cure": error.cure}
    stack = interpreter.main_stack()
    interpreter.close()
    return {"reason": None, "frames": 0 if stack is None else len(stack.frames)}


@contextmanager
def forked(user: int, dumpable: int) -> Iterator[int]:
    """A fork of this process that waits as another user, readable by that user or not."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0)
        os.write(tell, b".")
        while True:
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@needs_root
def test_process_of_another_user_is_refused_with_the_cure() -> None:
    with code(HERE, WAITING) as process:
        answer = in_child(NOBODY, lambda: attempt(process.pid))
    assert answer["reason"] == Reason.PERMISSION.value
    assert "belongs to root" in str(answer["sentence"])
    assert "root" in str(answer["cure"])


@needs_root
def test_process_that_is_not_dumpable_is_refused_to_its_own_user_but_not_to_root() -> None:
    require_reading()
    with forked(NOBODY, dumpable=0) as pid:
        answer = in_child(NOBODY, lambda: attempt(pid))
        assert attempt(pid)["reason"] is None
    assert answer["reason"] == Reason.PERMISSION.value
    assert "not dumpable" in str(answer["sentence"])


@needs_root
def test_own_process_is_read_without_any_privilege() -> None:
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if yama.exists() and int(yama.read_text()):
        pytest.skip("Yama lets only parents read")
    with forked(NOBODY, dumpable=1) as pid:
        answer = in_child(NOBODY, lambda: attempt(pid))
    assert answer["reason"] is None
    assert int(str(answer["frames"])) > 3


def _until_exec(pid: int, name: str) -> None:
    """Returns once the process is the program, whose libraries are loaded: it waits for its input or a signal."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[0].partition("(")[2] != name:
        os.sched_yield()
    while _state(pid) != "S":
        os.sched_yield()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
