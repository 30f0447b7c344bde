"""Colours by meaning, four themes of them, and the signs of the screen with their ASCII stand-ins.

Colour only ever supports a word that is there too; with NO_COLOR or a sixteen-colour terminal nothing is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich.style import Style

from gpuwatch.diagnosis.finding import Severity

if TYPE_CHECKING:
    from textual.theme import Theme


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs. `unicode` also chooses between braille and ASCII charts."""

    unicode: bool
    critical: str
    warning: str
    info: str
    hint: str
    fine: str
    arrow: str
    cursor: str
    dot: str
    ellipsis: str
    rule: str
    span: str
    bar: str
    bar_parts: str  # eighths of a cell, from the thinnest
    bar_rest: str
    edge: str
    training: str
    evaluating: str
    saving: str
    other_phase: str
    corners: str  # top left, top right, bottom left, bottom right
    side: str

    def severity(self, severity: Severity) -> str:
        """The sign that stands before a severity's word."""
        return {
            Severity.CRITICAL: self.critical,
            Severity.WARNING: self.warning,
            Severity.INFO: self.info,
            Severity.HINT: self.hint,
        }[severity]

    def say(self, text: str) -> str:
        """The text in characters that this set may use."""
        if self.unicode or text.isascii():
            return text
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


_PLAIN = str.maketrans(
    {
        "±": "+-",
        "°": "",
        "µ": "u",
        "×": "x",
        "→": "->",
        "·": "|",
        "…": "...",
        "–": "-",
        "—": "-",
        "‘": "'",
        "’": "'",
        "“": '"',
        "”": '"',
        "≥": ">=",
        "≤": "<=",
        "σ": "sigma",
    }
)

UNICODE = Glyphs(
    unicode=True,
    critical="◆",
    warning="▲",
    info="●",
    hint="○",
    fine="✓",
    arrow="→",
    cursor="▌",
    dot="·",
    ellipsis="…",
    rule="─",
    span="━",
    bar="█",
    bar_parts="▏▎▍▌▋▊▉",
    bar_rest="─",
    edge="│",
    training="─",
    evaluating="▓",
    saving="░",
    other_phase="▒",
    corners="╭╮╰╯",
    side="│",
)

ASCII = Glyphs(
    unicode=False,
    critical="X",
    warning="!",
    info="i",
    hint="?",
    fine="+",
    arrow="->",
    cursor=">",
    dot="|",
    ellipsis="...",
    rule="-",
    span="=",
    bar="#",
    bar_parts="",
    bar_rest=".",
    edge="|",
    training="-",
    evaluating="E",
    saving="S",
    other_phase="o",
    corners="++++",
    side="|",
)


def glyphs_for_terminal(environ: Mapping[str, str], encoding: str | None = None) -> Glyphs:
    """The set that this terminal can show.

    Args:
        environ: Asked for TERM (the Linux console has no braille) and GPUWATCH_ASCII.
        encoding: What Textual writes with; that of stderr, where it paints, unless given.
    """
    encoding = encoding or getattr(sys.__stderr__, "encoding", None) or "ascii"
    plain = environ.get("GPUWATCH_ASCII", "") not in ("", "0") or environ.get("TERM") == "linux"
    return UNICODE if not plain and encoding.lower().replace("-", "") == "utf8" else ASCII


DEFAULT_THEME = "gpuwatch-night"


@dataclass(frozen=True, slots=True)
class Palette:
    """One colour per meaning; "default" is the terminal's own."""

    name: str
    dark: bool
    background: str
    selection: str
    bar_background: str
    text: str
    dim: str
    faint: str
    accent: str
    good: str
    warning: str
    critical: str
    info: str
    utilization: str
    power: str
    step: str
    wait: str
    copy: str
    compute: str
    optimizer: str
    sync: str
    phase: str
    other: str
    on_fill: str  # text on a filled part of the step's bar


PALETTES = (
    Palette(
        name=DEFAULT_THEME,
        dark=True,
        background="#0e1218",
        selection="#1d2836",
        bar_background="#1a212b",
        text="#d7dee8",
        dim="#8793a3",
        faint="#3a4656",
        accent="#6cb6ff",
        good="#57c98a",
        warning="#e8b04b",
        critical="#ff7b72",
        info="#6cb6ff",
        utilization="#4fd1b5",
        power="#f0a35e",
        step="#9db7ff",
        wait="#ff8278",
        copy="#d9a4f0",
        compute="#4fbf86",
        optimizer="#6cb6ff",
        sync="#f0a35e",
        phase="#b392f0",
        other="#65717f",
        on_fill="#0e1218",
    ),
    Palette(
        name="gpuwatch-day",
        dark=False,
        background="#fbfbf8",
        selection="#e3ebf5",
        bar_background="#eceef0",
        text="#1f2630",
        dim="#5c6673",
        faint="#c2c9d1",
        accent="#0757b8",
        good="#17713f",
        warning="#8f5600",
        critical="#bf1e2e",
        info="#0757b8",
        utilization="#0b7a6c",
        power="#a84f00",
        step="#3c4fc0",
        wait="#c8323a",
        copy="#8a3fb0",
        compute="#1f8a52",
        optimizer="#1f6fd0",
        sync="#a84f00",
        phase="#7448c8",
        other="#8a939e",
        on_fill="#ffffff",
    ),
    # Okabe and Ito's set (jfly.uni-koeln.de/color): distinguishable with every common colour vision deficiency.
    Palette(
        name="gpuwatch-colour-blind",
        dark=True,
        background="#0c0f13",
        selection="#22303f",
        bar_background="#1b2129",
        text="#e6e6e6",
        dim="#98a2ae",
        faint="#46515e",
        accent="#56b4e9",
        good="#56b4e9",
        warning="#f0e442",
        critical="#e57a35",
        info="#cfd8e3",
        utilization="#56b4e9",
        power="#e69f00",
        step="#cc79a7",
        wait="#e57a35",
        copy="#cc79a7",
        compute="#22b58a",
        optimizer="#56b4e9",
        sync="#e69f00",
        phase="#f0e442",
        other="#7d8894",
        on_fill="#0c0f13",
    ),
    Palette(
        name="gpuwatch-terminal",
        dark=True,
        background="default",
        selection="bright_black",
        bar_background="default",
        text="default",
        dim="white",
        faint="bright_black",
        accent="bright_cyan",
        good="green",
        warning="yellow",
        critical="bright_red",
        info="bright_blue",
        utilization="cyan",
        power="yellow",
        step="bright_blue",
        wait="red",
        copy="magenta",
        compute="green",
        optimizer="blue",
        sync="yellow",
        phase="bright_magenta",
        other="white",
        on_fill="black",
    ),
)


