"""Statements and loops of a script, where a loader was built, and which files are believed."""

from __future__ import annotations

import ast
import os
import textwrap
from pathlib import Path

import pytest

from gpuwatch.sources.stacks.source_text import SourceFile, SourceText
from gpuwatch.sources.syntax import request_in_text
from gpuwatch.sources.syntax_child import loader_line, request_of

BOOTED = 1_700_000_000
STARTED = BOOTED + 1000
TICKS = 1000 * os.sysconf("SC_CLK_TCK")


def _four(number: int) -> str:
    return f"\t{number}" * 4


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with one process, whose root and working folder are folders of the test."""
    root = tmp_path / "proc"
    (root / "7").mkdir(parents=True)
    for folder in ("home", "work"):
        (tmp_path / "seen" / folder).mkdir(parents=True)
    (root / "7" / "root").symlink_to(tmp_path / "seen")
    (root / "7" / "cwd").symlink_to(tmp_path / "seen" / "work")
    user, group = os.geteuid(), os.getegid()
    (root / "7" / "status").write_text(f"Uid:{_four(user)}\nGid:{_four(group)}\nGroups:\t \n")
    (root / "7" / "stat").write_text(f"7 (python) S {'0 ' * 18}{TICKS} 0 0\n")
    (root / "stat").write_text(f"cpu 1 2 3\nbtime {BOOTED}\n")
    return root


def write(path: Path, text: str | bytes, changed: float = STARTED - 60) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (changed, changed))


def test_files_are_read_as_the_process_sees_them(proc: Path) -> None:
    write(proc / "7/root/home/train.py", "first\n  second  \n")
    write(proc / "7/root/work/main.py", "relative\n")
    text = SourceText(7, TICKS, proc)
    assert text.line("/home/train.py", 2) == "second"
    assert text.line("main.py", 1) == "relative"
    assert text.line("/home/train.py", 3) is None
    assert text.line("/home/absent.py", 1) is None


def test_a_file_that_is_newer_than_the_process_is_not_what_runs_there(proc: Path) -> None:
    write(proc / "7/root/home/train.py", "edited\n", changed=STARTED + 60)
    assert SourceText(7, TICKS, proc).line("/home/train.py", 1) is None


def test_a_pipe_that_a_script_came_through_is_not_read_from(proc: Path) -> None:
    pipe = proc / "7/root/home/train.py"
    os.mkfifo(pipe)
    os.utime(pipe, (STARTED - 60, STARTED - 60))
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"for its reader\n")
    assert SourceText(7, TICKS, proc).line("/home/train.py", 1) is None
    assert os.read(writer, 100) == b"for its reader\n"
    os.close(writer)


def test_lines_are_counted_as_python_counts_them() -> None:
    assert SourceFile("a\x0cb\u2028c\rd\r\ne\n").line(3) == "e"


def test_a_file_in_another_encoding_is_read_by_its_own_declaration(proc: Path) -> None:
    write(proc / "7/root/home/train.py", "# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    assert SourceText(7, TICKS, proc).line("/home/train.py", 2) == "name = 'é'"


def test_a_file_in_a_syntax_of_tomorrow_still_has_lines(proc: Path) -> None:
    write(proc / "7/root/home/train.py", "loss.item()\nmatch x ? y\n")
    text = SourceText(7, TICKS, proc)
    assert text.line("/home/train.py", 1) == "loss.item()"
    assert text.request("/home/train.py", 1) == "sync"
    assert not text.parses("/home/train.py")


def test_a_statement_asks_on_all_its_lines_and_a_compound_one_only_in_its_header() -> None:
    source = SourceFile("if (a.item() and\n        b):\n    call(\n        c.cuda(),\n    )\nelse:\n    d\n")
    assert [source.request(number) for number in range(1, 8)] == ["sync", "sync", "copy", "copy", "copy", None, None]


def test_loops_around_a_line_end_at_the_function() -> None:
    source = SourceFile(
        "for epoch in epochs:\n    def step():\n        for x in loader:\n"
        "            while x:\n                go()\n    step()\n"
    )
    assert [loop.first for loop in source.loops(5)] == [4, 3]
    assert [loop.first for loop in source.loops(6)] == [1]


@pytest.mark.parametrize(
    ("loop", "counters"),
    [
        ("for i in range(n):\n  f()", ("i",)),
        ("for i in trange(1, n):\n  f()", ("i",)),
        ("for i in range(0, n, bptt):\n  f()", ()),
        ("for batch, i in enumerate(range(0, n, bptt)):\n  f()", ("batch",)),
        ("for i, x in tqdm(enumerate(xs), total=9):\n  f()", ("i",)),
        ("for (a, b), x in enumerate(xs):\n  f()", ()),
        ("for x in xs:\n  f()\n  step += 1", ("step",)),
        ("while True:\n  f()\n  iter_num += 1\n  local += 1", ("iter_num", "local")),
        ("while True:\n  with scope:\n    self.step += 1", ("self.step",)),
        ("while True:\n  if good:\n    step += 1", ()),
        ("while True:\n  for x in xs:\n    step += 1", ()),
        ("while True:\n  step += 1\n  if bad:\n    step += 1", ()),
        ("while True:\n  step += n\n  other -= 1\n  a[0] += 1\n  a.b.c += 1", ()),
    ],
)
def test_a_loops_counters_grow_by_one_each_time_around(loop: str, counters: tuple[str, ...]) -> None:
    assert SourceFile(loop).loops(1)[0].counters == counters


def test_loops_are_found_within_other_blocks() -> None:
    source = SourceFile(
        "with a:\n  try:\n    for x in b:\n      c\n  except E:\n    for y in d:\n      e\n  finally:\n    f\n"
    )
    assert [loop.first for loop in source.loops(4)] == [3]
    assert [loop.first for loop in source.loops(7)] == [6]


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("torch.cuda.synchronize()", "sync"),
        ("x = y.numpy().mean()", "sync"),
        ("values = [v.tolist() for v in outputs]", "sync"),
        ("on_done = lambda loss: loss.item()", None),
        ("x = x.to('cuda', torch.float16)", "copy"),
        ("x = x.to(dtype=torch.bfloat16)", None),
        ("x = x.to(other)", "copy"),
        ("x = {k: v.cuda() for k, v in batch.items()}", "copy"),
        ("torch.save(model.state_dict(), path)", "save"),
        ("y = F.relu(x)", "forward"),
        ("y = torch.einsum('ij,jk', a, b)", "forward"),
        ("x = torch.stack([torch.from_numpy(d[i:i + n]) for i in ix])", None),
        ("count += 1", None),
    ],
)
def test_what_a_statement_asks_for(code: str, asks: str | None) -> None:
    assert request_of(ast.parse(code).body[0]) == asks


def test_a_line_alone_is_read_as_text() -> None:
    assert request_in_text("total += loss.item()") == "sync"
    assert request_in_text("for k, v in table.items():") is None
    assert request_in_text("self.print(x)") is None


@pytest.mark.parametrize(
    "text",
    ["-" * 100_000 + "1", "not " * 100_000 + "1", "a." * 100_000 + "a", "if 1:\n pass\n" + "elif 1:\n pass\n" * 20_000],
)
def test_a_source_that_exhausts_the_parser_has_lines_only(text: str) -> None:
    source = SourceFile(text)
    assert not source.parses
    assert source.loops(1) == ()
    source.request(1)
    assert source.line(1) is not None


def test_a_source_says_nothing_on_our_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert SourceFile('x = "\\d"\ny = 1if x else 2\n').parses
    assert capfd.readouterr() == ("", "")


def found(source: str, loop: str | None) -> str | None:
    """The text of the line that is found for the loop that begins with `loop`."""
    text = textwrap.dedent(source)
    lines = text.splitlines()
    line = None if loop is None else next(n for n, each in enumerate(lines, 1) if each.strip().startswith(loop))
    built = loader_line(ast.parse(text), line)
    return None if built is None else lines[built - 1].strip()


TWO = """
    train_loader = DataLoader(train, shuffle=True)
    val_loader = torch.utils.data.DataLoader(val)
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for x in train_loader:",
        "for step, x in enumerate(train_loader):",
        "for x in tqdm(train_loader, desc='epoch'):",
        "for step, x in enumerate(tqdm(train_loader), 1):",
    ],
)
def test_a_name_is_followed_through_what_passes_batches_on(loop: str) -> None:
    assert found(TWO + f"    {loop}\n        pass\n", "for") == "train_loader = DataLoader(train, shuffle=True)"


