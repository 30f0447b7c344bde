"""What may be said of a trial's runs, and how it is said: in text, Markdown and JSON, and as a patch."""

from __future__ import annotations

import json
import math
import random
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from trial_runs import LOADER_FACTS, facts, run

from gpuwatch.diagnosis.finding import Gain
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.text import json_text
from gpuwatch.trial.changes import Arm, arms_of
from gpuwatch.trial.render import document, patch_of, render_markdown, render_text, verdict_words
from gpuwatch.trial.results import ArmResult, Failure, Judgement, Prediction, TrialResult, drift, judge, scatter
from tests.hostile_text import assert_inert, assert_json, assert_markdown, poisoned

RUN_SIGMA = 0.01
STEPS = 300


def run_mean(random_numbers: random.Random, factor: float = 1.0) -> float:
    """The speed of one simulated run: steps that depend on the one before, a stall now and then, a speed of its own."""
    own = math.exp(random_numbers.gauss(0, RUN_SIGMA))
    rest, seconds = 0.0, []
    for step in range(STEPS):
        rest = 0.8 * rest + random_numbers.gauss(0, 0.05)
        seconds.append(max(0.2, 1 + rest) + (3.0 if step % 37 == 36 else 0.0))
    return factor * own / fmean(seconds)


def called(experiments: int, seed: int, factor: float = 1.0, runs: int = 5, **options: float) -> int:
    """In how many simulated trials a difference is called."""
    random_numbers = random.Random(seed)
    count = 0
    for _ in range(experiments):
        before = [run_mean(random_numbers) for _ in range(runs)]
        after = [run_mean(random_numbers, factor) for _ in range(runs)]
        (judgement,) = judge(before, [after], **options)
        count += judgement.verdict in ("faster", "slower")
    return count


def test_a_program_against_itself_is_rarely_called_different() -> None:
    assert called(100, seed=1) <= 5


def test_without_a_least_effect_the_error_is_what_the_interval_promises() -> None:
    # 5% of 400 is 20; a binomial of that mean is within 8 and 33 in 99.6% of all seeds.
    assert 8 <= called(400, seed=2, min_effect=0.0) <= 33


def test_a_gain_of_five_percent_is_seen_in_nearly_every_trial() -> None:
    assert called(50, seed=3, factor=1.05) >= 45


def test_of_many_arms_like_the_first_hardly_any_is_called_different() -> None:
    random_numbers = random.Random(4)
    trials = 0
    for _ in range(40):
        sets = [[run_mean(random_numbers) for _ in range(5)] for _ in range(7)]
        verdicts = {each.verdict for each in judge(sets[0], sets[1:], 0.0)}
        trials += verdicts != {"no detectable change"}
    assert trials <= 6  # each arm by itself would call about one of five trials


def test_words_follow_the_interval() -> None:
    base = [100.0, 101.0, 99.0, 100.5, 99.5]
    quick, slow, same, a_bit = judge(
        base,
        [[150 + each - 100 for each in base], [each * 0.8 for each in base], base, [each * 1.015 for each in base]],
    )
    assert (quick.verdict, slow.verdict, same.verdict) == ("faster", "slower", "no detectable change")
    assert a_bit.verdict in ("too small to matter", "no detectable change")
    assert quick.interval is not None and quick.interval.low < quick.ratio < quick.interval.high  # type: ignore[operator]
    assert same.detectable is not None and 0.01 < same.detectable < 0.05


def test_a_sure_but_small_difference_is_called_too_small() -> None:
    base = [100.0, 100.01, 99.99, 100.02, 99.98]
    (judgement,) = judge(base, [[each * 1.01 for each in base]], 0.02)
    assert judgement.verdict == "too small to matter"


def test_one_run_of_each_is_an_anecdote_whatever_it_shows() -> None:
    (judgement,) = judge([100.0], [[290.0]])
    assert (judgement.verdict, judgement.ratio, judgement.interval) == ("anecdote", pytest.approx(2.9), None)


def test_an_arm_without_runs_says_nothing() -> None:
    assert [each.verdict for each in judge([100.0, 101.0], [[], [100.0, 101.0]])] == ["-", "no detectable change"]
    assert judge([], [[100.0]])[0].ratio is None


