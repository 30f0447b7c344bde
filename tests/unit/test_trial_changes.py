"""What a trial takes for a change, which arms come of it, and the command and environment of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.trial.changes import (
    Arm,
    Change,
    TrialError,
    arms_of,
    checked_command,
    command_of,
    environment_of,
    for_scratch,
    overrides_of,
    parse_argument,
    parse_change,
)


def arm(*changes: str) -> Arm:
    return Arm(tuple(map(parse_change, changes)))


def labels(*changes: str, **more: list[str]) -> list[str]:
    return [each.label for each in arms_of(list(changes), **more)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("num_workers=8", 8),
        ("pin_memory=true", True),
        ("persistent_workers=off", False),
        ("tf32=1", True),
        ("env.OMP_NUM_THREADS=1", "1"),
        ("env.EMPTY=", ""),
        ("arg.lr=0.1", "0.1"),
        ("arg.amp", None),
    ],
)
def test_a_change_is_a_name_and_a_value_of_its_kind(text: str, value: object) -> None:
    assert parse_change(text) == Change(text.partition("=")[0], value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_worker=2", "did you mean 'num_workers'"),
        ("batch_size=64", "--arg batch_size=VALUE"),
        ("num_workers", "NAME=VALUE"),
        ("num_workers=many", "num_workers takes a number from 0"),
        ("num_workers=-1", "num_workers takes a number"),
        ("prefetch_factor=0", "from 1"),
        ("pin_memory=maybe", "true or false"),
        ("env.GPUWATCH_DISABLE=1", "controls gpuwatch itself"),
        ("learning=3", "the hook can change num_workers"),
        ("env.=3", "cannot be changed by the hook"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_what_can(text: str, said: str) -> None:
    with pytest.raises(TrialError) as refused:
        parse_change(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_first_arm_is_the_program_as_it_is() -> None:
    assert labels("num_workers=8", "pin_memory=true") == ["unchanged", "num_workers=8 pin_memory=true"]


def test_a_sweep_makes_an_arm_per_value_with_the_other_changes_in_each() -> None:
    assert labels("pin_memory=true", sweeps=["num_workers=2,4"]) == [
        "unchanged",
        "pin_memory=true num_workers=2",
        "pin_memory=true num_workers=4",
    ]
    assert labels(sweeps=["num_workers=2,4", "prefetch_factor=2,4"])[1:] == [
        "num_workers=2 prefetch_factor=2",
        "num_workers=2 prefetch_factor=4",
        "num_workers=4 prefetch_factor=2",
        "num_workers=4 prefetch_factor=4",
    ]


def test_arms_stand_by_themselves_and_flags_belong_to_the_common_changes() -> None:
    found = labels("tf32=true", arms=["num_workers=2", "num_workers=2", "arg.amp"], arguments=["--lr=0.1"])
    assert found == ["unchanged", "tf32=true arg.lr=0.1", "num_workers=2", "arg.amp"]


@pytest.mark.parametrize(
    ("changes", "more", "said"),
    [
        ([], {}, "nothing to try"),
        (["num_workers=2", "num_workers=4"], {}, "num_workers is given twice"),
        (["num_workers=2"], {"sweeps": ["num_workers=4,8"]}, "num_workers is given twice"),
        ([], {"sweeps": ["num_workers"]}, "--sweep takes"),
        ([], {"sweeps": ["num_workers=" + ",".join(map(str, range(40)))]}, "more than 16"),
    ],
)
def test_arms_that_make_no_sense_are_refused(changes: list[str], more: dict[str, list[str]], said: str) -> None:
    with pytest.raises(TrialError, match=said):
        arms_of(changes, **more)


@pytest.mark.parametrize(
    ("flag", "before", "after"),
    [
        ("lr=0.1", "python t.py", "python t.py --lr 0.1"),
        ("lr=0.1", "python t.py --lr 0.5 --epochs 3", "python t.py --lr 0.1 --epochs 3"),
        ("lr=0.1", "python t.py --lr=0.5", "python t.py --lr=0.1"),
        ("lr=0.1", "python t.py lr=0.5 model=big", "python t.py lr=0.1 model=big"),
        ("lr=0.1", "python t.py --lr -3.5 x", "python t.py --lr 0.1 x"),
        ("batch-size=4", "python t.py --batch_size 8", "python t.py --batch_size 4"),
        ("amp", "python t.py", "python t.py --amp"),
        ("amp", "python t.py --amp", "python t.py --amp"),
        ("amp=1", "python t.py --amp --lr 3", "python t.py --amp 1 --lr 3"),
    ],
)
def test_a_flag_is_replaced_where_it_is_and_appended_where_it_is_not(flag: str, before: str, after: str) -> None:
    assert command_of(Arm((parse_argument(flag),)), before.split()) == after.split()


def test_the_environment_carries_the_arms_variables_and_the_meeting_place(tmp_path: Path) -> None:
    usual = {"HOME": "/home/me", "GPUWATCH_DISABLE": "1", "GPUWATCH_OVERRIDES": "{}"}
    changed = environment_of(arm("env.OMP_NUM_THREADS=1", "compile=false"), usual, tmp_path)
    assert changed["OMP_NUM_THREADS"] == "1" and changed["HOME"] == "/home/me"
    assert changed["TORCH_COMPILE_DISABLE"] == "1"
    assert changed["GPUWATCH_DIR"] == str(tmp_path)
    assert not {"GPUWATCH_DISABLE", "GPUWATCH_OVERRIDES"} & changed.keys()
    assert usual["GPUWATCH_DISABLE"] == "1"


def test_the_hook_is_asked_for_what_only_it_can_do() -> None:
    asked = overrides_of(arm("num_workers=2", "tf32=true", "env.A=1", "compile=true"), ("/t.py", 3))
    assert asked is not None
    assert json.loads(asked) == {
        "loader": {"num_workers": 2},
        "at": ["/t.py", 3],
        "float32_matmul_precision": "high",
        "compile": True,
    }
    assert overrides_of(arm("env.A=1", "arg.lr=1", "compile=false"), None) is None


def test_in_a_scratch_folder_only_the_script_is_named_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "out.txt").touch()
    words, environment = for_scratch(["python", "-u", "train.py", "--log", "out.txt"], {"PYTHONPATH": "/lib"})
    assert words == ["python", "-u", str(tmp_path / "train.py"), "--log", "out.txt"]
    assert environment["PYTHONPATH"] == "/lib"
    words, environment = for_scratch(["python", "-m", "package.train"], {})
    assert words == ["python", "-m", "package.train"]
    assert environment["PYTHONPATH"] == str(tmp_path)


def test_a_command_that_cannot_start_is_refused_before_any_run(tmp_path: Path) -> None:
    script, shell = tmp_path / "train.py", tmp_path / "train.sh"
    script.touch()
    shell.touch()
    for command, said in (
        ([], "no command was given"),
        (["no-such"], "not a program"),
        ([str(script)], "is a script, not a command"),
        ([str(shell)], "is not executable: start it with its interpreter"),
    ):
        with pytest.raises(TrialError, match=said):
            checked_command(command)
