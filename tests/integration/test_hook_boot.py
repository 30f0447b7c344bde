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


def test_a_python_that_never_imports_torch_loads_three_files_of_ours_and_nothing_else(tmp_path: Path) -> None:
    added = modules_after("", tmp_path, hooked=True) - modules_after("", tmp_path, hooked=False)
    assert added - {"__future__"} == {"_gpuwatch_hook", "_gpuwatch_hook.hidden", "_gpuwatch_hook.imports"}


def test_importing_gpuwatch_loads_only_the_standard_library(tmp_path: Path) -> None:
    added = modules_after("import gpuwatch", tmp_path, hooked=False) - modules_after("", tmp_path, hooked=False)
    foreign = {name for name in added if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"gpuwatch", "gpuwatch._version"}


def test_watching_loads_only_the_standard_library_and_no_threads(tmp_path: Path) -> None:
    source = "import gpuwatch; gpuwatch.watch(); gpuwatch.step()"
    added = modules_after(source, tmp_path, hooked=False) - modules_after("", tmp_path, hooked=False)
    foreign = {name for name in added if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith("gpuwatch.hook")} == {"gpuwatch", "gpuwatch._version"}
    assert "threading" not in {name.partition(".")[0] for name in _imports_of_the_hook()}


def test_a_torch_that_cannot_be_imported_fails_as_it_does_without_the_hook(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    results = [
        subprocess.run(
            [sys.executable, "-c", "import torch"],
            env=environment(tmp_path, hooked),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for hooked in (True, False)
    ]
    assert [result.returncode for result in results] == [1, 1]
    last_lines = {result.stderr.splitlines()[-1] for result in results}
    assert last_lines == {"ImportError: libcudart.so.12: cannot open shared object file"}


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


def _imports_of_the_hook() -> set[str]:
    names = set()
    for path in HOOK.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module)
    return names
