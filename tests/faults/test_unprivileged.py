"""From the start of a training to the report of it, as a user who has no right to anything.

Run as a program, this is what that user does: it prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.conftest import Unprivileged
from tests.faults.live import PATIENCE_SECONDS, environment
from tests.integration.command_line import ROOT

TRAINING = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(4), index % 2

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(os.getuid(), flush=True)
for inputs, labels in DataLoader(Slow(), batch_size=8):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    if os.path.exists("enough"):
        sys.exit(7)
"""


def inside(folder: Path) -> dict[str, object]:
    """A training, and what the commands show of it."""
    env = environment(folder, None)
    (folder / "train.py").write_text(TRAINING)
    gpuwatch = [sys.executable, "-m", "gpuwatch"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with ExitStack() as stack:

        def started(*words: str) -> subprocess.Popen[str]:
            process = stack.enter_context(subprocess.Popen(words, env=env, cwd=folder, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            assert isinstance(process, subprocess.Popen)
            return process

        training = started(*gpuwatch, "run", "--", sys.executable, "train.py")
        assert training.stdout is not None
        user = int(training.stdout.readline())
        attach = ("--attach", str(training.pid), "--duration", "2", "--format", "json")
        looks = [started(*gpuwatch, "watch", "--duration", "2"), started(*gpuwatch, "report", *attach)]
        watch, report = (each.communicate(timeout=PATIENCE_SECONDS)[0] for each in looks)
        (folder / "enough").touch()
        code = training.wait(PATIENCE_SECONDS)
    (rights,) = re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return {"user": user, "rights": int(rights, 16), "code": code, "watch": watch, "report": report}


def test_a_user_without_rights_sees_the_training_of_his_own(
    unprivileged: Unprivileged,
) -> None:
    pytest.importorskip("torch")
    words, env, folder = unprivileged.words, unprivileged.env, unprivileged.folder
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | env | {"PYTHONPATH": path, "HOME": str(folder), "TMPDIR": str(folder)}
    command = [*words, sys.executable, "-m", "tests.faults.test_unprivileged", str(folder)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["user"] and (seen["rights"], seen["code"]) == (0, 7)
    assert re.search(r"step [\d.]+ m?s \| wait \d+%", seen["watch"]), seen["watch"]
    assert "Traceback" not in seen["watch"]
    (run,) = json.loads(seen["report"])["runs"]
    assert run["visibility"] == "exact" and run["steps"] > 0 and run["data_wait_share"] > 0
    if may_read_strangers():
        assert run["stacks"]["samples"] > 0


def may_read_strangers() -> bool:
    """Whether a process may read one that it has not started, of the same user."""
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return not yama.exists() or yama.read_text().strip() == "0"


if __name__ == "__main__":
    print(json.dumps(inside(Path(sys.argv[1]))))
