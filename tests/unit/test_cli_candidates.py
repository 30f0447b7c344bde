"""What `--attach` without a pid says of the processes that train."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.cli import attach
from gpuwatch.cli.attach import Found, Gpus, list_candidates, pick_candidate, table_lines
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.samples import Candidate

HOW_TO_SEE_MORE = "start it with `gpuwatch run`"


def candidate(pid: int = 4711, **changed: Any) -> Candidate:
    usual: dict[str, Any] = {
        "start_ticks": 1,
        "command": ("python", "train.py", "--name", "two words"),
        "user": "ada",
        "age_seconds": 97200.0,
        "visibility": "sampled",
        "why": "has 4 DataLoader workers",
        "how_to_see_more": HOW_TO_SEE_MORE,
    }
    return Candidate(pid=pid, **(usual | changed))


def table(*processes: Candidate, width: int | None = None) -> list[str]:
    return [line for _, line in table_lines(processes, {"GPU-a": 0, "GPU-b": 3}, width)]


def test_each_process_has_a_line_and_its_reason_below() -> None:
    assert table(candidate(gpu_uuids=("GPU-b", "GPU-a")), candidate(12, visibility="exact", age_seconds=45.0)) == [
        " PID  GPU   AGE  VISIBILITY  COMMAND",
        "4711  0,3  27 h  sampled     python train.py --name 'two words'",
        "        has 4 DataLoader workers",
        "  12  -    45 s  exact       python train.py --name 'two words'",
        "        has 4 DataLoader workers",
    ]


def test_refusal_stands_with_its_cure() -> None:
    denied = candidate(visibility="process", refusal="only root may read it.", how_to_see_more="use sudo")
    assert table(denied)[-1] == "        its stacks cannot be read: only root may read it; to see more: use sudo"


def test_users_are_distinguished_where_there_are_several() -> None:
    head, *_ = table(candidate(), candidate(12, user="bob"))
    assert "USER" in head
    assert "USER" not in table(candidate())[0]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_keep_to_the_width_of_the_terminal(width: int) -> None:
    long = candidate(
        command=("python", "x" * 500), visibility="process", refusal="no right " * 20, how_to_see_more="do this " * 20
    )
    lines = table(long, candidate(12), width=width)
    assert max(map(len, lines)) <= max(width, 55)
    assert any("…" in line for line in lines)


def test_lines_in_a_pipe_are_whole() -> None:
    assert any("x" * 500 in line for line in table(candidate(command=("python", "x" * 500))))


def test_hostile_names_cannot_steer_the_terminal() -> None:
    hostile = candidate(command=("python", "\x1b]0;owned\x07\u202e.py"), user="\x1b[2J", why="\x9b31m")
    text = "\n".join(table(hostile, candidate(12)))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert r"\x1b]0;owned\x07\u202e" in text


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """The processes that are found."""
    found: list[Candidate] = []
    gpus = Gpus({"GPU-a": 0}, problem="libnvidia-ml.so.1 was not found.")
    monkeypatch.setattr(attach, "find_candidates", lambda: Found(tuple(found), gpus))
    return found


def test_list_is_data_and_what_to_do_with_it_is_narration(
    machine: list[Candidate], capsys: pytest.CaptureFixture[str]
) -> None:
    machine += [candidate(gpu_uuids=("GPU-a",)), candidate(12)]
    assert list_candidates() == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["PID", "4711", "has", "12", "has"]
    assert "\x1b" not in out
    assert "gpuwatch report --attach PID" in err
    assert err.count(HOW_TO_SEE_MORE) == 1


@pytest.mark.parametrize("look", [list_candidates, lambda: pick_candidate("report")])
def test_no_process_is_one_sentence_that_says_what_was_looked_for(machine: list[Candidate], look: Any) -> None:
    with pytest.raises(GpuwatchError) as refused:
        look()
    for part in ("hook", "on a GPU (libnvidia-ml.so.1 was not found)", "torch", "gpuwatch run", "gpuwatch demo"):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


def test_only_process_is_taken_and_named(machine: list[Candidate], capsys: pytest.CaptureFixture[str]) -> None:
    machine += [candidate(99, visibility="hardware", refusal="belongs to bob"), candidate()]
    assert pick_candidate("report") == 4711
    out, err = capsys.readouterr()
    assert out == ""
    assert "train.py (4711), which has 4 DataLoader workers" in err


def test_one_of_several_is_not_guessed(machine: list[Candidate], capsys: pytest.CaptureFixture[str]) -> None:
    machine += [candidate(), candidate(12)]
    with pytest.raises(GpuwatchError, match=r"2 processes train here.*`gpuwatch watch --attach 4711`"):
        pick_candidate("watch")
    out, err = capsys.readouterr()
    assert out == ""
    assert "4711" in err
    assert "12" in err


def test_processes_of_others_only_are_listed_with_the_cure(
    machine: list[Candidate], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.append(candidate(visibility="hardware", refusal="belongs to bob"))
    with pytest.raises(GpuwatchError, match="sudo"):
        pick_candidate("report")
    assert "belongs to bob" in capsys.readouterr().err
