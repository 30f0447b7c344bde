from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuwatch.diagnosis.finding import CallEdit
from gpuwatch.edits.diff import Diff, edit_diff
from gpuwatch.edits.source import UnreadableSourceError, read_source

FILE = "/home/user/train.py"


def diff(source: str, *, line: int = 1, **keywords: str) -> Diff:
    return edit_diff(CallEdit("DataLoader", FILE, line, keywords), lambda path: source.encode())


def added(source: str, **keywords: str) -> list[str]:
    text = diff(source, **keywords).text
    assert text is not None
    return [line[1:] for line in text.splitlines() if line.startswith("+") and not line.startswith("+++")]


def test_what_another_loader_shares_is_set_in_the_call_where_it_is_for_this_one_alone() -> None:
    source = (
        'parser.add_argument("--workers", type=int, default=1)\nargs = parser.parse_args()\n'
        "train = DataLoader(a, num_workers=args.workers)\nheld_out = DataLoader(b, num_workers=args.workers)\n"
    )
    keywords = {"num_workers": "2", "persistent_workers": "True"}
    alone = edit_diff(CallEdit("DataLoader", FILE, 4, keywords, is_for_it_alone=True), lambda path: source.encode())
    assert alone.text is not None
    assert [line for line in alone.text.splitlines() if line[0] in "+-"][2:] == [
        "-held_out = DataLoader(b, num_workers=args.workers)",
        "+held_out = DataLoader(b, num_workers=2, persistent_workers=True)",
    ]
    both = edit_diff(CallEdit("DataLoader", FILE, 4, keywords), lambda path: source.encode())
    assert both.text is not None and '+parser.add_argument("--workers", type=int, default=2)' in both.text


def test_a_name_of_the_call_alone_is_followed() -> None:
    source = "count = 1\ntrain = DataLoader(a)\nheld_out = DataLoader(b, num_workers=count)\n"
    edit = CallEdit("DataLoader", FILE, 3, {"num_workers": "2"}, is_for_it_alone=True)
    assert "+count = 2" in (edit_diff(edit, lambda path: source.encode()).text or "")


def test_changes_a_keyword_and_nothing_else() -> None:
    text = diff("a = 1\nb = DataLoader( x,num_workers = 0 , shuffle=True )  # note\n", line=2, num_workers="10").text
    assert text == (
        "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n a = 1\n"
        "-b = DataLoader( x,num_workers = 0 , shuffle=True )  # note\n"
        "+b = DataLoader( x,num_workers = 10 , shuffle=True )  # note\n"
    )


def test_adds_keywords_on_the_same_line() -> None:
    assert added("b = DataLoader(x)\n", num_workers="10", pin_memory="True") == [
        "b = DataLoader(x, num_workers=10, pin_memory=True)"
    ]


def test_adds_keywords_on_their_own_lines_where_arguments_have_theirs() -> None:
    source = "b = torch.utils.data.DataLoader(\n    x,\n    batch_size=32,  # as in the paper\n)\n"
    assert diff(source, num_workers="10").text == (
        "--- a/train.py\n+++ b/train.py\n@@ -1,4 +1,5 @@\n b = torch.utils.data.DataLoader(\n     x,\n"
        "     batch_size=32,  # as in the paper\n+    num_workers=10,\n )\n"
    )


def test_aligned_arguments_stay_aligned_and_a_missing_last_newline_is_said() -> None:
    source = "b = DataLoader(x,\n               shuffle=True)"
    assert added(source, num_workers="10") == ["               shuffle=True,", "               num_workers=10)"]
    assert (diff(source, num_workers="10").text or "").count("\\ No newline at end of file\n") == 2


def test_positional_argument_is_changed_in_place() -> None:
    assert added("b = DataLoader(x, 32, True, None, None, 0)\n", num_workers="10") == [
        "b = DataLoader(x, 32, True, None, None, 10)"
    ]


def test_windows_line_ends_stay() -> None:
    assert "+b = DataLoader(x, num_workers=2)\r\n" in (diff("b = DataLoader(x)\r\n", num_workers="2").text or "")


def test_a_line_inside_a_long_call_finds_it() -> None:
    assert diff("b = DataLoader(\n    x,\n    shuffle=True,\n)\n", line=2, num_workers="2").text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a = 1\n", "does not hold exactly one DataLoader"),
        ("a, b = DataLoader(x), DataLoader(y)\n", "does not hold exactly one DataLoader"),
        ("b = MyLoader(x)\n", "does not hold exactly one DataLoader"),
        ("b = DataLoader(x, **options)\n", "not one dictionary"),
        ("b = DataLoader(*arguments)\n", "set num_workers there"),
        ("b = DataLoader(x, num_workers=10)\n", "already"),
        ("b = DataLoader(\n", "cannot be parsed|not Python source"),
        ("b = \x00\n", "not Python source"),
    ],
)
def test_says_why_there_is_no_diff(source: str, reason: str) -> None:
    found = diff(source, num_workers="10")
    assert found.text is None
    assert found.reason is not None
    assert any(part in found.reason for part in reason.split("|"))


def test_deeply_nested_source_is_a_reason_not_a_crash() -> None:
    source = "b = " + "(" * 3000 + "1" + ")" * 3000 + "\n"
    assert diff(source, num_workers="10").reason


def test_reads_a_regular_file(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\n")
    assert read_source(path, path.stat().st_mtime + 1) == b"x = 1\n"


def test_file_changed_after_the_start_is_not_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\n")
    with pytest.raises(UnreadableSourceError, match="changed after the training started"):
        read_source(path, path.stat().st_mtime - 3)


def test_anything_but_a_small_regular_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    huge = tmp_path / "huge.py"
    with huge.open("wb") as file:
        file.truncate(10 * 1024**2)
    for path, reason in [
        (fifo, "regular"),
        (Path("/dev/zero"), "regular"),
        (huge, "larger"),
        (tmp_path / "missing.py", "cannot be read"),
        (Path("train.py"), "absolute"),
    ]:
        with pytest.raises(UnreadableSourceError, match=reason):
            read_source(path)


@pytest.mark.parametrize("name", ["src/train.py", "src/my model.py"])
@pytest.mark.parametrize("repository", [True, False])
def test_diff_applies_with_git_in_the_repository_or_else_in_the_folder_of_the_training(
    tmp_path: Path, name: str, repository: bool
) -> None:
    script = tmp_path / name
    script.parent.mkdir()
    script.write_text("b = DataLoader(x)\n")
    if repository:
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    started_in = script.parent if repository else tmp_path
    edit = CallEdit("DataLoader", str(script), 1, {"num_workers": "10"})
    text = edit_diff(edit, read_source, started_in).text
    assert text is not None
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, text=True, check=True)
    assert script.read_text() == "b = DataLoader(x, num_workers=10)\n"


def test_diff_of_a_file_outside_of_everything_known_has_its_bare_name() -> None:
    assert (diff("b = DataLoader(x)\n", num_workers="10").text or "").startswith("--- a/train.py\n+++ b/train.py\n")
