"""The command palette: only our own commands, in the words of the help."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp

COMMANDS = (
    ("Timeline", "GPUs, steps, waits and phases on one axis (t)", "timeline"),
    ("Processes", "Who uses the GPUs (p)", "processes"),
    ("Attach", "Watch a training that already runs, or everything again (a)", "attach"),
    ("Record", "Begin or end a recording in the current folder (r)", "record"),
    ("Hold or resume the picture", "Collection goes on (space)", "pause"),
    ("Filter", "Findings, runs and processes (/)", "filter"),
    ("Theme", "Change the colours; one theme is colour-blind safe", "change_theme"),
    ("Help", "Keys and words (?)", "help"),
    ("Quit", "Leave gpuwatch (q)", "quit"),
)
"""Title, words, action."""

LIVE_ONLY = frozenset({"Attach", "Record"})
"""What a recording has no use for."""


def commands(app: DashboardApp) -> Iterator[SystemCommand]:
    """The commands of this app."""
    for title, words, action in COMMANDS:
        yield SystemCommand(title, words, partial(app.run_action, action))
