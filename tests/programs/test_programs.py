"""What the runner of other people's programs makes of outputs, moments and stacks; the programs are run by hand."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.programs import data
from tests.programs.__main__ import difference, document, own_pace, reported_pace, reported_share, warnings
from tests.programs.catalogue import PROGRAMS
from tests.programs.running import Output, Seen, _patch_fault, missing, stack_share

NANOGPT = PROGRAMS["nanogpt"]


def seen(lines: list[tuple[float, str]] | None = None, findings: Any = (), runs: Any = ()) -> Seen:
    report = {"findings": list(findings), "runs": list(runs)}
    return Seen(report, Output(lines or []), began=10.0, ended=20.0, patch_fault=None, oracle_share=None)


@pytest.mark.parametrize(
    ("plain", "other", "found"),
    [
        (["iter 1: loss 4.1, time 9.50ms, mfu -1%"], ["iter 1: loss 4.1, time 8.12ms, mfu -1%", "more"], None),
        (["iter 1: loss 4.1, time 9.50ms, mfu -1%"], ["iter 1: loss 4.2, time 9.50ms, mfu -1%"], "line 1: "),
        (["a", "b"], ["a", "Warning: b"], "line 2: 'Warning: b' in place of 'b'"),
    ],
)
def test_outputs_may_differ_in_their_times_and_their_length_only(
    plain: list[str], other: list[str], found: str | None
) -> None:
    said = difference(NANOGPT, plain, other)
    assert said is None if found is None else said is not None and said.startswith(found)


def test_the_document_keeps_the_rows_of_programs_that_were_not_run() -> None:
    first = document("", ["| mnist | hooked | old |", "| nanogpt | hooked | old |"], "on one machine")
    second = document(first, ["| nanogpt | hooked | new |", "| nanogpt | attached | new |"], "on another")
    rows = [line for line in second.splitlines() if line.startswith(("| nanogpt", "| mnist"))]
    assert rows == ["| nanogpt | hooked | new |", "| nanogpt | attached | new |", "| mnist | hooked | old |"]
    assert "Taken on another." in second


def test_the_own_pace_counts_iterations_between_lines_of_the_watched_seconds() -> None:
    lines = [(float(at), f"iter {at}: loss 1, time 1ms") for at in (2, 9, 11, 12, 13, 15, 21)]
    assert own_pace(NANOGPT, seen([*lines, (14.0, "step 4: val loss")])) == pytest.approx(3 / 4)
    every_tenth = replace(NANOGPT, iterations_per_line=10)
    assert own_pace(every_tenth, seen(lines)) == pytest.approx(30 / 4)
    assert own_pace(NANOGPT, seen(lines[:4])) is None


def test_a_report_without_a_run_has_no_figures() -> None:
    assert reported_pace(seen()) is None
    assert reported_share(seen()) is None
    run = {"steps_per_second": 2.5, "data_wait_share": None}
    assert reported_pace(seen(runs=[run])) == 2.5
    assert reported_share(seen(runs=[run])) is None


def test_a_warning_is_marked_unless_the_program_deserves_it() -> None:
    findings = [
        {"rule": "gc-stall", "severity": "warning"},
        {"rule": "workers-zero", "severity": "critical"},
        {"rule": "amp-off", "severity": "hint"},
    ]
    starved = replace(NANOGPT, may=frozenset({"workers-zero"}))
    assert warnings(starved, seen(findings=findings)) == ["**gc-stall**", "workers-zero"]
    slow = replace(NANOGPT, must=frozenset({"workers-zero", "data-starvation"}))
    assert warnings(slow, seen(findings=findings)) == ["**gc-stall**", "workers-zero", "**missing: data-starvation**"]


def test_the_share_of_a_function_is_that_of_the_stacks_that_hold_it() -> None:
    lines = ("get_batch (t.py:9);stack (u.py:3) 30", "forward (t.py:4) 60", "main (t.py:2) 10")
    others = "_bootstrap (threading.py:9);get_batch (t.py:9) 500\n"
    stacks = others + "".join(f"<module> (t.py:1);{line}\n" for line in lines)
    assert stack_share(stacks, "get_batch") == pytest.approx(0.3)
    assert stack_share("", "get_batch") is None


def test_a_program_that_is_not_there_or_needs_more_says_so(tmp_path: Path) -> None:
    assert missing(NANOGPT, tmp_path) == "nanoGPT/train.py is not in the folder"
    script = tmp_path / NANOGPT.folder / NANOGPT.script
    script.parent.mkdir()
    script.touch()
    assert missing(NANOGPT, tmp_path) is None
    assert missing(replace(NANOGPT, needs=("no_such_module",)), tmp_path) == "no_such_module not installed"


def test_a_patch_that_does_not_fit_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = 1\n")
    fits = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    assert _patch_fault("", tmp_path) is None
    assert _patch_fault(fits, tmp_path) is None
    assert "patch does not apply" in (_patch_fault(fits.replace("-a = 1", "-b = 1"), tmp_path) or "")


def test_made_data_have_the_shape_of_what_would_be_fetched(tmp_path: Path) -> None:
    data.token_files(tmp_path)
    data.mnist_files(tmp_path)
    data.text_files(tmp_path)
    assert (tmp_path / "train.bin").stat().st_size == 2_000_000
    images = (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (0x803, 10_000, 28, 28)
    assert len(images) == 16 + 28 * 28 * 10_000
    assert len((tmp_path / "valid.txt").read_text().split()) == 20_000
