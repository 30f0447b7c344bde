"""Stacks as the reader sees them from outside against the same stacks as the target and py-spy tell them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.stacks import Stack
from tests.integration.interpreters import Python, Target, each, standing, until_standing

KINDS = (
    "nested",
    "generators",
    "coroutines",
    "recursion",
    "c_calls",
    "executed",
    "comprehensions",
    "decorators",
    "multiline",
    "classes",
    "names",
    "many_locals",
    "handlers",
    "forked",
)


def lines_of(stack: Stack) -> list[tuple[str, str, int | None]]:
    return [(frame.code.file, frame.code.name, frame.line) for frame in stack.frames]


def main_stack(target: Target) -> Stack:
    until_standing(target.pid)
    interpreter = attach(target.pid)
    try:
        stack = interpreter.main_stack()
        assert stack is not None
        assert interpreter.rejected == 0
        return stack
    finally:
        interpreter.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("python", each())
def test_stack_is_the_one_that_the_target_tells_of_itself(python: Python, kind: str) -> None:
    with standing(python, kind) as target:
        stack = main_stack(target)
        assert lines_of(stack)[1:] == target.main
        assert stack.frames[0].code.name == "stand"
        assert stack.is_main


@pytest.mark.parametrize("kind", ["nested", "generators", "coroutines", "recursion", "c_calls", "classes", "names"])
@pytest.mark.parametrize("python", each(range(8, 14)))
def test_py_spy_sees_the_same_stack(python: Python, kind: str) -> None:
    py_spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if py_spy is None:
        pytest.skip("py-spy is not installed")
    with standing(python, kind) as target:
        stack = main_stack(target)
        command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(target.pid)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if "ermission denied" in answer.stderr or "not permitted" in answer.stderr:
            pytest.skip(f"py-spy may not read this process: {answer.stderr.strip()}")
        assert answer.returncode == 0, answer.stderr
    (other,) = json.loads(answer.stdout)
    # py-spy also lists the code that 3.13 pushes below an inlined __init__, which has no file.
    theirs = [frame for frame in other["frames"] if frame["filename"] != "__init__"]
    ours = [(frame.code.file, frame.code.qualified_name or frame.code.name) for frame in stack.frames]
    assert [(frame["filename"], frame["name"]) for frame in theirs] == ours
    # Its lines for 3.10 differ from the interpreter's own inside calls over several lines.
    if python.minor != 10:
        assert [frame["line"] for frame in theirs] == [frame.line for frame in stack.frames]


@pytest.mark.parametrize("python", each())
def test_each_thread_has_its_own_stack_and_the_main_one_comes_first(python: Python) -> None:
    with standing(python, "threads") as target:
        until_standing(target.pid)
        interpreter = attach(target.pid)
        stacks = interpreter.stacks()
        main, *others = stacks
        interpreter.close()
        assert main.is_main
        assert lines_of(main)[1:] == target.main
        assert not any(stack.is_main for stack in others)
        # Each waits in the Event below the function that told.
        told = sorted(frames[:-3] for frames in target.threads.values())
        seen = sorted([frame for frame in lines_of(stack) if frame[1] == "wait_at"][1:] for stack in others)
        assert seen == told
        assert all(stack.frames[-1].code.name == "_bootstrap" for stack in others)
        if python.minor >= 11:
            assert {stack.thread for stack in others} == set(target.threads)
            assert main.thread == target.pid


@pytest.mark.parametrize("python", each())
def test_child_that_a_thread_forked_has_that_thread_as_its_main_one(python: Python) -> None:
    with standing(python, "forked_by_thread") as target:
        stack = main_stack(target)
        assert lines_of(stack)[1:] == target.main
        assert stack.frames[-1].code.name == "_bootstrap"


@pytest.mark.parametrize("python", each())
def test_main_interpreter_is_read_where_there_are_others(python: Python) -> None:
    with standing(python, "subinterpreters") as target:
        assert lines_of(main_stack(target))[1:] == target.main


@pytest.mark.parametrize("python", each())
def test_deep_stack_keeps_its_ends_and_says_how_much_was_left_out(python: Python) -> None:
    with standing(python, "hundreds") as target:
        seen = lines_of(main_stack(target))
    assert len(seen) < 600
    (marker,) = [index for index, frame in enumerate(seen) if "left out" in frame[1]]
    left_out = len(target.main) + 1 - (len(seen) - 1)
    assert seen[marker] == ("", f"<{left_out} frames left out>", None)
    assert seen[1:marker] == target.main[: marker - 1]
    assert seen[marker + 1 :] == target.main[-(len(seen) - marker - 1) :]


@pytest.mark.parametrize("python", each())
def test_stack_too_deep_to_be_followed_keeps_its_innermost_frames(python: Python) -> None:
    with standing(python, "endless") as target:
        seen = lines_of(main_stack(target))
    assert len(seen) < 600
    assert seen[1:-1] == target.main[: len(seen) - 2]
    assert "more than" in seen[-1][1]


@pytest.mark.parametrize("python", each())
def test_frame_leads_to_the_locals_of_its_function(python: Python) -> None:
    with standing(python, "recursion") as target:
        until_standing(target.pid)
        interpreter = attach(target.pid)
        stack = interpreter.main_stack()
        assert stack is not None
        downs = [frame for frame in stack.frames if frame.code.name == "down"]
        first_locals = interpreter.memory.read_many([(frame.locals_address, 8) for frame in downs[1:4]])
        interpreter.close()
        # The argument counts down: three ints of neighbouring size, each another object.
        assert len(set(first_locals)) == 3
        assert all(any(value) for value in first_locals)
