"""What the hook costs and touches where nobody trains."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hook_programs import ROOT, SITE, environment

HOOK = SITE.parent


def modules_after(source: str, tmp_path: Path, hooked: bool) -> set[str]:
    """The names in sys.modules once a fresh interpreter has run the source."""
    result = subprocess.run(
        [sys.executable, "-c", f"{source}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        env=environment(tmp_path, hooked),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stdout))


def test_a_python_that_never_imports_torch_loads_two_files_of_ours_and_nothing_else(tmp_path: Path) -> None:
    added = modules_after("", tmp_path, hooked=True) - modules_after("", tmp_path, hooked=False)
    assert added - {"__future__"} == {"_gpuwatch_hook", "_gpuwatch_hook.imports"}


def test_importing_gpuwatch_loads_only_the_standard_library(tmp_path: Path) -> None:
    added = modules_after("import gpuwatch", tmp_path, hooked=False) - modules_after("", tmp_path, hooked=False)
    foreign = {name for name in added if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"gpuwatch"}


def test_watching_loads_only_the_standard_library_and_no_threads(tmp_path: Path) -> None:
    source = "import gpuwatch; gpuwatch.watch(); gpuwatch.step()"
    added = modules_after(source, tmp_path, hooked=False) - modules_after("", tmp_path, hooked=False)
    foreign = {name for name in added if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("gpuwatch.hook")} == {"gpuwatch"}
    assert "threading" not in {name.partition(".")[0] for name in _imports_of_the_hook()}


def outcome(source: str, tmp_path: Path, hooked: bool) -> tuple[int, str, str]:
    """How a fresh interpreter ends that runs the source in a folder which may hold a torch of its own."""
    result = subprocess.run(
        [sys.executable, "-c", source],
        env=environment(tmp_path, hooked),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    "torch",
    [
        "raise ImportError('libcudart.so.12: cannot open shared object file')",
        "import collections\nraise RuntimeError('no CUDA here')",
        "import torch.missing",
        "def unfinished(:",
    ],
)
def test_a_torch_that_cannot_be_imported_fails_as_it_does_without_the_hook(tmp_path: Path, torch: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    plain = outcome("import torch", tmp_path, hooked=False)
    assert plain[0] == 1
    assert outcome("import torch", tmp_path, hooked=True) == plain


def test_a_finder_of_the_programs_is_asked_once_and_its_error_has_no_other_frames(tmp_path: Path) -> None:
    source = """
import sys

class Forbidding:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("asked for", name)
            raise ImportError("this test runs without torch")

sys.meta_path.{place}
import torch
"""
    for place in ("insert(0, Forbidding())", "append(Forbidding())"):
        program = source.replace("{place}", place).replace("import sys\n", "import sys; sys.path[:] = []\n")
        plain = outcome(program, tmp_path, hooked=False)
        assert "without torch" in plain[2]
        assert outcome(program, tmp_path, hooked=True) == plain
    silent = source.replace("{place}", "insert(0, Forbidding())").replace("raise ImportError", "str")
    (tmp_path / "torch.py").touch()
    assert outcome(silent, tmp_path, hooked=True) == (0, "asked for torch\n", "")


def test_a_spec_that_is_only_asked_for_is_as_without_the_hook(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    source = """
import importlib.util, pickle, sys
spec = importlib.util.find_spec("torch")
print(spec.name, spec.origin, type(spec), sorted(vars(spec.loader)), pickle.loads(pickle.dumps(spec)) == spec)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import torch
print(sorted(vars(torch.__spec__.loader)), type(torch.__spec__.loader).__name__, torch.__spec__ == spec)
print(sorted(vars(torch)))
"""
    plain = outcome(source, tmp_path, hooked=False)
    assert plain[0] == 0, plain
    assert outcome(source, tmp_path, hooked=True) == plain


def test_a_torch_that_another_import_hook_loads_is_patched_too(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    source = """
import importlib.util, sys

class Chained:
    def __init__(self, loader):
        self.loader = loader
    def create_module(self, spec):
        return self.loader.create_module(spec)
    def exec_module(self, module):
        self.loader.exec_module(module)

class Observing:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec(name)
        spec.loader = Chained(spec.loader)
        return spec

sys.meta_path.insert(0, Observing())
import torch
print("torch" in sys.modules["_gpuwatch_hook.imports"].waiting)
"""
    assert outcome(source, tmp_path, hooked=True) == (0, "False\n", "")


def test_modules_of_the_programs_are_not_asked_for_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        """
import sys

