"""XID errors come once, with their time, from the driver and from the kernel log."""

from __future__ import annotations

from pathlib import Path

from nvml_reader import reading
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuSample, XidEvent


def test_an_xid_of_the_driver_names_its_gpu(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write(gpus=2)
    with reading(simulated_driver) as reader:
        before = reader.until(GpuSample)
        simulated_driver.write("event 1 1 94")
        event = reader.until(XidEvent)
        reader.until(GpuSample)
        after = reader.until(GpuSample)
    assert (event.uuid, event.xid) == (simulated_driver.uuid(1), 94)
    assert before.time_ns < event.time_ns < after.time_ns
    assert len(reader.each(XidEvent)) == 1


def test_old_events_are_not_reported_again_to_a_new_monitor(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("event 1 0 79")
    with reading(simulated_driver) as reader:
        reader.until(GpuSample)
        simulated_driver.write("event 1 0 79", "event 2 0 31")
        assert reader.until(XidEvent).xid == 31
    assert len(reader.each(XidEvent)) == 1


def test_the_kernel_log_tells_what_the_driver_does_not(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, an old one\n")
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("6,2,2,-;usb 1-1: new device\n")
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.\n")
        event = reader.until(XidEvent)
    assert (event.uuid, event.xid) == (simulated_driver.uuid(0), 79)
    assert event.text == "pid=4711, GPU has fallen off the bus."


def test_the_same_error_from_both_is_one_event(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 94, contained\n")
        simulated_driver.write("event 1 0 94")
        reader.until(XidEvent)
        simulated_driver.write("event 1 0 94", "event 2 0 45")
        reader.until(XidEvent, lambda event: event.xid == 45)
    assert [event.xid for event in reader.each(XidEvent)] == [94, 45]


def test_an_unknown_bus_address_is_an_event_without_a_gpu(simulated_driver: SimulatedDriver, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    with reading(simulated_driver, kernel_log=log) as reader:
        reader.until(GpuSample)
        with log.open("a") as file:
            file.write("4,3,3,-;NVRM: Xid (PCI:0000:99:00): 79, pid=1\n")
        assert reader.until(XidEvent).uuid is None


def test_without_events_and_log_the_samples_come_all_the_same(
    simulated_driver: SimulatedDriver, tmp_path: Path
) -> None:
    simulated_driver.write("fault nvmlEventSetCreate * error 3")
    with reading(simulated_driver, kernel_log=tmp_path / "none") as reader:
        first, second = reader.until(GpuSample), reader.until(GpuSample)
    assert first.time_ns < second.time_ns
    assert reader.each(XidEvent) == []
