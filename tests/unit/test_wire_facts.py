"""Facts from trainers: every field checked, nothing believed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.samples import RunFacts
from gpuwatch.sources.hook_link.facts import (
    BadFactsError,
    TrainerFacts,
    merge,
    parse,
    printable,
    trainer_facts,
    with_roles,
)

LOADER = {
    "loader": 3,
    "file": "/home/a/train.py",
    "line": 88,
    "function": "main",
    "library": "accelerate",
    "dataset": "ImageFolder",
    "iterable": False,
    "num_workers": 4,
    "batch_size": 32,
    "pin_memory": True,
    "persistent_workers": False,
    "prefetch_factor": 2,
    "in_order": True,
    "drop_last": False,
    "start_method": "fork",
    "batches_per_epoch": 100,
    "batch_bytes": 4096,
    "batch_shape": "float32[32,3]",
    "batches_inspected": 9,
    "batch_shapes": 2,
}
MODEL = {
    "parameters": 10,
    "trained_parameters": 7,
    "parameter_bytes": 40,
    "float32_share": 1.0,
    "matmul_share": 0.5,
    "conv_share": 0,
    "autocast": False,
    "autocast_dtype": "bfloat16",
    "float32_matmul_precision": "highest",
    "cudnn_allow_tf32": True,
    "cudnn_benchmark": False,
    "deterministic": False,
    "channels_last": True,
    "misaligned_share": 0.25,
    "misaligned_shape": "50257x768",
    "compiled": False,
    "optimizer": "AdamW",
    "optimizer_fused": None,
    "optimizer_foreach": True,
    "optimizer_file": "/home/a/train.py",
    "optimizer_line": 12,
    "backward_file": "/home/a/train.py",
    "backward_line": 99,
    "recompile_reason": "tensor 'x' size mismatch",
    "recompile_file": "/home/a/model.py",
    "recompile_line": 7,
}
FACTS = {
    "pid": 5,
    "start_ticks": 9,
    "command": ["python", "train.py"],
    "cwd": "/home/a",
    "python": "3.11.7",
    "torch": "2.13.0",
    "group": "abc",
    "rank": 1,
    "local_rank": 1,
    "world_size": 8,
    "local_world_size": 4,
    "device": "cuda",
    "gpu_uuids": ["GPU-1"],
    "gpu_memory_total": 80,
    "affinity": 16,
    "torch_threads": 8,
    "phases": ["data", "log"],
    "save_places": [{"file": "/home/a/train.py", "line": 120}],
    "gap": True,
    "loaders": [LOADER],
    "model": MODEL,
    "env": {"CUDA_LAUNCH_BLOCKING": "1"},
    "debug": ["anomaly"],
}


def read(content: dict[str, Any]) -> TrainerFacts:
    return trainer_facts(content, trainer="7.8", pid=7, start_ticks=8, time_ns=1)


def test_every_fact_of_the_protocol_arrives() -> None:
    facts = read(FACTS)
    run = facts.run
    assert facts.wrong == 0
    assert (run.trainer, run.pid, run.start_ticks) == ("7.8", 7, 8), "the kernel's word, not the trainer's"
    assert (run.command, run.cwd, run.torch, run.group) == (("python", "train.py"), "/home/a", "2.13.0", "abc")
    assert (run.rank, run.local_rank, run.world_size, run.local_world_size) == (1, 1, 8, 4)
    assert (run.device, run.gpu_uuids, run.cpu_affinity, run.torch_threads) == ("cuda", ("GPU-1",), 16, 8)
    assert (run.gpu_gap_measured, run.visibility) == (True, "exact")
    assert {**asdict(run.loaders[0])} == {**LOADER, "role": "unknown", "loop_file": None, "loop_line": None}
    assert asdict(run.model) == MODEL
    assert facts.save_places == (("/home/a/train.py", 120),)
    assert (facts.phases, facts.memory_total_bytes) == (("data", "log"), 80)
    assert run.notes == ("environment: CUDA_LAUNCH_BLOCKING=1",)
    assert run.debug_modes == ("anomaly",)


def test_absent_facts_are_unknown_and_not_wrong() -> None:
    facts = read({})
    assert facts.wrong == 0
    assert facts.run == RunFacts(1, "7.8", 7, 8, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", "1"),
        ("rank", True),
        ("rank", -1),
        ("rank", 1.5),
        ("rank", 2**70),
        ("world_size", 0),
        ("device", 3),
        ("gap", 1),
        ("gpu_uuids", "GPU-1"),
        ("gpu_uuids", ["GPU-1", 2]),
        ("gpu_uuids", ["x"] * 5000),
        ("command", {"a": 1}),
        ("loaders", [1, 2]),
        ("loaders", [{"loader": "x"}]),
        ("loaders", [{"loader": 70000}]),
        ("model", []),
        ("model", {"float32_share": 1.5}),
        ("model", {"parameters": -4}),
    ],
)
def test_fact_of_the_wrong_kind_is_unknown_and_counted(key: str, value: object) -> None:
    facts = read({**FACTS, key: value})
    assert facts.wrong == 1
    clean = read({name: fact for name, fact in FACTS.items() if name != key})
    assert facts.run == clean.run


def test_wrong_field_of_a_loader_leaves_its_other_fields() -> None:
    facts = read({"loaders": [{**LOADER, "num_workers": "four"}]})
    assert facts.wrong == 1
    assert (facts.run.loaders[0].num_workers, facts.run.loaders[0].line) == (None, 88)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b"{",
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b"[" * 60_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"a": ' + b"9" * 60_000 + b"}",
    ],
    ids=["empty", "list", "torn", "no utf-8", "nan", "infinity", "deep list", "deep object", "huge number"],
)
def test_json_that_is_no_facts_is_refused(text: bytes) -> None:
    with pytest.raises(BadFactsError):
        parse(text)


def test_texts_keep_nothing_a_terminal_could_obey() -> None:
    assert printable("a\x1b]0;x\x07b\nc") == r"a\x1b]0;x\x07b\nc"
    assert printable("caf\u00e9 \u65e5") == "caf\u00e9 \u65e5"
    assert printable("data\udcff.py") == r"data\xff.py", "a byte that is no UTF-8, as surrogateescape gives it"
    assert printable("\ud800") == r"\ud800"
    printable("\ud800\udcff\x00").encode("utf-8")
    assert len(printable("x" * 10**6)) == 4096


def test_changed_facts_go_over_the_older_ones() -> None:
    newer = {"device": "cpu", "loaders": [{"loader": 4}, {**LOADER, "num_workers": 9}], "model": {"compiled": True}}
    facts = read(merge(FACTS, newer))
    assert [(one.loader, one.num_workers) for one in facts.run.loaders] == [(3, 9), (4, None)]
    assert (facts.run.device, facts.run.rank) == ("cpu", 1)
    assert (facts.run.model.compiled, facts.run.model.optimizer) == (True, "AdamW")


def test_only_loaders_that_were_iterated_are_shown_with_their_role() -> None:
    run = read({"loaders": [{"loader": 1}, {"loader": 2}, {"loader": 3}]}).run
    assert [one.loader for one in with_roles(run, {}, (), 5).loaders] == []
    shown = with_roles(run, {1: "train", 3: "eval"}, ("note",), 5)
    assert [(one.loader, one.role) for one in shown.loaders] == [(1, "train"), (3, "eval")]
    assert (shown.notes, shown.time_ns) == (("note",), 5)


def test_loaders_that_agree_in_everything_are_shown_as_the_newest_of_them() -> None:
    loaders = [{**LOADER, "loader": 1}, {**LOADER, "loader": 2, "line": 90}, {**LOADER, "loader": 3}]
    shown = with_roles(read({"loaders": loaders}).run, {1: "train", 2: "train", 3: "train"}, (), 5)
    assert sorted(one.loader for one in shown.loaders) == [2, 3]
    shown = with_roles(read({"loaders": loaders}).run, {1: "eval", 2: "train", 3: "train"}, (), 5)
    assert len(shown.loaders) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LOADER, *MODEL]), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(list(FACTS)), JSON), st.dictionaries(st.sampled_from(list(FACTS)), JSON))
def test_any_json_gives_facts_that_can_be_shown(first: dict[str, Any], second: dict[str, Any]) -> None:
    content = merge(parse(json.dumps(first).encode()), parse(json.dumps(second).encode()))
    run = read(content).run
    shown = json.dumps(asdict(run), ensure_ascii=False, allow_nan=False).encode("utf-8")
    assert json.loads(shown).keys() == asdict(run).keys()
