"""What crosses the links: batches that fill them, gradients that do, and a GPU that gets nothing at all."""

from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import Level, Severity, TransferEdit
from gpuwatch.samples import GpuProcess, GpuStatus
from tests.unit import scene_builder as build
from tests.unit.stack_windows import line, watched

GB = 1e9
PEAK = 16e9 * 128 / 130 * 16 / 8  # generation 4, 16 lanes: 31.5 GB/s
FLOATS = "float32[64,3,512,512], int64[64]"


def linked_gpu(index=0, *, rx=9 * GB, utilization=70.0, generation=4, width=16, **fields):
    status = GpuStatus(build.START_NS, f"GPU-{index}", pcie_generation=generation, pcie_width=width)
    return build.gpu(index, utilization=utilization, pcie_rx_bytes_per_second=rx, latest_status=status, **fields)


def copying(
    *, step=0.1, batch_bytes=800_000_000, batch_size=64, shape=FLOATS, pin_memory=True, gap=0.0, gpu=None, **fields
):
    loader = build.loader(batch_bytes=batch_bytes, batch_size=batch_size, batch_shape=shape, pin_memory=pin_memory)
    rank = build.rank(step=step, gap=gap, loader=loader, **fields)
    gpus = [gpu or linked_gpu()] if rank.facts.device == "cuda" else []
    moment = build.scene(build.run(rank), gpus=gpus)
    return build.check("h2d-bound", build.run_case(moment)), moment


def test_copies_that_fill_the_link_of_an_idling_gpu():
    draft, moment = copying()
    assert draft.fires and draft.level is Level.E2
    assert "Copies fill 29% of the PCIe link of GPU 0, which idles 30%" in draft.summary
    assert draft.gain.low == 1.0
    assert draft.gain.high == pytest.approx(1 / (1 - 9 * GB / PEAK), abs=0.001)
    assert draft.fix.value == 200_000_000 and "200 MB instead of 800 MB" in draft.fix.text
    finding = next(each for each in build.findings(moment) if each.rule == "h2d-bound")
    assert finding.severity is Severity.WARNING, "critical needs proof that the GPU idles for the copies"
    assert any("likely, not proven" in note for note in finding.confidence_notes)


def test_only_as_much_can_be_won_as_the_gpu_idles():
    draft, _ = copying(gpu=linked_gpu(utilization=88.0))
    assert draft.gain.high == pytest.approx(1 / 0.88, abs=0.001)
    assert draft.severity is Severity.WARNING


def test_waits_for_data_are_taken_off_the_idle_time():
    assert copying(gap=0.025)[0] is None, "25 of 30% are waits for data"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"gpu": linked_gpu(utilization=97.0)}, id="hidden behind computing"),
        pytest.param({"gpu": linked_gpu(rx=1.5 * GB), "batch_bytes": 150_000_000}, id="5% of the link"),
        pytest.param({"batch_bytes": 300_000_000}, id="a third of the bytes are batches: offloading or gradients"),
        pytest.param({"batch_bytes": None}, id="size of a batch not known"),
        pytest.param({"gpu": linked_gpu(rx=None)}, id="no byte counter"),
        pytest.param({"gpu": linked_gpu(generation=None)}, id="link not known"),
        pytest.param({"gpu": linked_gpu(facts={"mig": True})}, id="MIG"),
        pytest.param({"device": "cpu"}, id="training on the CPU"),
    ],
)
def test_copies_are_silent(fields):
    assert copying(**fields)[0] is None


def test_between_the_thresholds_it_holds():
    assert not copying(gpu=linked_gpu(utilization=92.0))[0].fires


def test_without_utilization_only_a_nearly_full_link_is_a_hint():
    draft, _ = copying(gpu=linked_gpu(rx=24 * GB, utilization=None), batch_bytes=2_400_000_000)
    assert draft.fires and draft.severity is Severity.HINT and draft.gain is None
    assert copying(gpu=linked_gpu(utilization=None))[0] is None


def test_bytes_that_are_pixels_already_are_copied_ahead():
    seen = watched({"copy": 0.3, "forward": 0.7}, lines=[line("copy", 31, 0.3, text="x = batch.to(device)")])
    draft, _ = copying(shape="uint8[64,3,512,512]", stacks=seen)
    assert draft.fix.edit == TransferEdit("/home/user/train.py", 31)
    assert "stream of its own" in draft.fix.text


def test_it_stands_behind_unpinned_memory():
    _, moment = copying(pin_memory=False, copy_share=0.2)
    found = {each.rule: each for each in build.findings(moment)}
    assert found["h2d-bound"].behind == "pageable-transfer"


def exchanging(*, per_step=150e6, world=4, step=0.05, parameter_bytes=100_000_000, micro=1, **gpu_fields):
    """Ranks whose ring moves 2 * 3/4 * 100 MB a step over generation 4 x16; batches are 1 MB."""
    gpus = [
        linked_gpu(i, rx=per_step / step + 1e6 / step * micro, utilization=95.0, **gpu_fields) for i in range(world)
    ]
    members = [
        build.rank(
            step=step,
            gap=0.0,
            gpus=(i,),
            pid=100 + i,
            batches=micro,
            loader=build.loader(batch_bytes=1_000_000),
            facts={
                "rank": i,
                "world_size": world,
                "model": build.model(parameter_bytes=parameter_bytes),
            },
        )
        for i in range(world)
    ]
    moment = build.scene(build.run(*members), gpus=gpus)
    return build.check("comm-bound", build.run_case(moment))