def save(obj, f): pass

sys.modules["copied"].save = save
"""
    )
    source = """
import sys, types

class Lazy(types.ModuleType):
    @property
    def __dict__(self):
        raise RuntimeError("loaded too early")
    def __getattribute__(self, name):
        raise RuntimeError("asked for " + name)

class Careless:
    def __getattribute__(self, name):
        raise RuntimeError("asked for " + name)

sys.modules["lazy"], sys.modules["careless"] = Lazy("lazy"), Careless()
copied = sys.modules["copied"] = types.ModuleType("copied")
import torch
print(copied.save is torch.save, "gpuwatch" in torch.save.__code__.co_filename)
"""
    assert outcome(source, tmp_path, hooked=True) == (0, "True True\n", "")


def test_a_lazy_torch_is_not_loaded_by_watching(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('loaded')")
    source = """
import importlib.util, sys
import gpuwatch
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["torch"] = torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
gpuwatch.watch()
print("watching")
"""
    assert outcome(source, tmp_path, hooked=False) == (0, "watching\n", "")


DISABLED = """
import gc, os, sys, torch, torch.utils.data
import gpuwatch

def world():
    patched = torch.save, torch.utils.data.DataLoader.__init__
    return patched, list(sys.meta_path), list(gc.callbacks), os.listdir("{folder}")

before = world()
gpuwatch.watch()
gpuwatch.step(3)
with gpuwatch.phase("eval"):
    pass
batches = [1, 2]
print(gpuwatch.loader(batches) is batches)
print(before == world(), [name for name in sys.modules if "gpuwatch" in name and "hook" in name])
"""


def test_a_script_that_calls_watch_is_left_alone_where_the_hook_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCH_DISABLE", "1")
    (tmp_path / "torch" / "utils").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("def save(obj, f): pass\n")
    (tmp_path / "torch" / "utils" / "__init__.py").touch()
    (tmp_path / "torch" / "utils" / "data.py").write_text("class DataLoader: pass\n")
    source = DISABLED.format(folder=tmp_path)
    assert outcome(source, tmp_path, hooked=False) == (0, "True\nTrue []\n", "")
    assert outcome(source, tmp_path, hooked=True) == (0, "True\nTrue []\n", "")


def test_a_torch_of_another_shape_is_left_alone(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.0'\n")
    source = "import torch, sys; print(torch.__version__, len(sys.modules['_gpuwatch_hook.imports'].failed) > 5)"
    result = subprocess.run(
        [sys.executable, "-c", source],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("0.0 True\n", "")


@pytest.mark.parametrize("path", sorted(HOOK.rglob("*.py")), ids=lambda path: path.name)
def test_the_hook_parses_on_python_3_8(path: Path) -> None:
    assert isinstance(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8)), ast.Module)


def test_what_every_python_loads_holds_nothing_that_python_2_cannot_parse() -> None:
    newer = (ast.JoinedStr, ast.AnnAssign, ast.AsyncFunctionDef, ast.Await, ast.Nonlocal, ast.NamedExpr)
    paths = list(SITE.glob("*.py"))
    assert paths
    for path in paths:
        source = path.read_bytes()
        assert source.isascii()
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, (*newer, ast.FunctionDef)), f"{path}: {ast.dump(node)}"
            assert not (isinstance(node, ast.Raise) and node.cause), f"{path}: raise ... from"
            assert not (isinstance(node, ast.ClassDef) and node.keywords), f"{path}: a class with keywords"


def test_the_hook_imports_nothing_but_the_standard_library_and_itself() -> None:
    allowed = sys.stdlib_module_names | {"torch", "_gpuwatch_hook", "imp"}
    assert {name.partition(".")[0] for name in _imports_of_the_hook()} <= allowed
    text = (ROOT / "gpuwatch" / "hook" / "hidden.py").read_text()
    assert "from torch._C._dynamo import eval_frame" in text, "the one import of torch, of a module torch has loaded"


def test_the_hook_calls_the_kernel_only_by_what_python_offers() -> None:
    names = {name.partition(".")[0] for name in _imports_of_the_hook()}
    assert not names & {"ctypes", "_ctypes", "cffi", "signal", "resource", "fcntl"}, "prctl, masks, limits: the run's"


def _imports_of_the_hook() -> set[str]:
    names = set()
    for path in HOOK.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    return names
