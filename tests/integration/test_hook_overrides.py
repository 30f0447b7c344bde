"""Settings that a trial asks for reach the training, and the hook says which did."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hook_listener import listening
from hook_programs import PREAMBLE, environment, finished, rendezvous

TWO_LOADERS = (
    PREAMBLE
    + """
class Own(DataLoader):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)

if __name__ == "__main__":
    training = Own(data, 8, True, None, None, 0, pin_memory=False)
    checking = DataLoader(data, batch_size=8, num_workers=0)
    for batch in training:
        train_on(batch)
    with torch.no_grad():
        for inputs, labels in checking:
            net(inputs)
    print(training.num_workers, checking.num_workers, training.persistent_workers, training.prefetch_factor)
"""
)
WITH_WORKERS = (
    PREAMBLE
    + """
if __name__ == "__main__":
    loader = DataLoader(
        data, 8, num_workers=1, prefetch_factor=4, persistent_workers=True, timeout=9, multiprocessing_context="fork"
    )
    for batch in loader:
        train_on(batch)
    print(loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.timeout)
"""
)
SWITCHES = (
    PREAMBLE
    + """
torch.set_float32_matmul_precision("highest")
torch.backends.cudnn.benchmark = False
calls = []
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=8):
    train_on(batch)
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def ran(folder: Path, source: str, **overrides: Any) -> tuple[dict[str, Any], str]:
    """The facts of a program under these overrides, and what it printed."""
    with listening(folder) as listener:
        result = finished(folder, source, forked=True, GPUWATCH_OVERRIDES=json.dumps(overrides))
        assert result.returncode == 0, result.stderr
        listener.until_all_closed()
    facts = dict(listener.trainers[0].facts)
    assert facts["unhooked"] == []
    return facts, result.stdout.strip()


def line_of(source: str, text: str) -> int:
    return 1 + next(number for number, line in enumerate(source.splitlines()) if text in line)


def test_only_the_loader_of_the_line_is_changed(folder: Path) -> None:
    # A subclass calls DataLoader from its own line: that is the one that the hook names.
    place = [str(folder.parent / "train.py"), line_of(TWO_LOADERS, "super().__init__")]
    wanted = {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3}
    facts, printed = ran(folder, TWO_LOADERS, loader=wanted, at=place)
    assert printed == "1 0 True 3"
    assert facts["overrides"] == ["num_workers", "persistent_workers", "prefetch_factor"]
    trained = next(one for one in facts["loaders"] if one["line"] == place[1])
    assert (trained["num_workers"], trained["prefetch_factor"]) == (1, 3)


def test_all_loaders_are_changed_where_no_line_is_known(folder: Path) -> None:
    facts, printed = ran(folder, TWO_LOADERS, loader={"num_workers": 1}, at=None)
    assert printed == "1 1 False 2"
    assert facts["overrides"] == ["num_workers"]


def test_what_needs_workers_goes_with_them(folder: Path) -> None:
    facts, printed = ran(folder, WITH_WORKERS, loader={"num_workers": 0, "prefetch_factor": 2})
    assert printed == "0 None False 0"
    assert facts["overrides"] == ["num_workers"]


def test_what_was_given_stays_where_the_workers_stay(folder: Path) -> None:
    _, printed = ran(folder, WITH_WORKERS, loader={"num_workers": 2})
    assert printed == "2 4 True 9"


def test_an_override_without_a_loader_is_not_reported_as_applied(folder: Path) -> None:
    by_hand = PREAMBLE + "\nfor _ in range(3):\n    train_on((torch.randn(8, 4), torch.zeros(8, dtype=torch.long)))\n"
    facts, _ = ran(folder, by_hand, loader={"num_workers": 2}, non_blocking=True)
    assert facts["overrides"] == []


def test_switches_stand_even_where_the_program_sets_them_otherwise(folder: Path) -> None:
    facts, printed = ran(folder, SWITCHES, float32_matmul_precision="high", cudnn_benchmark=True)
    assert printed == "high True"
    assert facts["overrides"] == ["cudnn_benchmark", "float32_matmul_precision"]
    assert (facts["model"]["float32_matmul_precision"], facts["model"]["cudnn_benchmark"]) == ("high", True)


