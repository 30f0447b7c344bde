"""Attaching to forks of a process that is known: what they share with it is not found again."""

from __future__ import annotations

import sys

import pytest

import gpuwatch.reader.attach as attaching
from gpuwatch.reader.attach import attach
from gpuwatch.reader.program import find_program
from tests.integration.interpreters import Python, each, running, until_standing

HERE = Python(sys.version_info[1], (sys.executable,))
FORKING = """
import os, sys
def stand():
    print(os.getpid(), flush=True)
    os.read(0, 1)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    stand()
"""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes in which a Python was looked for."""
    found: list[int] = []

    def counted(memory: attaching.Memory) -> attaching.Program:
        found.append(memory.pid)
        return find_program(memory)

    monkeypatch.setattr(attaching, "find_program", counted)
    return found


@pytest.mark.parametrize("python", each())
def test_a_fork_is_read_by_what_is_known_of_its_parent(python: Python, searches: list[int]) -> None:
    with running([*python.command, "-c", FORKING]) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        until_standing(child_pid)
        first = attach(parent.pid)
        assert first.main_stack() is not None
        alone = attach(child_pid)
        searches.clear()
        shared = attach(child_pid, relative=first)
        first.close()
        stack, expected = shared.main_stack(), alone.main_stack()
        assert stack is not None
        assert stack == expected
        assert [frame.code.name for frame in stack.frames] == ["stand", "<module>"]
        assert searches == []
        shared.close()
        alone.close()
        assert parent.stdin is not None
        parent.stdin.write("\n")


def test_a_process_that_only_runs_the_same_program_is_searched(searches: list[int]) -> None:
    text = "import os; print(os.getpid(), flush=True); os.read(0, 1)"
    with running([*HERE.command, "-c", text]) as one, running([*HERE.command, "-c", text]) as other:
        for process in (one, other):
            assert process.stdout is not None
            process.stdout.readline()
            until_standing(process.pid)
        first = attach(one.pid)
        second = attach(other.pid, relative=first)
        assert second.main_stack() is not None
        assert other.pid in searches or second.program.image.base == first.program.image.base
        first.close()
        second.close()
