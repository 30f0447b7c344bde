"""`--inject`: the hook comes into a process that runs, or the process stays as it is."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

from gpuwatch.foreign import Rights
from gpuwatch.inject import SITE, CannotInjectError, _check_rights, perform, plan_for
from tests.integration.command_line import PATIENCE_SECONDS, ROOT, gpuwatch, lonely_environment

NOBODY = 65534
SCRIPT = """\
import sys
path = list(sys.path)
print("ready", flush=True)
for line in sys.stdin:
    print("_gpuwatch_hook.api" in sys.modules, sys.path == path, flush=True)
"""


@lru_cache(maxsize=1)
def newest_python() -> str:
    """One that takes the hook while it runs, and sees this machine's files: none of a chroot."""
    folder = os.environ.get("GPUWATCH_TEST_PYTHONS")
    python = shutil.which("python3.14") or (folder and unpacked(Path(folder).resolve())) or sys.executable
    asked = subprocess.run([python, "-c", "import sys; sys.remote_exec"], capture_output=True)
    if asked.returncode:
        pytest.skip("no python3.14 on PATH, nor one that tests/newer_pythons.py and patchelf brought")
    return python


def unpacked(root: Path) -> str | None:
    """A fetched Python made to run outside of its folder, with the C library that was fetched with it."""
    original, program = root / "usr/bin/python3.14", root / "usr/bin/python3.14.0"
    patchelf = shutil.which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    if patchelf is None or not original.exists() or not loader.exists():
        return None
    shutil.copy(original, program)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    command = [patchelf, "--set-interpreter", str(loader), "--set-rpath", str(libraries), str(program)]
    return str(program) if subprocess.run(command, capture_output=True).returncode == 0 else None


@contextmanager
def running(
    folder: Path, python: str, *options: str, user: int | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that tells, for each line it is sent, whether it holds the hook and whether its path is as it was."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [python, *options, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=lonely_environment(folder) | {"PYTHONPATH": ""} | environment,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0
        process.stdout.close()
        process.stderr.close()


def told(process: subprocess.Popen[str]) -> str:
    """What it tells now. The line before makes it run a bytecode, at which it takes up what it was asked to do."""
    assert process.stdin is not None and process.stdout is not None
    for _ in range(2):
        process.stdin.write("\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    return answer.strip()


@contextmanager
def injected(folder: Path, pid: int) -> Iterator[None]:
    """A short report with --inject, and nothing left of it in the temporary folder."""
    temporary = folder / "tmp"
    temporary.mkdir()
    result = gpuwatch(
        folder,
        *("report", "--attach", str(pid), "--inject", "--yes", "--duration", "3", "--format", "json"),
        environment={"TMPDIR": str(temporary)},
    )
    assert "writes to process" in result.stderr
    assert result.returncode == 0, result.stderr
    yield
    assert list(temporary.iterdir()) == []


def test_the_hook_comes_into_a_running_process_and_leaves_its_path_alone(tmp_path: Path) -> None:
    with running(tmp_path, newest_python()) as process:
        assert told(process) == "False True"
        with injected(tmp_path, process.pid):
            assert told(process) == "True True"
        presence = tmp_path / "runtime" / "gpuwatch" / f"trainer-{process.pid}.json"
        assert presence.is_file()
        assert process.stderr is not None
    assert not presence.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start and write to a process of another user")
def test_root_executes_nothing_and_leaves_all_to_the_user_of_the_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    python = newest_python()
    folder = tmp_path_factory.mktemp("shared")
    for each in (folder, *folder.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o055)
    shutil.copytree(SITE.parent, folder / "gpuwatch" / "hook")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    executed: list[str] = []
    watched = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system")
    with running(folder, python, user=NOBODY) as process:
        assert told(process) == "False True"
        plan = plan_for(process.pid, site=folder / "gpuwatch" / "hook" / "site")
        assert (plan.uid, plan.gid) == (NOBODY, NOBODY)
        # An audit hook cannot be taken away again: it ends with the child.
        pid = os.fork()
        if not pid:
            try:
                sys.addaudithook(lambda event, _: executed.append(event) if event in watched else None)
                perform(plan, folder / "tmp")
                (script,) = (folder / "tmp").glob("*/install.py")
                owners = {(path.stat().st_uid, path.stat().st_gid) for path in (script, script.parent)}
                os._exit(0 if not executed and owners == {(NOBODY, NOBODY)} else 3)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert told(process) == "True True"
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_process_with_other_rights_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, newest_python()) as process:
        pid = os.fork()
        if not pid:
            try:
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                plan_for(process.pid)
            except CannotInjectError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with pytest.raises(CannotInjectError, match="run gpuwatch as that user"):
            _check_rights(process.pid, Rights(0, 0, ()), me=(NOBODY, NOBODY))
        assert told(process) == "False True"


def test_an_older_python_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python takes the hook")
    with running(tmp_path, sys.executable) as process:
        result = gpuwatch(tmp_path, "report", "--attach", str(process.pid), "--inject", "--yes")
        assert result.returncode == 2
        assert "3.14 and later" in result.stderr and "gpuwatch run" in result.stderr
        assert told(process) == "False True"


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ((), {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}),
        (("-X", "disable_remote_debug"), {}),
        (("-Xdisable-remote-debug",), {}),
    ],
    ids=["environment", "option", "option in one word"],
)
def test_a_process_that_forbids_it_is_left_alone(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    with running(tmp_path, newest_python(), *options, **environment) as process:
        result = gpuwatch(tmp_path, "report", "--attach", str(process.pid), "--inject", "--yes")
        assert result.returncode == 2
        assert "which forbids this" in result.stderr
        assert told(process) == "False True"


def test_nothing_is_done_without_consent(tmp_path: Path) -> None:
    with running(tmp_path, newest_python()) as process:
        result = gpuwatch(tmp_path, "report", "--attach", str(process.pid), "--inject")
        assert result.returncode == 2
        assert "add --yes" in result.stderr
        assert told(process) == "False True"


def test_the_user_is_asked_and_may_say_no(tmp_path: Path) -> None:
    with running(tmp_path, newest_python()) as process:
        controller, terminal = pty.openpty()
        with os.fdopen(controller, "wb", buffering=0) as keyboard, os.fdopen(terminal, "rb", buffering=0) as stdin:
            keyboard.write(b"n\n")
            result = subprocess.run(
                [sys.executable, "-m", "gpuwatch", "report", "--attach", str(process.pid), "--inject"],
                stdin=stdin,
                capture_output=True,
                text=True,
                env=lonely_environment(tmp_path) | {"PYTHONPATH": str(ROOT)},
                timeout=PATIENCE_SECONDS,
            )
        assert result.returncode == 2
        assert "nothing was changed" in result.stderr
        assert told(process) == "False True"


def test_inject_without_a_process_says_what_is_missing(tmp_path: Path) -> None:
    result = gpuwatch(tmp_path, "report", "--inject")
    assert result.returncode == 2
    assert "--attach PID" in result.stderr
