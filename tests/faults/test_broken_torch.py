"""A torch that is broken, installed in the environment of the training: the training fails or goes on as it would."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from gpuwatch.recording.reader import Recording
from gpuwatch.samples import RunFacts
from tests.faults.conftest import Place, SideBySide
from tests.faults.live import PATIENCE_SECONDS, command, environment, wait_until
from tests.integration.command_line import ROOT
from tests.integration.interpreters import Python, found

TRAINING = """\
import sys, traceback

def attempt(action):
    try:
        print(action())
    except BaseException:
        traceback.print_exc(file=sys.stdout)

def train():
    optimizer = torch.optim.Optimizer()
    print("trains")
    for batch in torch.utils.data.DataLoader([1, 2, 3]):
        print(batch)
        optimizer.step()

for _ in range(2):
    attempt(lambda: __import__("torch").__name__)
    attempt(lambda: __import__("torch.utils.data").__name__)
print(sorted(name for name in sys.modules if name.partition(".")[0] == "torch"))
torch = sys.modules.get("torch")
attempt(lambda: torch.__version__)
attempt(train)
print("waits", flush=True)
sys.stdin.read()
import torch
torch.missing
"""
"""Goes on where it can, which shows what the hook leaves behind; ends with the error of the import or its own."""

LOADER = """
class Dataset: pass
class DataLoader:
    def __init__(self, dataset, **options):
        self.dataset = dataset
    def __iter__(self):
        return iter(self.dataset)
"""
OPTIMIZER = """
class Optimizer:
    def __init__(self):
        self.param_groups = []
    def step(self):
        pass
"""
PACKAGE = {
    "utils/__init__.py": "",
    "utils/data/__init__.py": LOADER,
    "optim/__init__.py": "from .optimizer import Optimizer",
    "optim/optimizer.py": OPTIMIZER,
}
WHOLE = "import torch.utils.data, torch.optim\n"

TORCHES: dict[str, dict[str, str]] = {
    "ImportError": {"torch/__init__.py": "raise ImportError('libcudart.so.12: cannot open shared object file')"},
    "OSError": {"torch/__init__.py": "import ctypes\nctypes.CDLL('/nonexistent/libtorch_global_deps.so')"},
    "not its own error": {"torch/__init__.py": "raise SystemExit(3)"},
    "a module that is missing": {"torch/__init__.py": "from torch._C import *"},
    "half a file": {"torch/__init__.py": "def unfinished(:"},
    "bytes that are no source": {"torch/__init__.py": "\0\0\0\0"},
    "an extension of 0 bytes": {"torch.abi3.so": ""},
    "a folder without files": {"torch/lib/nothing": ""},
    "no version and no DataLoader": {"torch/__init__.py": ""},
    "no DataLoader": {
        "torch/__init__.py": "import torch.utils.data, torch.optim\n__version__ = '2.13.0'",
        **{f"torch/{file}": source for file, source in PACKAGE.items()},
        "torch/utils/data/__init__.py": "",
    },
    "no version": {"torch/__init__.py": WHOLE, **{f"torch/{file}": source for file, source in PACKAGE.items()}},
    "attributes that raise": {
        "torch/__init__.py": WHOLE + "def __getattr__(name):\n    raise RuntimeError(f'{name} is broken')",
        **{f"torch/{file}": source for file, source in PACKAGE.items()},
    },
}


def user_environment(folder: Path, files: dict[str, str], with_ours: bool = False) -> Path:
    """The Python of a new virtual environment that holds these files and, behind them, what this one holds."""
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name, source in files.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(source)
    ours = [entry for entry in sys.path if with_ours and "-packages" in entry]
    (packages / "ours.pth").write_text("".join(f"import site; site.addsitedir({entry!r})\n" for entry in ours))
    return folder / "venv" / "bin" / "python"


def the_real_torch_without_its_libraries(packages: Path) -> None:
    """torch as it is installed here, but for the folder of its shared libraries."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    (packages / "torch").mkdir()
    for entry in Path(spec.origin).parent.iterdir():
        if entry.name != "lib":
            (packages / "torch" / entry.name).symlink_to(entry)


