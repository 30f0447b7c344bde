"""What every screen is: a top bar, its content, its keys, drawn from one view; slow work goes to a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import Key, Place, bindings, bottom_line
from gpuwatch.dashboard.lines import Line, LineWriter
from gpuwatch.dashboard.panels.layout import too_small
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets import LinesWidget, Pager
from gpuwatch.dashboard.words import attached_words, recording_badge
from gpuwatch.monitor.snapshot import Snapshot

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp
    from gpuwatch.dashboard.replay import ReplayLine


class KeyPressed(Message):
    """A key of the bottom line was clicked."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action


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
        whole = [gpu for gpu in snapshot.gpus if gpu.facts.mig_parent is None] or snapshot.gpus
        names = {say.gpu_name(gpu.facts.name, 8 if short else None) for gpu in whole}
        instances = len(snapshot.gpus) - len(whole)
        parts = f", {instances} instance{'' if instances == 1 else 's'}" if instances else ""
        words.append(f"{len(whole)} x {names.pop() if len(names) == 1 else 'GPUs'}{parts}")
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


_ALWAYS = ("?", "q")
"""Keys that a narrow terminal shows as well: without them a newcomer is lost."""


def fitting_keys(keys: list[Key], width: int) -> list[Key]:
    """As many as there is room for, the most needed ones, and always the way to help and the way out."""
    kept = [key for key in keys if key.key in _ALWAYS]
    room = width - sum(_cells_of(key) for key in kept)
    return [key for key in keys if key in kept or (room >= 0 and (room := room - _cells_of(key)) >= 0)]


def _cells_of(key: Key) -> int:
    return len(f"{key.key} {key.words}  ")


class KeyBar(LinesWidget):
    """Shows the keys."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._keys: list[Key] = []

    def update(self, keys: list[Key], width: int, look: Look) -> None:
        self._keys = keys = fitting_keys(keys, width)
        self.show([key_bar(keys, width, look)], width)

    def on_click(self, event: events.Click) -> None:
        key = key_at(self._keys, event.x)
        if key is not None:
            self.post_message(KeyPressed(key.run))


class ViewScreen(Screen[None]):
    """A screen that is drawn again whenever the app has a new view."""

    PLACE: ClassVar[Place] = "page"
    CAN_FILTER: ClassVar[bool] = False
    AUTO_FOCUS = "*"
    _player: Sequence[ReplayLine] = ()

    @property
    def dashboard(self) -> DashboardApp:
        """The app, by its own type."""
        return cast("DashboardApp", self.app)

    def compose(self) -> ComposeResult:
        """The top bar, the content, over a recording its player, the keys."""
        self._player = self.dashboard.player_lines()
        yield LinesWidget(id="top")
        yield from self.content()
        yield from self._player
        yield KeyBar(id="keys")

    def content(self) -> Iterable[Widget]:
        """The widgets between the bars."""
        return ()

    def show(self) -> None:
        """Draws the app's current view."""
        if not self.is_mounted:
            return
        width, height = self.size
        if not width:
            return
        view, look = self.dashboard.view, self.dashboard.look
        excuse = too_small(width, height)
        self.set_class(excuse is not None, "too-small")
        try:
            top = self.query_one("#top", LinesWidget)
        except NoMatches:  # the screen of an app that is ending has lost its widgets, or never had them
            return
        if excuse is not None:
            top.show([LineWriter(width, look).put(excuse, look.warning).line()], width)
            return
        top.show([top_bar(view, width, look, self.dashboard.origin_label)], width)
        self.query_one("#keys", KeyBar).update(self.keys(view), width, look)
        for line in self._player:
            line.update(view, width, look)
        self.draw(view, width, height - len(self._player), look)

    def keys(self, view: View) -> list[Key]:
        """The keys that do something now."""
        return bottom_line(self.PLACE)

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """Brings the content up to date."""

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def on_screen_resume(self) -> None:
        """The view moved on while another screen was on top."""
        self.show()

    def on_repaint_wanted(self) -> None:
        self.show()

    async def on_key_pressed(self, message: KeyPressed) -> None:
        await self.run_action(message.action)


class PageScreen(ViewScreen):
    """A screen of one page of lines, left with escape."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("page")

    def content(self) -> Iterable[Widget]:
        """The page."""
        yield Pager(id="page")

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """Writes the page, one cell narrower than the screen: the last column belongs to the scroll bar."""
        self.query_one("#page", Pager).show(self.page(view, width - 1, height - 2, look), width - 1)

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The page's lines; `height` is what can be seen at once."""
        return []


async def in_background(
    function: Callable[_Parameters, _Result], *arguments: _Parameters.args, **keywords: _Parameters.kwargs
) -> _Result:
    """The function's result, from a thread that quitting does not wait for.

    A disk, a parser or another process's memory may take seconds to answer, or forever; `asyncio.to_thread` keeps the
    loop from ending until it has.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: Exception | None) -> None:
        if answered.cancelled():
            return
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(result)  # type: ignore[arg-type]  # None only where that is its result

    def run() -> None:
        result, raised = None, None
        try:
            result = function(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            raised = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=run, name="gpuwatch-background", daemon=True).start()
    return await answered
