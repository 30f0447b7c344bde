"""What the user can do: one row each, of which bindings, bottom lines, command palette and help page are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from textual.binding import Binding, BindingType

Place = Literal[
    "app", "player", "main", "page", "finding", "timeline", "processes", "process", "signal", "gpu", "run", "attach",
    "list", "filter", "trial",
]  # fmt: skip
"""Where a key is bound, and whose bottom line it is on: "page" is any screen of one page, "player" the app over a
recording, "list" a list with a cursor."""

PAGES: tuple[Place, ...] = (
    "page",
    "finding",
    "timeline",
    "processes",
    "gpu",
    "run",
    "attach",
    "trial",
    "process",
    "signal",
)
"""What is opened above the main screen and left again."""

State = Literal[
    "live",
    "finding",
    "process",
    "everything",
    "candidates",
    "alone",
    "running",
    "held",
    "ended",
    "recording",
    "idle",
    "several",
    "gpus",
    "over",
    "training",
]
"""What an action on a bottom line may need: an entry under the cursor (a finding, a process, or the way back to
everything), processes to attach to or none, a picture that runs, is held or has ended, a recording that is being
written or none, several fixes that a trial can try, more than one GPU, runs
that have ended, any run."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Keys of Textual's names, and what they run there; `first` is before what has the focus."""

    place: Place
    keys: str
    run: str
    first: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """An action on a bottom line: those of the highest orders are left out where the width ends."""

    place: Place
    order: int
    words: str
    needs: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    `keys` is how it is written, the first of them on bottom lines; without `help` it is not on the help page. `palette`
    is its title and its words. `only` is where help and palette have it. `run` is what a click on a bottom line and the
    palette run, by default what its key runs there.
    """

    keys: str
    help: str = ""
    bound: tuple[Bound, ...] = ()
    shown: tuple[Shown, ...] = ()
    palette: tuple[str, str] | None = None
    only: Literal["live", "replay"] | None = None
    run: str = ""

    @property
    def key(self) -> str:
        """The key that stands for it."""
        return self.keys.split(",")[0]

    def run_from(self, place: Place) -> str:
        """What it runs, from that place."""
        if self.run or not self.bound:
            return self.run
        bound = next((each for each in self.bound if each.place == place), self.bound[0])
        return f"app.{bound.run}" if bound.place in ("app", "player") else bound.run


ACTIONS = (
    Action(
        "up down, j k",
        "move through the findings or the GPUs; tab switches between the two",
        bound=(
            Bound("list", "up,k", "cursor(-1)"),
            Bound("list", "down,j", "cursor(1)"),
            Bound("list", "pageup", "cursor(-8)"),
            Bound("list", "pagedown", "cursor(8)"),
            Bound("list", "home", "cursor(-9999)"),
            Bound("list", "end", "cursor(9999)"),
        ),
    ),
    Action(
        "enter, click",
        "open the finding or the GPU",
        bound=(Bound("list", "enter", "open"),),
        shown=(
            Shown("main", 0, "open", ("finding",)),
            Shown("player", 50, "open", ("finding",)),
            Shown("attach", 10, "attach", ("process",)),
            Shown("attach", 10, "detach", ("everything",)),
            Shown("processes", 5, "details", ("process",)),
            Shown("signal", 10, "send"),
        ),
    ),
    Action(
        "R",
        "all about the run of the finding under the cursor, else about the first one; R again: the next run; a click on"
        " a run's panel opens it",
        bound=(Bound("main", "R", "run"), Bound("run", "R", "next_run")),
        shown=(
            Shown("main", 47, "run", ("training",)),
            Shown("player", 98, "run", ("training",)),
            Shown("run", 10, "next run"),
        ),
        palette=("Run", "All about a training run"),
    ),
    Action(
        "o",
        "order of the GPUs: by index, or failing, idle and throttled first; where rows do not fit, GPUs that are used"
        " alike share one, which enter opens",
        bound=(Bound("main", "o", "order"),),
        shown=(Shown("main", 45, "order GPUs", ("gpus",)), Shown("player", 96, "order GPUs", ("gpus",))),
        palette=("Order of the GPUs", "By index, or what needs attention first"),
    ),
    Action(
        "c",
        "copy the fix to the clipboard (OSC 52: works over SSH where the terminal allows it)",
        bound=(Bound("main", "c", "copy_fix"), Bound("finding", "c", "copy_fix"), Bound("trial", "c", "copy_trial")),
        shown=(
            Shown("main", 5, "copy fix", ("finding",)),
            Shown("player", 90, "copy fix", ("finding",)),
            Shown("finding", 10, "copy fix"),
            Shown("trial", 10, "copy trial"),
        ),
    ),
    Action(
        "T",
        "show the command that proves a finding's fix (gpuwatch trial, tune); c and C copy it",
        bound=(Bound("main", "T", "try_fix"), Bound("finding", "T", "try_fix"), Bound("trial", "T", "app.pop_screen")),
        shown=(
            Shown("main", 75, "try fix", ("finding",)),
            Shown("player", 92, "try fix", ("finding",)),
            Shown("finding", 15, "try fix"),
        ),
    ),
    Action("C", bound=(Bound("trial", "C", "copy_tune"),), shown=(Shown("trial", 20, "copy tune", ("several",)),)),
    Action(
        "s, u",
        "snooze a finding for an hour; undo the last snooze",
        bound=(
            Bound("main", "s", "snooze"),
            Bound("finding", "s", "snooze"),
            Bound("main", "u", "app.undo_snooze"),
        ),
        shown=(Shown("main", 80, "snooze", ("finding",)), Shown("finding", 20, "snooze")),
    ),
    Action(
        "x",
        "clear ended runs off the screen; they go by themselves after ten minutes",
        bound=(Bound("main", "x", "clear_ended"),),
        shown=(Shown("main", 35, "clear ended", ("over",)), Shown("player", 94, "clear ended", ("over",))),
    ),
    Action(
        "e",
        "explain the rule behind a finding",
        bound=(Bound("main", "e", "explain"), Bound("finding", "e", "explain")),
        shown=(
            Shown("main", 85, "explain", ("finding",)),
            Shown("player", 95, "explain", ("finding",)),
            Shown("finding", 30, "explain"),
        ),
    ),
    Action(
        "t",
        "timeline: GPUs, steps, waits and phases on one axis",
        bound=(Bound("app", "t", "timeline"),),
        shown=(
            Shown("main", 20, "timeline"),
            Shown("player", 60, "timeline"),
            Shown("finding", 40, "timeline"),
            Shown("gpu", 20, "timeline"),
            Shown("run", 20, "timeline"),
        ),
        palette=("Timeline", "GPUs, steps, waits and phases on one axis"),
    ),
    Action(
        "p",
        "processes",
        bound=(Bound("app", "p", "processes"),),
        shown=(Shown("main", 30, "processes"), Shown("player", 85, "processes")),
        palette=("Processes", "Who uses the GPUs"),
    ),
    Action(
        "a",
        "attach to a training that already runs; a again detaches",
        bound=(Bound("app", "a", "attach"),),
        shown=(Shown("main", 10, "attach", ("candidates",)), Shown("processes", 10, "attach", ("live",))),
        palette=("Attach", "Watch a training that already runs, or everything again"),
        only="live",
    ),
    Action(
        "r",
        "start or stop a recording in the current folder; `gpuwatch replay FILE` plays it",
        bound=(Bound("app", "r", "record"),),
        shown=(Shown("main", 70, "record", ("idle",)), Shown("main", 70, "end recording", ("recording",))),
        palette=("Record", "Start or stop a recording in the current folder"),
        only="live",
    ),
    Action(
        "space",
        "pause the display; collection continues",
        bound=(Bound("app", "space", "pause"),),
        shown=(
            Shown("main", 40, "pause", ("alone", "running")),
            Shown("main", 40, "resume", ("alone", "held")),
            Shown("main", 65, "pause", ("candidates", "running")),
            Shown("main", 65, "resume", ("candidates", "held")),
            Shown("timeline", 50, "pause"),
        ),
        palette=("Pause or resume the display", "Collection continues"),
        only="live",
    ),
    Action(
        "space",
        "pause or resume the replay; at its end: play it again from the start",
        shown=(
            Shown("player", 0, "pause", ("running",)),
            Shown("player", 0, "play", ("held",)),
            Shown("player", 0, "from start", ("ended",)),
        ),
        palette=("Pause or resume the display", "Collection continues"),
        only="replay",
        run="app.pause",
    ),
    Action(
        "[ ]",
        "10 s back, 10 s forward",
        bound=(
            Bound("player", "left_square_bracket", "seek(-10)"),
            Bound("player", "right_square_bracket", "seek(10)"),
        ),
        shown=(Shown("player", 10, "10 s"),),
        only="replay",
        run="app.seek(10)",
    ),
    Action(
        "{ }",
        "5 min back, 5 min forward",
        bound=(
            Bound("player", "left_curly_bracket", "seek(-300)"),
            Bound("player", "right_curly_bracket", "seek(300)"),
        ),
        shown=(Shown("player", 20, "5 min"),),
        only="replay",
        run="app.seek(300)",
    ),
    Action(
        "home end",
        "on the main screen: jump to the beginning or the end; click on the line: jump to that moment",
        bound=(
            Bound("player", "home", "seek_start", first=True),
            Bound("player", "end", "seek_end", first=True),
        ),
        only="replay",
    ),
    Action(
        "< >",
        "slower, faster: from a quarter of the recorded speed to 60 times",
        bound=(Bound("player", "less_than_sign", "speed(-1)"), Bound("player", "greater_than_sign", "speed(1)")),
        shown=(Shown("player", 30, "speed"),),
        only="replay",
        run="app.speed(1)",
    ),
    Action(
        "+ -",
        "zoom the time axis: 30 s to 24 h",
        bound=(Bound("app", "plus,equals_sign", "zoom(-1)"), Bound("app", "minus", "zoom(1)")),
        shown=(
            Shown("main", 90, "zoom"),
            Shown("player", 97, "zoom"),
            Shown("finding", 95, "zoom"),
            Shown("timeline", 10, "zoom"),
            Shown("gpu", 10, "zoom"),
            Shown("run", 30, "zoom"),
        ),
    ),
    Action(
        "left right",
        "in the timeline: move through time; end returns to now",
        bound=(Bound("timeline", "left,H", "pan(1)"), Bound("timeline", "right,L", "pan(-1)")),
        shown=(Shown("timeline", 20, "move"),),
    ),
    Action(
        "end",
        bound=(Bound("timeline", "end", "live", first=True),),
        shown=(Shown("timeline", 30, "now"),),
    ),
    Action(
        "d",
        "in the timeline: show or hide the temperature, clock and memory of each GPU",
        bound=(Bound("timeline", "d", "detail"),),
        shown=(Shown("timeline", 40, "detail"),),
    ),
    Action(
        "o, i",
        "in the processes: sort by the next column, turn the order round; a click on a head does both",
        bound=(Bound("processes", "o", "sort"), Bound("processes", "i", "invert")),
        shown=(Shown("processes", 15, "sort"),),
    ),
    Action(
        "K",
        "send a signal (TERM, INT, KILL) to the process under the cursor, after asking; off with --read-only",
        bound=(Bound("processes", "K", "signal"), Bound("process", "K", "signal")),
        shown=(Shown("processes", 25, "signal", ("process", "live")), Shown("process", 10, "signal")),
    ),
    Action(
        "/",
        "filter findings, runs and processes; processes also by user:NAME, gpu:0 and pid:4711; esc clears",
        bound=(Bound("app", "slash", "filter"),),
        shown=(
            Shown("main", 95, "filter"),
            Shown("player", 99, "filter"),
            Shown("processes", 20, "filter"),
            Shown("attach", 20, "filter"),
        ),
        palette=("Filter", "Findings, runs and processes"),
    ),
    Action("tab", shown=(Shown("main", 99, "GPUs"),), run="app.focus_next"),
    Action(
        "ctrl+l", "redraw the screen after another program wrote over it", bound=(Bound("app", "ctrl+l", "repaint"),)
    ),
    Action("ctrl+z", bound=(Bound("app", "ctrl+z", "suspend_process"),)),
    Action("ctrl+p", "command palette: themes (one is safe for colour-blind eyes), all commands"),
    Action("", palette=("Theme", "Change the colours; one theme is colour-blind safe"), run="app.change_theme"),
    Action(
        "?",
        bound=(Bound("app", "h,question_mark,f1", "help"),),
        shown=(
            Shown("main", 50, "help"),
            Shown("player", 70, "help"),
            Shown("finding", 90, "help"),
            Shown("timeline", 90, "help"),
            Shown("processes", 90, "help"),
            Shown("gpu", 90, "help"),
            Shown("run", 90, "help"),
            Shown("attach", 90, "help"),
            Shown("trial", 90, "help"),
            Shown("process", 90, "help"),
        ),
        palette=("Help", "Keys and words"),
    ),
    Action(
        "esc",
        "back",
        bound=(
            Bound("page", "escape,backspace", "app.pop_screen"),
            Bound("attach", "escape,backspace", "back"),
            Bound("main", "escape", "clear_filter"),
            Bound("filter", "escape", "cancel"),
        ),
        shown=tuple(Shown(place, 0, "back") for place in PAGES),
    ),
    Action(
        "q, ctrl+c",
        "quit",
        bound=(Bound("app", "q", "quit"), Bound("app", "ctrl+c", "interrupt", first=True)),
        shown=(
            Shown("main", 60, "quit"),
            Shown("player", 80, "quit"),
            *(Shown(place, 99, "quit") for place in PAGES),
        ),
        palette=("Quit", "Leave gpuwatch"),
    ),
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a bottom line; `run` is what a click on it does."""

    key: str
    words: str
    run: str


