"""Source and settings made to crash, hold or fill whoever makes diffs of them: they cost their own edit only."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.dashboard.screens.finding import source_of
from gpuwatch.diagnosis.finding import CallEdit, Edit, Fix, TransferEdit
from gpuwatch.edits.editor import Editor
from gpuwatch.edits.workspace import Origin
from tests.fuzz.configuration import seeds
from tests.unit.edit_sources import FOLDER, reader

GOOD = "loader = DataLoader(data, num_workers=0)\n"
MINUS_SIGNS = f"loader = DataLoader(data, {'-' * 2940}1{'-' * 2060}1)\nfor x in loader:\n    x.cuda()\n"
"""740 MiB and 4.4 s in libcst 1.9.0, which aborts the process where memory ends; CPython's parser takes it."""
UNSAFE = "train.py cannot be parsed safely: only its line is known"


@pytest.fixture
def editor() -> Iterator[Editor]:
    one = Editor()
    yield one
    one.close()


def workers(file: str) -> CallEdit:
    return CallEdit("DataLoader", file, 1, {"num_workers": "6"})


def origin(**files: str | bytes) -> Origin:
    return Origin(reader({name.replace("_", "."): content for name, content in files.items()}), FOLDER)


def test_source_that_exhausts_the_parser_is_left_with_its_line(editor: Editor) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    diff = editor.edit_diff(workers("train.py"), origin(train_py=MINUS_SIGNS).read, FOLDER)
    assert diff.text is None and diff.reason == UNSAFE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10, "it was parsed in this process"


def test_one_hostile_file_leaves_the_others_in_the_patch(editor: Editor) -> None:
    good = origin(a_py=GOOD)
    edits: list[tuple[Edit, Origin]] = [
        (workers("a.py"), good),
        (workers("train.py"), origin(train_py=MINUS_SIGNS)),
        (TransferEdit("b.py", 1), origin(b_py='x = y.to("cuda")\n')),
    ]
    patch = editor.combined_patch(edits)
    assert patch.reasons == (None, UNSAFE, None)
    assert b"+loader = DataLoader(data, num_workers=6)" in patch.data and b"non_blocking=True" in patch.data


def test_an_edit_after_a_hostile_one_finds_a_child_that_works(editor: Editor) -> None:
    for _ in range(2):
        assert editor.edit_diff(workers("train.py"), origin(train_py=MINUS_SIGNS).read, FOLDER).reason == UNSAFE
        assert editor.edit_diff(workers("a.py"), origin(a_py=GOOD).read, FOLDER).text is not None


def test_a_child_that_ended_while_nothing_was_asked_is_replaced(editor: Editor) -> None:
    good = origin(a_py=GOOD)
    assert editor.edit_diff(workers("a.py"), good.read, FOLDER).text is not None
    assert editor._child is not None
    editor._child.end()
    assert editor.edit_diff(workers("a.py"), good.read, FOLDER).text is not None


@pytest.mark.parametrize("number", [index for index, seed in enumerate(seeds()) if seed[:1] == b"P"])
def test_sources_of_the_fuzzer_are_answered(editor: Editor, number: int) -> None:
    source = seeds()[number][2:]
    began, own = time.monotonic(), time.thread_time()
    diff = editor.edit_diff(workers("train.py"), origin(train_py=source).read, FOLDER)
    assert (diff.text is None) != (diff.reason is None)
    assert "report it" not in (diff.reason or ""), "a fault of gpuwatch's own"
    assert time.monotonic() - began < 60.0, "a bound against a hang: 20 s an edit"
    assert time.thread_time() - own < 1.0, "the work was done in this process"


def test_the_finding_page_shows_the_lines_of_such_a_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(MINUS_SIGNS)
    edit = workers(str(file))
    shown = source_of(Fix("set num_workers", edit=edit, file=str(file), line=2), None)
    assert shown.diff is None
    assert shown.lines[1] == "for x in loader:"
    assert shown.reason == f"No diff: {file} cannot be parsed safely: only its line is known."


def test_making_diffs_loads_no_parser_of_others_here() -> None:
    program = (
        "import sys; from pathlib import Path; from gpuwatch.edits.editor import edit_diff; "
        "from gpuwatch.diagnosis.finding import CallEdit; "
        "edit = CallEdit('DataLoader', '/train.py', 1, {'num_workers': '6'}); "
        "print(edit_diff(edit, lambda _: b'loader = DataLoader(data)').text is not None, 'libcst' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True False\n", done.stderr
