"""What the hook reads off a model once: layout of kernels, sides of matrices, why it was compiled anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hook_listener import listening
from hook_programs import finished, rendezvous

CONVOLUTIONS = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

kernels = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 1)
net = torch.nn.Sequential(*kernels, torch.nn.Flatten(), torch.nn.Linear(128, 7))
if "channels_last" in sys.argv:
    net = net.to(memory_format=torch.channels_last)
torch.use_deterministic_algorithms("deterministic" in sys.argv)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True if "foreach" in sys.argv else None)
for (batch,) in DataLoader(TensorDataset(torch.randn(32, 3, 6, 6)), batch_size=8):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
"""

RECOMPILED = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

@torch.compile(backend="eager", dynamic=False)
def forward(batch):
    return net(batch).sum()

for (batch,) in DataLoader(TensorDataset(torch.randn(22, 4)), batch_size=8):
    optimizer.zero_grad()
    forward(batch).backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def facts_of(folder: Path, source: str, *arguments: str) -> dict[str, Any]:
    with listening(folder) as listener:
        result = finished(folder, source, *arguments, forked=True)
        assert result.returncode == 0, result.stderr
        listener.until_all_closed()
    (trainer,) = listener.trainers
    assert trainer.facts["unhooked"] == []
    return dict(trainer.facts)


def test_kernels_lie_channels_first_and_batches_have_one_shape(folder: Path) -> None:
    facts = facts_of(folder, CONVOLUTIONS)
    model, (loader,) = facts["model"], facts["loaders"]
    assert (model["channels_last"], model["deterministic"], model["optimizer_foreach"]) == (False, False, None)
    assert model["misaligned_shape"] == "7x128"
    assert model["misaligned_share"] == pytest.approx(7 * 128 / model["parameters"], abs=1e-3)
    assert loader["batches_inspected"] >= 1 and loader["batch_shapes"] == 1


def test_a_model_turned_to_channels_last_says_so(folder: Path) -> None:
    model = facts_of(folder, CONVOLUTIONS, "channels_last", "foreach", "deterministic")["model"]
    assert (model["channels_last"], model["deterministic"], model["optimizer_foreach"]) == (True, True, True)


def test_a_recompilation_is_reported_with_its_reason_and_function(folder: Path) -> None:
    model = facts_of(folder, RECOMPILED)["model"]
    assert model["compiled"] is True
    assert "size mismatch" in model["recompile_reason"]
    assert Path(model["recompile_file"]).name == "train.py"
    assert model["recompile_line"] == 7
