"""MIG: the instances speak where the whole GPU cannot."""

from __future__ import annotations

from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuSample, GpuStatus, NvmlState


def test_instances_are_listed_under_their_gpu(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 2", gpus=2)
    with reading(simulated_driver) as reader:
        whole, first, second, other = (reader.until(GpuFacts) for _ in range(4))
    assert whole.mig and whole.mig_parent is None
    assert [facts.mig_parent for facts in (first, second)] == [whole.uuid, whole.uuid]
    assert first.uuid.startswith("MIG-") and first.uuid != second.uuid
    assert first.name.endswith("MIG 1g.10gb") and first.memory_total_bytes == 10_000_000_000
    assert other.uuid == simulated_driver.uuid(1) and not other.mig


def test_the_whole_gpu_says_where_its_utilization_went(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 1")
    with reading(simulated_driver) as reader:
        sample = reader.sample(simulated_driver.uuid(0))
    assert sample.utilization_percent is None
    assert sample.unavailable["utilization_percent"] == "MIG is on: only its instances report it"
    assert sample.power_watts == 500.0 and sample.temperature_celsius == 61


def test_an_instance_has_memory_processes_and_gpm(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 2", "process 0 4711 1000 50 1", "process 0 4712 2000 50 0")
    with reading(simulated_driver) as reader:
        facts = reader.until(GpuFacts, lambda facts: facts.uuid.endswith("-1"))
        sample = reader.until(GpuSample, lambda s: s.uuid == facts.uuid and s.sm_activity_percent is not None)
        status = reader.until(GpuStatus, lambda status: status.uuid == facts.uuid)
    assert sample.memory_used_bytes == 5_000_000_000
    assert (sample.sm_activity_percent, sample.tensor_activity_percent) == (80.0, 40.0)
    assert sample.power_watts is None and sample.unavailable["power_watts"] == "a MIG instance has none of its own"
    assert [process.host_pid for process in status.processes or ()] == [4711]


def test_a_container_that_owns_a_slice_may_not_read_the_gpus_memory(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 0 mig 1", "fault nvmlDeviceGetMemoryInfo* 0 error 4")
    with reading(simulated_driver) as reader:
        sample = reader.sample(simulated_driver.uuid(0))
    assert sample.memory_used_bytes is None and sample.unavailable["memory_used_bytes"] == "no permission"


def test_switching_mig_brings_the_instances_up(simulated_driver: SimulatedDriver) -> None:
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("gpu 0 mig 1")
        assert "MIG was switched on" in (reader.until(NvmlState, lambda s: s.status == "restarting").reason or "")
        instance = reader.until(GpuFacts, lambda facts: facts.mig_parent is not None)
        assert reader.sample(instance.uuid).memory_used_bytes == 5_000_000_000
