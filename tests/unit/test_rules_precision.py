"""The precision family: what it says of runs that leave arithmetic units unused, and its fixes applied to a script."""

from __future__ import annotations

from textwrap import dedent

import pytest
from edit_sources import FILE, changed, line_of
from scene_builder import check, gpu, loader, model, rank, run, run_case, scene

from gpuwatch.diagnosis.advice.compute import compute_share, hinted_range
from gpuwatch.diagnosis.finding import AutocastEdit, Edit, ModelEdit, SetupEdit
from tests.unit import scene_builder as build


def float32_run(**model_fields):
    facts = {
        "model": build.model(
            **(
                {
                    "autocast": False,
                    "matmul_share": 0.9,
                    "conv_share": 0.0,
                    "float32_matmul_precision": "highest",
                    "compiled": False,
                    "backward_file": "/home/user/train.py",
                    "backward_line": 131,
                }
                | model_fields
            )
        ),
        "torch": "2.13.0",
    }
    return build.run(build.rank(step=0.2, gap=0.0, facts=facts))


def light_gpu(**fields):
    return build.gpu(utilization=98.0, power=300.0, **fields)


def test_low_power_names_watts_and_limit():
    moment = build.scene(float32_run(), gpus=[light_gpu()])
    draft = build.check("low-power-high-util", build.gpu_case(moment))
    assert draft.fires
    assert "300 of 700 W" in draft.summary


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(build.gpu(utilization=98.0, power=600.0), id="drawing its power"),
        pytest.param(build.gpu(utilization=50.0, power=200.0), id="not busy"),
        pytest.param(build.gpu(utilization=98.0, power=None), id="power not reported"),
        pytest.param(build.gpu(utilization=98.0, power=200.0, power_limit_watts=400.0), id="limit lowered by somebody"),
        pytest.param(build.gpu(utilization=98.0, power=300.0, throttle_shares={"power": 0.3}), id="power-capped"),
        pytest.param(build.gpu(utilization=98.0, power=300.0, throttle_shares={"sw-thermal": 1.0}), id="too hot"),
    ],
)
def test_low_power_is_silent_where_power_says_nothing(gpu):
    moment = build.scene(float32_run(), gpus=[gpu])
    assert build.check("low-power-high-util", build.gpu_case(moment)) is None


def test_low_power_between_the_thresholds_holds_but_does_not_fire():
    moment = build.scene(float32_run(), gpus=[build.gpu(utilization=98.0, power=0.65 * 700)])
    draft = build.check("low-power-high-util", build.gpu_case(moment))
    assert draft is not None and not draft.fires


def test_low_power_does_not_speak_over_a_run_that_stopped_stepping():
    moment = build.scene(float32_run(), gpus=[light_gpu()], at=400)
    assert build.check("low-power-high-util", build.gpu_case(moment)) is None


def test_amp_off_points_at_the_backward_line_with_bfloat16_on_ampere_and_later():
    draft = build.check("amp-off", build.run_case(build.scene(float32_run())))
    assert (draft.fix.line, draft.fix.value) == (131, "torch.bfloat16")
    assert draft.gain is None and "1.0-2.6x" in draft.hint


def test_amp_off_advises_float16_with_a_scaler_on_volta():
    moment = build.scene(float32_run(), gpus=[build.gpu(facts={"compute_capability": (7, 0)})])
    draft = build.check("amp-off", build.run_case(moment))
    assert draft.fix.value == "torch.float16"
    assert "GradScaler" in draft.fix.code


@pytest.mark.parametrize(
    ("model", "capability"),
    [
        pytest.param({}, (6, 1), id="a GTX 1080 has no tensor cores"),
        pytest.param({}, None, id="capability unknown"),
        pytest.param({"autocast": True}, (9, 0), id="autocast on"),
        pytest.param({"autocast": None}, (9, 0), id="autocast unknown"),
        pytest.param({"float32_share": 0.1}, (9, 0), id="16-bit weights"),
        pytest.param({"matmul_share": 0.0}, (9, 0), id="nothing for tensor cores"),
    ],
)
def test_amp_off_is_silent(model, capability):
    moment = build.scene(float32_run(**model), gpus=[build.gpu(facts={"compute_capability": capability})])
    assert build.check("amp-off", build.run_case(moment)) is None


def test_tf32_off_is_silent_for_a_model_of_convolutions():
    moment = build.scene(float32_run(matmul_share=0.02, conv_share=0.95))
    assert build.check("tf32-off", build.run_case(moment)) is None


def test_tf32_off_is_silent_once_the_flag_is_set():
    assert build.check("tf32-off", build.run_case(build.scene(float32_run()))).fix.value == "high"
    moment = build.scene(float32_run(float32_matmul_precision="high"))
    assert build.check("tf32-off", build.run_case(moment)) is None


