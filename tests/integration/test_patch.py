"""Scripts as people write them, starved for data: `gpuwatch report --patch` applies, and they still run.

A plain loop in the shape of PyTorch's examples, a Hugging Face Trainer, and a Lightning module with its `hparams`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, ROOT, gpuwatch, lonely_environment
from tests.integration.forked_python import ForkedPython
from tests.integration.test_main_job import training

DATASET = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
STEPS = int(sys.argv[1])

class Images(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return {"x": torch.ones(8) * (index % 7), "labels": torch.tensor(index % 2)}
"""

PLAIN = """\
import argparse
{dataset}

def main():
    parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
    parser.add_argument("steps", type=int)
    parser.add_argument("-j", "--workers", default=0, type=int, metavar="N",
                        help="number of data loading workers (default: 0)")
    args = parser.parse_args()
    train_kwargs = {{'batch_size': 4,
                    'shuffle': True}}
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = torch.utils.data.DataLoader(Images(), num_workers=args.workers, **train_kwargs)
    for batch_idx, data in enumerate(train_loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data["x"]), data["labels"])
        loss.backward()
        optimizer.step()
        print('Train Loss: {{:.6f}}'.format(loss.item()), flush=True)
        if batch_idx == STEPS:
            break

if __name__ == '__main__':
    main()
"""

HUGGING_FACE = """\
{dataset}
from transformers import Trainer, TrainerCallback, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 2)
    def forward(self, x, labels=None):
        logits = self.head(x)
        return {{"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}}

class Told(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("step", flush=True)

training_args = TrainingArguments(
    output_dir="./results",          # output directory
    max_steps=STEPS,
    per_device_train_batch_size=4,   # batch size per device during training
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    remove_unused_columns=False,
)

trainer = Trainer(model=Net(), args=training_args, train_dataset=Images(), callbacks=[Told()])
if __name__ == "__main__":
    trainer.train()
"""

LIGHTNING = """\
{dataset}
import lightning as L

class LitModel(L.LightningModule):
    def __init__(self, learning_rate=0.1, workers=0):
        super().__init__()
        self.save_hyperparameters()
        self.head = torch.nn.Linear(8, 2)

    def training_step(self, batch, batch_idx):
        print("step", flush=True)
        return torch.nn.functional.cross_entropy(self.head(batch["x"]), batch["labels"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)

    def train_dataloader(self):
        return DataLoader(Images(), batch_size=4, num_workers=self.hparams.workers)

if __name__ == "__main__":
    trainer = L.Trainer(max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        accelerator="cpu")
    trainer.fit(LitModel())
"""


SCRIPTS = {
    "torch": ("main.py", PLAIN.format(dataset=DATASET)),
    "transformers": ("finetune.py", HUGGING_FACE.format(dataset=DATASET)),
    "lightning": ("lit.py", LIGHTNING.format(dataset=DATASET)),
}
"""The library that each needs -> its name and source."""


class WithTransformers(ForkedPython):
    modules = (*ForkedPython.modules, "transformers.trainer", "transformers.training_args")


class WithLightning(ForkedPython):
    modules = (*ForkedPython.modules, "lightning")


FORKED = {"torch": ForkedPython, "transformers": WithTransformers, "lightning": WithLightning}


def patched(folder: Path, forked: type[ForkedPython], name: str, source: str) -> str:
    """The script after the patch of the report about its training, with which it still runs."""
    script, patch = folder / name, folder / "fix.patch"
    script.write_text(source)
    with training(folder, script, "100000", forked=forked) as pid:
        done = gpuwatch(folder, "report", "--attach", str(pid), "--duration", "20", "--patch", "-o", str(patch))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert patch.read_text().startswith(f"--- a/{script.name}\n"), done.stderr
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
    still_runs(folder, forked, script)
    return script.read_text()


def patched_at_once(folder: Path, scripts: Mapping[str, tuple[str, str]]) -> dict[str, Future[str]]:
    """All of them side by side, as they mostly wait: the library that each needs -> its name and source, patched."""
    pool = ThreadPoolExecutor()
    made = {}
    for library, (name, source) in scripts.items():
        if importlib.util.find_spec(library) is not None:
            (folder / library).mkdir()
            made[library] = pool.submit(patched, folder / library, FORKED[library], name, source)
    pool.shutdown()
    return made


def still_runs(tmp_path: Path, forked: type[ForkedPython], script: Path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, str(script), "6"]
    with forked(command, cwd=tmp_path, env=lonely_environment(tmp_path), text=True, **pipes) as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors


def added(before: str, after: str) -> list[str]:
    old = before.split("\n")
    return [line.strip() for line in after.split("\n") if line not in old]


def set_to(text: str, name: str) -> int:
    """The value of the keyword or parameter of that name that is no 0."""
    tree = ast.parse(text)
    keywords = [each.value for each in ast.walk(tree) if isinstance(each, ast.keyword) and each.arg == name]
    (value,) = [each.value for each in keywords if isinstance(each, ast.Constant)]
    assert isinstance(value, int)
    return value


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[str]]:
    return patched_at_once(tmp_path_factory.mktemp("patches"), SCRIPTS)