def test_without_the_variable_nothing_of_it_is_loaded(folder: Path) -> None:
    program = PREAMBLE + "\nimport sys\nprint([name for name in sys.modules if name.endswith('.overrides')])\n"
    result = finished(folder, program, forked=True)
    assert result.returncode == 0, result.stderr
    assert "_gpuwatch_hook" not in result.stdout
    assert "GPUWATCH_OVERRIDES" not in environment(folder)


def test_a_variable_that_is_no_json_changes_nothing(folder: Path) -> None:
    result = finished(folder, TWO_LOADERS, forked=True, GPUWATCH_OVERRIDES="num_workers=2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "0 0 False None"


def test_the_outermost_module_of_what_is_trained_is_compiled(folder: Path) -> None:
    program = PREAMBLE.replace("net.parameters()", "whole.parameters()").replace(
        "optimizer =", "whole = torch.nn.Sequential(net, torch.nn.Flatten())\noptimizer ="
    )
    program += "\nprint(whole._compiled_call_impl is not None, net._compiled_call_impl is not None)\n"
    result = finished(folder, program, forked=True, GPUWATCH_OVERRIDES=json.dumps({"compile": True}))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "True False"


NOISY = (
    PREAMBLE
    + """
from torch.overrides import TorchFunctionMode
calls = []

class Weights(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        calls.append("tensor:" + getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, arguments, named or {})

class Calls(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        calls.append("mode:" + getattr(function, "__name__", str(function)))
        return function(*arguments, **(named or {}))

class Count:  # as numpy's integers are, none of Python's own
    def __init__(self, value): self.value = value
    def __bool__(self): calls.append("bool"); return bool(self.value)

class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.inner = torch.nn.Linear(4, 2)
    def __getattribute__(self, name): calls.append("net." + name); return super().__getattribute__(name)
    def modules(self): calls.append("modules"); return super().modules()
    def parameters(self, recurse=True): calls.append("parameters"); return super().parameters(recurse)
    def compile(self, *arguments, **named): raise AssertionError("the program's own compile was called")

class Target:
    @property
    def __class__(self): calls.append("class"); return int
    @property
    def device(self): calls.append("device"); return torch.device("cuda")

with Calls():
    torch.ones(2).to("cpu")
torch.ones(2).as_subclass(Weights).to("cpu")
for build in (lambda: torch.ones(2).to(Target()), lambda: DataLoader(data, num_workers=Count(0))):
    try:
        build()
    except TypeError as error:
        import traceback
        calls.append(len(traceback.extract_tb(error.__traceback__)))
whole = Net()
parameters = list(torch.nn.Module.parameters(whole))
before = len(calls)
optimizer = torch.optim.SGD(parameters, lr=0.1)
print(calls)
for batch in DataLoader(data, batch_size=16):
    train_on(batch)
"""
)


def test_nothing_of_the_programs_is_called_to_try_settings(folder: Path) -> None:
    plain = finished(folder, NOISY, forked=True, hooked=False)
    assert plain.returncode == 0, plain.stderr
    facts, printed = ran(
        folder, NOISY, loader={"prefetch_factor": 2}, non_blocking=True, float32_matmul_precision="high"
    )
    assert printed == plain.stdout.strip()
    assert facts["overrides"] == ["float32_matmul_precision"]
    with listening(folder) as listener:
        compiled = finished(folder, NOISY, forked=True, GPUWATCH_OVERRIDES=json.dumps({"compile": True}))
        listener.until_all_closed()
    assert compiled.returncode == 0, compiled.stderr
    assert listener.trainers[0].facts["overrides"] == ["compile"]
    calls = ast.literal_eval(compiled.stdout)
    assert "net.__dict__" in calls, "torch.compile, which was asked for, reads the module"
    assert not {"modules", "parameters", "net.modules", "net.parameters", "net.compile"} & set(calls)
