"""The report as Markdown and text, and its figures in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import Gain, PlanStep
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.numbers import faster
from gpuwatch.report.html import render_html
from gpuwatch.report.junit import render_junit
from gpuwatch.report.model import Report
from gpuwatch.report.text import render_markdown, render_text
from gpuwatch.report.words import rate, run_table, seconds, sparkline
from tests.unit import scene_builder as build
from tests.unit.report_builder import chart, json_report, report, starvation

HOSTILE = "tr`|<img src=x>\x1b]0;owned\x07[red]\nain.py"


def full_report() -> Report:
    run = build.run(
        build.rank(step=0.2, wait=0.1, gap=0.08, phases={"eval": build.phase("eval")}),
    )
    gpus = [build.gpu(utilization=[0.0, 100.0], energy_joules=45000.0, energy_seconds=59.0)]
    charts = (chart("gpu.utilization_percent", "GPU-0", 0.0, None, 100.0), chart("run.wait_share", run.id, 0.5))
    source = "\n" * 87 + "loader = DataLoader(data, num_workers=4)\n"
    return report(
        build.scene(run, gpus=gpus),
        [starvation()],
        charts=charts,
        read_source=lambda path, started, of: source.encode(),
    )


def test_markdown_begins_with_ten_lines_for_a_pull_request() -> None:
    shown, *folded = render_markdown(full_report()).split("<details>")
    lines = [line for line in shown.splitlines() if line]
    assert len(lines) == 10
    assert lines[0].startswith("### gpuwatch: ") and "the GPU idles 41% of the time" in lines[0]
    assert lines[1].startswith("`/home/user/train.py:88`")
    assert lines[2:6] == [
        "```diff",
        "-loader = DataLoader(data, num_workers=4)",
        "+loader = DataLoader(data, num_workers=10)",
        "```",
    ]
    assert [line.split(" | ")[0] for line in lines[8:]] == ["| measured, 60 s", "| expected after the change"]
    assert "| 200 ms |" in lines[8] and "| 118 ms to 133 ms |" in lines[9]
    titles = [part.split("</summary>")[0].removeprefix("<summary>") for part in folded]
    assert titles == ["Findings (1)", "Figures", "Data quality and environment"]


def test_markdown_promises_nothing_where_no_gain_was_computed() -> None:
    made = report(build.scene(build.run(build.rank(step=0.2))), [starvation(gain=None)])
    assert "expected after the change" not in render_markdown(made)


def test_markdown_names_what_two_findings_have_in_common_once() -> None:
    found = [starvation(), replace(starvation(), rule="workers-too-few", summary="too few workers")]
    text = render_markdown(report(build.scene(build.run(build.rank())), found))
    assert text.count("all steps wait alike") == 1 and "too few workers" in text
    assert text.count("**Gain:**") == 1


@pytest.mark.parametrize("render", [render_markdown, render_text, render_junit])
def test_every_part_of_a_finding_is_shown(render) -> None:
    text = render(full_report())
    for part in (
        "the GPU idles 41% of the time waiting for data",
        "GPU idle 41% of 60 s (512 steps)",
        "all steps wait alike",
        "load with 10 workers",
        "/home/user/train.py:88",
        "+loader = DataLoader(data, num_workers=10)",
        "1.5-1.7x faster",
        "then the GPU",
        "gpuwatch trial num_workers=10 -- python train.py",
        "E3",
    ):
        assert part in text


@pytest.mark.parametrize("render", [render_markdown, render_text, render_html, render_junit])
def test_a_hint_and_what_weakens_a_finding_are_shown(render) -> None:
    shared = "another process uses this GPU"
    finding = starvation(gain=None, hint="at most the time that it waits", confidence_notes=(shared,))
    text = render(report(findings=[replace(finding, behind="io-bound")]))
    assert "at most the time that it waits" in text and shared in text and "fix io-bound first" in text


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_figures_of_gpu_and_run_are_shown(render) -> None:
    text = render(full_report())
    for part in ("300", "600 / 700", "60.0 / 80.0", "0.0125", "200 ms", "50%", "40%", "eval 10% (2x)", "▁ █"):
        assert part in text


@pytest.mark.parametrize(("how", "words"), [("killed", ", ended (killed))"), ("exited", ", ended)"), (None, "exact)")])
def test_a_run_that_was_killed_says_so(how: str | None, words: str) -> None:
    made = report(build.scene(build.run(build.rank(ended=how))))
    (row,) = run_table(made).rows
    assert row[0].endswith(words)


@pytest.mark.parametrize(("batches", "words"), [(8.0, " (steps of 8 batches)"), (1.0, ""), (None, "")])
def test_steps_that_accumulate_say_of_how_many_batches_they_are(batches: float | None, words: str) -> None:
    made = report(build.scene(build.run(build.rank(step=0.2, batches_per_step=batches))))
    (row,) = run_table(made).rows
    assert row[3] == f"200 ms, 200 ms{words}"


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_unknown_is_never_shown_as_zero_and_has_its_reason(render) -> None:
    gpu = build.gpu(utilization=None, power=None, unavailable={"utilization_percent": "not supported under MIG"})
    text = render(report(build.scene(gpus=[gpu])))
    assert "n/a" in text
    assert "not supported under MIG" in text


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_simulated_and_incomplete_stand_before_the_first_number(render) -> None:
    text = render(report(origin=Origin("simulated", "SIMULATED starved"), interrupted=True, notes=("it ended",)))
    head = text[: text.index("### gpuwatch" if render is render_markdown else "VERDICT")]
    assert "SIMULATED starved" in head
    assert "INCOMPLETE" in head
    assert "it ended" in head


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_text_of_processes_cannot_leave_its_place(render) -> None:
    run = build.run(
        build.rank(facts={"command": ("python", HOSTILE)}, loader=build.loader(file=HOSTILE)), title=HOSTILE
    )
    found = starvation(summary=f"{HOSTILE} waits", fix=build_fix(), evidence=())
    text = render(report(build.scene(run), [found]))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert r"\x1b]0;owned" in text.replace(r"\\", "\\").replace(r"\]", "]")
    if render is render_markdown:
        outside_code = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
        outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", outside_code)
        assert "<img" not in outside_code.replace(r"\<", "")


def build_fix():
    from gpuwatch.diagnosis.finding import Fix

    return Fix(text=HOSTILE, code=f"```\n{HOSTILE}", file=HOSTILE, line=1)


def test_text_tables_fit_a_wide_terminal() -> None:
    gpus = [build.gpu(index, energy_joules=36000.0) for index in range(8)]
    lines = render_text(report(build.scene(gpus=gpus))).splitlines()
    assert max(map(len, lines)) <= 120


def test_sparkline_has_a_fixed_range() -> None:
    assert sparkline([94.0] * 3, 100.0) == "███"
    assert sparkline([0.0, 50.0, 100.0, None], 100.0) == "▁▅█ "
    assert sparkline([1.0], 0.0) == ""


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_a_later_step_of_the_plan_says_what_it_then_brings(render) -> None:
    trained = build.run(build.rank())
    first, later = (
        replace(starvation(), rule=rule, plan=PlanStep(number, 2, Gain(1.5, 1.7), together))
        for number, (rule, together) in enumerate((("a", Gain(1.5, 1.7)), ("b", Gain(2.2, 2.9))), start=1)
    )
    text = " ".join(render(report(build.scene(trained), [first, later])).split())
    assert "step 1 of 2 of the plan: change this first" in text
    assert "step 2 of 2 of the plan: then 1.5-1.7x faster, 2.2-2.9x faster together with the steps before it" in text
    alone = replace(starvation(), plan=PlanStep(1, 1, Gain(1.5, 1.7), Gain(1.5, 1.7)))
    assert "of the plan" not in render(report(build.scene(trained), [alone]))


@pytest.mark.parametrize("render", [render_markdown, render_text])
def test_steps_that_the_sensor_averages_away_are_said(render) -> None:
    gpus = [build.gpu(sensor_window_seconds=0.25)]
    short, long = (
        " ".join(render(report(build.scene(build.run(build.rank(step=step)), gpus=gpus))).split())
        for step in (0.2, 0.6)
    )
    assert "a step of 200 ms is shorter than twice that window" in short
    assert "averages over 250 ms" in long and "shorter than twice that" not in long


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0.0, "0"), (0.04, "0.04"), (2.5, "2.5"), (64.25, "64.2"), (18_204.4, "18,204")]
)
def test_a_slow_rate_is_not_shown_as_none(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0.312, "312 ms"), (0.9996, "1 s"), (212.0, "3.5 min"), (5400.0, "90.0 min")]
)
def test_a_duration_is_written_without_powers_of_ten(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_a_small_gain_is_not_rounded_to_none() -> None:
    assert faster(1.02, 1.04) == "1.02-1.04x faster"


def test_without_a_run_the_mean_says_how_many_gpus_told_it() -> None:
    def sentence(*used: float | None) -> str:
        gpus = [build.gpu(index, utilization=value) for index, value in enumerate(used)]
        (line,) = json_report(build.scene(gpus=gpus))["verdict"]
        return str(line["sentence"])

    assert "the GPUs were busy 40% of the time on average" in sentence(30.0, 50.0)
    assert "the 1 of 2 GPUs that report it were busy 50% of the time on average" in sentence(None, 50.0)