def test_plain_loop_with_argparse_is_patched_where_its_values_come_from(patches: dict[str, Future[str]]) -> None:
    lines = added(SCRIPTS["torch"][1], after := patches["torch"].result())
    assert set_to(after, "default") >= 1
    assert any("persistent_workers=args.workers > 0" in line for line in lines)
    assert len(lines) == 2, lines


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_hugging_face_script_is_patched_in_its_training_arguments(patches: dict[str, Future[str]]) -> None:
    lines = added(SCRIPTS["transformers"][1], after := patches["transformers"].result())
    assert set_to(after, "dataloader_num_workers") >= 1
    assert "dataloader_persistent_workers=True," in lines
    assert len(lines) == 2, lines


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_lightning_module_is_patched_in_its_hyperparameters(patches: dict[str, Future[str]]) -> None:
    lines = added(SCRIPTS["lightning"][1], patches["lightning"].result())
    assert any(line.startswith("def __init__(self, learning_rate=0.1, workers=") for line in lines)
    assert any("persistent_workers=self.hparams.workers > 0" in line for line in lines)
    assert len(lines) == 2, lines


def test_what_is_not_in_the_patch_is_reported_on_stderr(tmp_path: Path) -> None:
    """A setting that the command line gives is in no file; a file that changed since is not what runs."""

    def reported(name: str) -> subprocess.CompletedProcess[str]:
        folder, (file, source) = tmp_path / name, SCRIPTS["torch"]
        folder.mkdir()
        script = folder / file
        script.write_text(source)
        # Of none more are advised on any machine; of one, where its cores are not busy.
        with training(folder, script, "100000", "--workers", "0", forked=ForkedPython) as pid:
            if name == "changed":
                script.write_text(source + "\n")
                later = time.time() + 60
                os.utime(script, (later, later))
            return gpuwatch(folder, "report", "--attach", str(pid), "--duration", "20", "--patch")

    with ThreadPoolExecutor() as pool:
        given, changed = pool.map(reported, ("given", "changed"))
    assert (given.returncode, given.stdout) == (changed.returncode, changed.stdout) == (0, "")
    assert "it was started with --workers 0: start it with --workers" in given.stderr
    assert "was changed after the training started" in changed.stderr
    assert "the patch is empty" in given.stderr and "the patch is empty" in changed.stderr


SAVED_ROWS = """\
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

PLAIN_SAVES = """\
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

HUGGING_FACE_SAVES = """\
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

LIGHTNING_SAVES = """\
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


SAVING_SCRIPTS = {
    library: ("train.py", source.replace("{dataset}", SAVED_ROWS))
    for library, source in {
        "torch": PLAIN_SAVES,
        "transformers": HUGGING_FACE_SAVES,
        "lightning": LIGHTNING_SAVES,
    }.items()
}
"""The library that each needs -> its name and source."""


@pytest.fixture(scope="module")
def rarer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The lines that the patch of a report adds; the script still runs with them."""
    patches = patched_at_once(tmp_path_factory.mktemp("patches"), SAVING_SCRIPTS)
    return lambda library: added(SAVING_SCRIPTS[library][1], patches[library].result())


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


WRITE = "import sys; from gpuwatch.cli.output import write_stdout; write_stdout(bytes.fromhex(sys.argv[1]))"
LATIN_WITH_ESCAPE = "+x = 'é'\t# \x1b]0;title\x07\r\n".encode("latin-1")


def test_a_simulated_machine_has_no_files_to_patch(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", "starved", "--duration", "90", "--patch")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Not in the patch: the source file is not on this machine" in done.stderr
    assert "the patch is empty" in done.stderr.splitlines()[-1]


def test_a_healthy_machine_has_nothing_to_patch_and_says_so(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--simulate", "healthy", "--duration", "90", "--patch")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the patch is empty" in done.stderr and "nothing to change" in done.stderr


def test_a_patch_has_no_other_format(tmp_path: Path) -> None:
    done = gpuwatch(tmp_path, "report", "--patch", "--format", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "not allowed with argument --patch" in done.stderr


def test_a_pipe_gets_the_files_own_bytes() -> None:
    command = [sys.executable, "-c", WRITE, LATIN_WITH_ESCAPE.hex()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == LATIN_WITH_ESCAPE


def test_a_terminal_is_not_steered_by_somebodys_source() -> None:
    main, side = pty.openpty()
    subprocess.run([sys.executable, "-c", WRITE, LATIN_WITH_ESCAPE.hex()], cwd=ROOT, stdout=side, check=True)
    shown = os.read(main, 4096)
    os.close(side)
    os.close(main)
    assert b"\x1b" not in shown
    assert rb"\x1b]0;title" in shown
