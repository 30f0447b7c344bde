"""The hints on kernels: layout, fused optimizers, sizes that fit the tiles, cuDNN's choice of algorithms."""

import pytest

from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import CallEdit, ModelEdit, SetupEdit, Severity
from gpuwatch.diagnosis.rules import rule_by_id
from tests.unit import scene_builder as build

CNN = {
    "autocast": True,
    "autocast_dtype": "float16",
    "conv_share": 0.9,
    "matmul_share": 0.1,
    "channels_last": False,
    "compiled": False,
    "deterministic": False,
    "cudnn_benchmark": False,
    "optimizer": "SGD",
    "optimizer_fused": False,
    "optimizer_file": "/home/user/train.py",
    "optimizer_line": 104,
}


def kernels(rule, *, torch="2.13.0+cu130", capability=(9, 0), loader=None, step=0.2, holding=(), gpus=None, **fields):
    rank_fields = {name: fields.pop(name) for name in ("optimizer_share", "device", "steps_total") if name in fields}
    rank = build.rank(
        step=step,
        gap=0.0,
        loader=build.loader(**(loader or {})),
        facts={"model": build.model(**(CNN | fields)), "torch": torch},
        **rank_fields,
    )
    if gpus is None:
        gpus = [build.gpu(facts={"compute_capability": capability})] if rank.facts.device == "cuda" else []
    return build.check(rule, build.run_case(build.scene(build.run(rank), gpus=gpus), holding=holding))


def test_channels_last_turns_the_model_where_its_optimizer_is_built():
    draft = kernels("channels-last-off")
    assert (draft.severity, draft.gain) == (Severity.HINT, None)
    assert draft.fix.edit == ModelEdit("/home/user/train.py", 104, "{model}.to(memory_format=torch.channels_last)")
    assert "1.0-1.35x" in draft.hint


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"channels_last": True}, id="turned already"),
        pytest.param({"channels_last": None}, id="layout not known"),
        pytest.param({"compiled": True}, id="compiled: Inductor chooses"),
        pytest.param({"compiled": None}, id="compiled or not is not known"),
        pytest.param({"autocast": False, "float32_share": 1.0}, id="32-bit training"),
        pytest.param({"conv_share": 0.19}, id="few convolutions"),
        pytest.param({"conv_share": None}, id="convolutions not known"),
        pytest.param({"capability": (6, 1)}, id="no tensor cores"),
        pytest.param({"capability": None}, id="capability not known"),
        pytest.param({"steps_total": 49}, id="too early"),
    ],
)
def test_channels_last_is_silent(fields):
    assert kernels("channels-last-off", **fields) is None


def test_16_bit_weights_count_like_autocast():
    assert kernels("channels-last-off", autocast=False, float32_share=0.02) is not None


def test_an_unfused_optimizer_is_fused_where_it_is_built():
    draft = kernels("optimizer-unfused", optimizer="AdamW", optimizer_share=0.2)
    assert draft.fires
    assert draft.fix.edit == CallEdit("AdamW", "/home/user/train.py", 104, {"fused": "True"})
    assert "1.0-1.11x" in draft.hint and draft.gain is None


def test_foreach_asked_for_must_go_first_so_no_edit_is_made():
    draft = kernels("optimizer-unfused", optimizer_share=0.2, optimizer_foreach=True)
    assert draft.fix.edit is None and "remove foreach=True" in draft.fix.text


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"optimizer_share": 0.04}, id="a small share"),
        pytest.param({"optimizer_share": None}, id="share not known"),
        pytest.param({"optimizer_share": 0.2, "optimizer_fused": True}, id="fused"),
        pytest.param({"optimizer_share": 0.2, "optimizer_fused": None}, id="fused not known"),
        pytest.param({"optimizer_share": 0.2, "optimizer": "DeepSpeedCPUAdam"}, id="another library's"),
        pytest.param({"optimizer_share": 0.2, "optimizer": "Adagrad"}, id="no fused kernel on CUDA"),
        pytest.param({"optimizer_share": 0.2, "torch": "2.2.1"}, id="SGD of torch 2.2 has none"),
        pytest.param({"optimizer_share": 0.2, "torch": None}, id="torch not known"),
        pytest.param({"optimizer_share": 0.2, "device": "cpu"}, id="training on the CPU"),
    ],
)
def test_optimizer_is_silent(fields):
    assert kernels("optimizer-unfused", **fields) is None


