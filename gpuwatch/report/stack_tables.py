"""What stacks say of a run as rows of plain words: where the time goes, the lines that cost it, where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuwatch.report.observation import Json
from gpuwatch.report.tables import UNKNOWN, Table, number, run_table, share
from gpuwatch.text.numbers import grouped, rate

_MOST_LINES = 8  # of each kind of thread; the JSON has 20
_CODE_WIDTH = 56

PHASE_WORDS = {
    "wait": "waits for data",
    "start": "starts workers",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "sync": "asks the device (.item() and alike)",
    "copy": "copies to the device",
    "eval": "evaluation",
    "save": "saving",
    "log": "logging",
    "compile": "compiling",
    "other": "other Python",
}
WORKER_PHASE_WORDS = {
    "item": "makes items",
    "collate": "collates",
    "send": "sends",
    "idle": "idle: waits for work",
    "other": "other",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, whom it is about and how that was measured, sentences, and a table below them."""

    title: str
    about: str
    sentences: tuple[str, ...]
    table: Table


def stack_blocks(report: Json) -> list[Block]:
    """Of every run whose stacks were read: its phases, its lines, its workers' lines."""
    return [block for run in report["runs"] if run["stacks"] for block in _of_run(run)]


def runs(report: Json) -> Table:
    """The table of runs; below it the pace with its source, the hot line, where a run stands, how to see more."""
    table = run_table(report)
    said = [f"{run['title']} ({run['pid']}): {line}" for run in report["runs"] for line in _sentences(run)]
    return replace(table, notes=(*said, *table.notes))


def _sentences(run: Json) -> Iterator[str]:
    if run["steps_per_second"] is not None and run["steps_source"] != "hook":
        source = {"loader counter": "the loader's own counter"}.get(run["steps_source"], run["steps_source"])
        yield f"{pace(run)} (from {source}, {_window(run)})"
    hot = run["hot_line"]
    if hot is not None:
        of = "of the workers' busy time" if hot["where"] == "workers" else "of the training thread's time"
        code = f": {_shortened(hot['text'])}" if hot["text"] else ""
        what = f"line of loading: {_place(hot, run)}"
        if hot["callee"] is not None:
            what = f"function of loading: {hot['callee']}(), called in {_place(hot, run)}"
        yield f"slowest {what}, {_with_error(hot)} {of}{code}"
    for stands in (run, *run["ranks"]) if len(run["ranks"]) > 1 else (run,):
        if stands["standing"] is not None:
            yield _standing(stands["standing"], run, stands.get("rank"))
    if run["how_to_climb"]:
        yield run["how_to_climb"]


def pace(run: Json) -> str:
    """Steps per second with their unit: the loader's counter counts batches."""
    value = run["steps_per_second"]
    unit = "steps/s" if run["steps_source"] == "hook" else "batches/s"
    return UNKNOWN if value is None else f"{rate(value)} {unit}"


def _of_run(run: Json) -> Iterator[Block]:
    stacks = run["stacks"]
    name = f"{run['title']} ({run['pid']})"
    looks = f"{name}, sampled, {grouped(stacks['samples'])} samples over {number(stacks['seconds'])} s"
    if stacks["phases"]:
        table = Table(("the training thread", "share of its time", "± points"), _phase_rows(stacks["phases"]))
        yield Block("Where the time goes", looks, (), table)
    heading = ("share", "± points", "in", "line", "code")
    if stacks["lines"]:
        yield Block("Lines of the training thread", looks, (), Table(heading, _line_rows(run, "lines")))
    if stacks["worker_samples"]:
        crew = f"{stacks['workers']} worker{'' if stacks['workers'] == 1 else 's'}"
        if any(loader["role"] == "eval" and loader["num_workers"] for loader in run["loaders"]):
            crew += " (those of evaluation included)"
        busy = f"{name}, {crew}, {grouped(stacks['worker_samples'])} samples, shares of their busy time"
        spent = ", ".join(
            f"{WORKER_PHASE_WORDS.get(phase, phase)} {_with_error(part)}"
            for phase, part in _by_share(stacks["worker_phases"])
        )
        table = Table(heading, _line_rows(run, "worker_lines"))
        yield Block("Lines of the workers", busy, (f"all their time: {spent}",) if spent else (), table)


def _phase_rows(shares: Json) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (PHASE_WORDS.get(phase, phase), share(part["share"]), _error(part)) for phase, part in _by_share(shares)
    )


def _by_share(shares: Json) -> list[tuple[str, Json]]:
    return sorted(
        ((phase, part) for phase, part in shares.items() if part["share"] > 0), key=lambda item: -item[1]["share"]
    )


def _line_rows(run: Json, kind: str) -> tuple[tuple[str, ...], ...]:
    rows = []
    for line in run["stacks"][kind][:_MOST_LINES]:
        code = _shortened(line["text"]) if line["text"] else f"in {line['function']}()"
        rows.append((share(line["share"]), _error(line), line["phase"], _place(line, run), code))
    return tuple(rows)


def _standing(standing: Json, run: Json, rank: int | None) -> str:
    who = "" if rank is None else f"rank {rank} "
    code = f": {_shortened(standing['text'])}" if standing["text"] else ""
    below = f", in {standing['leaf']}" if standing["leaf"] else ""
    return f"{who}has stood at {_place(standing, run)} for {number(standing['seconds'])} s{below}{code}"


def _place(line: Json, run: Json) -> str:
    """file:line, from the training's folder where the file lies below it."""
    folder = f"{run['cwd'].rstrip('/')}/" if run["cwd"] else None
    file = line["file"]
    return f"{file.removeprefix(folder) if folder else file}:{line['line']}"


def _window(run: Json) -> str:
    return f"{number(run['stacks']['seconds'])} s" if run["stacks"] else "all of the watch"


def _with_error(part: Json) -> str:
    return f"{share(part['share'])} ±{_error(part)}"


def _error(part: Json) -> str:
    """Half the width of the 95 % interval, in points."""
    return f"{(part['high'] - part['low']) * 50:.1f}"


def _shortened(code: str) -> str:
    return code if len(code) <= _CODE_WIDTH else f"{code[: _CODE_WIDTH - 1]}…"
