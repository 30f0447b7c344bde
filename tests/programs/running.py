"""Runs a program as its user would, records what gpuwatch sees of it, and asks py-spy the same."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs.catalogue import Program

GPUWATCH = (sys.executable, "-m", "gpuwatch")
ROOT = Path(__file__).resolve().parents[2]
WARM_SECONDS = 10.0


@dataclass(slots=True)
class Output:
    """What a program printed, line by line, with the moment (s, monotonic) at which each came."""

    lines: list[tuple[float, str]] = field(default_factory=list)

    def words(self) -> list[str]:
        return [words for _, words in self.lines]


@dataclass(frozen=True, slots=True)
class Seen:
    """One watched run: its report, its output, the watched seconds (monotonic), and what was wrong with its patch."""

    report: dict[str, Any]
    output: Output
    began: float
    ended: float
    patch_fault: str | None
    oracle_share: float | None  # of the training thread's samples: inside the function that makes batches


def missing(program: Program, programs: Path) -> str | None:
    """Why it cannot run here."""
    if not (programs / program.folder / program.script).is_file():
        return f"{program.folder}/{program.script} is not in the folder"
    absent = [name for name in program.needs if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def alone(program: Program, programs: Path, work: Path, seconds: float) -> Output:
    """The output of a run that nobody watches."""
    with _running(program, programs, work, hooked=False) as (_, output):
        time.sleep(seconds)
    return output


def watched(program: Program, programs: Path, work: Path, seconds: float, *, hooked: bool) -> Seen:
    """A run recorded for `seconds` once it is warm."""
    with _running(program, programs, work, hooked=hooked) as (process, output):
        time.sleep(WARM_SECONDS)
        recording = work / "run.gpuwatch"
        with _oracle(program, process.pid, work, seconds) as stacks:
            began = time.monotonic()
            _gpuwatch("record", "-f", "-o", str(recording), "--attach", str(process.pid), "--duration", f"{seconds:g}")
            ended = time.monotonic()
        report = json.loads(_gpuwatch("report", str(recording), "--format", "json"))
        fault = _patch_fault(_gpuwatch("report", str(recording), "--patch"), work / "copy")
        share = stack_share(stacks.read_text(), program.batch_function or "") if stacks.exists() else None
    return Seen(report, output, began, ended, fault, share)


@contextmanager
def _running(
    program: Program, programs: Path, work: Path, *, hooked: bool
) -> Iterator[tuple[subprocess.Popen[bytes], Output]]:
    """The program in a copy of its folder, its output on a terminal, as its user has it."""
    copy = work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(programs / program.folder, copy)
    program.data(copy)
    command = (sys.executable, program.script, *program.arguments)
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        (*GPUWATCH, "run", "--", *command) if hooked else command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    output = Output()
    reader = threading.Thread(target=_read, args=(screen, output))
    reader.start()
    try:
        yield process, output
        if process.poll() is not None:
            raise RuntimeError(f"{program.id} ended by itself: {output.words()[-3:]}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        os.close(screen)


def _read(screen: int, output: Output) -> None:
    """Until nobody has the terminal open any more."""
    rest = b""
    while True:
        try:
            data = os.read(screen, 1 << 16)
        except OSError:
            return
        *lines, rest = (rest + data).split(b"\n")
        output.lines.extend((time.monotonic(), line.decode(errors="replace").rstrip("\r")) for line in lines)


def _gpuwatch(*arguments: str) -> str:
    return subprocess.run((*GPUWATCH, *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _patch_fault(patch: str, copy: Path) -> str | None:
    """Why `git apply` refuses it; an empty one is none."""
    if not patch:
        return None
    command = ("git", "apply", "--check", "--unsafe-paths", f"--directory={copy}", "-")
    applied = subprocess.run(command, cwd=copy, input=patch, capture_output=True, text=True)
    return applied.stderr.strip() or None


@contextmanager
def _oracle(program: Program, pid: int, work: Path, seconds: float) -> Iterator[Path]:
    """The file that py-spy writes its stacks to over the same seconds; it does not stop the program."""
    stacks = work / "stacks.txt"
    found = shutil.which("py-spy")
    if program.batch_function is None or found is None:
        yield stacks
        return
    command = (found, "record", "--nonblocking", "--idle", "--rate", "100", "--format", "raw", "-o", str(stacks))
    arguments = ("--pid", str(pid), "--duration", f"{seconds:g}")
    process = subprocess.Popen((*command, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield stacks
    process.wait()


def stack_share(stacks: str, function: str) -> float | None:
    """Of py-spy's raw stacks (`frame;frame;frame count` a line), outermost first, those of the script that hold it.

    None where there are none. Other threads begin in a function of `threading`.
    """
    lines = [line.rpartition(" ") for line in stacks.splitlines() if line.startswith("<module>")]
    counts = [(frames, int(count)) for frames, _, count in lines]
    every = sum(count for _, count in counts)
    within = sum(count for frames, count in counts if f"{function} (" in frames)
    return within / every if every else None
