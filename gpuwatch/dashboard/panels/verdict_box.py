"""What the eye lands on: one sentence per run, the gain, and the line to change."""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.text import Line, LineWriter, boxed, rule
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.verdicts import Verdict

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


def wanted_lines(told: list[Verdict], width: int, *, framed: bool) -> int:
    """How many lines the box would like, frame included."""
    inner = width - 4 if framed else width - 2
    lines = 0
    for verdict in told:
        sentence, because = _wrapped(verdict, inner, full=framed)
        lines += len(sentence) + len(because) + _has_change(verdict)
    return lines + (2 if framed else 1)


def _wrapped(verdict: Verdict, width: int, *, full: bool) -> tuple[list[str], list[str]]:
    """The sentence, and what it rests on where that is to be shown, in two lines each at most."""
    gain_room = len(verdict.gain) + 2 if verdict.gain and width >= GAIN_BESIDE_FROM else 0
    sentence = say.wrap(verdict.sentence, max(20, width - _indent(verdict) - gain_room))
    if len(sentence) > 2:
        sentence = [sentence[0], f"{sentence[1]}…"]
    if not verdict.because or not (full or not _has_change(verdict)):
        return sentence, []
    because = say.wrap(verdict.because, width - _indent(verdict))
    if len(because) > 2:
        because = [because[0], f"{say.fit(because[1], width - _indent(verdict) - 1)}…"]
    return sentence, because


def _indent(verdict: Verdict) -> int:
    return max(12, len(verdict.word) + 4)


def _has_change(verdict: Verdict) -> bool:
    return bool(verdict.change or verdict.place)


def _lines_of(verdict: Verdict, width: int, look: Look, *, full: bool) -> list[Line]:
    """The sentence with its sign and gain; what it rests on; the change."""
    quiet = look.glyphs.fine if verdict.word == "OK" else look.glyphs.info
    sign = quiet if verdict.severity is None else look.glyphs.severity(verdict.severity)
    indent = _indent(verdict)
    gain_first = width >= GAIN_BESIDE_FROM
    sentence, because = _wrapped(verdict, width, full=full)
    has_room = len(sentence) > 1 and indent + cell_len(sentence[1]) + len(verdict.gain) < width
    gain_below = not gain_first and not has_room
    lines = []
    for index, part in enumerate(sentence):
        writer = LineWriter(width, look)
        if index == 0:
            writer.put(f"{sign} {verdict.word}", _style(verdict, look))
        writer.to(indent).put(part, look.strong)
        if index == (0 if gain_first else 1) and verdict.gain and (gain_first or not gain_below):
            writer.at_right(verdict.gain, _gain_style(verdict, look))
        lines.append(writer.line())
    lines += [LineWriter(width, look).to(indent).put(part, look.dim).line() for part in because]
    if _has_change(verdict):
        lines.append(_change(verdict, width, indent, look, gain_here=gain_below))
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