def bindings(place: Place) -> list[BindingType]:
    """The keys of an app, a screen or a widget."""
    return [
        Binding(bound.keys, bound.run, action.help or action.keys, show=False, priority=bound.first)
        for action in ACTIONS
        for bound in action.bound
        if bound.place == place
    ]


@cache
def bottom_line(place: Place, states: frozenset[State] = frozenset()) -> list[Key]:
    """The keys that do something now, the most needed first."""
    found = [
        (shown.order, Key(action.key, shown.words, action.run_from(place)))
        for action in ACTIONS
        for shown in action.shown
        if shown.place == place and states.issuperset(shown.needs)
    ]
    return [key for _, key in sorted(found, key=lambda each: each[0])]


def palette_rows(*, replays: bool) -> Iterator[tuple[str, str, str]]:
    """Title, words and action of each command."""
    for action in ACTIONS:
        if action.palette is not None and action.only != ("live" if replays else "replay"):
            title, words = action.palette
            yield title, f"{words} ({action.key})" if action.key else words, action.run_from("app")


def help_rows(*only: Literal["live", "replay"] | None) -> list[tuple[str, str]]:
    """The keys and what they do, of those that are for this only; None: for any dashboard."""
    return [(action.keys, action.help) for action in ACTIONS if action.help and action.only in only]
