"""The command that proves a finding's fix, and why some have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import CallEdit, Edit, Finding, Fix, IntervalEdit, SetupEdit, TransferEdit
from gpuwatch.diagnosis.proof import Proof, proof_of
from gpuwatch.samples import RunFacts
from tests.unit.report_builder import starvation

COMMAND = ("python", "train.py", "--name", "a b")
LOADER = CallEdit("DataLoader", "train.py", 8, {"num_workers": "3", "persistent_workers": "True"})
TF32 = SetupEdit("train.py", 'torch.set_float32_matmul_precision("high")')


def trainer(*command: str, **changes: object) -> RunFacts:
    return replace(RunFacts(0, "1.1", 1, 1, command or COMMAND), **changes)  # type: ignore[arg-type]


def advising(*edits: Edit, **changes: object) -> Finding:
    fix = Fix("do it", edit=edits[0], also=edits[1:]) if edits else None
    return replace(starvation(), **{"fix": fix, "run": "1.1"} | changes)  # type: ignore[arg-type]


def proof(finding: Finding, *trainers: RunFacts) -> Proof:
    return proof_of(finding, [finding], trainers)


@pytest.mark.parametrize(
    ("edits", "changes"),
    [
        ((LOADER,), "num_workers=3 persistent_workers=true"),
        ((LOADER, TransferEdit("train.py", 9)), "num_workers=3 persistent_workers=true non_blocking=true"),
        ((TF32,), "tf32=true"),
        ((CallEdit("DataLoader", "train.py", 8, {"worker_init_fn": "seed"}),), None),
        ((CallEdit("DataLoader", "train.py", 8, {"num_workers": "cores()"}),), None),
        ((CallEdit("TrainingArguments", "train.py", 8, {"num_workers": "3"}),), None),
        ((IntervalEdit("train.py", 8, 50),), None),
    ],
)
def test_the_trial_makes_the_changes_of_the_fix_or_is_not_offered(edits: tuple[Edit, ...], changes: str | None) -> None:
    found = proof(advising(*edits), trainer())
    assert found.trial == (None if changes is None else f"gpuwatch trial {changes} -- python train.py --name 'a b'")
    assert bool(found.why_not) is (changes is None)


@pytest.mark.parametrize(
    ("finding", "trainers", "why"),
    [
        (advising(LOADER, run=None, gpu="GPU-1"), (), "about a GPU or the machine"),
        (advising(), (trainer(),), "it has no fix"),
        (advising(IntervalEdit("train.py", 8, 50)), (trainer(),), "not one of the settings"),
        (advising(fix=Fix("do it", edit=LOADER, can_be_tried=False)), (trainer(),), "this fix is about evaluation"),
        (advising(LOADER), (), "is not known"),
        (advising(LOADER), (trainer(command=()),), "is not known"),
        (advising(LOADER), (trainer(), trainer()), "how the 2 processes"),
        (advising(LOADER), (trainer(world_size=16),), "how the 16 processes"),
        (advising(LOADER), (trainer("python", "-m", "ipykernel_launcher", "-f", "k.json"),), "a notebook"),
        (advising(LOADER), (trainer("/usr/bin/python3"),), "at a prompt"),
        (advising(LOADER), (trainer("python", "-"),), "standard input"),
        (advising(LOADER), (trainer("python", "train.py", *"x" * 62),), "only its beginning"),
        (advising(LOADER), (trainer("python", "train.py", "x" * 512),), "only its beginning"),
        (advising(LOADER), (trainer("python", *("x" * 500 for _ in range(9))),), "only its beginning"),
        (advising(LOADER), (trainer("python", "\x1b[201~\nrm"),), "control characters"),
        (advising(LOADER), (trainer("python", "caf\udce9.py"),), "control characters"),
        (advising(LOADER), (trainer("python", "-c", r"import train\ntrain.main()"),), "backslashes"),
    ],
)
def test_without_a_trial_there_is_a_reason(finding: Finding, trainers: tuple[RunFacts, ...], why: str) -> None:
    found = proof(finding, *trainers)
    assert (found.trial, found.tune) == (None, None)
    assert why in found.why_not


def test_of_several_ranks_the_settings_are_given_for_a_launch_command_of_ones_own() -> None:
    found = proof(advising(LOADER), trainer(), trainer())
    assert found.why_not.endswith("after `gpuwatch trial num_workers=3 persistent_workers=true --`")


def test_tune_is_offered_where_the_run_has_several_fixes_that_can_be_tried() -> None:
    cause = advising(LOADER)
    symptom, other_run = replace(cause, rule="symptom"), advising(TF32, run="2.2")
    by_hand = advising(IntervalEdit("train.py", 8, 50))
    assert proof_of(cause, [cause, symptom, other_run, by_hand], [trainer()]).tune is None
    found = proof_of(cause, [cause, symptom, advising(TF32)], [trainer()])
    assert (found.tune, found.fixes) == ("gpuwatch tune -- python train.py --name 'a b'", 2)
