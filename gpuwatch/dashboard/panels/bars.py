"""The first and the last line of every screen: what is watched and from when; which keys there are."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.attaching import attached_words
from gpuwatch.dashboard.recording import recording_badge
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.monitor.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the bottom line; `action` is what a click on it does."""

    key: str
    words: str
    action: str


def top_bar(view: View, width: int, look: Look, origin_label: str) -> Line:
    """gpuwatch, LIVE or SIMULATED, the machine, the poll interval and the time of the newest sample."""
    writer = LineWriter(width, look)
    writer.put(" gpuwatch ", look.bar_accent)
    snapshot = view.snapshot
    live = snapshot.origin.kind == "live" if snapshot is not None else origin_label == "LIVE"
    label = say.escape(snapshot.origin.label if snapshot is not None else origin_label)
    writer.put(f" {label} ", look.live if live else look.simulated).put(" ", look.bar)
    right = _right(view, look, short=width < 100)
    if snapshot is not None and snapshot.recording is not None:
        stopped = snapshot.recording.problem is not None
        writer.put(f" {recording_badge(snapshot.recording)} ", look.simulated if stopped else look.recording)
        writer.put(" ", look.bar)
    if view.paused_seconds is not None:
        writer.put(f" PAUSED {view.paused_seconds:.0f} s ", look.simulated).put(" ", look.bar)
    if view.silent_seconds is not None:
        writer.put(f" NO NEW DATA for {view.silent_seconds:.0f} s ", look.simulated).put(" ", look.bar)
    if snapshot is not None:
        writer.put(" ", look.bar)
        machine = _fitting(snapshot, view, writer.room - len(right) - 1, look)
        writer.put(machine, look.bar, writer.room - len(right) - 1)
    writer.to(width - len(right), look.bar).put(right, look.bar_dim)
    return writer.line(look.bar)


def _right(view: View, look: Look, *, short: bool) -> str:
    snapshot = view.snapshot
    if snapshot is None:
        return ""
    interval = view.interval_seconds
    word = "" if short else "every "
    every = "" if interval is None else f"{word}{interval:g} s {look.glyphs.dot} "
    return f"{every}{say.clock(snapshot.wall_time)} "


def _fitting(snapshot: Snapshot, view: View, room: int, look: Look) -> str:
    """The machine in as many words as fit: names get shorter before facts are dropped."""
    joint = f" {look.glyphs.dot} "
    versions = [_machine(snapshot, view, short=short) for short in (0, 1, 2)]
    for words in versions:
        if len(joint.join(words)) <= room:
            return joint.join(words)
    words = versions[-1]
    while len(words) > 1 and len(joint.join(words)) > room:
        words = words[:-1]
    return joint.join(words)


def _machine(snapshot: Snapshot, view: View, *, short: int) -> list[str]:
    """The facts in words: 0 in full, 1 shorter, 2 as short as can be."""
    words = []
    machine = snapshot.machine
    if machine is not None and (short < 2 or snapshot.origin.kind == "live"):
        host = say.escape(machine.hostname)
        words.append(host.split(".", 1)[0][:20] if short else host)
    attached = attached_words(snapshot)
    if attached or view.narrowed_to:
        words.append(attached or f"only {say.escape(view.narrowed_to or '')}")
    if snapshot.gpus:
        names = {say.gpu_name(gpu.facts.name, 8 if short else None) for gpu in snapshot.gpus}
        kind = names.pop() if len(names) == 1 else "GPUs"
        words.append(f"{len(snapshot.gpus)} x {kind}")
    elif snapshot.nvml is not None:
        words.append("no GPU")
    if snapshot.nvml is not None and snapshot.nvml.driver_version:
        version = say.escape(snapshot.nvml.driver_version)
        version = ".".join(version.split(" ")[0].split(".")[:2]) if short else version
        words.append(version if short > 1 else f"driver {version}")
    if machine is not None:
        quota = machine.cpu_quota_cores
        words.append(f"{machine.cpu_count} cores" + (f", {quota:g} allowed" if quota is not None else ""))
    return words


def key_bar(keys: list[Key], width: int, look: Look) -> Line:
    """The keys; those that do not fit are left out."""
    writer = LineWriter(width, look)
    for key in keys:
        cells = len(key.key) + len(key.words) + 3
        if cells > writer.room:
            break
        writer.put(f" {key.key} ", look.bar_accent).put(f"{key.words} ", look.bar_dim)
    return writer.line(look.bar)


def key_at(keys: list[Key], x: int) -> Key | None:
    """The key under a click on the bottom line."""
    column = 0
    for key in keys:
        column += len(key.key) + len(key.words) + 3
        if x < column:
            return key
    return None
