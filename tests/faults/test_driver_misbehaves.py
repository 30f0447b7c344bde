"""A driver library that does what no library should: the rest is still shown, and the sentence names the culprit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from nvml_sim import SimulatedDriver

from gpuwatch.samples import GpuFacts, GpuLost, GpuSample, GpuStatus, NvmlState
from gpuwatch.sources.nvml.machine import MOST_GPUS
from gpuwatch.sources.nvml.source import Activity, NvmlSource
from tests.faults.conftest import Place, SideBySide
from tests.faults.live import wait_until
from tests.integration.nvml_reader import BRISK, Reader, SilentChild, child_pids, launching, reading

QUICK = replace(BRISK, init_seconds=2.5, silence_seconds=1.5, starting_seconds=2.0)
GARBAGE = "\udcff\udcfe\x1b[31m\x07‮garbage"
"""Bytes that are no UTF-8, an escape sequence, a bell and a right-to-left override."""


def until_restart(reader: Reader) -> str:
    return reader.until(NvmlState, lambda state: state.restarts > 0).reason or ""


def until_shown(reader: Reader) -> None:
    """GPU 0 has a new poll, and the driver is called healthy."""
    since_ns = time.monotonic_ns()
    reader.until(GpuSample, lambda sample: sample.power_watts == 500.0 and sample.time_ns > since_ns)
    reader.until(NvmlState, lambda state: state.status == "ok" and state.time_ns > since_ns)


ON_ONE_GPU = (
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceRegisterEvents", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetSamples",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetComputeRunningProcesses_v3",
)  # fmt: skip
WITHOUT_GPU = (
    "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlEventSetCreate", "nvmlEventSetWait_v2",
    "nvmlGpmMetricsGet",
)  # fmt: skip


FATAL_CALLS = (
    *((function, "1", "hang") for function in ON_ONE_GPU),
    *((function, "*", "hang") for function in WITHOUT_GPU),
    *((function, "*", "abort") for function in ("nvmlEventSetCreate", "nvmlSystemGetDriverVersion")),
    *((function, "1", "exit 0") for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetTemperature")),
    ("nvmlDeviceGetTemperature", "1", "exit 3"),
    ("nvmlDeviceGetTemperature", "1", "spin"),
)


def test_one_call_that_never_returns_costs_only_itself(side_by_side: SideBySide) -> None:
    """Any call: it is named, left out by the next child, and all else is shown."""

    def check(place: Place, case: tuple[str, str, str]) -> None:
        function, gpu, kind = case
        place.driver.write(f"fault {function} {gpu} {kind}", gpus=2)
        with reading(place.driver, plan=QUICK) as reader:
            reader.until(GpuSample, lambda sample: sample.power_watts == 500.0)
            reader.until(NvmlState, lambda state: state.status == "ok")
            until_shown(reader)
            blamed = [state.reason or "" for state in reader.each(NvmlState) if state.restarts]
        if kind != "hang" or function not in ("nvmlEventSetWait_v2", "nvmlGpmMetricsGet"):
            assert any(function.split("_v")[0] in reason and "left out" in reason for reason in blamed), blamed

    side_by_side(check, {" ".join(case): case for case in FATAL_CALLS})


def test_what_everything_needs_is_named_until_it_works(side_by_side: SideBySide) -> None:
    def check(place: Place, case: tuple[str, str]) -> None:
        function, kind = case
        place.driver.write(f"fault {function} * {kind}")
        with reading(place.driver, plan=QUICK) as reader:
            reason = reader.until(NvmlState, lambda state: state.status in ("restarting", "failing")).reason or ""
            assert kind.startswith("error") or function.rstrip("*") in reason
            place.driver.write()
            until_shown(reader)

    cases = list(product(["nvmlInit*", "nvmlDeviceGetCount*"], ["abort", "exit 0", "error 999"]))
    side_by_side(check, {" ".join(case): case for case in cases})


def test_a_library_that_prints_a_lot_is_neither_believed_nor_blocked(side_by_side: SideBySide) -> None:
    """5,000 lines are more than a pipe holds; what it prints to standard output is no message of ours."""

    def check(place: Place, function: str) -> None:
        place.driver.write(f"fault {function} * print 5000", gpus=2)
        with reading(place.driver, plan=QUICK) as reader:
            reader.sample(place.driver.uuid(1), power_watts=500.0)
            until_shown(reader)
            assert not [state for state in reader.each(NvmlState) if state.restarts]

    side_by_side(check, {function: function for function in ("nvmlInit*", "nvmlDeviceGetClockInfo")})


def test_a_library_that_blocks_all_signals_cannot_keep_the_child_alive(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetClockInfo * block", "fault nvmlDeviceGetTemperature * hang")
    before = child_pids(os.getpid())
    with reading(simulated_driver) as reader:
        reader.source.collect(time.monotonic_ns())
        wait_until(lambda: simulated_driver.calls("nvmlDeviceGetTemperature"))
        reader.source.close()
        wait_until(lambda: not child_pids(os.getpid()) - before)
    assert child_pids(os.getpid()) <= before


def test_a_library_that_grows_is_given_a_fresh_process(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("fault nvmlDeviceGetClockInfo * grow 150e6")
    with reading(simulated_driver) as reader:
        state = reader.until(NvmlState, lambda state: state.status == "restarting")
        assert "has grown" in (state.reason or "") and " MB" in (state.reason or "")
        simulated_driver.write()
        until_shown(reader)


COUNTING = (
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetSamples",
)


def test_a_count_that_cannot_be_costs_one_value(side_by_side: SideBySide) -> None:
    """Where it is crowded the buffer is too small at first, and the driver is asked how large it has to be."""

    def check(place: Place, case: tuple[str, int, bool]) -> None:
        function, count, crowded = case
        processes = [f"process 0 {pid} 1000 5" for pid in range(100, 180 if crowded else 102)]
        place.driver.write(
            f"claim {function} {count}", "gpu 1 mig 2", *processes, *(["exact_room 1"] if crowded else []), gpus=2
        )
        with reading(place.driver, plan=QUICK) as reader:
            until_shown(reader)
            status = reader.until(GpuStatus, lambda status: status.uuid == place.driver.uuid(0))
            assert len(status.processes or ()) <= 80
            if function == "nvmlDeviceGetComputeRunningProcesses_v3":
                assert status.processes is None and status.unavailable["processes"]
            assert not [state for state in reader.each(NvmlState) if state.restarts]

    cases = product(COUNTING, (4_294_967_295, 1_000_000), (False, True))
    side_by_side(check, {" ".join(map(str, case)): case for case in cases})


def test_a_number_of_gpus_that_cannot_be_is_no_endless_list(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("claim nvmlDeviceGetCount_v2 4294967295", gpus=2)
    with reading(simulated_driver, plan=QUICK) as reader:
        state = reader.until(NvmlState)
        assert (state.status, state.gpu_count) == ("failing", None)
        assert "4294967295 GPUs" in (state.reason or "")
        assert len(reader.each(GpuFacts)) <= MOST_GPUS
        simulated_driver.write()
        until_shown(reader)


CHANGES = {
    "fewer before the first is opened": ("nvmlDeviceGetHandleByIndex_v2", 0, [0, 1, 2], [0]),
    "more before the first is opened": ("nvmlDeviceGetHandleByIndex_v2", 0, [0], [0, 1, 2]),
    "fewer before the last is opened": ("nvmlDeviceGetHandleByIndex_v2", 2, [0, 1, 2], [0, 1]),
    "fewer before the last is named": ("nvmlDeviceGetUUID", 2, [0, 1, 2], [0, 1]),
    "fewer and in another order": ("nvmlDeviceGetHandleByIndex_v2", 1, [0, 1, 2], [2, 1]),
    "in another order amid the first": ("nvmlDeviceGetName", 0, [0, 1, 2], [2, 0, 1]),
    "in another order before the last": ("nvmlDeviceGetUUID", 2, [0, 1, 2], [1, 2, 0]),
    "another one in the place of the first": ("nvmlDeviceGetUUID", 1, [0, 1], [3, 1]),
}
"""A call of the enumeration, and which GPUs are there, in this order, before it and from it on."""


def these(gpus: list[int]) -> list[str]:
    """A scenario in which each GPU has its own power, limit and name, whichever index it has."""
    return [
        line
        for index, gpu in enumerate(gpus)
        for line in (
            f"gpu {index} uuid GPU-{gpu}",
            f"gpu {index} name GPU number {gpu}",
            f"gpu {index} power_limit {700 + gpu}",
            f"wave {index} power constant {100 + gpu}",
        )
    ]


def all_is_with_its_gpu(reader: Reader, gpus: list[int], since_ns: int = 0) -> None:
    """Each GPU is shown with its own figures and facts, no other GPU has a sample, and none a row of another name."""
    now_ns = time.monotonic_ns()
    for gpu in gpus:
        reader.until(GpuSample, lambda sample, gpu=gpu: sample.uuid == f"GPU-{gpu}" and sample.time_ns > now_ns)  # type: ignore[misc]
    for sample in reader.each(GpuSample):
        if sample.time_ns > since_ns:
            assert sample.uuid == f"GPU-{sample.power_watts - 100:.0f}"  # type: ignore[operator]
    rows = {facts.uuid: facts for facts in reader.each(GpuFacts) if facts.time_ns > since_ns}
    for gpu in gpus:
        facts = rows[f"GPU-{gpu}"]
        assert (facts.index, facts.name, facts.power_limit_watts) == (gpus.index(gpu), f"GPU number {gpu}", 700 + gpu)
    assert not [uuid for uuid in rows if "index" in uuid]


def test_gpus_that_come_go_or_change_places_while_they_are_enumerated_keep_their_figures(
    side_by_side: SideBySide,
) -> None:
    def check(place: Place, case: tuple[str, int, list[int], list[int]]) -> None:
        function, index, before, after = case
        place.driver.write(*these(before), f"fault {function} {index} wait", gpus=len(before))
        with reading(place.driver) as reader:
            reader.source.collect(time.monotonic_ns())
            wait_until(lambda: place.driver.calls(function, index))
            place.driver.write(*these(after), gpus=len(after))
            state = reader.until(NvmlState, lambda state: state.status == "ok")
            assert (state.gpu_count, state.reason) == (len(after), None)
            all_is_with_its_gpu(reader, after)
            assert {lost.uuid for lost in reader.each(GpuLost)} <= {f"GPU-{gpu}" for gpu in {*before} - {*after}}

    side_by_side(check, CHANGES)


def test_gpus_that_change_places_are_noticed(simulated_driver: SimulatedDriver) -> None:
    """Their number is the same; a handle that becomes another GPU's is worse than any driver is known to be."""
    simulated_driver.write(*these([0, 1, 2]), gpus=3)
    with reading(simulated_driver) as reader:
        all_is_with_its_gpu(reader, [0, 1, 2])
        simulated_driver.write(*these([2, 0, 1]))
        noticed = reader.until(NvmlState, lambda state: state.status == "restarting")
        assert "GPU 0 is not the same GPU as before: GPU-2" in (noticed.reason or "")
        all_is_with_its_gpu(reader, [2, 0, 1], since_ns=noticed.time_ns)


