"""The promise: a training with the hook behaves as it does without."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hook_listener import listening
from hook_programs import PATIENCE_SECONDS, PREAMBLE, finished, rendezvous, started

ENDINGS = (
    """
import os, signal, sys, time
import torch._dynamo

ending = ""
for name in ("normal", "exception", "sys.exit", "os._exit", "SIGINT", "SIGTERM", "SIGKILL"):
    child = os.fork()
    if child == 0:
        ending = name
        output = os.open(f"{sys.argv[1]}-{name}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        break
    print(name, os.waitpid(child, 0)[1])
else:
    sys.exit()
"""
    + PREAMBLE
    + """
for number, batch in enumerate(DataLoader(data, batch_size=8)):
    train_on(batch)
    print("step", number, flush=True)
    if number < 2:
        continue
    if ending == "exception":
        raise RuntimeError("the loss is nan")
    if ending == "sys.exit":
        sys.exit(3)
    if ending == "os._exit":
        os._exit(4)
    if ending.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, ending))
        time.sleep(60)
"""
)
"""Seven trainings that end in seven ways, in processes that share the import of torch and of what optimizers need."""

WORLD = (
    PREAMBLE
    + """
import hashlib, os, random, sys, threading, time
import numpy

random.seed(0)
numpy.random.seed(0)

class Odd(DataLoader):
    @property
    def batch_sampler(self):
        raise RuntimeError("not yours to look at")
    @batch_sampler.setter
    def batch_sampler(self, value):
        self.__dict__["mine"] = value
    _auto_collation = True
    _index_sampler = property(lambda self: self.__dict__["mine"])

for _ in range(2):
    time.sleep(0.06)
    print([inputs.shape for inputs, _ in Odd(data, batch_size=20)])

def digest(data):
    return hashlib.sha256(data).hexdigest()[:8]

class Announced(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(range(3))
    def __len__(self): return 2
    def __repr__(self): return "Announced"

class Failing(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): raise KeyError("no such sample")

loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
pinned = iter(loader)
print(type(pinned), len(pinned), iter(pinned) is pinned)
train_on(next(pinned))
print(threading.active_count())
for batch in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
    train_on(batch)
counted = DataLoader(Announced())
len(counted)
for _ in counted:
    pass
print(digest(torch.get_rng_state().numpy().tobytes()), digest(repr(random.getstate()).encode()))
print(digest(repr(numpy.random.get_state()).encode()), net.weight.tolist())
print([path for path in sys.path if path], "sitecustomize" in sys.modules)
print(type(DataLoader.__init__), type(torch.save), type(torch.autograd.backward), type(torch.__spec__.loader))
print(sorted(vars(loader)), sorted(vars(optimizer)), sorted(vars(pinned)))
print(sorted(name for name in os.environ if name.startswith("GPUWATCH")))
print([name for name in os.listdir() if name != "rendezvous"])
for workers in (0, 1):
    try:
        next(iter(DataLoader(Failing(), num_workers=workers)))
    except KeyError as error:
        print(type(error), str(error).splitlines()[0])
loss = torch.nn.functional.cross_entropy(net(data.tensors[0]), data.tensors[1])
next(iter(DataLoader(Failing())))
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def without_our_frames(text: str) -> str:
    """The text as it is without the hook; before Python 3.11 the frames of replaced functions stay in tracebacks."""
    if sys.version_info >= (3, 11):
        return text
    return re.sub(r'  File "<gpuwatch [^"]*", line \d+, in \w+\n', "", text)


def outcome(process: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return process.returncode, process.stdout, process.stderr


def test_every_way_to_end_looks_the_same(folder: Path) -> None:
    with listening(folder) as listener:
        with started(folder, ENDINGS, "plain", hooked=False, forked=True) as process:
            hooked = finished(folder, ENDINGS, "hooked", forked=True)
            stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        listener.until_all_closed()
    assert outcome(hooked) == (process.returncode, stdout, stderr)
    statuses = dict(line.split() for line in stdout.splitlines())
    expected = {"normal": 0, "exception": 1 << 8, "sys.exit": 3 << 8, "os._exit": 4 << 8}
    signals = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
    assert {name: int(status) for name, status in statuses.items()} == {**expected, **signals}
    for name in statuses:
        texts = [(folder.parent / f"{run}-{name}.txt").read_text(encoding="utf-8") for run in ("plain", "hooked")]
        assert texts[0] == texts[1]
        assert "step 2" in texts[0]
    assert len(listener.trainers) == len(statuses)
    assert sum(peer.bye for peer in listener.trainers) == 4, "os._exit, SIGTERM and SIGKILL say no goodbye"


def test_the_program_finds_the_same_world(folder: Path) -> None:
    with listening(folder) as listener:
        with started(folder, WORLD, hooked=False) as process:
            hooked = finished(folder, WORLD)
            stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        listener.until_all_closed()
    assert process.returncode == 1
    assert "Length of IterableDataset" in stderr, "a warning that names the caller's line"
    assert hooked.returncode == 1
    assert hooked.stdout == stdout
    assert without_our_frames(hooked.stderr) == stderr


def test_a_ctrl_c_during_a_collection_arrives(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import gc, signal

def handler(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
cycles = [[] for _ in range(3_000_000)]
train_on(next(iter(DataLoader(data))))
assert gc.callbacks, "the monitor is there"
try:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    gc.collect()
    gc.collect()
    gc.collect()
    gc.collect()
    print("swallowed")
except KeyboardInterrupt:
    print("arrived")
"""
    )
    with listening(folder):
        result = finished(folder, source, forked=True)
    assert outcome(result) == (0, "arrived\n", "")


SPAWNING = f"""\
import sys

if __name__ == "__main__" or "guarded" not in sys.argv:
    import gpuwatch

    gpuwatch.watch()
{PREAMBLE}
if __name__ == "__main__":
    for batch in DataLoader(data, batch_size=16, num_workers=1, multiprocessing_context="spawn"):
        train_on(batch)
"""


def test_workers_spawned_by_a_script_that_calls_watch_report_too(folder: Path) -> None:
    with listening(folder) as listener:
        assert outcome(finished(folder, SPAWNING, hooked=False, forked=True)) == (0, "", "")
        listener.until_all_closed()
    assert [len(peer.of("FETCH")) for peer in listener.workers] == [2]


def test_workers_that_do_not_call_watch_themselves_have_no_hook(folder: Path) -> None:
    with listening(folder) as listener:
        assert outcome(finished(folder, SPAWNING, "guarded", hooked=False, forked=True)) == (0, "", "")
        listener.until_all_closed()
    assert not listener.workers
    assert len(listener.trainers[0].of("OPTIMIZER")) == 2
