"""Variables that loops count with, read from outside on every Python."""

from __future__ import annotations

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.loaders import LoaderReader
from tests.integration.interpreters import Python, code, each, until_standing

PROGRAM = """
import sys

iter_num = 70_000
text = "none"

class Trainer:
    step = 5

    @property
    def hidden(self):
        return 1

    def train(self, batch):
        captured = 1 << 40
        unbound = 1
        del unbound
        self.step = 12

        def closure():
            return captured

        print("ready", flush=True)
        sys.stdin.read()

Trainer().train(-3)
"""
EXPECTED = {
    "batch": -3,
    "captured": 1 << 40,
    "self.step": 12,
    "iter_num": 70_000,  # of a function: the module's
    "unbound": None,
    "text": None,
    "self.hidden": None,
    "self.absent": None,
    "absent": None,
}


@pytest.mark.parametrize("python", each())
def test_a_variable_is_read_as_the_code_means_it(python: Python) -> None:
    with code(python, PROGRAM) as process:
        until_standing(process.pid)
        interpreter = attach(process.pid)
        try:
            stack = interpreter.main_stack()
            assert stack is not None
            reader = LoaderReader(interpreter)
            train = next(frame for frame in stack.frames if frame.code.name == "train")
            assert {name: reader.integer(train, name) for name in EXPECTED} == EXPECTED
            module = stack.frames[-1]
            assert module.code.name == "<module>"
            assert reader.integer(module, "iter_num") == 70_000
            assert reader.integer(module, "batch") is None
        finally:
            interpreter.close()
