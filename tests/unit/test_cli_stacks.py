"""Captured stacks as a tree, as collapsed lines and as a speedscope file."""

from __future__ import annotations

from array import array

import pytest

from gpuwatch.cli.stacks import collapsed, label_of, speedscope, tree
from gpuwatch.sources.stacks.capture import Lane, Profile

MODULE = ("<module>", "/home/ada/train.py", 40)
FORWARD = ("Net.forward", "/home/ada/net.py", 12)
NEXT = ("__next__", "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 700)
GET = ("get", "/usr/lib/python3.11/queue.py", 0)


def profile(*, rejected: int = 0) -> Profile:
    main = Lane("process 4711", 4711, [(MODULE, FORWARD), (MODULE, NEXT, GET)], array("I", [0, 0, 0, 1]))
    worker = Lane("worker 4712", 4712, [(GET,)], array("I", [0, 0]))
    return Profile(4711, 0.04, 0.01, (main, worker), rejected, ended=False)


def test_a_library_file_is_named_from_its_package_on() -> None:
    assert label_of(NEXT) == "__next__ (torch/utils/data/dataloader.py:700)"
    assert label_of(GET) == "get (queue.py)"
    assert label_of(FORWARD) == "Net.forward (/home/ada/net.py:12)"


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "a;b", "two\nlines", "\x9b31m"])
def test_a_name_can_neither_steer_a_terminal_nor_break_a_line(hostile: str) -> None:
    label = label_of((hostile, f"/tmp/{hostile}.py", 1))
    assert label.isprintable()
    assert ";" not in label


def test_the_collapsed_lines_hold_the_looks_of_each_stack() -> None:
    assert list(collapsed(profile())) == [
        "process 4711;<module> (/home/ada/train.py:40);Net.forward (/home/ada/net.py:12) 3",
        "process 4711;<module> (/home/ada/train.py:40);__next__ (torch/utils/data/dataloader.py:700);get (queue.py) 1",
        "worker 4712;get (queue.py) 2",
    ]


def test_the_tree_gives_shares_of_each_threads_looks_the_largest_first() -> None:
    lines = list(tree(profile()))
    body = lines[lines.index("process 4711, 4 samples") + 1 :]
    assert body[0] == "100.0% <module> (/home/ada/train.py:40)"
    assert body[1] == " 75.0%   Net.forward (/home/ada/net.py:12)"
    assert body[2] == " 25.0%   __next__ (torch/utils/data/dataloader.py:700)"
    assert body[3] == " 25.0%   get (queue.py)"
    assert "worker 4712, 2 samples" in lines


def test_the_tree_leaves_out_what_is_too_small_to_matter() -> None:
    assert not any("dataloader" in line for line in tree(profile(), least_share=0.3))


def test_the_tree_says_how_many_looks_failed() -> None:
    assert any(line.startswith("3 samples hit a stack that was changing") for line in tree(profile(rejected=3)))


def test_a_deep_recursion_is_no_problem_for_the_tree() -> None:
    deep = tuple(("down", "/home/ada/r.py", line + 1) for line in range(5000))
    lane = Lane("process 1", 1, [deep], array("I", [0]))
    assert sum("down" in line for line in tree(Profile(1, 0.01, 0.01, (lane,), 0, ended=False))) == 5000


def test_the_speedscope_file_spends_each_threads_time_among_its_looks() -> None:
    document = speedscope(profile())
    frames = document["shared"]["frames"]
    main, worker = document["profiles"]
    assert [frames[number]["name"] for number in main["samples"][3]] == [
        "<module> (/home/ada/train.py:40)",
        "__next__ (torch/utils/data/dataloader.py:700)",
        "get (queue.py)",
    ]
    assert sum(main["weights"]) == pytest.approx(0.04)
    assert sum(worker["weights"]) == pytest.approx(0.02)  # it was seen in half of the looks
    assert "line" not in frames[main["samples"][3][2]]
