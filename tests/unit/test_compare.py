"""Two sides of measured runs: which run of a file is compared, what is said of it, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuwatch.compare.comparison import (
    BY_NAME,
    CannotCompareError,
    Measured,
    MeasuredFinding,
    Subject,
    compare,
    judge,
    measured,
    measured_report,
    parse_gate,
)
from gpuwatch.compare.document import document, render_markdown, render_text, tables
from gpuwatch.recording.rollups import Swing
from gpuwatch.recording.stretch import FindingSummary, GpuSummary, Level, RunSummary, SessionSummary
from gpuwatch.samples import GpuFacts, RunFacts
from tests.unit.report_builder import json_report, starvation

USUAL: dict[str, float | None] = {
    "samples_per_second": 400.0,
    "utilization_percent": 41.0,
    "utilization_sigma": 14.0,
    "wait_ms_per_batch": 95.0,
    "wait_share_percent": 59.0,
    "step_p50_ms": 160.0,
    "step_p95_ms": 240.0,
    "power_watts": 210.0,
    "memory_peak_gib": 21.5,
    "energy_joules_per_sample": 0.52,
}
SUBJECT = Subject(
    title="train.py",
    gpu_names=("NVIDIA H200",),
    batch_size=64,
    model_parameters=25_557_032,
    parameter_bits=32,
    autocast="",
    torch="2.13.0",
)


def run(
    name: str = "run.gpuwatch",
    *,
    subject: Subject = SUBJECT,
    findings: tuple[MeasuredFinding, ...] = (),
    label: str = "LIVE",
    notes: tuple[str, ...] = (),
    **values: float | None,
) -> Measured:
    """One run; values given by name take the place of the usual ones."""
    return Measured(name, label, 300.0, subject, {**USUAL, **values}, findings, notes)


_SLOW = (398.0, 404.0, 401.0)
_FAST = (472.0, 479.0, 468.0)


def _side(rates: tuple[float, ...], **values: float | None) -> list[Measured]:
    return [run(f"{rate}.gpuwatch", samples_per_second=rate, **values) for rate in rates]


def _outcome(before: list[Measured], after: list[Measured], *gates: str) -> list[tuple[str, str]]:
    found = judge(compare(before, after), [parse_gate(gate) for gate in gates])
    return [(each.outcome, each.sentence) for each in found]


def test_one_run_a_side_is_an_anecdote_without_an_interval() -> None:
    comparison = compare([run()], [run(samples_per_second=600.0, utilization_percent=93.0)])
    change = comparison.change("samples_per_second")
    assert (change.ratio, change.interval, change.verdict) == (1.5, None, None)
    text = render_text(tables(comparison, []))
    assert "samples/s +50.0% (n = 1 + 1: single run per side, not significant)" in text
    assert "+52.0 points" in text and "2.27x" in text


def test_several_runs_have_an_interval_and_a_verdict() -> None:
    comparison = compare(_side(_SLOW), _side(_FAST))
    change = comparison.change("samples_per_second")
    assert change.interval is not None and change.interval.low > 1.1
    assert change.verdict == "better"
    assert "better (n = 3 + 3, 95% interval)" in render_text(tables(comparison, []))


def test_what_may_be_chance_is_a_tilde_and_says_what_could_have_been_seen() -> None:
    comparison = compare(_side((398.0, 404.0, 401.0)), _side((399.0, 403.0, 402.5)))
    row = next(row for row in tables(comparison, []).rows if row[0] == "samples/s")
    assert row[3].startswith("~ (p = ") and row[4] == "~"
    assert "no detectable change" in tables(comparison, []).headline
    assert "would have detected" in tables(comparison, []).headline


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (replace(SUBJECT, batch_size=128), "batch size: 64 before, 128 after"),
        (replace(SUBJECT, model_parameters=1_000_000), "model: 25,557,032 parameters of 32 bits before"),
        (replace(SUBJECT, parameter_bits=16), "of 16 bits after"),
        (replace(SUBJECT, gpu_names=("NVIDIA A100",)), "GPU: NVIDIA H200 before, NVIDIA A100 after"),
        (replace(SUBJECT, gpu_names=("NVIDIA H200",) * 2), "2 x NVIDIA H200 after"),
    ],
)
def test_what_is_not_alike_is_compared_by_samples_per_second_only(other: object, word: str) -> None:
    comparison = compare([run()], [run(subject=other)])  # type: ignore[arg-type]
    assert [change.metric.name for change in comparison.changes if not change.withheld] == ["samples_per_second"]
    shown = tables(comparison, [])
    assert any("only samples/s are compared" in note and word in note for note in shown.notes)
    assert all(row[3:] == ("-", "-") for row in shown.rows if row[0] != "samples/s")
    assert document(comparison, [])["metrics"][1]["difference"] is None


def test_autocast_is_a_setting_and_not_another_model() -> None:
    comparison = compare([run()], [run(subject=replace(SUBJECT, autocast="bfloat16"))])
    assert comparison.likeness.alike
    assert any("autocast differs: off before, bfloat16 after" in note for note in tables(comparison, []).notes)


def test_unknown_values_are_dashes_and_null_but_never_zero() -> None:
    comparison = compare([run(power_watts=None)], [run(wait_ms_per_batch=None)])
    rows = {row[0]: row for row in tables(comparison, []).rows}
    assert rows["power per GPU, mean (W)"][1:] == ("-", "210", "-", "-")
    assert rows["wait for data, per batch (ms)"][1:] == ("95.0", "-", "-", "-")
    metrics = {each["name"]: each for each in document(comparison, [])["metrics"]}
    assert metrics["power_watts"]["before"] is None and metrics["power_watts"]["ratio"] is None


def test_a_figure_of_zero_has_no_factor_to_it_and_no_interval() -> None:
    comparison = compare(_side(_SLOW, wait_ms_per_batch=0.0), _side(_FAST, wait_ms_per_batch=3.0))
    change = comparison.change("wait_ms_per_batch")
    assert (change.before, change.after, change.ratio, change.interval) == (0.0, 3.0, None, None)
    assert next(row for row in tables(comparison, []).rows if row[0].startswith("wait for data, per"))[3] == "+3.00 ms"


def test_where_one_side_has_a_zero_both_are_averaged_alike() -> None:
    waits = {"wait_ms_per_batch": (0.0, 100.0)}, {"wait_ms_per_batch": (1.0, 99.0)}
    before, after = ([run(wait_ms_per_batch=value) for value in side["wait_ms_per_batch"]] for side in waits)
    change = compare(before, after).change("wait_ms_per_batch")
    assert (change.before, change.after, change.ratio) == (50.0, 50.0, 1.0)


def test_findings_are_gone_new_or_still_there() -> None:
    starved, hot = (
        MeasuredFinding("data-starvation", "critical", 280.0),
        MeasuredFinding("thermal-throttle", "warning", 20.0),
    )
    comparison = compare([run(findings=(starved, hot))], [run(findings=(hot, MeasuredFinding("tf32-off", "hint")))])
    assert [(found.rule, found.fate) for found in comparison.findings] == [
        ("tf32-off", "new"),
        ("thermal-throttle", "still"),
        ("data-starvation", "gone"),
    ]
    assert tables(comparison, []).findings[2] == ("gone", "data-starvation", "critical", "yes, 5 min", "-")


def test_a_regression_fails_its_gate_and_says_that_one_run_decided() -> None:
    [(outcome, sentence)] = _outcome([run()], [run(samples_per_second=380.0)], "samples_per_second<-3%")
    assert outcome == "failed"
    assert sentence == (
        "samples_per_second changed by -5.0%, from 400 to 380: samples_per_second<-3% is true "
        "(single run per side: not significant)"
    )


def test_a_change_that_may_be_chance_fails_no_gate() -> None:
    before, after = _side((400.0, 440.0, 360.0)), _side((380.0, 420.0, 340.0))
    [(outcome, sentence)] = _outcome(before, after, "samples_per_second<-3%")
    assert outcome == "passed" and "may be chance" in sentence
    assert _outcome(_side(_FAST), _side(_SLOW), "samples_per_second<-3%")[0][0] == "failed"


def test_a_gate_that_asks_for_an_improvement_is_not_passed_by_chance() -> None:
    before, after = _side((400.0, 440.0, 360.0)), _side((401.0, 441.0, 361.0))
    assert _outcome(before, after, "samples_per_second<3%")[0][0] == "failed"
    assert _outcome(_side(_SLOW), _side(_FAST), "samples_per_second<3%")[0][0] == "passed"


def test_several_gates_are_held_to_a_stricter_proof() -> None:
    before = [run(samples_per_second=rate, step_p50_ms=step) for rate, step in ((400, 160), (404, 161), (396, 159))]
    after = [run(samples_per_second=rate, step_p50_ms=step) for rate, step in ((383, 165), (392, 169), (381, 161))]
    alone = _outcome(before, after, "samples_per_second<-2%")
    both = _outcome(before, after, "samples_per_second<-2%", "step_p50_ms>1%")
    assert alone[0][0] == "failed"
    assert both[0][0] == "passed" and "among 2 gates" in both[0][1]


def test_an_absolute_gate_is_about_the_value_after() -> None:
    after = [run(utilization_percent=84.0)]
    assert (
        _outcome([run()], after, "utilization_percent<85", "utilization_sigma>20", "power_watts>=210")[0][0] == "failed"
    )
    assert [outcome for outcome, _ in _outcome([run()], after, "utilization_sigma>20", "power_watts>=210")] == [
        "passed",
        "failed",
    ]


def test_any_rise_from_nothing_crosses_a_relative_gate() -> None:
    before = [run(wait_ms_per_batch=0.0)]
    assert _outcome(before, [run(wait_ms_per_batch=3.0)], "wait_ms_per_batch>50%")[0][0] == "failed"
    assert _outcome(before, [run(wait_ms_per_batch=0.0)], "wait_ms_per_batch>50%")[0][0] == "passed"


def test_a_gate_on_what_is_not_known_or_not_comparable_decides_nothing() -> None:
    assert _outcome([run()], [run(power_watts=None)], "power_watts>5%")[0][0] == "unknown"
    other = run(subject=replace(SUBJECT, batch_size=128))
    assert _outcome([run()], [other], "step_p50_ms>5%")[0][0] == "unknown"
    assert _outcome([run()], [other], "samples_per_second<-5%")[0][0] == "passed"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sample_per_second<-3%", "did you mean 'samples_per_second'"),
        ("samples_per_second", "is not METRIC<NUMBER"),
        ("samples_per_second<three", "is not METRIC<NUMBER"),
        ("samples_per_second=3%", "is not METRIC<NUMBER"),
        ("it_per_second<3%", "unknown metric 'it_per_second'"),
        ("", "is not METRIC<NUMBER"),
        ("samples_per_second<-3", "negative samples_per_second"),
    ],
)
def test_a_gate_that_cannot_be_read_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(CannotCompareError, match=says):
        parse_gate(text)


def test_a_gate_may_have_blanks_and_all_four_signs() -> None:
    for sign in ("<", "<=", ">", ">="):
        gate = parse_gate(f" step_p95_ms {sign} +12.5% ")
        assert (gate.limit, gate.relative, gate.metric) == (0.125, True, BY_NAME["step_p95_ms"])


_HOSTILE = "evil\x1b]0;x\x07|<script>alert(1)</script>`\n# x\u202e\udcff"


def test_hostile_names_stay_text_in_every_format() -> None:
    subject = replace(SUBJECT, title=_HOSTILE, gpu_names=(_HOSTILE,), torch=_HOSTILE)
    comparison = compare([run(_HOSTILE, subject=subject, label=_HOSTILE, notes=(_HOSTILE,))], [run()])
    judgements = judge(comparison, [parse_gate("samples_per_second<-3%")])
    shown = tables(comparison, judgements)
    for text in (render_text(shown), render_markdown(shown)):
        assert "\x1b" not in text and "\u202e" not in text and "\n# x" not in text
        text.encode()
    assert "<script>" not in render_markdown(shown).replace(r"\<", "")
    json.dumps(document(comparison, judgements)).encode()


_MEASURED = json_report(findings=[starvation()])
_GPU = {
    **_MEASURED["gpus"][0],
    "utilization_percent": {"mean": 40.0, "sigma": 12.0, "p5": 1, "p95": 80},
    "train_utilization_percent": None,
    "memory_bytes": None,
    "energy_joules": 6000.0,
}
_RUN = {
    **_MEASURED["runs"][0],
    "samples_per_second": 640.0,
    "train_seconds": 30.0,
    "batch_size": 64,
    "wait_seconds_per_batch": 0.05,
    "energy_joules_per_sample": 0.3125,
}
_FINDING = _MEASURED["findings"][0]


def _report(**parts: object) -> bytes:
    return json.dumps({**_MEASURED, "gpus": [_GPU], "runs": [_RUN], **parts}).encode()


def test_a_reports_json_is_as_good_as_a_recording() -> None:
    found = measured_report("before.json", _report())
    assert found.subject.batch_size == 64
    assert found.values["wait_ms_per_batch"] == pytest.approx(50)
    assert found.values["energy_joules_per_sample"] == 0.3125
    assert found.values["memory_peak_gib"] is None
    assert [stood.rule for stood in found.findings] == ["data-starvation"]


def test_what_stood_in_a_long_report_counts_though_it_is_over() -> None:
    over = [
        {**_FINDING, "rule": "low-util", "severity": severity, "gpu": gpu, "state": "over", "stood_seconds": seconds}
        for severity, gpu, seconds in (("warning", None, 90.0), ("info", _GPU["uuid"], 400.0))
    ]
    found = measured_report("night.json", _report(findings=over))
    assert found.findings == (MeasuredFinding("low-util", "warning", 400.0),)


def test_of_a_report_as_of_a_recording_the_run_that_trained_longest_is_compared() -> None:
    quick = {**_RUN, "title": "quick.py", "steps": 90_000, "train_seconds": 20.0}
    found = measured_report("night.json", _report(runs=[quick, {**_RUN, "title": "slow.py", "steps": 90}]))
    assert found.subject.title == "slow.py"
    assert any("of 2 runs, slow.py" in note and "trained longest" in note for note in found.notes)


def test_a_report_of_a_run_on_the_cpu_has_none_of_the_machines_gpus() -> None:
    run_on_cpu = {**_RUN, "device": "cpu", "gpus": []}
    found = measured_report("before.json", _report(runs=[run_on_cpu]))
    assert found.subject.gpu_names == ("CPU",)
    assert found.values["utilization_percent"] is None


def test_a_report_without_a_run_has_the_figures_of_its_gpus() -> None:
    found = measured_report("before.json", _report(runs=[]))
    assert found.values["utilization_percent"] == 40.0
    assert "samples_per_second" not in found.values
    assert "no training run is in it" in found.notes


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\x00\xff", _report(gpus="none"), _report(runs=[{"id": 1}])])
def test_what_is_no_report_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(CannotCompareError, match=r"x\.json is neither a recording nor a report's JSON"):
        measured_report("x.json", data)


@pytest.mark.parametrize(
    ("label", "is_made_up"),
    [
        ("SIMULATED starved", True),
        ("RECORDING starved.gpuwatch (SIMULATED starved)", True),
        ("RECORDING SIMULATED.gpuwatch", False),
        ("LIVE", False),
    ],
)
def test_figures_of_no_machine_are_called_so(label: str, is_made_up: bool) -> None:
    notes = compare([run()], [run(label=label)]).likeness.notes
    assert ("simulated: these numbers are not from a real machine" in notes) is is_made_up


_S = 1_000_000_000


def _gpu(index: int, mean: float, train_mean: float | None = None) -> GpuSummary:
    return GpuSummary(
        facts=GpuFacts(0, f"GPU-{index}", index, f"Model {index}"),
        utilization_percent=Swing(mean, 10.0),
        train_utilization_percent=None if train_mean is None else Swing(train_mean, 5.0),
        memory_used_bytes=Level(1.0 * 2**30, 2.0 * 2**30),
    )


def _run(pid: int, gpus: tuple[str, ...], *, device: str | None = "cuda") -> RunSummary:
    facts = RunFacts(0, f"{pid}.1", pid, 1, ("python", "train.py", "a b"), device=device)
    return RunSummary(f"{pid}.1", "train.py", facts, gpus, samples_per_second=100.0, wait_seconds_per_batch=0.05)


def _finding(rule: str, *, run: str | None = None, gpu: str | None = None, seconds: float = 10.0) -> FindingSummary:
    return FindingSummary(rule, "warning", run, gpu, f"{rule}|{run}|{gpu}", 0, seconds, is_open=True)


_SESSION = SessionSummary("LIVE", "host", "1", 0.0, 0, 60 * _S, "samples")


def test_the_longest_run_is_compared_with_its_own_gpus_and_findings() -> None:
    session = replace(
        _SESSION,
        gpus=(_gpu(0, 40.0, 60.0), _gpu(1, 99.0)),
        runs=(_run(1, ("GPU-0",)), _run(2, ("GPU-1",))),
        findings=(
            _finding("data-starvation", run="1.1"),
            _finding("tf32-off", run="2.1"),
            _finding("thermal-throttle", gpu="GPU-1"),
            _finding("low-util", gpu="GPU-0", seconds=4.0),
            _finding("low-util", gpu="GPU-0", seconds=9.0),
            _finding("metrics-limited"),
        ),
    )
    found = measured("x.gpuwatch", session)
    assert found.values["utilization_percent"] == 60.0  # while training, where that is known
    assert found.values["memory_peak_gib"] == 2.0
    assert found.values["wait_ms_per_batch"] == pytest.approx(50)
    assert found.values["power_watts"] is None
    assert found.subject.gpu_names == ("Model 0",)
    assert found.subject.command == "python train.py 'a b'"
    assert {stood.rule: stood.seconds for stood in found.findings} == {
        "data-starvation": 10.0,
        "low-util": 9.0,
        "metrics-limited": 10.0,
    }
    assert found.notes == ("of 2 runs, train.py (1) trained longest and is compared",)


def test_a_run_on_the_cpu_has_none_of_the_machines_gpus() -> None:
    found = measured("x", replace(_SESSION, gpus=(_gpu(0, 0.0),), runs=(_run(1, (), device="cpu"),)))
    assert found.subject.gpu_names == ("CPU",)
    assert found.values["utilization_percent"] is None and found.values["memory_peak_gib"] is None


def test_without_a_run_all_gpus_count() -> None:
    found = measured("x", replace(_SESSION, gpus=(_gpu(0, 40.0), _gpu(1, 60.0)), ended=False, problem="full"))
    assert found.values["utilization_percent"] == 50.0
    assert "samples_per_second" not in found.values
    assert found.notes[0] == "full" and found.notes[-1] == "no training run is in it" and len(found.notes) == 3