def test_an_optimizer_between_its_thresholds_holds():
    assert not kernels("optimizer-unfused", optimizer_share=0.07).fires


def test_a_vocabulary_is_padded_to_64_and_other_sides_to_8():
    draft = kernels("shape-misaligned", misaligned_share=0.3, misaligned_shape="50257x768")
    assert (draft.fix.value, draft.fix.code) == (50304, "vocab_size = 50304")
    other = kernels("shape-misaligned", misaligned_share=0.3, misaligned_shape="1001x770")
    assert other.fix.text == "Round up: 1001 to 1008, 770 to 776" and other.fix.code is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"misaligned_share": 0.04, "misaligned_shape": "10x512"}, id="a small output layer"),
        pytest.param({"misaligned_share": None}, id="not known"),
        pytest.param({"misaligned_share": 0.3, "misaligned_shape": "1024x768"}, id="multiples of 8"),
        pytest.param({"misaligned_share": 0.3, "misaligned_shape": "axb"}, id="a shape that is none"),
        pytest.param({"misaligned_share": 0.3, "misaligned_shape": "50257x768", "autocast": False}, id="32 bits"),
        pytest.param(
            {"misaligned_share": 0.3, "misaligned_shape": "50257x768", "capability": (6, 1)}, id="no tensor cores"
        ),
    ],
)
def test_shapes_are_silent(fields):
    assert kernels("shape-misaligned", **fields) is None


STEADY = {"batches_inspected": 5, "batch_shapes": 1}
VARYING = {"batches_inspected": 12, "batch_shapes": 9}
SPIKING = [0.2] * 60 + [0.9]


def test_benchmark_is_switched_on_where_shapes_stay():
    draft = kernels("cudnn-benchmark", loader=STEADY)
    assert draft.fix.edit == SetupEdit("train.py", "torch.backends.cudnn.benchmark = True")
    assert "one shape in 5 inspected batches" in draft.evidence[1].text


def test_benchmark_is_switched_off_where_shapes_change_and_steps_stand_out():
    draft = kernels("cudnn-benchmark", loader=VARYING, step=SPIKING, cudnn_benchmark=True)
    assert draft.fix.value == "False"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"loader": {"batches_inspected": 4, "batch_shapes": 1}}, id="too few looks"),
        pytest.param({"loader": {"batches_inspected": 9, "batch_shapes": 2}}, id="two shapes"),
        pytest.param({"loader": {}}, id="nobody looked"),
        pytest.param({"loader": STEADY, "deterministic": True}, id="determinism wanted"),
        pytest.param({"loader": STEADY, "deterministic": None}, id="determinism not known"),
        pytest.param({"loader": STEADY, "compiled": True}, id="compiled"),
        pytest.param({"loader": STEADY, "conv_share": 0.1}, id="few convolutions"),
        pytest.param({"loader": STEADY, "cudnn_benchmark": True}, id="on, and rightly"),
        pytest.param({"loader": STEADY, "cudnn_benchmark": None}, id="flag not known"),
        pytest.param({"loader": STEADY, "device": "cpu"}, id="training on the CPU"),
        pytest.param({"loader": VARYING}, id="off, and rightly"),
        pytest.param({"loader": VARYING, "cudnn_benchmark": True}, id="no step stands out"),
        pytest.param(
            {"loader": {"batches_inspected": 40, "batch_shapes": 9}, "cudnn_benchmark": True, "step": SPIKING},
            id="a handful of shapes that come again",
        ),
    ],
)
def test_benchmark_is_silent(fields):
    assert kernels("cudnn-benchmark", **fields) is None


@pytest.mark.parametrize("rule", ["channels-last-off", "shape-misaligned", "cudnn-benchmark", "optimizer-unfused"])
def test_hints_stand_behind_starvation(rule):
    assert "data-starvation" in rule_by_id(rule).behind


def test_a_hint_clears_once_the_fact_changes():
    def moment(turned):
        facts = {"model": build.model(**(CNN | {"channels_last": turned})), "torch": "2.13.0"}
        return build.scene(build.run(build.rank(gap=0.0, facts=facts)))

    engine = Engine([rule_by_id("channels-last-off")])
    engine.evaluate(moment(False))
    assert engine.evaluate(build.later(moment(False), 5))
    for number in range(7):
        said = engine.evaluate(build.later(moment(True), 10 + 5 * number))
    assert said == ()
