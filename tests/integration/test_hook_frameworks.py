"""Trainers that own the loop: Hugging Face and Lightning, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hook_listener import Peer, listening
from hook_programs import finished, rendezvous

HUGGING_FACE = """\
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(64, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, num_train_epochs=1, gradient_accumulation_steps=2, use_cpu=True,
    report_to=[], save_strategy="epoch", eval_strategy="epoch", disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
trainer.train()
"""

LIGHTNING = """\
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.layer(batch[0])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=True)

data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
train, validation = DataLoader(data, batch_size=8), DataLoader(data, batch_size=16)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False
)
trainer.fit(Module(), train, validation)
"""


def trained(tmp_path: Path, source: str) -> Peer:
    folder = rendezvous(tmp_path)
    with listening(folder) as listener:
        result = finished(folder, source, forked=True)
        assert result.returncode == 0, result.stderr
        listener.until_all_closed()
    (trainer,) = listener.trainers
    assert trainer.facts["unhooked"] == []
    return trainer


def line_after(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_hugging_faces_trainer_is_reported_with_who_built_its_loader(tmp_path: Path) -> None:
    trainer = trained(tmp_path, HUGGING_FACE)
    train = next(loader for loader in trainer.facts["loaders"] if loader["batches_per_epoch"] == 4)
    assert (train["library"], train["batch_size"]) == ("transformers", 8)
    assert (Path(train["file"]).name, train["line"]) == ("train.py", line_after(HUGGING_FACE, "trainer.train()"))
    assert [wait.b for wait in trainer.of("NEXT") if wait.id == train["loader"]][:4] == [8, 8, 8, 8]
    assert len(trainer.of("BACKWARD")) == 4
    assert len(trainer.of("OPTIMIZER")) == 2, "two batches are accumulated"
    assert trainer.of("SAVE")
    assert all(save.a > 0 for save in trainer.of("SAVE"))


def test_lightnings_trainer_is_reported_with_the_users_own_loaders(tmp_path: Path) -> None:
    trainer = trained(tmp_path, LIGHTNING)
    loaders = {loader["batch_size"]: loader for loader in trainer.facts["loaders"]}
    line = line_after(LIGHTNING, "train, validation =")
    assert [(loaders[size]["line"], loaders[size]["library"]) for size in (8, 16)] == [(line, None)] * 2
    steps = trainer.of("OPTIMIZER")
    assert len(steps) == len(trainer.of("BACKWARD")) == 4
    pairs = zip(trainer.of("BACKWARD"), steps, strict=True)
    assert all(backward.within(step) for backward, step in pairs), "Lightning runs backward in the optimizer's closure"
    model = trainer.facts["model"]
    assert (model["optimizer"], model["optimizer_fused"]) == ("AdamW", True)
    assert model["optimizer_line"] == line_after(LIGHTNING, "torch.optim.AdamW")
    assert [save.a > 0 for save in trainer.of("SAVE")] == [True], "through a buffer in memory, yet a checkpoint"


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