def test_a_drift_that_stands_out_of_the_scatter_is_reported() -> None:
    first = [(place, 100.0 * 0.99**place + wobble) for place, wobble in ((0, 0.1), (3, -0.1), (4, 0.1), (7, 0.0))]
    second = [(place, 200.0 * 0.99**place + wobble) for place, wobble in ((1, 0.1), (2, 0.0), (5, -0.2), (6, 0.1))]
    assert drift([first, second]) == pytest.approx(0.99**7 - 1, abs=0.01)
    assert drift([[(0, 100.0), (3, 101.0)], [(1, 201.0), (2, 200.0)]]) is None
    assert drift([[(0, 100.0)], [(1, 200.0)]]) is None


def test_scatter_is_of_the_mean() -> None:
    assert scatter([99.0, 101.0]) == pytest.approx(0.01414, abs=1e-4)
    assert scatter([100.0]) is None


SPEEDS = {0: (100.0, 101.0, 99.0), 1: (290.0, 288.0, 292.0), 2: (100.2, 100.9, 99.4)}


def result(**more: object) -> TrialResult:
    arms = arms_of([], sweeps=["num_workers=2,4"], arms=["compile=true", "arg.x=\x1b[31m|<b>"])
    judged = judge(SPEEDS[0], [SPEEDS[1], SPEEDS[2]])
    runs = [tuple(run(place, speed) for place, speed in enumerate(SPEEDS[each])) for each in range(3)]
    failure = Failure("it ended with exit code 1", 1, ("Traceback", "ValueError: \x1b[31mno"))
    found = TrialResult(
        command=("python", "train.py"),
        metric="samples_per_second",
        runs_per_arm=3,
        seconds=20.0,
        steps=None,
        min_effect=0.02,
        arms=(
            ArmResult(arms[0], runs[0], Judgement("-")),
            ArmResult(arms[1], runs[1], judged[0], prediction=Prediction(Gain(2.4, 3.3), "workers-zero")),
            ArmResult(arms[2], runs[2], judged[1]),
            ArmResult(arms[3], (run(),), Judgement("did not take effect"), ("compile=true did not take effect: no",)),
            ArmResult(arms[4], (run(speed=None, failure=failure),), Judgement("failed")),
        ),
        notes=("something to know",),
        patch=b"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y\n",
        by_hand=("export A=1",),
    )
    return replace(found, **more)  # type: ignore[arg-type]


def test_the_text_says_which_is_faster_by_how_much_and_how_sure() -> None:
    text = render_text(result())
    row = next(line for line in text.splitlines() if line.strip().startswith("num_workers=2"))
    assert "290" in row and "2.90x [2." in row and row.endswith("faster")
    assert "predicted 2.4-3.3x (workers-zero), measured 2.90x [2." in text
    assert "no detectable change (detectable: >= " in text
    assert "Best: num_workers=2" in text and "(95% interval of 3+3 runs)" in text
    assert "compile=true did not take effect: no" in text
    assert "exit code 1" in text and "ValueError" in text
    assert "4 arms were compared with the first" in text
    assert "By hand: export A=1" in text and "\n+y\n" in text
    assert "\x1b" not in text


def test_the_table_fits_into_a_terminal_of_80_columns() -> None:
    arms = arms_of(["pin_memory=true", "prefetch_factor=4"], sweeps=["num_workers=2,4"])
    judged = [Judgement("-"), *judge(SPEEDS[0], [SPEEDS[1], SPEEDS[2]])]
    runs = [tuple(run(place, speed) for place, speed in enumerate(SPEEDS[each])) for each in range(3)]
    table = render_text(result(arms=tuple(map(ArmResult, arms, runs, judged)))).split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert table[1].split() == ["unchanged", "100", "1.0%"]
    assert table[2].strip() == arms[1].label and table[3].endswith("faster")
    assert table[4].strip() == arms[2].label and table[6].strip().startswith("no detectable change (detectable")


def test_runs_that_scatter_wildly_promise_no_figure() -> None:
    judged = judge((60.0, 120.0), [(100.0, 300.0)])
    assert judged[0].verdict == "no detectable change"
    assert verdict_words(judged[0]) == "no detectable change (runs scatter too much to see one: more --runs)"


def test_a_second_arm_that_may_be_as_quick_as_the_best_is_named() -> None:
    arms = arms_of([], sweeps=["num_workers=2,4"])
    speeds = (SPEEDS[0], SPEEDS[1], (287.0, 291.0, 293.0))
    judged = [Judgement("-"), *judge(speeds[0], speeds[1:])]
    runs = [tuple(run(place, speed) for place, speed in enumerate(each)) for each in speeds]
    found = result(arms=tuple(map(ArmResult, arms, runs, judged)), patch=b"")
    assert found.best is not None and found.best.arm.label == "num_workers=4"
    assert "(95% interval of 3+3 runs); not distinguishable from num_workers=2" in render_text(found)
    assert result().like_best == ()


