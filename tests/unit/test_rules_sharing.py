"""The sharing family: second tenants, refused readings, and gpuwatch's own gaps."""

import pytest

from gpuwatch.samples import GpuProcess, GpuStatus
from tests.unit import scene_builder as build

GIB = 2**30


def gpu_with(*processes, **fields):
    status = GpuStatus(time_ns=build.START_NS, uuid="GPU-0", processes=processes)
    return build.gpu(latest_status=status, **fields)


OWN = GpuProcess(host_pid=4711, pid=4711, memory_bytes=40 * GIB, sm_percent=60.0, command="python")


def test_a_second_tenant_is_named_with_pid_and_share():
    foreign = GpuProcess(host_pid=99, pid=99, memory_bytes=6 * GIB, sm_percent=35.0, command="jupyter")
    moment = build.scene(build.run(), gpus=[gpu_with(OWN, foreign)])
    draft = build.check("shared-gpu", build.gpu_case(moment))
    assert "jupyter (99)" in draft.summary
    assert "35% of the time" in draft.evidence[0].text


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((OWN,), id="alone"),
        pytest.param((OWN, GpuProcess(1, 1, 100 * 2**20, 0.0, "Xorg")), id="a display server"),
        pytest.param(
            (GpuProcess(host_pid=5, memory_bytes=40 * GIB, sm_percent=60.0), GpuProcess(6, None, 9 * GIB, 30.0)),
            id="pids cannot be mapped: its own cannot be told from foreign ones",
        ),
    ],
)
def test_not_shared(processes):
    moment = build.scene(build.run(), gpus=[gpu_with(*processes)])
    assert build.check("shared-gpu", build.gpu_case(moment)) is None


def test_without_a_hooked_run_two_heavy_processes_share():
    other = GpuProcess(host_pid=5, pid=5, memory_bytes=20 * GIB, sm_percent=30.0, command="b.py")
    assert build.check("shared-gpu", build.gpu_case(build.scene(gpus=[gpu_with(OWN, other)]))) is not None
    assert build.check("shared-gpu", build.gpu_case(build.scene(gpus=[gpu_with(OWN)]))) is None


def test_refused_readings_are_named_with_their_reason():
    gpu = build.gpu(utilization=None, unavailable={"utilization_percent": "not supported by this GPU"})
    draft = build.check("metrics-limited", build.gpu_case(build.scene(gpus=[gpu])))
    assert "does not report utilization" in draft.summary
    assert "not supported by this GPU" in draft.evidence[0].text


def test_a_missing_fan_is_no_limit_for_any_rule():
    gpu = build.gpu(unavailable={"fan_percent": "not supported by this GPU"})
    assert build.check("metrics-limited", build.gpu_case(build.scene(gpus=[gpu]))) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"poll_gap_p95_seconds": 2.5}, "2.5 s apart"),
        ({"received_records": 950, "dropped_records": 50}, "5% of the hook's records"),
        ({"malformed_packets": 3}, "3 malformed packets"),
    ],
)
def test_own_gaps_are_admitted(fields, said):
    moment = build.scene(quality=build.quality(**fields))
    assert said in build.check("telemetry-gap", build.machine_case(moment)).summary


def test_one_malformed_packet_is_no_packets():
    moment = build.scene(quality=build.quality(malformed_packets=1))
    assert build.check("telemetry-gap", build.machine_case(moment)).summary.endswith(" 1 malformed packet")


def test_a_clean_measurement_says_nothing():
    clean = build.quality(received_records=10_000, dropped_records=20)
    assert build.check("telemetry-gap", build.machine_case(build.scene(quality=clean))) is None
