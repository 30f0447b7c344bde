"""Scripts that save too often, each in its own way: `gpuwatch report --patch` makes it rarer where that is written."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.integration.test_patch_real_scripts import added, patched_at_once

DATASET = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Rows(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return {"x": torch.ones(8) * (index % 7), "labels": torch.tensor(index % 2)}

class SlowStore:
    "Saving it takes as long on a fast disk as on a slow one."
    def __reduce__(self):
        time.sleep(0.5)  # half of the time, so that it is still too much where a busy machine makes all else slower
        return SlowStore, ()
"""

PLAIN = """\
{dataset}

def train(model, loader, optimizer):
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        print("step", flush=True)


def save(model):
    torch.save({"model": model.state_dict(), "store": SlowStore()}, "last.pt")


def main():
    epochs = int(sys.argv[1])
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Rows(160), batch_size=4)
    for epoch in range(epochs):
        train(model, loader, optimizer)
        save(model)


if __name__ == "__main__":
    main()
"""

HUGGING_FACE = """\
{dataset}
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 2)
    def forward(self, x, labels):
        time.sleep(0.02)
        print("step", flush=True)
        out = self.head(x)
        return {"loss": torch.nn.functional.cross_entropy(out, labels), "logits": out}

if __name__ == "__main__":
    training_args = TrainingArguments(
        output_dir="out",
        max_steps=int(sys.argv[1]),
        per_device_train_batch_size=4,
        save_steps=30,  # every half a second
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    training_args.store = SlowStore()
    trainer = Trainer(model=Net(), args=training_args, train_dataset=Rows(100_000))
    trainer.train()
"""

LIGHTNING = """\
{dataset}
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

class LitNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 2)
    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        print("step", flush=True)
        return torch.nn.functional.cross_entropy(self.head(batch["x"]), batch["labels"])
    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.1)
    def on_save_checkpoint(self, checkpoint):
        checkpoint["store"] = SlowStore()

if __name__ == "__main__":
    checkpoint = ModelCheckpoint(dirpath="out", every_n_train_steps=30)
    trainer = L.Trainer(max_steps=int(sys.argv[1]), logger=False, callbacks=[checkpoint],
                        enable_progress_bar=False, accelerator="cpu")
    trainer.fit(LitNet(), DataLoader(Rows(100_000), batch_size=4))
"""


SCRIPTS = {
    library: ("train.py", source.replace("{dataset}", DATASET))
    for library, source in {"torch": PLAIN, "transformers": HUGGING_FACE, "lightning": LIGHTNING}.items()
}
"""The library that each needs -> its name and source."""


@pytest.fixture(scope="module")
def rarer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The lines that the patch of a report adds; the script still runs with them."""
    patches = patched_at_once(tmp_path_factory.mktemp("patches"), SCRIPTS)
    return lambda library: added(SCRIPTS[library][1], patches[library].result())


def number_in(line: str, before: str, after: str) -> int:
    assert line.startswith(before) and line.endswith(after), line
    return int(line.removeprefix(before).removesuffix(after))


def test_a_function_that_saves_after_each_epoch_is_called_after_every_kth(rarer: Callable[[str], list[str]]) -> None:
    condition, call = rarer("torch")
    assert number_in(condition, "if (epoch + 1) % ", " == 0 or epoch + 1 == epochs:") >= 2
    assert call == "save(model)"


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_steps_between_saves_of_hugging_faces_trainer_become_more(rarer: Callable[[str], list[str]]) -> None:
    (line,) = rarer("transformers")
    steps = number_in(line, "save_steps=", ",  # every half a second")
    assert steps >= 60 and steps % 30 == 0


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_the_steps_between_saves_of_lightnings_callback_become_more(rarer: Callable[[str], list[str]]) -> None:
    (line,) = rarer("lightning")
    steps = number_in(line, 'checkpoint = ModelCheckpoint(dirpath="out", every_n_train_steps=', ")")
    assert steps >= 60 and steps % 30 == 0