def test_git_takes_the_text_as_the_patch_that_is_in_it(tmp_path: Path) -> None:
    before, after = "def f():\n\tx = 1\n\n\n", "def f():\n\tx = 2\n\n\n"
    (tmp_path / "train.py").write_text(before)
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1,4 +1,4 @@\n def f():\n-\tx = 1\n+\tx = 2\n \n \n"
    text = render_text(result(patch=patch.encode()))
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == after


def test_the_markdown_begins_with_the_verdict_and_escapes_what_is_hostile() -> None:
    text = render_markdown(result())
    assert text.startswith("### gpuwatch trial: num_workers=2 is faster, 2.90x")
    assert "```diff" in text and "\x1b" not in text and "<b>" not in text.replace(r"\<", "")
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) == 7 and len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_the_json_holds_every_run_and_every_figure() -> None:
    content = json.loads(json.dumps(document(result(), "1.2.3")))
    assert content["gpuwatch"] == {"version": "1.2.3", "schema": 1, "incomplete": False}
    assert content["best"] == "num_workers=2"
    arm = content["arms"][1]
    assert arm["changes"] == {"num_workers": 2} and arm["verdict"] == "faster"
    assert arm["interval"]["low"] < arm["change"] < arm["interval"]["high"]
    assert [each["samples_per_second"] for each in arm["runs"]] == list(SPEEDS[1])
    assert arm["predicted"] == {"low": 2.4, "high": 3.3, "rule": "workers-zero"}
    assert content["arms"][4]["failure"]["exit_code"] == 1


def test_an_incomplete_trial_says_so_first() -> None:
    assert render_text(result(interrupted=True)).startswith("INCOMPLETE")
    assert "(INCOMPLETE)" in render_markdown(result(interrupted=True)).splitlines()[0]
    assert document(result(interrupted=True), "1")["gpuwatch"]["incomplete"] is True


SOURCE = """\
import torch
from torch.utils.data import DataLoader


def main():
    loader = DataLoader(
        images,
        batch_size=16,
        num_workers=0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def patched(arm: Arm, folder: Path, line: int = 6) -> tuple[str, tuple[str, ...]]:
    loader = replace(LOADER_FACTS, file=str(folder / "train.py"), line=line)
    seen = facts(loader)
    seen = replace(seen, model=replace(seen.model, optimizer_file=str(folder / "train.py"), optimizer_line=11))

    def read(path: Path, not_newer_than: float | None) -> bytes:
        if path.name != "train.py":
            raise UnreadableSourceError("not here")
        return SOURCE.encode()

    found = patch_of(arm, run(of=replace(seen, command=("python", "train.py"))), folder, read)
    return found.data.decode(), found.by_hand


def test_the_best_arm_becomes_the_edit_of_the_loaders_own_call(tmp_path: Path) -> None:
    text, by_hand = patched(arms_of(["num_workers=2", "persistent_workers=true"])[1], tmp_path)
    assert "-        num_workers=0,\n" in text and "+        num_workers=2,\n" in text
    assert "persistent_workers=True" in text
    assert by_hand == ()


def test_what_no_patch_can_hold_is_reported_as_to_be_done_by_hand(tmp_path: Path) -> None:
    text, by_hand = patched(arms_of(["tf32=true", "env.OMP_NUM_THREADS=1"], arguments=["lr=0.3"])[1], tmp_path)
    assert '+torch.set_float32_matmul_precision("high")' in text
    assert by_hand == ("export OMP_NUM_THREADS=1", "start it with --lr 0.3")


def test_an_edit_that_cannot_be_made_is_reported_with_its_reason(tmp_path: Path) -> None:
    text, by_hand = patched(arms_of(["num_workers=2"])[1], tmp_path, line=2)
    assert text == ""
    assert "num_workers=2" in by_hand[0] and "not in the patch: " in by_hand[0]


def test_every_form_of_a_trial_with_hostile_names_is_inert() -> None:
    hostile = poisoned(result(notes=("a note",), by_hand=("by hand",)))
    assert_inert(render_text(hostile))
    assert_markdown(render_markdown(hostile))
    assert_json(json_text(document(hostile, "1"), indent=2))
