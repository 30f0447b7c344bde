"""Whatever the source: a patch parses, `git apply` takes it, it changes the intended node only, and only once."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.diagnosis.finding import (
    AutocastEdit,
    CallEdit,
    Edit,
    IntervalEdit,
    ModelEdit,
    SetupEdit,
    TransferEdit,
)
from gpuwatch.edits.diff import combined_patch
from gpuwatch.edits.workspace import Origin

LOADER = {"num_workers": "6", "persistent_workers": "True"}
KINDS: dict[str, Callable[[str, int], Edit]] = {
    "call": lambda file, line: CallEdit("DataLoader", file, line, LOADER),
    "transfer": TransferEdit,
    "setup": lambda file, line: SetupEdit(file, 'torch.set_float32_matmul_precision("high")'),
    "model": lambda file, line: ModelEdit(file, line, "{model}.compile()"),
    "autocast": AutocastEdit,
    "log": lambda file, line: IntervalEdit(file, line, 50),
    "epoch": lambda file, line: IntervalEdit(file, line, 5, "epoch"),
}
LINES = {
    "call": "loader = DataLoader({space}dataset,{space}batch_size=4{comma}){comment}",
    "transfer": "x = x.to({space}device{comma}){comment}",
    "setup": "pass",
    "model": "optimizer = torch.optim.SGD({space}model.parameters(), lr=0.1){comment}",
    "autocast": "loss.backward(){comment}",
    "log": "print({space}'é', loss.item()){comment}",
    "epoch": "validate({space}model){comment}",
}


@dataclass(frozen=True)
class Written:
    """A generated file: its bytes, and the line to edit."""

    data: bytes
    line: int


@st.composite
def sources(draw: st.DrawFn, kind: str) -> Written:
    """A training script, oddly formatted."""
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    unit = draw(st.sampled_from(["  ", "    ", "\t"]))
    space = draw(st.sampled_from(["", " ", newline + "   ", "\t", f"  # hm{newline}  "]))
    comment = draw(st.sampled_from(["", "  # why", "\t#é"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]))
    comma = draw(st.sampled_from(["", ",", " , "]))
    between = draw(st.lists(st.sampled_from(["", "# é", "\f", "y = '''a", "s = 'x\\\\", "    "]), max_size=3))
    filler = [
        line
        for each in between
        for line in ({"y = '''a": [each, "b'''"], "s = 'x\\\\": [each[:-1], "t'"]}.get(each, [each]))
    ]
    wanted = LINES[kind].format(space=space, comma=comma, comment=comment)
    lines = ["# -*- coding: latin-1 -*-"] if encoding == "latin-1" else []
    lines += ["import torch", *draw(st.sampled_from([[], ["import sys"]])), "", *filler, "model.train()"]
    lines += ["for epoch in range(3):", f"{unit}for step, x in enumerate(loaders):", f"{unit * 2}out = model(x)"]
    lines += [*(f"{unit * 2}{each}" if not each.startswith(("b'''", "t'")) else each for each in filler)]
    lines += [f"{unit * 2}loss = f('é', out)", "@@"]
    before = newline.join(lines).split("@@")[0]
    text = before + unit * (1 if kind == "epoch" else 2) + wanted
    text += draw(st.sampled_from(["", newline, newline + "é = 1", newline * 3]))
    return Written(text.encode(encoding), before.count("\n") + 1)


def applied(edit: Edit, name: str, data: bytes, folder: Path) -> tuple[bytes | None, str | None]:
    """The file after `git apply`, or why there is no patch."""
    path = folder / name
    path.write_bytes(data)
    patch = combined_patch([(edit, Origin(lambda asked: path.read_bytes()))])
    if not patch.data:
        assert path.read_bytes() == data
        return None, patch.reasons[0]
    arguments = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(arguments, input=patch.data, cwd=folder, check=True, capture_output=True)
    return path.read_bytes(), None


def only_the_intended_differs(kind: str, before: bytes, after: bytes) -> None:
    """Taking the change out of the new syntax tree gives the old one."""
    assert ast.dump(_Undone(kind).visit(ast.parse(after))) == ast.dump(_Undone(kind).visit(ast.parse(before)))


class _Undone(ast.NodeTransformer):
    """Takes out what an edit of the kind may add, wherever it is."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        mine = LOADER if self.kind == "call" else {"non_blocking"} if self.kind == "transfer" else ()
        node.keywords = [each for each in node.keywords if each.arg not in mine]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        added = {"setup": "torch.set_float32_matmul_precision", "model": ".compile()"}.get(self.kind, "\0")
        return None if added in ast.unparse(node) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        return None if [each.name for each in node.names] == ["torch"] else node

    def visit_With(self, node: ast.With) -> object:
        self.generic_visit(node)
        mine = self.kind == "autocast" and "torch.autocast" in ast.unparse(node.items[0])
        return node.body if mine else node

    def visit_If(self, node: ast.If) -> object:
        self.generic_visit(node)
        mine = self.kind in {"log", "epoch"} and "%" in ast.unparse(node.test) and not node.orelse
        return node.body if mine else node


