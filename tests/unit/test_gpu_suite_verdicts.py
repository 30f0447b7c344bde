"""The GPU suite's judgement, its table, and its questions to CUDA, on a GPU that is only pretended."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.cases import HERE, Case, Question, Variant
from benchmarks.gpu.catalogue import CATALOGUE, chosen
from benchmarks.gpu.facts.event_pairs import cost, cycles_per_millisecond, gap
from benchmarks.gpu.facts.sensor import shortest_change
from benchmarks.gpu.table import Table
from benchmarks.gpu.verdict import Row, change, doubts, judge, truth_errors

KNOWN = {"workers-zero", "data-starvation", "tf32-off", "low-util"}


def case(**fields: Any) -> Case:
    return Case("X01", "a case", "image_folder.py", **fields)


def found(severity: str = "warning", **fields: Any) -> dict[str, Any]:
    usual = {"severity": severity, "seconds": 9.0, "file": None, "line": None, "summary": "", "evidence": ()}
    return {**usual, "gain_low": None, "gain_high": None, **fields}


def test_a_rule_that_must_fire_and_does_not_is_missed() -> None:
    assert judge(case(must=frozenset({"workers-zero"})), {}, KNOWN) == ("WRONG", ["MISSED workers-zero"])


def test_a_rule_that_nobody_has_written_cannot_be_missed() -> None:
    told = judge(case(must=frozenset({"shm-full"})), {}, KNOWN)
    assert told == ("ok", ["no such rule yet: shm-full"])


def test_a_warning_without_cause_is_false_and_a_hint_is_not() -> None:
    fired = {"low-util": found("info"), "data-starvation": found("critical")}
    assert judge(case(), fired, KNOWN) == ("WRONG", ["FALSE data-starvation"])
    assert judge(case(may=frozenset({"data-starvation"})), fired, KNOWN) == ("ok", [])


def test_what_must_never_be_said_may_not_even_be_hinted() -> None:
    fired = {"tf32-off": found("hint")}
    assert judge(case(never=frozenset({"tf32-off"})), fired, KNOWN) == ("WRONG", ["FALSE tf32-off"])


def test_the_line_has_to_be_named_by_a_rule_that_must_fire() -> None:
    asked = case(must=frozenset({"workers-zero"}), names_line="loader = DataLoader(")
    lines = asked.path.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "loader = DataLoader(" in line)
    right = {"workers-zero": found(file=str(asked.path), line=number)}
    in_words = {"workers-zero": found(summary=f"84% of it is image_folder.py:{number}")}
    wrong = {"workers-zero": found(file=str(asked.path), line=number + 1)}
    assert judge(asked, right, KNOWN)[0] == "ok"
    assert judge(asked, in_words, KNOWN)[0] == "ok"
    assert judge(asked, wrong, KNOWN) == ("WRONG", [f"LINE image_folder.py:{number} not named"])


def test_silence_proves_nothing_before_the_rules_were_asked() -> None:
    seen = {"steps": 200, "nvml": "ok"}
    assert doubts(case(), seen, 20.0) == []
    assert doubts(case(), seen, 2.0) == ["silence of only 2 s"]
    assert doubts(case(), {**seen, "steps": None}, 20.0) == ["silence over only 0 steps"]
    assert doubts(case(must=frozenset({"low-util"})), {"steps": 3, "nvml": "absent"}, 2.0) == ["NVML absent"]


def test_a_change_is_compared_with_the_middle_of_its_promise() -> None:
    variant = Variant("more workers", promised_by="workers-zero")
    told = change(variant, 100.0, 160.0, {"workers-zero": found(gain_low=1.4, gain_high=1.6)})
    assert told["measured"] == pytest.approx(1.6)
    assert told["error"] == pytest.approx(1.5 / 1.6 - 1)
    assert change(variant, None, 160.0, {})["measured"] is None


def test_shares_are_compared_over_the_stretch_that_was_watched() -> None:
    marks = [{"at": float(t), "gpu_idle": 0.1 * t, "wait": 0.25 * t, "forward": 0.75 * t} for t in range(20)]
    shares, idle = truth_errors(marks, 5.0, 15.0, {"wait": 0.3, "forward": 0.7})
    assert "wait 25.0>30.0" in shares
    assert "forward 75.0>70.0" in shares
    assert "10.0%" in idle
    assert truth_errors(marks[:1], 0.0, 15.0, {}) == ["its own clocks wrote too little"]


def test_every_case_can_be_asked_for_and_names_only_what_exists() -> None:
    ids = [item.id for item in CATALOGUE]
    assert len(ids) == len(set(ids))
    for item in CATALOGUE:
        assert chosen(item.id) == [item]
        if isinstance(item, Question):
            assert (HERE / "facts" / f"{item.module}.py").exists()
            continue
        text = item.path.read_text()
        assert item.names_line is None or item.names_line in text
        assert all((item.path.parent / script).exists() for script, *_ in item.beside)
        options = [item.arguments, *((*each.arguments, each.value_option or "") for each in item.variants)]
        for option in re.findall(r"--[a-z0-9-]+", " ".join(word for words in options for word in words)):
            assert f'"{option.replace("--no-", "--")}"' in text, option
    numbers = {id[:3] for id in ids if id.startswith("G")}
    assert numbers == {f"G{number:02d}" for number in range(1, 24)}


def test_a_number_stands_for_all_its_parts() -> None:
    assert {item.id for item in chosen("g05,F01")} == {"F01", "G05-1", "G05-4", "G05-12", "G05-32"}
    assert [item.id for item in chosen("G02")] == ["G02"]
    with pytest.raises(ValueError, match="no scenario 'g99'"):
        chosen("G99")


def test_a_table_keeps_the_rows_of_earlier_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Table(tmp_path, {}, order=["A", "B", "C"])
    first.add(Row("C", "third", verdict="ok"))
    first.add(Row("A", "first", verdict="failed", trace="Traceback\nValueError: no"))
    second = Table(tmp_path, {"gpu": "H|200"}, order=["A", "B", "C"])
    second.add(Row("A", "first", verdict="ok", found={"low-util": found("info")}))
    second.add(Row("B", "second", verdict="told", figures={"ring": {"entries": 72}}))
    second.add(Row("C", "third", verdict="not run"))
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [(row["id"], row["verdict"]) for row in rows] == [("A", "ok"), ("B", "told"), ("C", "ok")]
    text = (tmp_path / "table.md").read_text()
    assert "low-util (info, 9 s)" in text
    assert "ring: entries 72" in text
    assert "ValueError: no" in capsys.readouterr().out


def test_the_window_of_a_sensor_is_its_shortest_time_between_changes() -> None:
    polls = [(at / 50, float(at // 8)) for at in range(400)]
    assert shortest_change(polls) == pytest.approx(0.16)
    assert shortest_change(polls[:20]) is None


class PretendedTorch:
    """A `torch` whose GPU works off what is queued in the time of the host."""

    CYCLES_PER_MS = 2_000_000

    def __init__(self) -> None:
        self.cuda = self
        self._free_at = 0.0

    def _sleep(self, cycles: int) -> None:
        self._free_at = self.now() + cycles / self.CYCLES_PER_MS / 1e3

    def now(self) -> float:
        """When the GPU has done all that is queued."""
        return max(self._free_at, time.monotonic())

    def synchronize(self) -> None:
        time.sleep(max(0.0, self._free_at - time.monotonic()))

    def is_current_stream_capturing(self) -> bool:
        return False

    def Event(self, enable_timing: bool) -> PretendedEvent:
        return PretendedEvent(self)


class PretendedEvent:
    def __init__(self, gpu: PretendedTorch) -> None:
        self._gpu = gpu
        self.at = 0.0

    def record(self) -> None:
        self.at = self._gpu.now()

    def query(self) -> bool:
        return time.monotonic() >= self.at

    def elapsed_time(self, other: PretendedEvent) -> float:
        return (other.at - self.at) * 1e3


def test_event_pairs_tell_what_was_not_hidden() -> None:
    torch = PretendedTorch()
    assert cycles_per_millisecond(torch) == pytest.approx(torch.CYCLES_PER_MS, rel=0.2)
    # A host that is busy sleeps longer than it is told to, never shorter.
    assert gap(torch, 0, 5, times=2)["least"] >= 5
    assert gap(torch, 200 * torch.CYCLES_PER_MS, 5, times=2)["told"] == pytest.approx(0, abs=0.1)
    assert gap(torch, 20 * torch.CYCLES_PER_MS, 40, times=2)["least"] >= 19
    assert cost(torch, lambda: None)["both"] > 0
