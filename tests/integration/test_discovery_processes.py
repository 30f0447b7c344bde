"""Discovery among real processes: torch's own workers, ranks and launchers, as they are today."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.procfs import TreeWalker
from gpuwatch.samples import Candidate
from gpuwatch.sources.census import TreeTrainers
from gpuwatch.sources.discovery import DiscoverySource
from tests.integration.forked_python import ForkedPython
from tests.integration.process_groups import ended_by_its_input

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc, which only Linux has"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="the processes under test need torch: pip install torch"
    ),
]

LOADER = """\
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.zeros(2)
if __name__ == "__main__":
    batches = iter(DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1]))
    for _ in range(4): next(batches)
    print("ready", flush=True)
    sys.stdin.read()
"""

RANK = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
os.write(1, f"ready {os.getpid()}\\n".encode())
sys.stdin.read()
"""

SPAWNING = """\
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def rank(number, store, parent, done):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    dist.all_reduce(torch.ones(1))
    os.write(1, f"ready {os.getpid()}\\n".encode())
    done.wait()
if __name__ == "__main__":
    done = mp.get_context("spawn").Event()
    ranks = mp.spawn(rank, (sys.argv[1], os.getpid(), done), nprocs=2, join=False)
    sys.stdin.read()
    done.set()
    ranks.join()
"""

IDLE = "import sys, torch; print('ready', flush=True); sys.stdin.read()"
WITHOUT_TORCH = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextmanager
def running(*arguments: str, ready: int = 1) -> Iterator[tuple[int, list[int]]]:
    """A Python process that has said "ready" so often: its pid, and the numbers it said with that.

    A script comes from a Python that has imported torch already.
    """
    process = (subprocess.Popen if arguments[0].startswith("-") else ForkedPython)(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with ended_by_its_input(process):
        lines = [process.stdout.readline().split() for _ in range(ready)]
        assert all(line[:1] == ["ready"] for line in lines), f"the process did not start: {lines}"
        yield process.pid, [int(word) for line in lines for word in line[1:]]


def candidates_in_tree(root: int) -> dict[int, Candidate]:
    """Those of the machine's candidates that are the root, or below it."""
    tree = {root, *TreeWalker("/proc").descendants(root)}
    found = DiscoverySource(can_read=lambda pid: None).look_now()
    return {each.pid: each for each in found.processes if each.pid in tree}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_training_is_found_with_its_workers_and_they_are_not(tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    with running(str(script), method) as (pid, _):
        found = candidates_in_tree(pid)
        assert TreeTrainers().among((pid, *TreeWalker("/proc").descendants(pid))) == [pid]
    assert list(found) == [pid]
    assert found[pid].workers == 2
    assert found[pid].why == "has 2 DataLoader workers"
    assert found[pid].command[1:] == (str(script), method)
    assert 0 <= found[pid].age_seconds < 300


def test_launcher_is_left_out_and_its_ranks_are_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    with running(*launcher, ready=2) as (pid, ranks):
        assert sorted(candidates_in_tree(pid)) == sorted(ranks)
        assert sorted(TreeTrainers().among((pid, *TreeWalker("/proc").descendants(pid)))) == sorted(ranks)


def test_ranks_that_a_script_spawns_are_found_and_the_script_is_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    with running(str(script), str(tmp_path / "store"), ready=2) as (pid, ranks):
        found = candidates_in_tree(pid)
    assert sorted(found) == sorted(ranks)
    assert {each.why for each in found.values()} == {"is one of the processes of a torch job"}


def test_torch_alone_makes_a_candidate_and_python_alone_none(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text(IDLE)
    with running(str(script)) as (idle, _), running("-c", WITHOUT_TORCH) as (plain, _):
        (verdict,) = TreeTrainers().judged((idle, plain))
    assert verdict.process.pid == idle
    assert verdict.why.startswith("has torch loaded")


def test_hooked_process_is_reported_as_such(tmp_path: Path) -> None:
    with running("-c", WITHOUT_TORCH) as (pid, _):
        source = DiscoverySource(hooked=lambda: [pid], can_read=lambda pid: None)
        first = source.look_now().processes[0]
    assert (first.pid, first.visibility) == (pid, "exact")