def test_gradients_that_fill_the_link_are_a_hint_without_a_promise():
    draft = exchanging(per_step=200e6)
    assert draft.fires and draft.severity is Severity.HINT and draft.gain is None
    assert "exchange 200 MB per step over PCIe, which takes at least 13% of the time" in draft.summary
    assert "bf16_compress_hook" in draft.fix.code and draft.fix.value == pytest.approx(100e6, rel=0.01)
    assert "not measured" in draft.hint


def test_accumulated_steps_that_exchange_each_time_are_advised_to_wait():
    draft = exchanging(per_step=4 * 150e6, step=0.2, micro=4)
    assert (draft.fix.value, "no_sync" in draft.fix.code) == (3, True)


def test_accumulated_steps_that_exchange_once_are_advised_to_compress():
    draft = exchanging(per_step=200e6, step=0.05, micro=4)
    assert "no_sync" not in draft.fix.code


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"world": 1}, id="one rank"),
        pytest.param({"per_step": 80e6}, id="5% of the link"),
        pytest.param({"per_step": 600e6}, id="four times the gradients: something else"),
        pytest.param({"per_step": 200e6, "parameter_bytes": 2_000_000_000}, id="a tenth of the gradients"),
        pytest.param({"per_step": 200e6, "parameter_bytes": None}, id="parameters not known"),
        pytest.param({"per_step": 200e6, "generation": None}, id="link not known"),
    ],
)
def test_exchange_is_silent(fields):
    assert exchanging(**fields) is None


def holding_gpu(*, utilization=0.0, pid=4711, status="live", memory_bytes=3 * 2**30, **facts):
    held = GpuStatus(build.START_NS, "GPU-1", processes=(GpuProcess(host_pid=pid, pid=pid, memory_bytes=memory_bytes),))
    return build.gpu(1, utilization=utilization, latest_status=held, status=status, facts=facts)


def idle(gpu, *, trained=None):
    moment = build.scene(*(trained or [build.run(build.rank(gpus=(0,)))]), gpus=[build.gpu(0), gpu])
    return build.check("idle-gpu-allocated", build.gpu_case(moment, 1)), moment


def test_a_gpu_that_a_run_holds_and_leaves_idle():
    draft, moment = idle(holding_gpu())
    assert draft.fires and draft.severity is Severity.INFO
    assert "GPU 1 is held by train.py, 3.0 GiB but idles" in draft.summary
    assert "idle-gpu-allocated" not in build.fired(moment, evaluations=119)
    assert "idle-gpu-allocated" in build.fired(moment, evaluations=121)


@pytest.mark.parametrize(
    ("gpu", "trained"),
    [
        pytest.param(holding_gpu(utilization=6.0), None, id="it works a little"),
        pytest.param(holding_gpu(utilization=None), None, id="utilization not reported"),
        pytest.param(holding_gpu(pid=99, memory_bytes=2**29), None, id="another program's context"),
        pytest.param(holding_gpu(pid=99, memory_bytes=None), None, id="another program's memory is not known"),
        pytest.param(holding_gpu(mig=True), None, id="MIG"),
        pytest.param(holding_gpu(status="lost"), None, id="lost"),
        pytest.param(holding_gpu(), [build.run(build.rank(gpus=(1,)))], id="the run's only GPU"),
        pytest.param(holding_gpu(), [build.run(build.rank(gpus=(0,), ended="exited"))], id="a run that has ended"),
        pytest.param(build.gpu(1, utilization=0.0), None, id="nobody's"),
    ],
)
def test_an_idle_gpu_that_no_moving_run_holds_is_silent(gpu, trained):
    assert idle(gpu, trained=trained)[0] is None


def test_a_notebook_that_holds_an_idle_gpu_is_named_with_its_user():
    held = GpuProcess(99, 99, 22 * 2**30, 0.0, "python -m ipykernel_launcher -f kernel.json", "carla", 9000.0)
    small = GpuProcess(98, 98, 2**28, 0.0, "Xorg", "root", 9000.0)
    status = GpuStatus(build.START_NS, "GPU-1", processes=(small, held))
    gpu = replace(holding_gpu(), latest_status=status)
    since = replace(gpu, idle_since_ns=build.scene(gpus=[gpu]).now_ns - 41 * 60 * build.SECOND)
    draft, moment = idle(since)
    assert draft.summary == "GPU 1 idle 41 min, 22.2 GiB held by carla: ipykernel_launcher"
    assert draft.fires and draft.severity is Severity.INFO and "process 99" in draft.fix.text
    assert "idle-gpu-allocated" in build.fired(moment, evaluations=121)


def test_a_gpu_that_worked_once_in_the_window_holds_but_does_not_fire():
    assert not idle(holding_gpu(utilization=[0.0] * 59 + [30.0]))[0].fires