@dataclass(frozen=True, slots=True)
class Look:
    """How everything is written: rich styles by meaning, and the signs. Built once per theme."""

    glyphs: Glyphs
    text: Style
    strong: Style
    dim: Style
    faint: Style
    accent: Style
    title: Style
    good: Style
    warning: Style
    critical: Style
    info: Style
    utilization: Style
    power: Style
    step: Style
    wait: Style
    copy: Style
    compute: Style
    optimizer: Style
    sync: Style
    phase: Style
    other: Style
    heading: Style  # column heads
    bar: Style  # top and bottom line
    bar_strong: Style
    bar_dim: Style
    bar_accent: Style
    simulated: Style
    live: Style
    recording: Style
    added: Style
    removed: Style
    selection: Style  # laid over the styles of the selected line
    fills: dict[str, Style]  # parts of the step's bar: its text on the part's colour

    def severity(self, severity: Severity) -> Style:
        """The style of a severity's sign and word."""
        return {
            Severity.CRITICAL: self.critical,
            Severity.WARNING: self.warning,
            Severity.INFO: self.info,
            Severity.HINT: self.dim,
        }[severity]


STEP_PARTS = ("wait", "copy", "compute", "optimizer", "sync", "other")


@cache
def look(theme: str = DEFAULT_THEME, glyphs: Glyphs = UNICODE) -> Look:
    """The styles of a theme; those of the default one for a theme that is not ours."""
    palette = next((candidate for candidate in PALETTES if candidate.name == theme), PALETTES[0])

    def ink(color: str, *, bold: bool = False, italic: bool = False, on: str | None = None) -> Style:
        return Style(color=color, bgcolor=on or palette.background, bold=bold or None, italic=italic or None)

    bar = palette.bar_background
    return Look(
        glyphs=glyphs,
        text=ink(palette.text),
        strong=ink(palette.text, bold=True),
        dim=ink(palette.dim),
        faint=ink(palette.faint),
        accent=ink(palette.accent),
        title=ink(palette.accent, bold=True),
        good=ink(palette.good, bold=True),
        warning=ink(palette.warning, bold=True),
        critical=ink(palette.critical, bold=True),
        info=ink(palette.info),
        utilization=ink(palette.utilization),
        power=ink(palette.power),
        step=ink(palette.step),
        wait=ink(palette.wait),
        copy=ink(palette.copy),
        compute=ink(palette.compute),
        optimizer=ink(palette.optimizer),
        sync=ink(palette.sync),
        phase=ink(palette.phase),
        other=ink(palette.other),
        heading=ink(palette.dim, on=bar),
        bar=ink(palette.text, on=bar),
        bar_strong=ink(palette.text, bold=True, on=bar),
        bar_dim=ink(palette.dim, on=bar),
        bar_accent=ink(palette.accent, bold=True, on=bar),
        simulated=ink(palette.on_fill, bold=True, on=palette.warning),
        live=ink(palette.on_fill, bold=True, on=palette.good),
        recording=ink(palette.on_fill, bold=True, on=palette.critical),
        added=ink(palette.good),
        removed=ink(palette.critical),
        selection=Style(bgcolor=palette.selection),
        fills={
            part: Style(color=palette.on_fill, bgcolor=getattr(palette, part), bold=part == "wait" or None)
            for part in STEP_PARTS
        },
    )


def textual_themes() -> list[Theme]:
    """The themes for Textual's own parts: scroll bars, the command palette, the filter's input."""
    from textual.theme import Theme

    return [
        Theme(
            name=palette.name,
            primary=_hex(palette.accent),
            secondary=_hex(palette.step),
            warning=_hex(palette.warning),
            error=_hex(palette.critical),
            success=_hex(palette.good),
            accent=_hex(palette.accent),
            foreground=_hex(palette.text),
            background=_hex(palette.background),
            surface=_hex(palette.background),
            panel=_hex(palette.bar_background),
            dark=palette.dark,
            ansi=palette.background == "default",
            variables={
                "ansi-background": "ansi_default",
                "ansi-foreground": "ansi_default",
                "scrollbar": _hex(palette.faint),
                "scrollbar-hover": _hex(palette.dim),
                "scrollbar-active": _hex(palette.accent),
                **{f"scrollbar-background{state}": _hex(palette.background) for state in ("", "-hover", "-active")},
            },
        )
        for palette in PALETTES
    ]


def _hex(color: str) -> str:
    """Textual's spelling of a rich colour name."""
    return color if color.startswith("#") else f"ansi_{color}"