def test_a_gpu_that_cannot_be_opened_is_not_taken_for_the_one_that_had_its_place(
    simulated_driver: SimulatedDriver,
) -> None:
    simulated_driver.write(*these([0, 1, 2]), gpus=3)
    with reading(simulated_driver) as reader:
        reader.until(NvmlState, lambda state: state.status == "ok")
        simulated_driver.write(*these([1, 2, 0, 3]), "fault nvmlDeviceGetHandleByIndex_v2 0 error 15", gpus=4)
        reader.until(NvmlState, lambda state: state.status == "ok" and state.gpu_count == 4)
        assert {each.uuid for each in reader.each(GpuLost)} == {"GPU-1", "GPU-index-0"}


def test_texts_that_are_garbage_cost_no_more_than_themselves(side_by_side: SideBySide) -> None:
    def check(place: Place, case: tuple[str, str]) -> None:
        key, text = case
        place.driver.write(f"gpu 0 {key} {text}", gpus=2)
        with reading(place.driver) as reader:
            reader.sample(place.driver.uuid(1), power_watts=500.0)
            until_shown(reader)
            facts = {facts.index: facts for facts in reader.each(GpuFacts)}
            assert facts.keys() == {0, 1} and facts[0].name
            assert not [state for state in reader.each(NvmlState) if state.restarts]

    cases = product(("name", "uuid", "pci"), (GARBAGE, "zz:zz:zz [red] 2 ", ""))
    side_by_side(check, {f"{key} {text!r}": (key, text) for key, text in cases})