def test_next_on_an_iterator_is_followed_to_its_loader() -> None:
    source = TWO + "    batches = iter(val_loader)\n    while True:\n        x = next(batches)\n"
    assert found(source, "x = next") == "val_loader = torch.utils.data.DataLoader(val)"


def test_an_argument_is_followed_to_the_caller() -> None:
    source = """
    def train(model, loader):
        for x in loader:
            pass

    def main():
        a = DataLoader(first)
        b = DataLoader(second)
        train(model, b)
    """
    assert found(source, "for x") == "b = DataLoader(second)"


def test_one_function_over_two_loaders_names_neither() -> None:
    source = """
    def run(loader):
        for x in loader:
            pass

    a = DataLoader(first)
    b = DataLoader(second)
    run(a)
    run(b)
    """
    assert found(source, "for x") is None


def test_an_attribute_is_followed_to_where_it_is_set() -> None:
    source = """
    class Trainer:
        def __init__(self):
            self.train_loader = DataLoader(train)
            self.val_loader = DataLoader(val)

        def fit(self):
            for x in self.val_loader:
                pass
    """
    assert found(source, "for x") == "self.val_loader = DataLoader(val)"


def test_a_prepared_loader_is_the_one_that_was_handed_over() -> None:
    source = (
        TWO
        + "    model, train_loader = accelerator.prepare(model, train_loader)\n"
        + "    for x in train_loader:\n        pass\n"
    )
    assert found(source, "for x") == "train_loader = DataLoader(train, shuffle=True)"


def test_a_function_that_returns_a_loader_is_looked_into() -> None:
    source = """
    def make(data):
        loader = DataLoader(data)
        return loader

    other = DataLoader(more)
    for x in make(train):
        pass
    """
    assert found(source, "for x") == "loader = DataLoader(data)"


def test_the_only_loader_of_a_file_is_taken_where_the_loop_is_elsewhere() -> None:
    assert found("loader = DataLoader(data)\ntrainer.fit(model, loader)\n", None) == "loader = DataLoader(data)"


def test_of_two_loaders_none_is_guessed() -> None:
    assert found(TWO, None) is None
