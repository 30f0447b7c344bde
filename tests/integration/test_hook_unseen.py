"""Nothing that a program can see differs with the hook: what is called of it, and what its tools find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hook_listener import listening
from hook_programs import PATIENCE_SECONDS, PREAMBLE, STEP_HOOKS, finished, rendezvous, started

CORPUS = (
    PREAMBLE
    + """
import collections, functools, hashlib, inspect, io, json, os, pathlib, random, sys, tempfile
from torch.overrides import TorchFunctionMode

calls = []
SPECIAL = ("__len__", "__bool__", "__eq__", "__hash__", "__getattr__", "__getitem__", "__iter__", "__str__", "__repr__",
           "__fspath__", "__class__", "__dict__", "__contains__", "__index__", "__int__")

def noisy(base, **members):
    \"\"\"A subclass that notes every call of a special method and every read of an attribute from outside it.\"\"\"
    name = "Noisy" + base.__name__
    def note(what):
        calls.append(f"{name}.{what}")
    namespace = dict(members)
    for special in SPECIAL:
        original = getattr(base, special, None)
        if special in namespace or not callable(original) or special in ("__class__", "__dict__", "__getattr__"):
            continue
        def method(self, *arguments, _original=original, _special=special):
            note(_special)
            return _original(self, *arguments)
        namespace[special] = method
    def __getattribute__(self, attribute):
        note(attribute)
        return base.__getattribute__(self, attribute)
    namespace["__getattribute__"] = __getattribute__
    return type(name, (base,), namespace)

class Points(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): return {"x": torch.ones(4) * index, "y": torch.tensor(index % 2)}

class Drawing(torch.utils.data.Sampler):
    def __init__(self): pass
    def __iter__(self): return iter(random.sample(range(12), 12))
    def __len__(self): return sum(1 for _ in self)

class Batch(dict):
    pass

class Pathlike:
    def __init__(self, path): self.path = path
    def __fspath__(self):
        return self.path

def collate(items, kind=noisy(Batch)):
    return kind(x=torch.stack([item["x"] for item in items]), y=torch.stack([item["y"] for item in items]))

