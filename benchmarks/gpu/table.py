"""The table of a run: on the terminal as it goes, and whole in two files after each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.verdict import Row

_SHOWN = ("gap_share", "wait_share", "step_ms", "utilization_percent", "power_watts", "own_cpu_share")


class Table:
    """The rows of this run, and in the files those of earlier ones too: all items need more than one call.

    Args:
        folder: where table.md and table.json are.
        about: of the machine and the run.
        order: the ids as the files list them.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], order: Sequence[str] = ()) -> None:
        self.folder = folder
        self.about = dict(about)
        self.rows: list[Row] = []
        self._order = {id: place for place, id in enumerate(order)}
        folder.mkdir(parents=True, exist_ok=True)
        self._known = {row.id: row for row in _read(folder / "table.json")}

    def add(self, row: Row) -> None:
        """Prints the row and writes the files again: a run that is killed loses none."""
        self.rows.append(row)
        if row.verdict != "not run" or row.id not in self._known:
            self._known[row.id] = row
        print(_line(row), flush=True)
        self.write()

    def write(self) -> None:
        """Both files, each whole or not at all."""
        content = {"about": self.about, "rows": [asdict(row) for row in self._all()]}
        _replace(self.folder / "table.json", json.dumps(content, indent=1, default=str) + "\n")
        _replace(self.folder / "table.md", self.markdown())

    def markdown(self) -> str:
        """For the docs."""
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        head = ["| id | what | expected | found (first after) | figures | change: measured, promised | verdict |"]
        shown = self._all()
        rows = [_cells(row) for row in shown]
        parts = [f"{about}\n", "\n".join([*head, "|" + "---|" * 7, *rows]), ""]
        parts += [f"## {row.id}: {row.title}\n\n{_facts(row.figures)}\n" for row in shown if row.verdict == "told"]
        parts += [f"## {row.id} failed\n\n```\n{row.trace}\n```\n" for row in shown if row.trace]
        return "\n".join(parts)

    def _all(self) -> list[Row]:
        return sorted(self._known.values(), key=lambda row: self._order.get(row.id, len(self._order)))


def _read(path: Path) -> list[Row]:
    """The rows of an earlier run; none where there was none, or where its file is broken."""
    try:
        return [Row(**row) for row in json.loads(path.read_text())["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _line(row: Row) -> str:
    found = _found(row) or "-"
    changes = "; ".join(_change(each) for each in row.changes)
    remarks = "; ".join(row.remarks)
    parts = [f"{row.id:15} {row.verdict:8} {row.seconds:5.0f} s  {row.title}"]
    if row.verdict in ("ok", "WRONG", "unsure"):
        parts += [f"    expected {', '.join(row.must) or 'silence'}; found {found}", f"    {_figures(row)}"]
    if row.verdict == "told":
        parts.append(_facts(row.figures))
    parts += [f"    {text}" for text in (changes, remarks) if text]
    if row.trace:
        parts.append(f"    {row.trace.splitlines()[-1]}")
    return "\n".join(parts)


def _cells(row: Row) -> str:
    changes = "; ".join(_change(each) for each in row.changes)
    verdict = "; ".join([row.verdict, *row.remarks])
    cells = (row.id, row.title, ", ".join(row.must) or "silence", _found(row) or "-", _figures(row), changes, verdict)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _found(row: Row) -> str:
    return ", ".join(f"{rule} ({seen['severity']}, {seen['seconds']:.0f} s)" for rule, seen in row.found.items())


def _figures(row: Row) -> str:
    shown = [f"{name} {_number(row.figures[name])}" for name in _SHOWN if row.figures.get(name) is not None]
    if row.samples_per_second is not None:
        shown.append(f"samples/s {_number(row.samples_per_second)}")
    return ", ".join(shown)


def _change(change: Mapping[str, Any]) -> str:
    measured = f"{change['measured']:.3f}x" if change["measured"] is not None else "not measured"
    low, high = change["low"], change["high"]
    promised = f", promised {low:.2f}-{high:.2f}x ({change['error'] or 0:+.0%})" if low is not None else ""
    return f"{change['label']}: {measured}{promised}"


def _facts(figures: Mapping[str, Any]) -> str:
    return "\n".join(f"    {name}: {_plain(value)}" for name, value in figures.items())


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_plain(one) for one in value)
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
