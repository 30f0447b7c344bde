"""What the eye lands on: one sentence per run, the gain, and the line to change."""

from __future__ import annotations

from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.text import Line, LineWriter, boxed, rule
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.wording import Verdict

TITLE = "What to change"

GAIN_BESIDE_FROM = 96
"""Below this width the gain stands beside the change, so that the sentence has the whole line."""


def verdict_box(told: list[Verdict], width: int, height: int, look: Look, *, framed: bool) -> list[Line]:
    """The verdicts in exactly `height` lines, the worst first; those without room are counted."""
    inner = width - 4 if framed else width - 2
    room = height - (2 if framed else 1)
    lines: list[Line] = []
    shown = 0
    for verdict in told:
        if len(lines) >= room:
            break
        lines += _lines_of(verdict, inner, look, full=framed)[: room - len(lines)]
        shown += 1
    hidden = len(told) - shown
    more = f"and {hidden} more" if hidden else ""
    lines += [LineWriter(inner, look).line()] * (room - len(lines))
    if framed:
        return boxed(lines, TITLE, width, look, _style(told[0], look), right=more)
    edge = LineWriter(1, look).line()
    return [rule(TITLE, width, look, right=more), *((*edge, *line, *edge) for line in lines)]


def wanted_lines(told: list[Verdict], width: int, look: Look, *, framed: bool) -> int:
    """How many lines the box would like, frame included."""
    inner = width - 4 if framed else width - 2
    lines = sum(len(_lines_of(verdict, inner, look, full=framed)) for verdict in told)
    return lines + (2 if framed else 1)


def _lines_of(verdict: Verdict, width: int, look: Look, *, full: bool) -> list[Line]:
    """The sentence, in two lines if need be; what it rests on, where there is room; the change."""
    quiet = look.glyphs.fine if verdict.word == "OK" else look.glyphs.info
    sign = quiet if verdict.severity is None else look.glyphs.severity(verdict.severity)
    label = f"{sign} {verdict.word} "
    indent = max(12, len(label) + 1)
    gain_first = width >= GAIN_BESIDE_FROM
    gain_room = len(verdict.gain) + 2 if verdict.gain and gain_first else 0
    sentence = say.wrap(verdict.sentence, max(20, width - indent - gain_room))
    lines = []
    for index, part in enumerate(sentence[:2]):
        writer = LineWriter(width, look)
        if index == 0:
            writer.put(label, _style(verdict, look))
        cut = index == 1 and len(sentence) > 2
        writer.to(indent).put(part + (look.glyphs.ellipsis if cut else ""), look.strong)
        if index == (0 if gain_first else 1) and verdict.gain:
            writer.at_right(verdict.gain, _gain_style(verdict, look))
        lines.append(writer.line())
    has_change = bool(verdict.change or verdict.place)
    if verdict.because and (full or not has_change):
        parts = say.wrap(verdict.because, width - indent)[: 1 if has_change else 2]
        lines += [LineWriter(width, look).to(indent).put(part, look.dim).line() for part in parts]
    if has_change:
        lines.append(_change(verdict, width, indent, look, gain_here=not gain_first and len(lines) < 2))
    return lines


def _change(verdict: Verdict, width: int, indent: int, look: Look, *, gain_here: bool) -> Line:
    needed = indent + len(verdict.place) + 2 + len(verdict.change)
    key = "enter: the fix" if verdict.finding is not None else ""
    tail = verdict.gain if gain_here and verdict.gain else key if needed + len(key) + 2 <= width else ""
    style = _gain_style(verdict, look) if tail == verdict.gain else look.dim
    writer = LineWriter(width, look).to(indent)
    if verdict.place:
        writer.put(f"{verdict.place}  ", look.accent)
    writer.put(verdict.change, look.text, max(0, writer.room - len(tail) - 2))
    return writer.at_right(tail, style).line() if tail else writer.line()


def _gain_style(verdict: Verdict, look: Look) -> Style:
    return look.good if verdict.gain != "hint" else look.dim


def _style(verdict: Verdict, look: Look) -> Style:
    if verdict.severity is not None:
        return look.severity(verdict.severity)
    return look.good if verdict.word == "OK" else look.info
