"""What every screen is: a top bar, its content, its keys, drawn from one view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget

from gpuwatch.dashboard.messages import KeyPressed
from gpuwatch.dashboard.panels.arrange import too_small
from gpuwatch.dashboard.panels.bars import Key, top_bar
from gpuwatch.dashboard.text import Line, LineWriter
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import View
from gpuwatch.dashboard.widgets.key_bar import KeyBar
from gpuwatch.dashboard.widgets.lines import LinesWidget, Pager

if TYPE_CHECKING:
    from gpuwatch.dashboard.app import DashboardApp
    from gpuwatch.dashboard.widgets.replay_line import ReplayLine


class ViewScreen(Screen[None]):
    """A screen that is drawn again whenever the app has a new view."""

    KEYS: ClassVar[list[Key]] = []
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
        return self.KEYS

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """Brings the content up to date."""

    def on_mount(self) -> None:
        """The first frame."""
        self.show()

    def on_resize(self) -> None:
        """Everything depends on the size."""
        self.show()

    def on_screen_resume(self) -> None:
        """The view moved on while another screen was on top."""
        self.show()

    def on_repaint_wanted(self) -> None:
        """A cursor or the focus moved."""
        self.show()

    async def on_key_pressed(self, message: KeyPressed) -> None:
        """A key of the bottom line was clicked."""
        await self.run_action(message.action)


class PageScreen(ViewScreen):
    """A screen of one page of lines, left with escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.pop_screen", "Back", show=False)]
    KEYS: ClassVar[list[Key]] = [Key("esc", "back", "app.pop_screen"), Key("q", "quit", "app.quit")]

    def content(self) -> Iterable[Widget]:
        """The page."""
        yield Pager(id="page")

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        """Writes the page, one cell narrower than the screen: the last column belongs to the scroll bar."""
        self.query_one("#page", Pager).show(self.page(view, width - 1, height - 2, look), width - 1)

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        """The page's lines; `height` is what can be seen at once."""
        return []
