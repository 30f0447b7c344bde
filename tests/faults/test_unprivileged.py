"""From the start of a training to the report of it, as a user who has no right to anything.

Run as a program, this is what that user does: it prints one JSON object. As root the user is nobody, for whom mounts of
the test's own open the way to the Python where the folders above it are closed, as root's home is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.live import PATIENCE_SECONDS, environment
from tests.integration.command_line import ROOT

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs")
OPENED = """
for pair in $PLACES; do
  mount --rbind "${pair%%:*}" "${pair##*:}" || exit 99
done
for closed in $CLOSED; do
  mount -t tmpfs -o mode=755 none "$closed" || exit 99
done
for pair in $PLACES; do
  mkdir -p "${pair%%:*}" && mount --rbind "${pair##*:}" "${pair%%:*}" || exit 99
done
exec "$@"
"""
TRAINING = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        return torch.randn(4), sum(range(20_000)) % 2

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


def closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to a path that others may not enter."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[tuple[list[str], dict[str, str], Path]]:
    """Words in front of a command that take all rights from it, their environment, and a folder of that user's."""
    if os.geteuid() != 0:
        yield [], {}, tmp_path
        return
    if shutil.which("setpriv") is None:
        pytest.skip("becoming another user takes setpriv (util-linux)")
    needed = {Path(entry).resolve() for entry in (sys.base_prefix, sys.prefix, ROOT, *sys.path) if Path(entry).exists()}
    places = {place: closed for place in sorted(needed) if (closed := closed_above(place)) is not None}
    pairs = []
    for number, place in enumerate(place for place in places if place.is_dir()):
        (tmp_path / f"place-{number}").mkdir()
        pairs.append(f"{place}:{tmp_path}/place-{number}")
    env = {"PLACES": " ".join(pairs), "CLOSED": " ".join(sorted({str(closed) for closed in places.values()}))}
    words = ["unshare", "-m", "sh", "-c", OPENED, "sh", *NOBODY] if pairs else [*NOBODY]
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, 65534)
        tried = subprocess.run([*words, sys.executable, "-c", ""], env=os.environ | env, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"another user cannot run this Python here: {tried.stderr.strip()}")
        yield words, env, Path(folder)


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
        attach = ("--attach", str(training.pid), "--duration", "3", "--format", "json")
        looks = [started(*gpuwatch, "watch", "--duration", "2"), started(*gpuwatch, "report", *attach)]
        watch, report = (each.communicate(timeout=PATIENCE_SECONDS)[0] for each in looks)
        (folder / "enough").touch()
        code = training.wait(PATIENCE_SECONDS)
    (rights,) = re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return {"user": user, "rights": int(rights, 16), "code": code, "watch": watch, "report": report}


def test_a_user_without_rights_sees_the_training_of_his_own(
    unprivileged: tuple[list[str], dict[str, str], Path],
) -> None:
    pytest.importorskip("torch")
    words, env, folder = unprivileged
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | env | {"PYTHONPATH": path, "HOME": str(folder), "TMPDIR": str(folder)}
    command = [*words, sys.executable, "-m", "tests.faults.test_unprivileged", str(folder)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["user"] and (seen["rights"], seen["code"]) == (0, 7)
    assert re.search(r"step [\d.]+ m?s \| wait \d+ %", seen["watch"]), seen["watch"]
    assert "Traceback" not in seen["watch"]
    (run,) = json.loads(seen["report"])["runs"]
    assert run["rung"] == "exact" and run["steps"] > 0 and run["data_wait_share"] > 0
    if may_read_strangers():
        assert run["stacks"]["samples"] > 0


def may_read_strangers() -> bool:
    """Whether a process may read one that it has not started, of the same user."""
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return not yama.exists() or yama.read_text().strip() == "0"


if __name__ == "__main__":
    print(json.dumps(inside(Path(sys.argv[1]))))
