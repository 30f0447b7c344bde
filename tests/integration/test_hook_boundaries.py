"""What of the hook crosses to another process: nothing. A child either has a hook of its own or runs as without one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hook_listener import listening
from hook_programs import PREAMBLE, SITE, command, environment, finished, rendezvous

SPAWNING = f"""\
import multiprocessing.spawn, os, sys
{PREAMBLE}
if __name__ == "__main__":
    if "disabled" in sys.argv:
        os.environ["GPUWATCH_DISABLE"] = "1"
    if "cleaned" in sys.argv:
        del os.environ["PYTHONPATH"]
    if "without-site" in sys.argv:
        with open("python", "w") as file:
            file.write('#!/bin/sh\\nexec "' + sys.executable + '" -S "$@"\\n')
        os.chmod("python", 0o755)
        multiprocessing.spawn.set_executable(os.path.abspath("python"))
        os.environ["PYTHONPATH"] += os.pathsep + {sysconfig.get_path("purelib")!r} + os.pathsep.join(["", *sys.path])
    for batch in DataLoader(data, batch_size=16, num_workers=1, multiprocessing_context="spawn"):
        train_on(batch)
    print("trained", sorted(multiprocessing.current_process()._config))
"""

PICKLING = """\
import json, pickle, sys, types
import torch, torch.distributed.checkpoint, torch.utils.data._utils.worker
import torchdata.stateful_dataloader, torchdata.stateful_dataloader.worker, safetensors.torch, accelerate.data_loader

found = {}
for name, module in sorted(sys.modules.items()):
    if type(module) is type(sys) and name.startswith(("torch", "safetensors", "accelerate")):
        for attribute, value in list(vars(module).items()):
            for inner, each in [("", value), *(vars(value).items() if isinstance(value, type) else ())]:
                if type(each) is types.FunctionType and "gpuwatch" in each.__code__.co_filename:
                    found[f"{each.__module__}.{each.__qualname__}"] = each
pickled = {}
for name, each in found.items():
    try:
        pickled[name] = pickle.dumps(each).decode("latin-1")
    except Exception as error:
        pickled[name] = f"gpuwatch broke it: {error!r}"
print(json.dumps(pickled))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


@pytest.mark.parametrize("how", ["disabled", "cleaned", "without-site"])
def test_a_spawned_worker_that_has_no_hook_runs_as_without_one(folder: Path, how: str) -> None:
    with listening(folder) as listener:
        result = finished(folder, SPAWNING, how, forked=True)
        assert (result.returncode, result.stdout, result.stderr) == (0, "trained ['authkey', 'semprefix']\n", "")
        listener.until_all_closed()
    assert not listener.workers
    assert max(len(peer.of("OPTIMIZER")) for peer in listener.trainers) == 2


def test_a_spawned_worker_with_a_hook_reports_the_loader_it_works_for(folder: Path) -> None:
    with listening(folder) as listener:
        result = finished(folder, SPAWNING, forked=True)
        listener.until_all_closed()
    assert (result.returncode, result.stdout, result.stderr) == (0, "trained ['authkey', 'semprefix']\n", "")
    (worker,) = listener.workers
    (trainer,) = (peer for peer in listener.trainers if peer.of("OPTIMIZER"))
    assert worker.worker is not None
    assert (worker.worker["parent"], worker.worker["loader"]) == (trainer.facts["pid"], 1)
    assert [fetch.id for fetch in worker.of("FETCH")] == [1, 1]
    assert not list(folder.glob("trainer-*")), "of a worker that built the program's optimizer as it imported it"


def test_patched_functions_are_pickled_under_the_names_of_their_libraries(folder: Path) -> None:
    overrides = {"loader": {"num_workers": 0}, "at": None, "compile": True, "non_blocking": True}
    result = finished(folder, PICKLING, GPUWATCH_OVERRIDES=json.dumps(overrides))
    assert result.returncode == 0, result.stderr
    pickled = json.loads(result.stdout)
    patched = {"torch.utils.data._utils.worker._worker_loop", "torch.serialization.save", "torch.Tensor.to"}
    assert patched <= set(pickled)
    assert {name: text for name, text in pickled.items() if "gpuwatch" in name + text} == {}


def test_the_programs_environment_names_nothing_of_the_hook_but_the_path_to_it(folder: Path) -> None:
    added = set(environment(folder).items()) - set(environment(folder, hooked=False).items())
    assert {name for name, _ in added} == {"PYTHONPATH"}


GUARDED = f"""\
import builtins, io, os, socket

def forbidden(*arguments, **named):
    raise RuntimeError("this test suite opens nothing")

names = ["getcwd", "getpid", "listdir", "lstat", "mkdir", "open", "readlink", "rename", "stat", "unlink"]
held = [(builtins, "open"), (io, "open"), (socket, "socket"), *((os, name) for name in names)]
{PREAMBLE}
calls = [getattr(holder, name) for holder, name in held]
for holder, name in held:
    setattr(holder, name, forbidden)
train_on(data[:16])
loader = DataLoader(data, batch_size=16)
for batch in loader:
    train_on(batch)
for (holder, name), call in zip(held, calls):
    setattr(holder, name, call)
print("trained")
"""


def test_what_the_program_puts_in_the_place_of_open_and_stat_is_not_called(folder: Path) -> None:
    with listening(folder) as listener:
        result = finished(folder, GUARDED, forked=True)
        assert (result.returncode, result.stdout, result.stderr) == (0, "trained\n", "")
        listener.until_all_closed()
    assert listener.trainers[0].facts["unhooked"] == []


def test_coverage_lists_the_same_files_where_gpuwatch_lies_outside_site_packages(folder: Path) -> None:
    """As after `pip install --target`: files there are taken for the program's."""
    site = folder.parent / "libraries" / "gpuwatch" / "hook" / "site"
    shutil.copytree(SITE.parent, site.parent, ignore=shutil.ignore_patterns("__pycache__"))
    source = PREAMBLE + "for batch in DataLoader(data, batch_size=16): train_on(batch)\ntorch.save({}, 'weights.pt')\n"
    run = command(folder, source)
    coverage = [run[0], "-m", "coverage"]
    listed = []
    for hooked in (False, True):
        variables = {**environment(folder, hooked=False), **({"PYTHONPATH": str(site)} if hooked else {})}
        with listening(folder) as listener:
            for arguments in (["run", *run[1:]], ["report", "--precision=2"]):
                result = subprocess.run(
                    [*coverage, *arguments], env=variables, cwd=folder.parent, capture_output=True, text=True
                )
                assert (result.returncode, result.stderr) == (0, ""), result.stdout
            if hooked:
                listener.until_all_closed()
                assert len(listener.trainers) == 1, "the hook was at work"
        listed.append(result.stdout)
    assert "train.py" in listed[0]
    assert listed[0] == listed[1]