class Weight(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        calls.append("Weight:" + getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, arguments, named or {})

class Calls(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        calls.append("mode:" + getattr(function, "__name__", str(function)))
        return function(*arguments, **(named or {}))

def train(loader, optimizer, weight):
    for batch in loader:
        inputs, labels = dict.__getitem__(batch, "x"), dict.__getitem__(batch, "y")
        loss = torch.nn.functional.cross_entropy(inputs @ weight, labels)
        loss.backward()
        optimizer.step()

def corpus():
    random.seed(0)
    weight = Weight(torch.ones(4, 2))
    optimizer = noisy(torch.optim.SGD)([weight], lr=0.1, foreach=False)
    sampler = noisy(Drawing)()
    loader = noisy(DataLoader)(noisy(Points)(), batch_size=4, sampler=sampler, collate_fn=collate)
    for _ in range(2):
        train(loader, optimizer, weight)
    with Calls():
        train(DataLoader(noisy(Points)(), batch_size=4, collate_fn=collate), optimizer, weight)
        for _ in DataLoader(torch.utils.data.TensorDataset(torch.ones(9, 4)), batch_size=4):
            pass
    torch.save({}, noisy(Pathlike)("path.pt"))
    with tempfile.SpooledTemporaryFile() as file:
        torch.save({}, file)
        calls.append(f"rolled: {file._rolled}")
    scaler = noisy(torch.amp.GradScaler)("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(2.0)
    with noisy(torch.autocast)("cpu", dtype=torch.bfloat16):
        pass
    return calls, random.random(), weight.tolist()
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def results(folder: Path, hooked: bool) -> list[Any]:
    done = finished(folder, CORPUS + "\nprint(json.dumps(corpus()))\n", hooked=hooked, forked=True)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("monitored", [True, False], ids=["with a monitor", "without"])
def test_a_program_of_noisy_objects_is_called_as_it_is_without_the_hook(folder: Path, monitored: bool) -> None:
    expected = results(folder, hooked=False)
    if monitored:
        with listening(folder) as listener:
            found = results(folder, hooked=True)
            listener.until_all_closed()
        (trainer,) = listener.trainers
        assert len(trainer.of("OPTIMIZER")) == 9, "it was recorded"
        assert trainer.facts["unhooked"] == []
    else:
        found = results(folder, hooked=True)
    assert len(expected[0]) > 100
    assert found == expected


TOOLS = (
    PREAMBLE
    + """
import functools, inspect, torch.amp
from torch.utils.data.dataloader import _BaseDataLoaderIter

@torch.jit.script
def scripted(x):
    torch.autograd.backward([x.sum()])
    return x

functions = [
    DataLoader.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__,
    torch.optim.Optimizer.__init__, torch.save, torch.autograd.backward, torch.autograd._engine_run_backward,
    torch.amp.GradScaler.update, torch.autocast.__enter__,
]
for function in functions:
    code = function.__code__
    print(function.__qualname__, function.__module__, type(function), inspect.signature(function))
    print(inspect.getfullargspec(function), function.__defaults__, function.__kwdefaults__)
    print(code.co_name, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags & 0x0c)
    print(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], function.__doc__, function.__annotations__)
    print(inspect.getsource(function)[:60])
x = torch.ones(3, requires_grad=True)
scripted(x)
print(x.grad)
class Failing(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): raise KeyError("no such sample")
class Sealed(Exception):  # as one that is a frozen dataclass
    def __setattr__(self, name, value): raise AttributeError(f"{name} is sealed")
class Sealing(Failing):
    def __getitem__(self, index): raise Sealed("no such sample")
class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, gradient): raise Sealed("no gradient")
import traceback
attempts = [
    lambda: next(iter(DataLoader(Failing()))), lambda: torch.save(1, "no/such/folder"), lambda: DataLoader(),
    lambda: list(DataLoader(Sealing())),
    lambda: torch.optim.SGD([], lr=1), lambda: torch.zeros(1).backward(), lambda: Refusing.apply(x).sum().backward(),
]
for attempt in attempts:
    try:
        attempt()
    except Exception:
        print(traceback.format_exc())
"""
)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a frame cannot leave a traceback")
def test_tools_find_the_same_functions_and_tracebacks(folder: Path) -> None:
    with listening(folder) as listener:
        plain, hooked = (finished(folder, TOOLS, hooked=hook) for hook in (False, True))
        listener.until_all_closed()
    assert plain.returncode == 0, plain.stderr
    assert "no gradient" in plain.stdout
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (0, plain.stdout, plain.stderr)


LOOP_COMPILED = (
    PREAMBLE
    + STEP_HOOKS
    + """
import json, sys, time, warnings
import torch._dynamo as dynamo

def epoch(loader):
    total = torch.zeros(())
    for inputs, labels in loader:
        total = total + net(inputs).sum()
    return total

loader = DataLoader(data, batch_size=16)
compiled = torch.compile(epoch, backend="eager")
compiled(loader)
step = torch.compile(train_on, backend="eager")
before = None
for batch in loader:
    step(batch)
for line in sys.stdin:
    time.sleep(0.1)
    for batch in loader:
        step(batch)
    compiled(loader)
    counters = dynamo.utils.counters
    print(json.dumps([dict(counters["frames"]), dict(counters["stats"])]), flush=True)
"""
)


def test_a_compiled_loop_over_a_loader_has_the_same_frames_and_no_monitor_compiles_it_again(folder: Path) -> None:
    counts: dict[bool, list[Any]] = {}
    for hook in (False, True):
        with started(folder, LOOP_COMPILED, hooked=hook, forked=True) as process:
            assert process.stdin
            assert process.stdout

            def ask(process: subprocess.Popen[str] = process) -> Any:
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                return json.loads(process.stdout.readline())  # type: ignore[union-attr]

            asleep = ask()
            with listening(folder) as listener:
                awake = [ask(), ask()]  # the second time sends what the first time recorded
                if hook:
                    listener.until(lambda it: any(peer.of("BACKWARD") for peer in it.peers))
            asleep_again = ask()
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
            assert (process.returncode, output) == (0, "")
            assert [asleep, asleep] == awake == [asleep_again] * 2, "no monitor has anything compiled again"
            lines = [line.partition("] ")[2] for line in errors.splitlines()]  # without the time and the process id
            counts[hook] = [*asleep, lines]
    assert counts[True] == counts[False], "the same frames, the same graphs, and no warning more"