def outcome(
    words: list[str], folder: Path, env: dict[str, str], may_end: Callable[[int], bool] = lambda pid: True
) -> tuple[int, str, str]:
    """The exit code, output and errors of a program, whose input ends once its pid `may_end`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=folder, env=env, text=True, **pipes) as process:
        try:
            wait_until(lambda: may_end(process.pid))
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, out, err


def recorded_runs(path: Path) -> dict[int, RunFacts]:
    """What each run has said of itself, by pid."""
    with Recording(path) as recording:
        samples = recording.samples(recording.start_ns, recording.end_ns)
        return {each.pid: each for each in samples if isinstance(each, RunFacts)}


def test_a_training_with_a_broken_torch_ends_as_without_gpuwatch(side_by_side: SideBySide, tmp_path: Path) -> None:
    """A monitor that records is about, so that what the hook would say of such a torch is said.

    Other Pythons have the torch without a version: it is the one that trains.
    """
    env = environment(tmp_path, None)
    del env["PYTHONPATH"]  # the checkout is no part of the user's environment
    kept = tmp_path / "a.gpuwatch"
    others = {minor: each for minor, each in found().items() if each.root is None and minor != sys.version_info[1]}
    recording = [sys.executable, "-m", "gpuwatch", "record", "-o", str(kept)]

    def check(place: Place, case: dict[str, str] | Python) -> None:
        files = TORCHES["no version"] if isinstance(case, Python) else case
        python = user_environment(place.folder, files, with_ours=not files)
        (packages,) = (place.folder / "venv" / "lib").glob("python*/site-packages")
        if not files:
            the_real_torch_without_its_libraries(packages)
        words = [*case.command] if isinstance(case, Python) else [str(python)]
        own = {"PYTHONPATH": str(packages)} if isinstance(case, Python) else {}
        (place.folder / "train.py").write_text(TRAINING)
        alone = outcome([*words, "train.py"], place.folder, env | own)
        assert alone[0] in (1, 3) and alone[1].endswith("waits\n"), alone
        if not files:
            assert "lib" in alone[2] and "cannot open shared object file" in alone[2], alone
        hooked = [sys.executable, "-m", "gpuwatch", "run", "--", *words, "train.py"]
        path = os.pathsep.join([str(ROOT), *own.values()])
        # Of a run that ends before the monitor reads it nobody can say any more who it was.
        may_end = (lambda pid: pid in recorded_runs(kept)) if "trains" in alone[1] else (lambda pid: True)
        assert outcome(hooked, place.folder, env | {"PYTHONPATH": path}, may_end) == alone

    with subprocess.Popen(recording, env=env | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as monitor:
        try:
            assert monitor.stderr is not None and b"recording into" in monitor.stderr.readline()
            real = {"the real one without its libraries": {}} if importlib.util.find_spec("torch") else {}
            side_by_side(check, TORCHES | real | {f"Python 3.{minor}": python for minor, python in others.items()})
            monitor.send_signal(signal.SIGINT)
            said = monitor.stderr.read()
            assert monitor.wait(PATIENCE_SECONDS) == 130
        finally:
            monitor.kill()
    assert b"Traceback" not in said, said
    facts = recorded_runs(kept).values()
    assert len(facts) == 3 + len(others), "those that have an optimizer"
    assert {each.torch for each in facts} == {None, "2.13.0"}
    assert {f"3.{minor}" for minor in others} < {str(each.python).rpartition(".")[0] for each in facts}


def names_the_torch(out: bytes, folder: Path) -> bool:
    (torch,) = (check for check in json.loads(out)["checks"] if check["check"] == "torch")
    return torch["state"] == "warning" and f"{folder}/venv" in torch["sentence"] and torch["cure"]


COMMANDS = {
    "watch --duration 1": lambda out, folder: b"500/700 W" in out,
    "report --duration 1 --format json": lambda out, folder: json.loads(out),
    "doctor --json": names_the_torch,
}


def test_the_commands_do_without_torch(side_by_side: SideBySide, tmp_path: Path) -> None:
    """gpuwatch and the broken torch are in one environment."""
    python = user_environment(tmp_path, TORCHES["OSError"], with_ours=True)
    before = ["sh", "-c", f'shift; exec {python} "$@"', "sh"]  # in place of the Python of the tests
    more = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def check(place: Place, words: str) -> None:
        done = command(place.folder, place.driver, *words.split(), before=before, more=more)
        assert (done.returncode, done.stderr) == (0, b"")
        assert COMMANDS[words](done.stdout, tmp_path)

    side_by_side(check, {words: words for words in COMMANDS})