def test_compile_off_needs_a_symptom():
    busy = build.scene(float32_run(), gpus=[build.gpu(utilization=98, power=650)])
    assert build.check("compile-off", build.run_case(busy)) is None
    assert build.check("compile-off", build.run_case(busy, holding={"launch-bound"})) is not None
    light = build.scene(float32_run(), gpus=[light_gpu()])
    assert build.check("compile-off", build.run_case(light)) is not None


@pytest.mark.parametrize("fields", [{"compiled": True}, {"compiled": None}])
def test_compile_off_is_silent_for_compiled_and_unknown(fields):
    moment = build.scene(float32_run(**fields), gpus=[light_gpu()])
    assert build.check("compile-off", build.run_case(moment)) is None


def test_a_kernel_factor_helps_only_the_computing_share():
    half_waiting = build.run(build.rank(step=0.2, wait=0.1, gap=0.1))
    assert compute_share(half_waiting) == pytest.approx(0.5)
    assert hinted_range(half_waiting, 2.0) == "1.0-1.3x"


def test_fixes_are_edits_of_the_lines_that_the_hook_saw():
    facts = {"optimizer": "AdamW", "optimizer_file": "/home/user/train.py", "optimizer_line": 104}
    moment = build.scene(float32_run(**facts), gpus=[light_gpu()])
    edits = {
        rule: build.check(rule, build.run_case(moment)).fix.edit for rule in ("amp-off", "tf32-off", "compile-off")
    }
    assert edits["amp-off"] == AutocastEdit("/home/user/train.py", 131, "torch.bfloat16")
    assert edits["tf32-off"] == SetupEdit("train.py", 'torch.set_float32_matmul_precision("high")')
    assert edits["compile-off"] == ModelEdit("/home/user/train.py", 104, "{model}.compile()")


def test_a_launch_bound_run_is_compiled_with_cuda_graphs():
    facts = {"optimizer_file": "/home/user/train.py", "optimizer_line": 104}
    moment = build.scene(float32_run(**facts))
    fix = build.check("compile-off", build.run_case(moment, holding={"launch-bound"})).fix
    assert fix.edit.statement == fix.code.replace("model", "{model}", 1) == '{model}.compile(mode="reduce-overhead")'


def test_float16_is_not_patched_in_because_it_needs_a_scaler_too():
    moment = build.scene(float32_run(), gpus=[build.gpu(facts={"compute_capability": (7, 0)})])
    assert build.check("amp-off", build.run_case(moment)).fix.edit is None


SCRIPT = dedent(
    """
    import torch
    from torch.utils.data import DataLoader

    net = torch.nn.Conv2d(3, 8, 3).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=8)
    for images, labels in loader:
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
    """
)
FACTS = {
    "conv_share": 0.9,
    "matmul_share": 0.5,
    "compiled": False,
    "deterministic": False,
    "cudnn_benchmark": False,
    "float32_matmul_precision": "highest",
    "optimizer": "AdamW",
    "optimizer_fused": False,
    "optimizer_file": FILE,
    "optimizer_line": line_of(SCRIPT, "AdamW"),
    "backward_file": FILE,
    "backward_line": line_of(SCRIPT, "loss.backward()"),
}
IN_FLOAT32, IN_16_BITS = {"autocast": False}, {"autocast": True, "channels_last": False}


def edit_of(rule: str, precision: dict[str, bool]) -> Edit:
    facts = {"model": model(**(FACTS | precision)), "torch": "2.13.0"}
    looked = loader(file=FILE, batches_inspected=5, batch_shapes=1)
    trained = run(rank(gap=0.0, optimizer_share=0.2, loader=looked, facts=facts))
    draft = check(rule, run_case(scene(trained, gpus=[gpu(utilization=98, power=300)])))
    assert draft is not None and draft.fix is not None and draft.fix.edit is not None
    return draft.fix.edit


@pytest.mark.parametrize(
    ("rule", "precision", "added"),
    [
        ("channels-last-off", IN_16_BITS, "net.to(memory_format=torch.channels_last)"),
        ("optimizer-unfused", IN_16_BITS, "optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)"),
        ("cudnn-benchmark", IN_16_BITS, "torch.backends.cudnn.benchmark = True"),
        ("tf32-off", IN_FLOAT32, 'torch.set_float32_matmul_precision("high")'),
        ("compile-off", IN_FLOAT32, "net.compile()"),
        ("amp-off", IN_FLOAT32, 'with torch.autocast(device_type="cuda", dtype=torch.bfloat16):'),
    ],
)
def test_the_fix_is_a_patch_of_the_script(rule: str, precision: dict[str, bool], added: str) -> None:
    lines = changed(edit_of(rule, precision), SCRIPT)
    assert any(line.startswith("+") and line[1:].strip() == added for line in lines)