def test_a_uuid_with_spaces_does_not_hide_which_call_crashed(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu 1 uuid GPU x y z", "fault nvmlDeviceGetClockInfo 1 segv", gpus=2)
    with reading(simulated_driver) as reader:
        assert "SIGSEGV in nvmlDeviceGetClockInfo on GPU 1" in until_restart(reader)
        until_shown(reader)


def test_two_gpus_that_claim_one_uuid_are_two_rows(simulated_driver: SimulatedDriver) -> None:
    simulated_driver.write("gpu * uuid GPU-same", "wave 0 power constant 100", "wave 1 power constant 500", gpus=2)
    with reading(simulated_driver) as reader:
        first, second = reader.until(GpuFacts).uuid, reader.until(GpuFacts, lambda facts: facts.index == 1).uuid
        assert first != second
        reader.sample(first, power_watts=100.0)
        reader.sample(second, power_watts=500.0)


def the_child(before: set[int]) -> int:
    (child,) = child_pids(os.getpid()) - before
    return child


def test_a_child_that_is_stopped_is_not_the_drivers_fault(simulated_driver: SimulatedDriver) -> None:
    before = child_pids(os.getpid())
    with reading(simulated_driver, plan=QUICK) as reader:
        reader.until(GpuSample)
        child = the_child(before)
        os.kill(child, signal.SIGSTOP)
        reason = reader.until(NvmlState, lambda state: state.status == "stale").reason or ""
        assert f"(pid {child}) is stopped" in reason and "kill -CONT" not in reason
        assert "driver" not in reason and "left out" not in reason
        until_shown(reader)


def test_a_child_in_a_driver_call_is_the_drivers_fault_and_the_call_has_an_age(
    simulated_driver: SimulatedDriver,
) -> None:
    with reading(simulated_driver, plan=QUICK) as reader:
        reader.until(GpuSample)
        simulated_driver.write("fault nvmlDeviceGetClockInfo 0 hang")
        reason = reader.until(NvmlState, lambda state: state.status == "stale").reason or ""
        assert "The NVIDIA driver has not answered in nvmlDeviceGetClockInfo on GPU 0 for " in reason
        assert float(reason.split(" for ")[1].split(" s")[0]) >= QUICK.silence_seconds / 2


def test_a_child_without_cpu_is_neither_blamed_nor_killed(simulated_driver: SimulatedDriver) -> None:
    """Its CPU is taken by others: the same process goes on afterwards, with no call left out."""
    before = child_pids(os.getpid())
    with reading(simulated_driver, plan=replace(QUICK, silence_seconds=0.2)) as reader:
        reader.until(GpuSample)
        child = the_child(before)
        with hogging(child):
            reason = reader.until(NvmlState, lambda state: state.status == "stale").reason or ""
        assert f"(pid {child}) waits for a CPU" in reason, reason
        until_shown(reader)
        assert the_child(before) == child, "it was replaced"
        assert not [state for state in reader.each(NvmlState) if state.restarts]


HOG = """
import os, signal, sys
signal.alarm(20)
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
print(flush=True)
while True:
    pass
"""


@contextmanager
def hogging(pid: int) -> Iterator[None]:
    """Binds a process to one CPU, on which another of real-time priority leaves it 5% at most."""
    only = max(os.sched_getaffinity(0))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {only})
    with subprocess.Popen(
        [sys.executable, "-c", HOG, str(only)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as hog:
        assert hog.stdout is not None
        try:
            if not hog.stdout.readline():
                pytest.skip("taking a CPU from a process needs the right to real-time priorities (CAP_SYS_NICE)")
            yield
        finally:
            hog.kill()


@pytest.mark.parametrize(
    ("activities", "words", "is_killed"),
    [
        ([Activity("R", 1.0), Activity("R", 1.05)], "(pid 4711) waits for a CPU", False),
        ([Activity("R", 1.0), Activity("R", 31.0)], "has not answered in nvmlDeviceGetFanSpeed on GPU-a for ", True),
        ([Activity("S", 1.0)], "has not answered in nvmlDeviceGetFanSpeed on GPU-a for ", True),
        ([Activity("D", 1.0)], "has not answered in nvmlDeviceGetFanSpeed on GPU-a for ", True),
        ([Activity("T", 1.0)], "(pid 4711) is stopped, by a signal or a debugger", True),
    ],
    ids=["ready, but without CPU", "computing in a call", "asleep in a call", "stuck in a call", "stopped"],
)
def test_each_kind_of_silence_has_its_sentence(activities: list[Activity], words: str, is_killed: bool) -> None:
    started: list[SilentChild] = []
    source = NvmlSource(1.0, launch=launching(started, *activities), plan=BRISK, kernel_log=None)
    states: list[NvmlState] = []
    for tenth in range(1_600):  # 60 s to start, 30 s of patience, twice
        states += [s for s in source.collect(tenth * 10**8) if isinstance(s, NvmlState) and "starting" not in str(s)]
        if states:
            break
    assert words in (states[0].reason or "")
    assert started[0].killed == is_killed
    assert ("left out" in (states[0].reason or "")) == ("not answered" in words)


def test_a_monitor_that_was_late_itself_blames_nobody(simulated_driver: SimulatedDriver) -> None:
    """Both were stopped, as a container is paused: the child has had no time to speak yet."""
    before = child_pids(os.getpid())
    with reading(simulated_driver, plan=QUICK) as reader:
        reader.until(GpuSample)
        child = the_child(before)
        os.kill(child, signal.SIGSTOP)
        reader.source.collect(time.monotonic_ns())
        paused_ns = time.monotonic_ns() + 3600 * 10**9
        assert not [sample for sample in reader.source.collect(paused_ns) if isinstance(sample, NvmlState)]
        os.kill(child, signal.SIGCONT)
        assert the_child(before) == child
