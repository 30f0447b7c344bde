"""What the monitor's side knows of children: lines, blame, and totals over restarts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.samples import GpuFacts, GpuLost, GpuProcess, GpuSample, GpuStatus, NvmlState, Sample
from gpuwatch.sources.nvml.source import Blame, Message, Roster, decode, environment

MINUTE_NS = 60 * 10**9


def line(*samples: tuple[str, dict[str, object]], **content: object) -> bytes:
    return json.dumps({"next": 1, "samples": samples, **content}).encode()


def facts(index: int, uuid: str, **values: object) -> GpuFacts:
    return GpuFacts(1, uuid, index, "H100", **values)  # type: ignore[arg-type]


def take(roster: Roster, *samples: Sample, **values: object) -> list[Sample]:
    return list(roster.take(Message(1.0, samples, **values), 5))  # type: ignore[arg-type]


def test_lists_become_tuples_so_that_samples_are_frozen_through() -> None:
    message = decode(
        line(
            ("GpuSample", {"time_ns": 1, "uuid": "a", "utilization_ring": [[1, 5.0]], "power_ring": []}),
            ("GpuFacts", {"time_ns": 1, "uuid": "a", "index": 0, "name": "x", "compute_capability": [9, 0]}),
            ("GpuStatus", {"time_ns": 1, "uuid": "a", "processes": [{"host_pid": 7, "pid": None}]}),
        )
    )
    assert message is not None
    sample, its_facts, status = message.samples
    assert isinstance(sample, GpuSample) and sample.utilization_ring == ((1, 5.0),)
    assert isinstance(its_facts, GpuFacts) and its_facts.compute_capability == (9, 0)
    assert isinstance(status, GpuStatus) and status.processes == (GpuProcess(7),)


@given(st.binary(max_size=200))
def test_no_line_is_an_exception(content: bytes) -> None:
    assert decode(content) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["next", "samples"]), inner),
        max_leaves=8,
    )
)
def test_no_json_is_an_exception(content: object) -> None:
    message = decode(json.dumps(content).encode())
    assert message is None or (isinstance(message.next_seconds, float) and message.samples == ())


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"next":NaN,"samples":[]}',
        b'{"next":1e999,"samples":[]}',
        b'{"next":-5,"samples":[]}',
        b'{"next":1e9,"samples":[]}',
        b'{"next":1,"samples":[],"restart_in":"x"}',
        b'{"next":1,"samples":[],"restart_in":1e999}',
        b'{"next":1,"samples":[],"found":[1,2,3]}',
        b'{"next":1,"samples":[],"found":[[],[]]}',
        b'{"next":1,"samples":[],"enumerated":[[]]}',
        b'{"next":1,"samples":[],"lost_index":[1e999,""]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":"x","uuid":"a"}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":["a"]}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":null,"uuid":"a"}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":"a","power_watts":NaN}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":"a","power_watts":1e999}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":"a","power_watts":true}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":"a","power_ring":[[1,"x"]]}]]}',
        b'{"next":1,"samples":[["GpuSample",{"time_ns":1,"uuid":"a","unavailable":[]}]]}',
        b'{"next":1,"samples":[["NvmlState",{"time_ns":1,"status":{}}]]}',
        b'{"next":1,"samples":[["XidEvent",{"time_ns":1,"uuid":null,"xid":' + b"9" * 4000 + b"}]]}",
        b'{"next":1,"samples":[["GpuStatus",{"time_ns":1,"uuid":"a","processes":[{"host_pid":"1"}]}]]}',
    ],
)
def test_what_no_field_can_hold_is_no_message(content: bytes) -> None:
    assert decode(content) is None


def test_texts_and_names_of_a_child_are_bounded() -> None:
    reasons = {str(number): "x" * 100_000 for number in range(1000)}
    message = decode(line(("GpuSample", {"time_ns": 1, "uuid": "a", "unavailable": reasons})))
    assert message is not None
    (sample,) = message.samples
    assert isinstance(sample, GpuSample)
    assert len(sample.unavailable) == 256 and {len(text) for text in sample.unavailable.values()} == {4096}


def test_a_child_that_makes_up_gpus_is_not_followed_for_ever() -> None:
    roster = Roster()
    taken = [take(roster, facts(str(number), number), found=(number, str(number))) for number in range(3000)]
    assert sum(map(len, taken)) == 1024
    assert len(take(roster, facts("7", 7))) == 1, "those that are known go on"


def test_a_call_is_left_out_for_a_minute_then_longer() -> None:
    blame = Blame()
    assert blame.add("GPU-a", "nvmlDeviceGetFanSpeed", 0)
    assert blame.avoid(MINUTE_NS - 1) == {"GPU-a": {"nvmlDeviceGetFanSpeed": MINUTE_NS}}
    assert blame.avoid(MINUTE_NS) == {}
    blame.add("GPU-a", "nvmlDeviceGetFanSpeed", MINUTE_NS)
    assert blame.avoid(3 * MINUTE_NS - 1) and not blame.avoid(3 * MINUTE_NS)


def test_three_bad_calls_give_up_the_gpu() -> None:
    blame = Blame()
    for function in ("a", "b"):
        blame.add("GPU-a", function, 0)
    assert "*" not in blame.avoid(1)["GPU-a"]
    blame.add("GPU-a", "c", 0)
    assert "*" in blame.avoid(1)["GPU-a"]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_what_everything_needs_cannot_be_left_out(function: str) -> None:
    blame = Blame()
    assert not blame.add("-", function, 0)
    assert blame.avoid(1) == {}


def test_no_wait_is_longer_than_an_hour() -> None:
    blame = Blame()
    for _ in range(50):
        blame.add("GPU-a", "nvmlDeviceGetFanSpeed", 0)
    assert blame.avoid(0)["GPU-a"]["nvmlDeviceGetFanSpeed"] == 60 * MINUTE_NS


def test_costs_add_up_over_children() -> None:
    roster = Roster()
    take(roster, NvmlState(1, "ok", calls=10, call_seconds=0.5, dropped_values=1))
    roster.child_ended()
    roster.restarts += 1
    (state,) = take(roster, NvmlState(2, "ok", calls=4, call_seconds=0.25))
    assert isinstance(state, NvmlState)
    assert (state.calls, state.call_seconds, state.dropped_values, state.restarts) == (14, 0.75, 1, 1)


def test_a_gpu_that_is_no_longer_listed_is_lost_once() -> None:
    roster = Roster()
    take(roster, facts(0, "a"), facts(1, "b"), enumerated=("a", "b"))
    assert take(roster, facts(0, "a"), enumerated=("a",)) == [
        facts(0, "a"),
        GpuLost(5, "b", "the driver no longer lists it"),
    ]
    assert take(roster, facts(0, "a"), enumerated=("a",)) == [facts(0, "a")]


def test_a_gpu_that_cannot_be_opened_keeps_the_name_it_had() -> None:
    roster = Roster()
    take(roster, facts(1, "b"))
    assert take(roster, lost_index=(1, "it hangs")) == [], "it may turn up at another index"
    assert take(roster, enumerated=("a",)) == [GpuLost(5, "b", "it cannot be opened: it hangs")]
    assert take(roster, lost_index=(1, "it hangs"), enumerated=("a",)) == []


def test_a_gpu_that_was_never_opened_gets_a_row() -> None:
    row, lost = take(Roster(), lost_index=(3, "no permission"), enumerated=())
    assert isinstance(row, GpuFacts) and (row.index, row.name) == (3, "GPU 3")
    assert isinstance(lost, GpuLost) and lost.uuid == row.uuid


def test_facts_that_a_later_child_cannot_read_are_remembered() -> None:
    roster = Roster()
    take(roster, facts(0, "a", memory_total_bytes=80))
    (now,) = take(roster, facts(0, "a", unavailable={"memory_total_bytes": "not asked for now"}))
    assert isinstance(now, GpuFacts) and now.memory_total_bytes == 80 and now.unavailable == {}


def test_devices_are_named_as_users_know_them() -> None:
    roster = Roster()
    take(roster, facts(2, "a"), found=(3, "b"))
    assert [roster.name(device) for device in ("a", "b", "index:1", "c")] == ["GPU 2", "GPU 3", "GPU 1", "c"]


def test_relative_search_paths_survive_the_change_of_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment({"LD_LIBRARY_PATH": "lib:/opt", "PYTHONPATH": "src"})
    assert all(entry.startswith("/") for entry in env["LD_LIBRARY_PATH"].split(":"))
    assert all(entry.startswith("/") for entry in env["PYTHONPATH"].split(":"))
