"""What the rules promised is set beside the measurement of just the same change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_advice_workers import cost_of, on_cpu, on_gpu

from gpuwatch.diagnosis.finding import CallEdit, Edit, Finding, Fix, Gain, Level, ModelEdit, Severity, SetupEdit
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.timeline.windows import Scene
from gpuwatch.trial.changes import Arm, arms_of
from gpuwatch.trial.prediction import predict

GAIN = Gain(1.3, 1.6)


def arm(*changes: str) -> Arm:
    return arms_of(list(changes))[1]


def scene_of(case: RunCase) -> Scene:
    return Scene(case.now_ns, 0, case.window_seconds, case.machine, case.host, case.all_gpus, (case.run,), case.quality)


def finding(rule: str, edit: Edit) -> Finding:
    return Finding(
        rule, Severity.WARNING, Level.E2, "it is slow", (), "firing", 0, fix=Fix("do it", edit=edit), gain=GAIN
    )


WORKERS = finding("workers-zero", CallEdit("DataLoader", "t.py", 3, {"num_workers": "4", "persistent_workers": "True"}))
TF32 = finding("tf32-off", SetupEdit("t.py", 'torch.set_float32_matmul_precision("high")'))
COMPILE = finding("compile-off", ModelEdit("t.py", 3, "{model}.compile()"))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (("num_workers=4",), "workers-zero"),
        (("num_workers=4", "persistent_workers=true"), "workers-zero"),
        (("num_workers=4", "prefetch_factor=8"), None),
        (("num_workers=4", "tf32=true"), None),
        (("tf32=true",), "tf32-off"),
        (("tf32=false",), None),
        (("compile=true",), "compile-off"),
        (("env.A=1",), None),
    ],
)
def test_only_the_very_change_that_a_finding_asks_for_has_its_gain(changes: tuple[str, ...], rule: str | None) -> None:
    quiet = replace(scene_of(on_gpu(0.2, 0.1)), runs=())
    found = predict(arm(*changes), quiet, [WORKERS, TF32, COMPILE])
    assert (found.rule if found else None) == rule
    assert found is None or found.gain == GAIN


def test_another_number_of_workers_is_promised_what_the_formula_says() -> None:
    case = on_gpu(0.2, 0.1)
    found = predict(arm("num_workers=1"), scene_of(case), [])
    assert found is not None
    assert (found.rule, found.gain) == ("workers-zero", cost_of(case).gain(1))


def test_nothing_is_promised_where_the_rules_would_not() -> None:
    busy = on_cpu(0.05, 0.03, 1.0, cores=2, threads=2, busy=2.0)
    assert predict(arm("num_workers=2"), scene_of(busy), []) is None
    assert predict(arm("num_workers=2"), scene_of(on_gpu(0.001, 0.1)), []) is None
    assert predict(arm("num_workers=0"), scene_of(on_gpu(0.2, 0.1)), []) is None
    assert predict(arm("num_workers=2"), None, []) is None
    assert predict(Arm(), scene_of(on_gpu(0.2, 0.1)), [WORKERS]) is None
