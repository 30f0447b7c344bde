"""Runs the items one by one within the time that there is; whatever one of them does, the next one follows."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import LEAST_WATCH_SECONDS, START_SECONDS, Case, Item, Question, Variant
from benchmarks.gpu.catalogue import CATALOGUE
from benchmarks.gpu.processes import Program, environment, running, samples_per_second
from benchmarks.gpu.stream import SUFFIX
from benchmarks.gpu.table import Table
from benchmarks.gpu.verdict import Found, Row, change, doubts, judge, truth_errors
from gpuwatch.diagnosis.rules import all_rules

_PATIENCE = {"cuda": 3.0, "cpu": 10.0}
"""So many times the expected time is a start given, on a machine that is slower than thought, as one for tests is."""


class Suite:
    """One run.

    Args:
        folder: for the tables and streams.
        budget_seconds: for all of it.
        device: "cuda", or "cpu" to try the plumbing: then the scripts train toys and the verdicts mean nothing.
        watch_seconds: in place of each case's own.
    """

    def __init__(
        self, folder: Path, budget_seconds: float, *, device: str = "cuda", watch_seconds: float | None = None
    ) -> None:
        self._folder = folder.resolve()
        self._until = time.monotonic() + budget_seconds
        self._device = device
        self._patience = _PATIENCE[device]
        self._watch_seconds = watch_seconds
        self._known = frozenset(rule.id for rule in all_rules())
        about = {"device": device, "python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0))}
        self.table = Table(self._folder, about, [item.id for item in CATALOGUE])

    def run(self, items: Iterable[Item]) -> int:
        """Runs what fits; returns how many verdicts are wrong or failed."""
        with tempfile.TemporaryDirectory(prefix="gpuwatch-suite-") as scratch:
            for number, item in enumerate(items):
                place = Path(scratch) / str(number)
                place.mkdir()
                self.table.add(self._row(item, place))
        return sum(row.verdict in ("WRONG", "failed") for row in self.table.rows)

    def _row(self, item: Item, place: Path) -> Row:
        row = Row(item.id, item.title, must=sorted(item.must) if isinstance(item, Case) else [])
        missing = [name for name in item.needs if importlib.util.find_spec(name) is None]
        if missing:
            row.verdict, row.remarks = "skipped", [f"{', '.join(missing)} not installed"]
            return row
        if self._expected(item) > self._left():
            row.verdict = "not run"
            row.remarks = [f"{self._left():.0f} s left of the budget, needs {self._expected(item):.0f}"]
            return row
        began = time.monotonic()
        try:
            if isinstance(item, Case):
                self._case(item, place, row)
            else:
                self._question(item, place, row)
        except Exception:  # noqa: BLE001 - one item must not cost the others; its traceback is in the table
            if self._left() > 1:
                row.verdict, row.trace = "failed", traceback.format_exc()
            else:
                row.verdict = row.verdict or "not run"
                row.remarks.append("the budget ended in the middle of it")
        row.seconds = time.monotonic() - began
        return row

    def _question(self, question: Question, place: Path, row: Row) -> None:
        answer = place / "answer.json"
        command = [sys.executable, "-m", f"benchmarks.gpu.facts.{question.module}", "--out", str(answer)]
        command += ["--device", self._device, *question.arguments]
        command += [] if self._watch_seconds is None else ["--seconds", f"{self._watch_seconds / 10:g}"]
        with running(command, place, environment(place)) as program:
            code = program.wait(min(self._patience * question.seconds + 20.0, self._left()))
            if code or not answer.exists():
                raise RuntimeError(f"it ended with {code}: {program.tail()}")
        row.figures = json.loads(answer.read_text())
        row.verdict = "told"
        if question.id == "F01":
            self.table.about.update({name: row.figures[name] for name in ("torch", "gpu") if row.figures.get(name)})

    def _case(self, case: Case, place: Path, row: Row) -> None:
        log, result = place / "steps.log", self._watched(case, place)
        row.found, row.figures = result["found"], result["figures"]
        row.stream = f"{case.id}{SUFFIX}"
        row.figures |= {name: result[name] for name in ("stream_seconds", "stream_bytes")}
        row.samples_per_second = samples_per_second(log, result["began"], result["ended"])
        row.verdict, row.remarks = judge(case, row.found, self._known)
        doubtful = doubts(case, row.figures, result["ended"] - result["began"])
        if doubtful and row.verdict == "ok":
            row.verdict = "unsure"
        row.remarks += [*doubtful, *result["notices"]]
        if case.has_truth:
            marks = [json.loads(line) for line in (place / "truth").read_text().splitlines() if line.endswith("}")]
            row.remarks += truth_errors(marks, result["began"], result["ended"], row.figures.get("phases", {}))
        self.table.write()
        for variant in case.variants:
            if self._watch_seconds is None and START_SECONDS + variant.seconds > self._left():
                row.remarks.append(f"no time left for: {variant.label}")
                continue
            after = self._changed(case, variant, place, row.found)
            row.changes.append(change(variant, row.samples_per_second, after, row.found))

    def _watched(self, case: Case, place: Path) -> dict[str, Any]:
        """Starts the training and what runs beside it, and has it watched."""
        script = self._script(case, place, place / "steps.log")
        if case.has_truth:
            script += ["--truth", str(place / "truth")]
        command = [sys.executable, "-m", "gpuwatch", "run", "--", *script] if case.how == "hook" else script
        with contextlib.ExitStack() as ends:
            ends.enter_context(self._beside(case, place))
            training = ends.enter_context(running(command, place, environment(place)))
            self._wait_for_steps(training, place / "steps.log", case)
            return self._watch(case, training.process.pid, place)

    def _watch(self, case: Case, pid: int, place: Path) -> dict[str, Any]:
        """gpuwatch in a process of its own: whatever befalls it, the suite goes on."""
        seconds = self._watch_seconds or case.watch_seconds
        result = place / "result.json"
        about: dict[str, Any] = {
            "case": case.id,
            "must": sorted(case.must),
            "may": sorted(case.may),
            "never": sorted(case.never),
        }
        about |= {"how": case.how, "device": self._device, "machine": dict(self.table.about)}
        stream = self._folder / "streams" / f"{case.id}{SUFFIX}"
        command = [sys.executable, "-m", "benchmarks.gpu.watching", "--pid", str(pid), "--seconds", f"{seconds:g}"]
        command += ["--result", str(result), "--stream", str(stream), "--about", json.dumps(about)]
        command += ["--until", ",".join(sorted(case.must & self._known)), "--at-least", f"{LEAST_WATCH_SECONDS:g}"]
        with running(command, place, environment(place)) as watcher:
            code = watcher.wait(min(seconds + 10.0 * self._patience, self._left()))
            if code or not result.exists():
                raise RuntimeError(f"the watch ended with {code}: {watcher.tail()}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def _changed(self, case: Case, variant: Variant, place: Path, found: Found) -> float | None:
        """Samples per second of the changed training, without gpuwatch."""
        arguments = list(variant.arguments)
        if variant.value_option is not None:
            value = found.get(variant.promised_by or "", {}).get("value")
            if value is None:
                return None
            arguments += [variant.value_option, str(value)]
        log = place / f"{variant.label.replace(' ', '-').replace('/', '-')}.log"
        seconds = min(variant.seconds, self._watch_seconds or variant.seconds)
        with running([*self._script(case, place, log), *arguments], place, environment(place)) as training:
            self._wait_for_steps(training, log, case)
            began = time.monotonic()
            time.sleep(seconds)
            return samples_per_second(log, began, time.monotonic())

    @contextlib.contextmanager
    def _beside(self, case: Case, place: Path) -> Iterator[None]:
        with contextlib.ExitStack() as ends:
            for name, *arguments in case.beside:
                command = [sys.executable, str(case.path.with_name(name)), "--device", self._device, *arguments]
                ends.enter_context(running(command, place, environment(place)))
            yield

    def _script(self, case: Case, place: Path, log: Path) -> list[str]:
        return [sys.executable, str(case.path), "--device", self._device, "--log", str(log), *case.arguments]

    def _wait_for_steps(self, training: Program, log: Path, case: Case) -> None:
        training.wait_for_lines(log, case.warm_steps, min(self._patience * case.start_seconds + 10.0, self._left()))

    def _expected(self, item: Item) -> float:
        """Only the necessary: changes are left out one by one where time runs short."""
        if self._watch_seconds is not None:
            return self._watch_seconds
        return item.seconds if isinstance(item, Question) else item.start_seconds + item.watch_seconds

    def _left(self) -> float:
        return self._until - time.monotonic()
