"""The signs of the screen, and their ASCII stand-ins for terminals and locales that show no others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Severity


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
