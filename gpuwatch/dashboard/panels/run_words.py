"""What a run's panel says in words: the line that costs, where it stands, how to see more, what runs."""

from __future__ import annotations

from pathlib import PurePath

from rich.style import Style

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.panels.bands import band_fill
from gpuwatch.dashboard.sampled import costly_line, line_place, standing_of, standing_words
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.wording import window_of
from gpuwatch.monitor.snapshot import STEPLESS, RunNow, Snapshot

NOTABLE_WAIT = 0.1
"""Where data starvation begins to be judged a fault."""


def words(parts: list[tuple[str, Style]], width: int, look: Look) -> Line:
    """One line of differently styled words."""
    writer = LineWriter(width, look)
    for text, style in parts:
        writer.put(text, style)
    return writer.line()


def line_lines(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> list[Line]:
    """The line of the user's code that costs most of what can be had back, if there is one."""
    window = window_of(run, snapshot) if run.state not in STEPLESS else None
    found = costly_line(window.critical, NOTABLE_WAIT) if window is not None else None
    if found is None:
        return []
    share = f"{say.share(found.line.share.value)} {found.of}"
    named = "hot line " if found.line.callee is None else f"hot function {say.escape(found.line.callee)}() at "
    parts = [(named, look.dim), (line_place(found.line), look.accent), (f"  {share}  ", look.wait)]
    return [words([*parts, (say.escape((found.line.text or "").strip()), look.text)], width, look)]


def standing_lines(run: RunNow, snapshot: Snapshot, width: int, look: Look) -> list[Line]:
    """Where a run that makes no steps stands, and since when."""
    standing = standing_of(run, snapshot) if run.state in STEPLESS else None
    if standing is None:
        return []
    code = say.escape((standing.text or "").strip())
    return [words([(f"{standing_words(standing)}  ", look.warning), (code, look.text)], width, look)]


def climb_lines(run: RunNow, width: int, most: int, style: Style, look: Look) -> list[Line]:
    """How to see more of it, where it is not seen exactly."""
    if not run.how_to_climb:
        return []
    parts = say.wrap(say.escape(run.how_to_climb), width)
    shown = [*parts[: most - 1], " ".join(parts[most - 1 :])] if len(parts) > most else parts
    return [words([(part, style)], width, look) for part in shown]


def wait_error(run: RunNow, snapshot: Snapshot) -> str:
    """Half the 95 % interval of a sampled wait, in points: " ±2.4"."""
    window = window_of(run, snapshot)
    stacks = window.critical.stacks if window is not None and run.rung == "sampled" else None
    wait = stacks.train_phases.get("wait") if stacks is not None else None
    return "" if wait is None else f" ±{say.points(wait)}"


def about(run: RunNow) -> list[str]:
    """What runs: the command, the loader it trains from, the model's precision."""
    texts = [say.command_line(run.command)]
    facts = run.ranks[0].facts if run.ranks else None
    if facts is None:
        return texts
    for loader in facts.loaders:
        if loader.role != "train":
            continue
        place = f"{PurePath(loader.file).name}:{loader.line}" if loader.file else "not known where"
        settings = (
            ("num_workers", loader.num_workers),
            ("batch_size", loader.batch_size),
            ("prefetch_factor", loader.prefetch_factor),
            ("pin_memory", loader.pin_memory),
        )
        said = ", ".join(f"{name}={value}" for name, value in settings if value is not None)
        texts.append(say.escape(f"loader {place}  {said}"))
    model = facts.model
    words = []
    if model.parameters is not None:
        words.append(f"{_parameters(model.parameters)} parameters")
    if model.autocast is not None:
        words.append(f"autocast {model.autocast_dtype or 'on'}" if model.autocast else "no autocast")
    if model.compiled is not None:
        words.append("compiled" if model.compiled else "not compiled")
    if model.optimizer is not None:
        words.append(model.optimizer + (" fused" if model.optimizer_fused else ""))
    return [*texts, say.escape(f"model {', '.join(words)}")] if words else texts


def band_legend(run: RunNow, look: Look) -> list[tuple[str, Style]]:
    """What the band under the charts is made of, as far as it occurs."""
    kinds = {phase.kind for phase in run.phases}
    legend: list[tuple[str, Style]] = []
    for kind, word in (("eval", "evaluation"), ("checkpoint", "checkpoint")):
        if kind in kinds:
            legend += [(band_fill(kind, look), look.phase), (f" {word}   ", look.dim)]
    if kinds - {"eval", "checkpoint"}:
        legend += [(band_fill("", look), look.phase), (" other pauses", look.dim)]
    return legend


def _parameters(number: int) -> str:
    """In millions from where they are not 0.0 of them."""
    return f"{number / 1e6:.1f} M" if number >= 1e5 else say.count(number)
