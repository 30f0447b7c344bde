"""torch.compile with the hook: the same graphs, the same breaks, no frame of ours compiled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hook_listener import listening
from hook_programs import PREAMBLE, STEP_HOOKS, finished, rendezvous

COMPILED = (
    PREAMBLE
    + STEP_HOOKS
    + """
import json, sys
import torch._dynamo as dynamo

backend = sys.argv[1]
counters = dynamo.utils.counters
results = {}

def measured(name, program):
    dynamo.reset()
    counters.clear()
    try:
        program()
        outcome = "ran"
    except Exception as error:
        outcome = type(error).__name__
    breaks = {reason.splitlines()[0]: count for reason, count in counters["graph_break"].items()}
    results[name] = [outcome, dict(counters["frames"]), dict(counters["stats"]), breaks]

def forward_only():
    model = torch.compile(net, backend=backend, fullgraph=True)
    for batch in DataLoader(data, batch_size=16):
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

def whole_step():
    step = torch.compile(train_on, backend=backend)
    for batch in DataLoader(data, batch_size=16):
        step(batch)

def optimizer_alone():
    net(data.tensors[0]).sum().backward()
    step = torch.compile(optimizer.step, backend=backend)
    for _ in range(3):
        step()

def autocast_inside():
    @torch.compile(backend=backend, fullgraph=True)
    def forward(inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(inputs)
    for batch in DataLoader(data, batch_size=16):
        forward(batch[0]).sum().backward()

for name in sys.argv[2:]:
    measured(name, globals()[name])
print(json.dumps(results, sort_keys=True))
"""
)


def measured(folder: Path, backend: str, *programs: str, hooked: bool) -> dict[str, Any]:
    """The outcome, frames, graphs and breaks of each program.

    Dynamo compiles frames of inductor's as well, 108 where it makes kernels and 13 where it finds graphs in its cache.
    So no graph is kept, and what the C++ compiler made of a kernel, 10 s of a core, is.
    """
    kept = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # 155 MB in the temporary folder, kept for good
    }
    forked = backend == "eager"  # inductor reads these as torch is imported
    done = finished(folder, COMPILED, backend, *programs, hooked=hooked, forked=forked, **kept)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("backend", "programs"),
    [
        ("eager", ["forward_only", "whole_step", "optimizer_alone", "autocast_inside"]),
        ("inductor", ["whole_step"]),
    ],
)
def test_no_graph_is_added_broken_or_lost(tmp_path: Path, backend: str, programs: list[str]) -> None:
    if backend == "inductor" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("inductor needs a C++ compiler and this machine has none")
    folder = rendezvous(tmp_path)
    with listening(folder) as listener:
        plain, results = (measured(folder, backend, *programs, hooked=hook) for hook in (False, True))
        listener.until_all_closed()
    for name in programs:
        outcome, frames, graphs, breaks = results[name]
        assert outcome == plain[name][0] == "ran"
        assert (frames, graphs, breaks) == tuple(plain[name][1:]), name
    trainer = max(listener.trainers, key=lambda peer: len(peer.records))
    assert len(trainer.of("BACKWARD")) >= 2
    assert trainer.of("COMPILE")
    assert all(span.end_ns > span.start_ns for span in trainer.of("COMPILE"))
    assert trainer.facts["model"]["compiled"] is True
