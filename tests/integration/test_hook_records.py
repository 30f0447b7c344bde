"""What a monitor hears of a training, from real programs with real torch."""

from __future__ import annotations

import json
from pathlib import Path

import hook_listener
import pytest
from hook_listener import Peer, listening
from hook_programs import PREAMBLE, finished, rendezvous, started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def heard(folder: Path, source: str, *arguments: str, forked: bool = True) -> tuple[Peer, list[Peer]]:
    """The trainer and the workers of a program that ran to its end."""
    with listening(folder) as listener:
        result = finished(folder, source, *arguments, forked=forked)
        assert result.returncode == 0, result.stderr
        listener.until_all_closed()
    (trainer,) = listener.trainers
    assert trainer.bye
    assert trainer.dropped == 0
    return trainer, listener.workers


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def test_a_plain_loop_tells_of_waits_steps_and_its_own_lines(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import threading
loader = DataLoader(data, batch_size=12)
for epoch in range(2):
    for batch in loader:
        train_on(batch)
print(threading.get_native_id())
"""
    )
    trainer, workers = heard(folder, source, forked=False)
    waits = trainer.of("NEXT")
    assert [wait.b for wait in waits] == [12, 12, 8, -1] * 2, "samples, and none as the epoch ends"
    assert [wait.flags for wait in waits] == [2, 2, 2, 3] * 2
    assert [wait.a for wait in waits] == [1] * 4 + [2] * 4
    assert {wait.thread for wait in waits} == {trainer.facts["pid"]}
    assert len(trainer.of("BACKWARD")) == len(trainer.of("OPTIMIZER")) == 6
    assert [start.b for start in trainer.of("ITER")] == [0, 0]
    assert not workers
    (loader,) = trainer.facts["loaders"]
    assert loader["line"] == line_of(source, "loader = DataLoader")
    assert Path(loader["file"]).name == "train.py"
    assert (loader["num_workers"], loader["batch_size"], loader["batches_per_epoch"]) == (0, 12, 3)
    assert loader["iterable"] is False
    assert loader["batch_shape"] == "float32[12,4], int64[12]"
    assert loader["batch_bytes"] == 12 * 4 * 4 + 12 * 8
    model = trainer.facts["model"]
    assert (model["parameters"], model["parameter_bytes"], model["optimizer"]) == (10, 40, "SGD")
    assert model["optimizer_line"] == line_of(source, "optimizer = torch")
    assert model["backward_line"] == line_of(source, "loss.backward()")
    assert (model["autocast"], model["compiled"], model["optimizer_fused"]) == (False, False, False)
    assert trainer.facts["device"] == "cpu"
    assert trainer.facts["unhooked"] == []


def test_cpu_time_of_a_wait_without_workers_is_sampled(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import time
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index):
        time.sleep(0.02)
        return data[index]
for batch in DataLoader(Slow()):
    train_on(batch)
"""
    )
    trainer, _ = heard(folder, source)
    samples = trainer.of("WAIT_CPU")
    waits = {wait.start_ns: wait for wait in trainer.of("NEXT")}
    assert len(samples) == 2, "one batch in eight; the last is not known: the length is the dataset's own code"
    for sample in samples:
        wait = waits[sample.a]
        assert sample.b < (wait.end_ns - wait.start_ns) / 2, "a sleeping dataset uses no CPU"


