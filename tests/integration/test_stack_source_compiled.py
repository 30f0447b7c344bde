"""The stack source over a training whose model went through torch.compile, which puts frames of its own in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuwatch.samples import StackTally
from gpuwatch.sources.stacks import StackTarget
from tests.integration.stack_training import (
    Log,
    collect_until,
    line_of,
    lines_of,
    looks_of,
    started,
    undisturbed,
    watching,
)

COMPILED = """
import json, time
import torch
from torch import nn

clock = time.perf_counter
spent = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(384, 384) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # LAYER
        return x


model = torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(128, 384)
model(x).sum().backward()
last = clock()


def lap(name):
    global last
    now = clock()
    spent[name] += now - last
    last = now


batches = 0
while True:
    loss = model(x).pow(2).mean()
    lap("forward")
    loss.backward()
    lap("backward")
    optimizer.step()
    optimizer.zero_grad()
    lap("optimizer")
    batches += 1
    if batches % 5 == 0:
        print(json.dumps([time.monotonic_ns(), batches, spent]), flush=True)
"""
LOOKS = 300
NEAR = 0.1


def test_looks_at_a_compiled_forward_count_like_all_others(tmp_path: Path) -> None:
    with started(tmp_path, COMPILED) as (process, _):
        log = Log(process)
        log.wait()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            collect_until(source, lambda seen: looks_of(seen) >= 1)
            start_ns = time.monotonic_ns()
            samples = collect_until(source, lambda seen: looks_of(seen) >= LOOKS)
            tallies = undisturbed([s for s in samples if isinstance(s, StackTally) and start_ns <= s.start_ns])
            spent = log.spent((tally.start_ns, tally.end_ns) for tally in tallies)
    looks = sum(tally.samples for tally in tallies)
    assert sum(tally.rejected for tally in tallies) < 0.05 * looks
    for phase, seconds in spent.items():
        seen = sum(tally.phases.get(phase, 0) for tally in tallies) / looks
        assert seen == pytest.approx(seconds / sum(spent.values()), abs=NEAR), phase
    # Dynamo gives all of the code it makes the line of the function.
    hot = lines_of(samples, "forward").most_common(1)[0][0]
    assert line_of(COMPILED, "def forward") <= hot <= line_of(COMPILED, "# LAYER")
