"""Attaching to a running CPython: from a pid to an `Interpreter` that can be asked for stacks."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.reader.containment import OPERATION_SECONDS, in_time, refusal_of
from gpuwatch.reader.debug_offsets import (
    COOKIE,
    NEWEST,
    SIZE,
    FreeThreadedError,
    OffsetsError,
    PrereleaseError,
    UnknownMinorError,
    layout_from,
    version_of,
)
from gpuwatch.reader.interpreter import Interpreter
from gpuwatch.reader.layout import FIRST_SELF_DESCRIBING, TABLES, Layout
from gpuwatch.reader.memory import PROC, Memory, UnreadableAddressError
from gpuwatch.reader.program import OLDEST, Program, find_program
from gpuwatch.reader.refusals import gone, not_ready, refuse
from gpuwatch.reader.threads import main_interpreter
from gpuwatch.reader.types import CannotReadError, Reason


def attach(
    pid: int,
    *,
    proc_root: Path = PROC,
    start_ticks: int | None = None,
    relative: Interpreter | None = None,
    cpu_seconds: float = OPERATION_SECONDS,
) -> Interpreter:
    """Finds the interpreter of a process.

    Args:
        pid: The process.
        proc_root: The /proc to read.
        start_ticks: If given, it is attached to only if it started then.
        relative: An interpreter of which this one may be a fork, or a fork of the same: what a fork shares with it
            need not be found again, which is nearly all that attaching costs. It may be closed by now.
        cpu_seconds: The CPU time that it may take.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    memory = Memory(pid, proc_root)
    try:
        if start_ticks is not None and memory.start_ticks != start_ticks:
            raise gone(pid)
        return in_time(pid, memory.budget, lambda: interpreter_in(memory, relative, cpu_seconds))
    except BaseException:
        memory.close()
        raise


def interpreter_in(
    memory: Memory, relative: Interpreter | None = None, cpu_seconds: float = OPERATION_SECONDS
) -> Interpreter:
    """The interpreter in a process's memory; the arguments and refusals are those of `attach`.

    Raises:
        CannotReadError: It cannot be read; says why, and what to do.
    """
    memory.budget.begin(cpu_seconds)
    try:
        shares = relative is not None and relative.program.lies_in(memory)
        if relative is not None and shares:
            program, layout = relative.program, relative.layout
        else:
            program = find_program(memory)
            layout = _layout(memory, program)
        _check_state(memory, program, layout)
        return Interpreter(memory, program, layout, relative.codes if relative is not None and shares else None)
    except CannotReadError:
        raise
    except UnreadableAddressError:
        raise not_ready(memory.pid) from None
    except Exception as error:
        raise refusal_of(memory.pid, error) from error


def _layout(memory: Memory, program: Program) -> Layout:
    """The layout of the interpreter's version.

    Raises:
        CannotReadError: It is of a version or build that is not known.
    """
    pid = memory.pid
    if program.debug_build:
        raise _other_build(pid, "a debug build of Python", "train with a release build")
    raw = b""
    if program.version is None or program.version >= FIRST_SELF_DESCRIBING:
        raw = memory.read(program.runtime, SIZE)
    version = program.version or version_of(raw)
    if version is None:
        raise refuse(
            Reason.NO_SYMBOLS,
            f"the Python of process {pid} was stripped of the symbols that name its version",
            "train with a Python that is not stripped, or use gpuwatch run",
        )
    if version in TABLES:
        return TABLES[version]
    if version < OLDEST:
        raise _other_version(pid, version, f"older than {OLDEST[0]}.{OLDEST[1]}, the oldest that is read")
    if version > NEWEST:
        raise _other_version(pid, version, f"newer than {NEWEST[0]}.{NEWEST[1]}, the newest this gpuwatch knows")
    if raw[: len(COOKIE)] == bytes(len(COOKIE)):
        raise not_ready(pid)
    return _described(pid, version, raw)


def _described(pid: int, version: tuple[int, int], raw: bytes) -> Layout:
    try:
        layout = layout_from(raw)
    except FreeThreadedError:
        raise _other_build(
            pid, "a free-threaded build of Python (no GIL)", "use gpuwatch run, or train with the default build"
        ) from None
    except PrereleaseError:
        raise _other_version(pid, version, "a pre-release, whose layout is not final") from None
    except UnknownMinorError:
        raise _other_version(pid, version, "not known to this gpuwatch") from None
    except OffsetsError as error:
        raise _other_build(pid, f"an unusual build of Python ({error})", "use gpuwatch run") from None
    if layout.version != version:
        raise _other_build(pid, "a Python that contradicts itself about its version", "use gpuwatch run")
    return layout


def _check_state(memory: Memory, program: Program, layout: Layout) -> None:
    """Whether the interpreter is there already.

    Raises:
        CannotReadError: It is still starting.
    """
    interpreter = main_interpreter(memory, program, layout)
    if not interpreter or not memory.pointer(interpreter + layout.threads_head):
        raise not_ready(memory.pid)


def _other_build(pid: int, what: str, cure: str) -> CannotReadError:
    return refuse(Reason.BUILD, f"process {pid} runs {what}, whose stacks are not read", cure)


def _other_version(pid: int, version: tuple[int, int], why: str) -> CannotReadError:
    return refuse(
        Reason.VERSION,
        f"process {pid} runs Python {version[0]}.{version[1]}, {why}",
        "use gpuwatch run, which reads no memory",
    )


__all__ = ["Interpreter", "attach"]
