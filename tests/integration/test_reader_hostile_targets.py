"""A hostile process next to an innocent one: it costs its own row, and the innocent one is listed, read and sampled."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuwatch.procfs import TreeWalker
from gpuwatch.reader.attach import Interpreter, attach, main_interpreter
from gpuwatch.reader.refusals import CannotReadError
from gpuwatch.samples import RunFacts, StackTally
from gpuwatch.sources.discovery import DiscoverySource
from gpuwatch.sources.stacks import StackSource, StackTarget
from tests.integration.interpreters import TARGETS, require_reading

HANG = 60.0
"""Seconds: a bound that only exists to end a hang; each of these took from 30 s to for ever."""
KINDS = [
    "names", "many maps", "digits", "long table", "long names", "threads", "source",
    "frame cycle", "thread cycle", "frames nowhere", "code nowhere", "chunks", "symbol tables", "program headers",
]  # fmt: skip


@contextmanager
def target(kind: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    require_reading()
    folder.mkdir()
    command = [sys.executable, "-I", "-S", str(TARGETS / "hostile.py"), kind, str(folder)]
    if kind in ("symbol tables", "program headers"):
        command = [str(tiny_program(folder / "python3.11", kind))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if len(command) > 1:
            assert process.stdout.readline() == "ready\n"
            corrupt(process, kind)
        yield process
    finally:
        process.kill()
        process.communicate()


def tiny_program(path: Path, kind: str) -> Path:
    """A program that only waits, named like a Python: with 200 symbol tables of 48 MiB, or odd segments."""
    if os.uname().machine != "x86_64":
        pytest.skip("its code is that of x86-64")
    tables, base, code_at = 200, 0x400000, 64 + 3 * 56
    wait = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"  # pause() again and again
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 0x1000, 0x1000, 0x1000)
    dynamic = (2, 4, 0, (1 << 63) - 8, 0, 1 << 62, 1 << 62, 8) if kind == "program headers" else (0,) * 8
    segments += struct.pack("<IIQQQQQQ", *dynamic)
    segments += struct.pack("<IIQQQQQQ", 4, 4, (1 << 64) - 1, (1 << 64) - 1, 0, (1 << 64) - 1, (1 << 64) - 1, 3)
    segments = segments if kind == "program headers" else segments[:56]
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 1 << 20, 48 << 20, tables, 0, 8, 24) for _ in range(tables)
    ) + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 1 << 20, 48 << 20, 0, 0, 1, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, base + code_at, 64, 4096, 0, 64, 56, len(segments) // 56, 64,
        tables + 1, tables,
    )  # fmt: skip
    with path.open("wb") as file:
        file.write((header + segments).ljust(code_at, b"\0") + wait)
        file.seek(4096)
        file.write(sections)
        file.seek(1 << 20)
        file.write(b"\0_PyRuntime\0")
        file.truncate(4 << 30)
    path.chmod(0o755)
    return path


def corrupt(process: subprocess.Popen[str], kind: str) -> None:
    """Has the target break its own structures, at the addresses where the reader finds them."""
    if kind not in ("frame cycle", "thread cycle", "frames nowhere", "code nowhere", "chunks"):
        return
    interpreter = attach(process.pid)
    stack = None
    while stack is None:
        stack = interpreter.main_stack()
    layout, inner, outer = interpreter.layout, stack.frames[0].address, stack.frames[-2].address
    if kind == "frame cycle":
        pokes = [(outer + layout.frame_previous, inner)]
    elif kind == "frames nowhere":
        pokes = [(outer + layout.frame_previous, (1 << 63) + 8)]
    elif kind == "code nowhere":
        pokes = [(outer + layout.frame_code, 0x1000)]
    elif kind == "chunks":
        if layout.thread_chunk is None:
            pytest.skip("this Python has no data stack")
        chunk = interpreter.memory.pointer(thread_of(interpreter) + layout.thread_chunk)
        pokes = [(chunk, chunk), (chunk + 8, 1 << 31)]
    else:
        thread = thread_of(interpreter)
        pokes = [(thread + layout.thread_next, thread)]
    interpreter.close()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("; ".join(f"poke({address}, {value})" for address, value in pokes) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def thread_of(interpreter: Interpreter) -> int:
    head = main_interpreter(interpreter.memory, interpreter.program, interpreter.layout)
    return interpreter.memory.pointer(head + interpreter.layout.threads_head)


def sampled(innocent: int, hostile: int) -> tuple[int, list[RunFacts]]:
    """Looks at both until the innocent one was seen 20 times; the facts are those of the hostile one."""
    source = StackSource(lambda: [StackTarget(hostile, False), StackTarget(innocent, False)])
    looks, facts = 0, []
    end = time.monotonic() + HANG
    try:
        while looks < 20 and time.monotonic() < end:
            for sample in source.collect(time.monotonic_ns()):
                if isinstance(sample, StackTally) and sample.trainer.startswith(f"{innocent}."):
                    looks += sample.samples
                elif isinstance(sample, RunFacts) and sample.pid == hostile:
                    facts.append(sample)
            time.sleep(0.05)
    finally:
        source.close()
    return looks, facts


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_process_costs_only_its_own_row(tmp_path: Path, kind: str) -> None:
    with target("innocent", tmp_path / "good") as good, target(kind, tmp_path / "bad") as bad:
        began = time.thread_time()
        refusal = None
        try:
            interpreter = attach(bad.pid)
            with suppress(CannotReadError):
                for _ in range(20):
                    interpreter.main_stack()
                    for stack in interpreter.stacks():
                        assert all(frame.line is None or 0 <= frame.line < 1 << 31 for frame in stack.frames)
            interpreter.close()
        except CannotReadError as error:
            refusal = error
            assert error.sentence.isprintable() and str(bad.pid) in error.sentence
        assert time.thread_time() - began < HANG

        tree = {good.pid, bad.pid, *TreeWalker("/proc").descendants(os.getpid())}
        found = {each.pid: each for each in DiscoverySource().look_now().processes if each.pid in tree}
        assert found[good.pid].visibility == "sampled"
        assert found[good.pid].refusal is None
        if bad.pid in found:
            assert (found[bad.pid].refusal is None) == (refusal is None)

        interpreter = attach(good.pid)
        stack = interpreter.main_stack()
        interpreter.close()
        assert stack is not None
        assert [frame.code.name for frame in stack.frames] == ["obey", "main", "<module>"]

        looks, facts = sampled(good.pid, bad.pid)
        assert looks >= 20, "the innocent one was not sampled next to the hostile one"
        assert all(note.isprintable() for each in facts for note in each.notes)
        if refusal is not None:
            assert all(each.visibility == "process" for each in facts)
        assert bad.poll() is None and good.poll() is None, "reading ended a target"


@pytest.mark.parametrize("kind", ["names", "digits", "symbol tables", "frame cycle"])
def test_commands_answer_beside_a_hostile_process(tmp_path: Path, kind: str) -> None:
    with target("innocent", tmp_path / "good") as good, target(kind, tmp_path / "bad"):
        for arguments, words in (
            (["--attach"], [str(good.pid)]),
            (["stacks", str(good.pid), "--seconds", "0.5", "--format", "collapsed"], ["obey", "main"]),
        ):
            answer = subprocess.run(
                [sys.executable, "-m", "gpuwatch", *arguments],
                capture_output=True,
                text=True,
                timeout=HANG,
                check=False,
            )
            assert answer.returncode == 0, answer.stderr
            assert all(word in answer.stdout for word in words), answer.stdout
