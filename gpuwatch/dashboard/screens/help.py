"""The help: the keys, and how to read what is on the screen; and the page of a rule."""

from __future__ import annotations

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import help_rows
from gpuwatch.dashboard.lines import Line, Page
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.words import LEVELS, VISIBILITIES, VISIBILITY_MEANINGS
from gpuwatch.diagnosis.finding import Severity

WORDS = (
    ("util 60 s", "mean and standard deviation of the driver's utilization samples of the last 60 s"),
    ("power 60 s", "the mean of the same time, with the limit in force; the GPU's page has the latest reading"),
    ("idle 41m, idle 41m+", "how long it has done nothing; with +, since before gpuwatch first saw it"),
    ("throttle", "what lowers the clocks, from the driver's counters, which do not miss short episodes"),
    ("-", "not known; the GPU's page (tab, enter) says why. Zero is shown only where zero was measured"),
    ("STALE, LOST", "no new reading since the time shown; old numbers are left out, not repeated"),
    (
        "DataLoader wait",
        "share of the training time that the loop spends in the data loader's next()",
    ),
    ("GPU idle (data wait)", "the part of those waits in which the GPU had nothing to do: only this costs speed"),
    ("pauses", "share of all time spent in evaluation, saving and the like; the rest is training time"),
    ("dots above a chart", "the largest reading in that interval"),
)


def help_page(view: View, width: int, look: Look) -> list[Line]:
    """The whole page."""
    page = Page(width, look)
    replays = view.snapshot is not None and view.snapshot.replay is not None
    if replays:
        page.heading("Keys of the replay")
        _keys(page, help_rows("replay"))
    page.heading("Keys")
    _keys(page, help_rows(None) if replays else help_rows(None, "live"))
    page.heading("What the words mean")
    for word, meaning in WORDS:
        page.pair(word, meaning, name_width=22)
    page.heading("Severity and evidence")
    page.prose(
        "CRITICAL: broken, or at least 20% of the time lost. WARNING: at least 10%, measured. INFO: worth knowing. "
        "HINT: often helps, but was not measured here."
    )
    signs = "  ".join(f"{look.glyphs.severity(severity)} {severity.value.upper()}" for severity in Severity)
    page.prose(signs, look.dim)
    for level, meaning in LEVELS.items():
        page.pair(level.name, meaning, name_width=22)
    page.heading("How well a run is seen")
    for visibility, words in VISIBILITIES.items():
        page.pair(words, VISIBILITY_MEANINGS[visibility], name_width=22)
    _own_cost(page, view)
    return page.lines


def _keys(page: Page, rows: list[tuple[str, str]]) -> None:
    for keys, meaning in rows:
        page.pair(keys, meaning, name_width=18)


def _own_cost(page: Page, view: View) -> None:
    snapshot = view.snapshot
    if snapshot is None or snapshot.scene is None:
        return
    quality = snapshot.scene.quality
    page.heading("What gpuwatch itself costs, and what it missed")
    page.pair("CPU", f"{say.share(quality.own_cpu_share)} of one core", name_width=22)
    calls = quality.nvml_calls_per_gpu_second
    page.pair("NVML calls", say.UNKNOWN if calls is None else f"{calls:.1f} per GPU and second", name_width=22)
    page.pair("poll interval", say.seconds(quality.poll_interval_seconds), name_width=22)
    page.pair("longest gap", say.seconds(quality.longest_gap_seconds), name_width=22)
    page.pair(
        "hook records",
        f"{say.count(quality.received_records)} received, "
        f"{say.count(quality.dropped_records)} dropped, {quality.malformed_packets} malformed packets",
        name_width=22,
    )


def rule_page(rule_id: str, text: str | None, width: int, look: Look) -> list[Line]:
    """The page: the sentence, then the sections that the docstring indents under their names."""
    page = Page(width, look)
    page.heading(rule_id)
    if text is None:
        page.prose("There is no page for this rule.", look.dim)
        return page.lines
    paragraph: list[str] = []
    indent = 0

    def flush() -> None:
        if paragraph:
            page.prose(" ".join(paragraph), indent=2 if indent == 0 else 4)
            paragraph.clear()

    for line in text.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if stripped and depth == 0 and stripped.endswith(":") and len(stripped) < 30:
            flush()
            page.gap()
            page.prose(stripped.rstrip(":"), look.title)
            indent = 4
            continue
        if not stripped or depth != indent:
            flush()
            indent = depth if stripped else indent
        if stripped:
            paragraph.append(stripped)
    flush()
    return page.lines


class HelpScreen(PageScreen):
    """Keys and words."""

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        return help_page(view, width, look)


class RuleScreen(PageScreen):
    """A rule's page."""

    def __init__(self, rule_id: str, text: str | None) -> None:
        super().__init__()
        self._rule_id = rule_id
        self._text = text

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        return rule_page(self._rule_id, self._text, width, look)
