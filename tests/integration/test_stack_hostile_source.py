"""Source files made to crash, hold or fill whoever parses them: they cost their own answer and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuwatch.procfs import read_stat
from gpuwatch.sources.stacks.source_text import SourceText
from gpuwatch.sources.syntax import LONGEST_TEXT, SHARED, NoAnswerError, Parser

GOOD = "for batch in loader:\n    loss.item()\n"
ASSIGNMENTS = "".join(f"a{number % 40} = a{number % 37}\n" for number in range(4000))
HOSTILE = {
    "chain of additions": "x=" + "+".join("a" * 300_000),
    "chain of attributes": "x=a" + ".a" * 300_000,
    "chain of calls": "x=a" + "()" * 300_000,
    "chain of subscripts": "x=a" + "[0]" * 300_000,
    "unary operators": "x=" + "-" * 500_000 + "1",
    "negations": "x=" + "not " * 200_000 + "1",
    "powers": "x=" + "**".join("1" * 200_000),
    "lambdas": "x=" + "lambda:" * 100_000 + "1",
    "conditions": "x=" + "1 if 1 else " * 80_000 + "1",
    "brackets": "(" * 100_000,
    "braces": "{" * 100_000,
    "brackets that close": "x=" + "(" * 190 + ")" * 190,
    "braces without an end": "{" * 190,
    "elif": "if 1:\n pass\n" + "elif 1:\n pass\n" * 50_000,
    "deep blocks": "".join(" " * depth + "if 1:\n" for depth in range(3000)),
    "short statements": "a\n" * 500_000,
    "loops": "for a in b:c\n" * 70_000,
    "loops in loops": "".join(" " * depth + "for a in b:\n" for depth in range(90)) + " " * 90 + "c\n" * 10_000,
    "f-strings": "x=" + "f'{" * 3000 + "1" + "}'" * 3000,
    "string of a megabyte": "x='" + "a" * 1_000_000 + "'",
    "number": "x=" + "9" * 500_000,
    "NUL": "a\0b\n" * 1000,
    "form feeds": "\x0c" * 1_000_000,
    "assignments to each other": ASSIGNMENTS + "for a in a0:\n    pass\n",
    "too large": "a\n" * (LONGEST_TEXT // 2 + 1),
}


@pytest.fixture
def parser() -> Iterator[Parser]:
    one = Parser()
    yield one
    one.close()


def source_text(parser: Parser = SHARED) -> SourceText:
    """The files of this process."""
    start_ticks = read_stat("/proc", os.getpid()).start_ticks
    return SourceText(os.getpid(), start_ticks, Path("/proc"), parser)


def write_old(path: Path, text: str) -> None:
    """A file from before this process started: a newer one is not what it runs."""
    path.write_text(text)
    os.utime(path, (0, 0))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_its_own_answer_and_a_bounded_time(parser: Parser, name: str) -> None:
    text = HOSTILE[name]
    began, own = time.monotonic(), time.thread_time()
    with suppress(NoAnswerError):
        parser.tables(text)
    with suppress(NoAnswerError):
        parser.loader_line(text, text.count("\n"))
    assert time.monotonic() - began < 20.0, "a bound against a hang: two answers of 3 s, on a loaded machine"
    assert time.thread_time() - own < 1.0, "the work was done in this process"
    tables = parser.tables(GOOD)
    assert tables is not None
    assert tables.requests == {2: "sync"}
    assert [(loop.first, loop.last, loop.over) for loop in tables.loops] == [(1, 2, "loader")]


def test_the_child_ends_with_its_parser(parser: Parser) -> None:
    assert parser.tables(GOOD) is not None
    assert parser._child is not None
    pid = parser._child.pid
    parser.close()
    assert not Path(f"/proc/{pid}").exists()
    assert parser.tables(GOOD) is not None, "another one is started when it is asked again"


def test_a_process_whose_files_end_the_parser_again_and_again_is_left_with_lines(tmp_path: Path) -> None:
    parser = Parser()
    folder = tmp_path / "src"
    folder.mkdir()
    hostile = source_text(parser)
    for number in range(20):
        write_old(folder / f"{number}.py", "loss.item()\n" + HOSTILE["short statements"][:500_000])
    began = parser.cpu_seconds
    assert [hostile.request(str(folder / f"{number}.py"), 1) for number in range(20)] == ["sync"] * 20
    assert parser.cpu_seconds - began <= 6.0, "20 files of 0.5 s each would be 10 s"
    assert hostile.problem is not None
    assert "take too long to parse" in hostile.problem
    write_old(folder / "good.py", GOOD)
    innocent = source_text(parser)
    assert innocent.parses(str(folder / "good.py")), "another process's files are parsed all the same"
    parser.close()


@pytest.mark.parametrize("encoding", ["punycode", "idna"])
def test_an_encoding_that_takes_hours_is_not_read(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "x.py"
    began = time.thread_time()
    write_old(file, f"# coding: {encoding}\n" + "a" * 300_000 + "-" + "9" * 300_000)
    assert source_text().line(str(file), 1) is None
    assert time.thread_time() - began < 1.0
    write_old(file, "# coding: latin-1\n")
    assert source_text().line(str(file), 1) == "# coding: latin-1", "it was for its encoding that it was not read"