@pytest.mark.parametrize(("method", "count"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
def test_workers_report_every_batch_on_connections_of_their_own(folder: Path, method: str, count: int) -> None:
    source = (
        PREAMBLE.replace("import torch\n", "import sys, torch\n", 1)
        + """
def main():
    other = DataLoader(data, batch_size=4)
    loader = DataLoader(data, batch_size=4, num_workers=int(sys.argv[2]), multiprocessing_context=sys.argv[1])
    for batch in loader:
        train_on(batch)

if __name__ == "__main__":
    main()
"""
    )
    trainer, workers = heard(folder, source, method, str(count))
    (loader,) = trainer.facts["loaders"]
    assert loader["start_method"] == method
    assert sorted(peer.worker["worker"] for peer in workers if peer.worker) == list(range(count))
    for peer in workers:
        assert peer.worker is not None
        assert peer.worker["parent"] == trainer.facts["pid"]
        assert peer.worker["parent_start_ticks"] == trainer.facts["start_ticks"]
        assert peer.worker["loader"] == loader["loader"]
        assert peer.bye
        assert {record.kind for record in peer.records} == {"FETCH"}
        assert {record.a for record in peer.records} == {peer.worker["worker"]}
        assert all(0 < record.b <= record.end_ns - record.start_ns for record in peer.records)
    assert sum(len(peer.records) for peer in workers) == 8
    assert {record.kind for record in trainer.records}.isdisjoint({"FETCH"})


def test_persistent_workers_begin_a_new_iteration_with_the_same_iterator(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
loader = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)
for epoch in range(3):
    for batch in loader:
        train_on(batch)
del loader  # torch would kill its workers at exit
"""
    )
    trainer, workers = heard(folder, source)
    assert [start.a for start in trainer.of("ITER")] == [1, 2, 3]
    assert [wait.a for wait in trainer.of("NEXT")] == [1] * 5 + [2] * 5 + [3] * 5
    assert len(workers) == 1
    assert len(workers[0].of("FETCH")) == 12


def test_only_loaders_that_are_iterated_are_reported_and_autocast_in_evaluation_does_not_count(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
unused = DataLoader(data, batch_size=16)
train, evaluation = DataLoader(data, batch_size=16), DataLoader(data, batch_size=32)
for batch in train:
    train_on(batch)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    for inputs, _ in evaluation:
        net(inputs)
"""
    )
    trainer, _ = heard(folder, source)
    assert [loader["batch_size"] for loader in trainer.facts["loaders"]] == [16, 32]
    grad = {wait.id: wait.flags & 2 for wait in trainer.of("NEXT")}
    assert list(grad.values()) == [2, 0]
    assert trainer.facts["model"]["autocast"] is False


def test_closures_and_steps_that_a_grad_scaler_left_out_are_marked(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
scaler = torch.amp.GradScaler("cpu")
inputs, labels = data.tensors
def closure(factor=1.0):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(net(inputs), labels) * factor
    scaler.scale(loss).backward()
    return loss
for factor in (1.0, float("inf"), 1.0):
    closure(factor)
    scaler.step(optimizer)
    scaler.update()
torch.optim.LBFGS(net.parameters(), max_iter=3).step(closure)
"""
    )
    trainer, _ = heard(folder, source)
    *scaled, closed = trainer.of("OPTIMIZER")
    assert [step.flags for step in scaled] == [0, 8, 0]
    assert len({step.id for step in scaled}) == 1
    inner = [backward for backward in trainer.of("BACKWARD") if backward.within(closed)]
    assert len(inner) == len(trainer.of("BACKWARD")) - 3 >= 2
    assert trainer.facts["model"]["autocast"] is True
    assert trainer.facts["model"]["autocast_dtype"] == "bfloat16"


INCIDENTS = (
    PREAMBLE
    + """
import gc, io, pathlib, pickle
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

for batch in DataLoader(data, batch_size=16):
    train_on(batch)

state = net.state_dict()
torch.save(state, "path.pt")
with open("file.pt", "wb") as file:
    torch.save(state, file)
save_file(state, pathlib.Path("tensors.safetensors"))
dcp.save(state, checkpoint_id="distributed")
torch.save(state, io.BytesIO())
pickle.dumps(net.weight)
try:
    torch.save(state, "no/such/folder.pt")
except RuntimeError:
    pass

class Broken(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): raise KeyError("no such sample")

try:
    next(iter(DataLoader(Broken())))
except KeyError:
    pass
try:
    torch.zeros(1).backward()
except RuntimeError:
    pass

for _ in range(2):
    cycles = [[] for _ in range(100_000)]
    for cycle in cycles:
        cycle.append(cycle)
    del cycles, cycle
    gc.collect()
"""
)


@pytest.fixture(scope="module")
def incidents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Peer, Path]:
    """A training that saves, fails and collects garbage, and the folder it ran in."""
    folder = rendezvous(tmp_path_factory.mktemp("incidents"))
    trainer, _ = heard(folder, INCIDENTS)
    return trainer, folder.parent


def test_checkpoints_are_reported_and_pickled_tensors_are_not(incidents: tuple[Peer, Path]) -> None:
    trainer, cwd = incidents
    sizes = [(cwd / name).stat().st_size for name in ("path.pt", "file.pt", "tensors.safetensors")]
    assert [save.a for save in trainer.of("SAVE")] == [*sizes, -1, -1]
    assert [save.flags for save in trainer.of("SAVE")] == [0, 0, 0, 0, 4]
    lines = [trainer.facts["save_places"][save.id - 1]["line"] for save in trainer.of("SAVE")]
    calls = ['"path.pt"', "torch.save(state, file)", '"tensors.saf', "dcp.save", '"no/such']
    assert lines == [line_of(INCIDENTS, call) for call in calls]


@pytest.mark.parametrize(
    ("kind", "lasting"),
    [
        ("SAVE", 'torch.save({"slow": Slow()}, "checkpoint.pt")'),
        ("USER_PHASE", 'with gpuwatch.phase("checkpoint"): wait()'),
        ("COMPILE", "torch.compile(net, backend=lambda graph, inputs: wait() or graph.forward)(data[0][0])"),
    ],
)
def test_a_pause_is_reported_while_it_lasts(folder: Path, kind: str, lasting: str) -> None:
    source = (
        PREAMBLE
        + f"""
import os, time
import gpuwatch

def wait():
    while not os.path.exists("go"):
        time.sleep(0.01)

class Slow:
    def __reduce__(self):
        wait()
        return Slow, ()

train_on(data[:4])
{lasting}
"""
    )
    with listening(folder) as listener, started(folder, source, forked=True) as program:
        listener.until(lambda it: any(peer.of("BEGUN") for peer in it.trainers))
        (trainer,) = listener.trainers
        assert not trainer.of(kind)
        (folder.parent / "go").touch()
        assert program.wait(60) == 0
        listener.until_all_closed()
    (begun,), (whole,) = trainer.of("BEGUN"), trainer.of(kind)
    assert (begun.start_ns, begun.end_ns, begun.id) == (whole.start_ns, whole.start_ns, whole.id)
    assert hook_listener.KINDS[begun.a - 1] == kind


def test_backwards_and_datasets_that_raise_leave_records_that_say_so(incidents: tuple[Peer, Path]) -> None:
    trainer, _ = incidents
    assert [wait.flags for wait in trainer.of("NEXT")] == [2, 2, 3, 2 | 4]
    assert [backward.flags for backward in trainer.of("BACKWARD")] == [0, 0, 4]


def test_long_collections_are_reported_with_their_generation(incidents: tuple[Peer, Path]) -> None:
    trainer, _ = incidents
    pauses = trainer.of("GC")
    assert len([pause for pause in pauses if pause.a == 2]) >= 2
    assert all(pause.end_ns - pause.start_ns >= 100_000 for pause in pauses)


def test_user_steps_phases_and_loaders_need_no_torch(folder: Path) -> None:
    source = """
import sys
import gpuwatch

def numbers():
    yield from ([1, 2, 3], [4, 5, 6])

batches = gpuwatch.loader(numbers())
for batch in batches:
    with gpuwatch.phase("eval"):
        pass
    gpuwatch.step(samples=len(batch))
items = gpuwatch.loader([10, 20])
assert len(items) == 2 and list(items) == [10, 20] and items.index(20) == 1
assert "torch" not in sys.modules and "gpuwatch.hook" not in sys.modules
"""
    trainer, _ = heard(folder, source, forked=False)
    assert [step.a for step in trainer.of("USER_STEP")] == [3, 3]
    assert trainer.facts["phases"] == ["eval"]
    assert [phase.id for phase in trainer.of("USER_PHASE")] == [0, 0]
    assert [wait.flags for wait in trainer.of("NEXT")] == [2, 2, 3] * 2
    first, second = trainer.facts["loaders"]
    assert first["line"] == line_of(source, "gpuwatch.loader(numbers())")
    assert (first["dataset"], second["dataset"]) == ("generator", "list")
    assert trainer.facts["torch"] is None
    assert trainer.facts["device"] is None


def test_watch_in_the_script_and_the_launcher_together_count_once(folder: Path) -> None:
    source = (
        "import gpuwatch\ngpuwatch.watch()\n"
        + PREAMBLE
        + """
gpuwatch.watch()
loader = DataLoader(data, batch_size=16)
assert gpuwatch.loader(loader) is loader
for batch in loader:
    train_on(batch)
import sys
assert "gpuwatch.hook" not in sys.modules
"""
    )
    trainer, _ = heard(folder, source)
    assert len(trainer.of("BACKWARD")) == len(trainer.of("OPTIMIZER")) == 2
    assert len(trainer.of("NEXT")) == 3


def test_an_iterator_from_before_the_hook_is_adopted(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import gpuwatch
loader = DataLoader(data, batch_size=8, drop_last=True)
iterator = iter(loader)
train_on(next(iterator))
gpuwatch.watch()
for batch in iterator:
    train_on(batch)
"""
    )
    with listening(folder) as listener:
        result = finished(folder, source, hooked=False, forked=True)
        assert result.returncode == 0, result.stderr
        listener.until_all_closed()
    (trainer,) = listener.trainers
    assert [wait.b for wait in trainer.of("NEXT")] == [8, 8, 8, -1]
    (loader,) = trainer.facts["loaders"]
    assert (loader["dataset"], loader["batch_size"], loader["num_workers"]) == ("TensorDataset", 8, 0)
    assert loader.get("file") is None
    assert len(trainer.of("OPTIMIZER")) == 3


def test_stateful_and_accelerated_loaders_are_seen_with_the_users_line(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
from torchdata.stateful_dataloader import StatefulDataLoader
from accelerate import Accelerator
stateful = StatefulDataLoader(data, batch_size=16, num_workers=1)
for batch in stateful:
    train_on(batch)
accelerator = Accelerator(cpu=True)
mine = DataLoader(data, batch_size=8)
prepared = accelerator.prepare(mine)
for batch in prepared:
    train_on(batch)
"""
    )
    trainer, workers = heard(folder, source)
    stateful, accelerated = trainer.facts["loaders"]
    assert stateful["line"] == line_of(source, "stateful = Stateful")
    assert accelerated["line"] == line_of(source, "mine = DataLoader"), "where num_workers is set, not prepare()"
    assert (accelerated["batch_size"], accelerated["library"], stateful["library"]) == (8, None, None)
    assert [wait.b for wait in trainer.of("NEXT") if wait.id == stateful["loader"]][:2] == [16, 16]
    assert [record.kind for record in workers[0].records] == ["FETCH", "FETCH"]


def test_batches_moved_to_a_device_by_a_framework_are_copies(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import accelerate.data_loader
from lightning.pytorch.core.hooks import DataHooks
batch = next(iter(DataLoader(data, batch_size=8)))
accelerate.data_loader.send_to_device(batch, torch.device("meta"))
DataHooks().transfer_batch_to_device(batch, torch.device("meta"), 0)
accelerate.data_loader.send_to_device(batch, "cpu")
train_on(batch)
"""
    )
    trainer, _ = heard(folder, source)
    assert len(trainer.of("COPY")) == 2, "moving to the CPU copies nothing to a device"


def test_a_presence_file_lasts_as_long_as_the_training(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["GPUWATCH_DIR"])
path = folder / f"trainer-{os.getpid()}.json"
assert path.stat().st_mode & 0o777 == 0o600
(folder / "copy.json").write_text(path.read_text())
"""
    )
    result = finished(folder, source)
    assert result.returncode == 0, result.stderr
    presence = json.loads((folder / "copy.json").read_text(encoding="utf-8"))
    assert presence["version"] == 1
    assert presence["command"][-1] == str(folder.parent / "train.py")
    assert presence["cwd"] == str(folder.parent)
    assert presence["pid_ns"] == Path("/proc/self/ns/pid").stat().st_ino
    assert not list(folder.glob("trainer-*"))


def test_a_loader_of_unknown_length_reports_which_kind_its_dataset_is_of(folder: Path) -> None:
    """`__len__` is the program's: a map-style dataset has no length before the end of its first pass either."""
    source = (
        PREAMBLE
        + """
class Points(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return data[index]
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(data)
for dataset in (Points(), Stream()):
    for batch in DataLoader(dataset, batch_size=16):
        train_on(batch)
        break
"""
    )
    trainer, _ = heard(folder, source)
    found = {each["dataset"]: (each["iterable"], each["batches_per_epoch"]) for each in trainer.facts["loaders"]}
    assert found == {"Points": (False, None), "Stream": (True, None)}