@pytest.mark.parametrize("kind", KINDS)
def test_odd_formatting_is_kept(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp(kind)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    made = []

    @settings(max_examples=60, deadline=None)
    @given(sources(kind))
    def holds(written: Written) -> None:
        edit = KINDS[kind](str(folder / "train.py"), written.line)
        after, reason = applied(edit, "train.py", written.data, folder)
        assert after is not None, reason
        made.append(after)
        only_the_intended_differs(kind, written.data, after)
        removed, added = written.data.split(b"\n"), after.split(b"\n")
        assert len(added) >= len(removed)
        assert after.count(b"\r\n") == (after.count(b"\n") if b"\r\n" in written.data else 0)
        again = _at_the_same_node(edit, kind, after)
        _, reason = applied(again, "train.py", after, folder)
        assert reason is not None
        assert "already" in reason

    holds()
    assert made


def _at_the_same_node(edit: Edit, kind: str, after: bytes) -> Edit:
    """The same edit, where its statement is now."""
    last = ast.parse(after).body
    text = LINES[kind].split("(")[0].encode()
    line = next(number for number, each in enumerate(after.split(b"\n"), 1) if text in each)
    assert last
    return KINDS[kind](edit.file, line)


REAL_PACKAGES = ("torch", "transformers", "lightning", "accelerate")
CALLS = {
    "call": b"DataLoader(",
    "transfer": b".to(",
    "model": b".parameters()",
    "autocast": b".backward(",
    "log": b".item()",
}


@cache
def files_of(package: str) -> list[Path]:
    """The files of an installed package, none of one that is not installed."""
    spec = importlib.util.find_spec(package)
    return [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.rglob("*.py"))


def real_files(word: bytes, most: int) -> Iterator[Path]:
    """Files of installed packages that hold a word, a few of each package."""
    for package in REAL_PACKAGES:
        holding = (path for path in files_of(package) if path.stat().st_size < 200_000 and word in path.read_bytes())
        yield from islice(holding, most)


@pytest.mark.parametrize("kind", CALLS)
def test_real_code_of_installed_packages_is_edited_safely_or_not_at_all(kind: str, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    made = 0
    for path in real_files(CALLS[kind], most=6):
        data = path.read_bytes()
        lines = [number for number, line in enumerate(data.split(b"\n"), start=1) if CALLS[kind] in line]
        for line in lines[:3]:
            edit = KINDS[kind](str(tmp_path / "real.py"), line)
            after, reason = applied(edit, "real.py", data, tmp_path)
            assert (after is None) == (reason is not None)
            if after is not None:
                made += 1
                ast.parse(after)
    assert made or kind in {"autocast", "log", "model"}, "packages hold calls that can be edited"


def test_fixes_of_one_file_make_one_patch_in_any_order(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    path = tmp_path / "train.py"
    text = (
        "import torch\nloader = DataLoader(data, num_workers=0)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for step, x in enumerate(loader):\n    x = x.to(device)\n    loss = model(x)\n    loss.backward()\n"
        "    print(loss.item())\n"
    )
    lines = {"call": 2, "setup": 1, "model": 3, "transfer": 5, "autocast": 7, "log": 8}
    results = set()
    for order in (list(lines), list(reversed(lines)), sorted(lines)):
        path.write_text(text)
        edits = [KINDS[kind](str(path), lines[kind]) for kind in order]
        patch = combined_patch([(edit, Origin(lambda asked: path.read_bytes())) for edit in edits])
        assert patch.reasons == (None,) * len(edits)
        subprocess.run(["git", "apply", "-"], input=patch.data, cwd=tmp_path, check=True)
        results.add(path.read_text())
    assert len(results) == 1
    assert "        loss = model(x)\n    loss.backward()\n    if step % 50 == 0:\n        print" in results.pop()


def test_a_line_among_thousands_of_its_like_is_one_line_of_the_patch() -> None:
    source = b"x = x.to(device)\n" * 5000
    patch = combined_patch([(TransferEdit("/train.py", 2500), Origin(lambda asked: source))])
    head, *lines = patch.data.splitlines()[2:]
    assert head.startswith(b"@@ -2497,7 ")
    assert sorted(lines) == sorted(
        [b" x = x.to(device)"] * 6 + [b"-x = x.to(device)", b"+x = x.to(device, non_blocking=True)"]
    )


def test_the_first_of_two_fixes_that_disagree_stands(tmp_path: Path) -> None:
    source = b"loader = DataLoader(data, num_workers=0)\n"
    origin = Origin(lambda asked: source)
    edits = [CallEdit("DataLoader", "/t.py", 1, {"num_workers": number}) for number in ("6", "2")]
    patch = combined_patch([(edit, origin) for edit in edits])
    assert b"num_workers=6" in patch.data
    assert patch.reasons[0] is None
    assert "an earlier fix of this patch sets num_workers=6" in (patch.reasons[1] or "")
