"""The terminal before and after Textual: whether it can show the dashboard, the very first frame, and an end in time.

The first frame is written before Textual is there: importing that takes a fifth of a second. It says what the first
real frame says, at the same places, so that nothing jumps. Standard library only.

Textual paints on stderr and reads stdin. Left alone it writes escapes into files, and with a terminal that is gone
without SIGHUP it spins at 30% CPU (both measured).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from gpuwatch.text import printable

GRACE_SECONDS = 2.0
"""How long an asked-for end may take before the process leaves without it: a stalled terminal blocks writes."""

UNFIT_EXIT_CODE = 2

ENDING_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""What ends a program that does nothing about it. Batch systems warn with SIGUSR1; `kill -QUIT` is a usual try."""

_GIVE_BACK = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m\x1b[?1049l\x1b[?25h"

MOST_COLUMNS, MOST_ROWS = 1000, 400
"""A terminal may claim 65,535 each way, and COLUMNS anything: that takes minutes to lay out. Screens have less."""

_SHOW = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H"
_HIDE = "\x1b[?1049l\x1b[?25h"
_RESET = "\x1b[0m"
_BELL = "\a"

# The default theme's accent, bar, text and background; see themes.py.
_ACCENT, _BAR, _TEXT, _BACKGROUND = "108;182;255", "26;33;43", "215;222;232", "14;18;24"
_LIVE, _SIMULATED = "87;201;138", "232;176;75"

STARTING = "looking for GPUs and training runs"
OPENING = "opening the recording"

_splash_shown = False
_lock = threading.Lock()
"""Numbers are painted by other threads than the one that hands the screen to Textual."""
_LOCK_SECONDS = 0.1
"""A handler would wait forever for what it has interrupted."""


def terminal_problem(
    environ: Mapping[str, str] = os.environ,
    is_terminal: Callable[[int], bool] = os.isatty,
) -> str | None:
    """Why the dashboard cannot run here, as one sentence with the way out; None when it can."""
    for descriptor, name in ((0, "standard input"), (1, "standard output"), (2, "standard error")):
        if not is_terminal(descriptor):
            return f"the dashboard needs a terminal, but {name} is not one; use `gpuwatch watch` or `gpuwatch report`"
    if environ.get("TERM", "dumb") in ("dumb", ""):
        return (
            "the dashboard needs a terminal that can move its cursor, but TERM is "
            f"{environ.get('TERM') or 'not set'}; set TERM, or use `gpuwatch watch`"
        )
    return None


def notification(subject: str, sentence: str, environ: Mapping[str, str] = os.environ) -> str:
    """What rings the bell and has a terminal show a desktop notification; terminals that know none ignore it.

    OSC 777 is what VTE, foot and urxvt know, OSC 9 what the others do: some know both and would show two. tmux and
    screen hand on only what is wrapped (tmux with `allow-passthrough on`).
    """
    term = environ.get("TERM", "")
    if term in ("", "dumb", "linux"):
        return _BELL
    words = f"{printable(subject)}: {printable(sentence)}"
    if "VTE_VERSION" in environ or term.startswith(("foot", "rxvt")):
        asked = f"\x1b]777;notify;gpuwatch;{words.replace(';', ',')}\x1b\\"
    else:
        asked = f"\x1b]9;gpuwatch: {words}\x1b\\"
    if "TMUX" in environ:
        asked = "\x1bPtmux;{}\x1b\\".format(asked.replace("\x1b", "\x1b\x1b"))
    return _BELL + asked


class TerminalGuard:
    """Ends the dashboard on the signals that end programs, and when the terminal disappears.

    Args:
        leave: Asks the app to end with an exit code; called from any thread.
        leave_now: Ends the process at once; a seam for tests.
    """

    def __init__(self, leave: Callable[[int], None], leave_now: Callable[[int], object] = os._exit) -> None:
        self._leave = leave
        self._leave_now = leave_now
        self._before: dict[signal.Signals, object] = {}
        self._attributes: list[object] | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Takes the signals and watches the terminal. To be called on the main thread."""
        try:
            self._attributes = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
        except (termios.error, ValueError):
            self._attributes = None
        for number in ENDING_SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        threading.Thread(target=self._watch_terminal, name="gpuwatch-terminal", daemon=True).start()

    def stop(self) -> None:
        """Gives the signals back."""
        self._ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._end(128 + number)

    def _end(self, code: int) -> None:
        """Asks first; a main thread that hangs in a write to a dead terminal is not waited for."""
        threading.Thread(target=self._end_hard, args=(code,), name="gpuwatch-exit", daemon=True).start()
        self._leave(code)

    def _end_hard(self, code: int) -> None:
        if self._ended.wait(GRACE_SECONDS):
            return
        if self._attributes is not None and sys.__stdin__ is not None:
            try:
                termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)  # type: ignore[arg-type]
            except (termios.error, ValueError):
                self._attributes = None
        with suppress(OSError):
            if select.select([], [2], [], 0)[1]:  # a terminal that takes no output is not waited for
                os.write(2, _GIVE_BACK)
        self._leave_now(code)

    def _watch_terminal(self) -> None:
        """Sleeps until the terminal hangs up: poll reports that even when asked for nothing."""
        if sys.__stdin__ is None:
            return
        poll = select.poll()
        poll.register(sys.__stdin__.fileno(), 0)
        while not self._ended.is_set():
            if poll.poll() and not self._ended.is_set():
                self._end(128 + signal.SIGHUP)
                return


def show_splash(
    label: str = "LIVE",
    environ: Mapping[str, str] = os.environ,
    write: Callable[[bytes], object] = lambda data: os.write(2, data),
) -> None:
    """Paints it, once; the terminal has been found fit before.

    Args:
        label: "LIVE" or "SIMULATED starved".
        environ: Asked for colours.
        write: Where Textual will paint, too: stderr.
    """
    global _splash_shown
    if _splash_shown:
        return
    _splash_shown = True
    width, _ = shutil.get_terminal_size()
    write((_SHOW + "\r\n".join(_splash_lines(label, min(width, MOST_COLUMNS), _has_colors(environ)))).encode())


def show_on_splash(
    first_line: int, lines: Sequence[str], write: Callable[[bytes], object] = lambda data: os.write(2, data)
) -> None:
    """Paints lines of text below the splash, as far as the terminal has room; nothing where it is not on the screen.

    Args:
        first_line: Where the first of them goes, from 0.
        lines: Printable text.
        write: As for `show_splash`.
    """
    width, height = shutil.get_terminal_size()
    placed = enumerate(lines[: max(0, height - first_line)], first_line + 1)
    with _lock:
        if _splash_shown and lines:
            write("".join(f"\x1b[{row};1H{line[:width]}\x1b[K" for row, line in placed).encode(errors="replace"))


def hide_splash(write: Callable[[bytes], object] = lambda data: os.write(2, data)) -> None:
    """Gives the normal screen back when Textual never took over. A signal handler may call it."""
    global _splash_shown
    locked = _lock.acquire(timeout=_LOCK_SECONDS)
    try:
        if _splash_shown:
            with suppress(OSError):  # the terminal may be gone
                write((_RESET + _HIDE).encode())
            _splash_shown = False  # not before: a handler that strikes between the two ends the process
    finally:
        if locked:
            _lock.release()


def is_splash_shown() -> bool:
    """Whether it is on the screen."""
    return _splash_shown


def splash_taken_over() -> None:
    """Notes that from now on Textual paints, and restores the terminal."""
    global _splash_shown
    with _lock:
        _splash_shown = False


def _splash_lines(label: str, width: int, colors: bool) -> list[str]:
    def ink(color: str, on: str, text: str, bold: bool = False) -> str:
        return f"\x1b[{'1;' if bold else ''}38;2;{color};48;2;{on}m{text}{_RESET}" if colors else text

    used = len(" gpuwatch ") + len(label) + 2
    badge = _LIVE if label == "LIVE" else _SIMULATED
    return [
        ink(_ACCENT, _BAR, " gpuwatch ", bold=True)
        + ink(_BACKGROUND, badge, f" {label} ", bold=True)
        + ink(_TEXT, _BAR, " " * max(0, width - used)),
        "",
        ink(_ACCENT, _BACKGROUND, "    STARTING  ")
        + ink(_TEXT, _BACKGROUND, OPENING if label.startswith("REPLAY") else STARTING, bold=True),
    ]


def _has_colors(environ: Mapping[str, str]) -> bool:
    return "NO_COLOR" not in environ and environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
