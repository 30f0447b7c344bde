"""Small training programs, run with and without the hook, for the tests of the hook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpuwatch
from tests.integration.forked_python import ForkedPython
from tests.integration.process_groups import killed_after

ROOT = Path(gpuwatch.__file__).resolve().parent.parent
SITE = ROOT / "gpuwatch" / "hook" / "site"
PATIENCE_SECONDS = 240  # compiling takes half a minute of two idle cores; only a program that hangs gets there

PREAMBLE = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 60  # seconds: a worker that takes longer to end is killed
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))

def train_on(batch):
    inputs, labels = batch
    loss = torch.nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""Enough of a training to be hooked; a test's program goes on from here."""

STEP_HOOKS = """
import sys
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

def traced_to_nothing(*arguments):
    torch.compiler.is_dynamo_compiling()

if "_gpuwatch_hook" not in sys.modules:
    register_optimizer_step_pre_hook(traced_to_nothing)
    register_optimizer_step_post_hook(traced_to_nothing)
"""
"""What makes the compiled frames of a program without the hook comparable, one by one, with those of a hooked one.

Where an optimizer's hook asks whether Dynamo traces it, Dynamo keeps the compiled end of `Optimizer.step` although it
holds no operation. Else it discards that, runs the end as Python and tries `_optimizer_step_code` as one frame more.
"""


def environment(folder: Path, hooked: bool = True, **extra: str) -> dict[str, str]:
    """The environment of a program that meets monitors in `folder`."""
    paths = [str(SITE), str(ROOT)] if hooked else [str(ROOT)]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MASTER_PORT")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "GPUWATCH_DIR": str(folder), **extra}


def command(folder: Path, source: str, *arguments: str) -> list[str]:
    """The command line that runs a source, written to a file in the folder above the rendezvous."""
    script = folder.parent / "train.py"
    script.write_text(source, encoding="utf-8")
    return [sys.executable, str(script), *arguments]


@contextmanager
def started(
    folder: Path, source: str, *arguments: str, hooked: bool = True, forked: bool = False, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A running program; it is killed if the test leaves it behind.

    With `forked`, it comes from a Python that has imported torch already.
    """
    process = (ForkedPython if forked else subprocess.Popen)(
        command(folder, source, *arguments),
        env=environment(folder, hooked, **variables),
        cwd=folder.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with killed_after(process):
        yield process


def finished(folder: Path, source: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end, whatever that is. The options are those of `started`."""
    with started(folder, source, *arguments, **options) as process:
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def rendezvous(tmp_path: Path) -> Path:
    """A folder in which a trainer and a monitor may meet."""
    folder = tmp_path / "rendezvous"
    folder.mkdir(mode=0o700)
    return folder
