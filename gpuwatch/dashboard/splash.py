"""The very first frame, written before Textual is there: importing that takes a fifth of a second.

It says what the first real frame says, at the same places, so that nothing jumps. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gpuwatch.dashboard.terminal import MOST_COLUMNS

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H"
_LEAVE = "\x1b[?1049l\x1b[?25h"
_RESET = "\x1b[0m"

# The default theme's accent, bar, text and background; see themes.py.
_ACCENT, _BAR, _TEXT, _BACKGROUND = "108;182;255", "26;33;43", "215;222;232", "14;18;24"
_LIVE, _SIMULATED = "87;201;138", "232;176;75"

STARTING = "looking for GPUs and training runs"
OPENING = "opening the recording"

_shown = False
_lock = threading.Lock()
"""Numbers are painted by other threads than the one that hands the screen to Textual."""
_LOCK_SECONDS = 0.1
"""A handler would wait forever for what it has interrupted."""


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
    global _shown
    if _shown:
        return
    _shown = True
    width, _ = shutil.get_terminal_size()
    write((_ENTER + "\r\n".join(_lines(label, min(width, MOST_COLUMNS), _has_colors(environ)))).encode())


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
        if _shown and lines:
            write("".join(f"\x1b[{row};1H{line[:width]}\x1b[K" for row, line in placed).encode(errors="replace"))


def hide_splash(write: Callable[[bytes], object] = lambda data: os.write(2, data)) -> None:
    """Gives the normal screen back when Textual never took over. A signal handler may call it."""
    global _shown
    locked = _lock.acquire(timeout=_LOCK_SECONDS)
    try:
        if _shown:
            with suppress(OSError):  # the terminal may be gone
                write((_RESET + _LEAVE).encode())
            _shown = False  # not before: a handler that strikes between the two ends the process
    finally:
        if locked:
            _lock.release()


def is_splash_shown() -> bool:
    """Whether it is on the screen."""
    return _shown


def splash_taken_over() -> None:
    """Notes that from now on Textual paints, and restores the terminal."""
    global _shown
    with _lock:
        _shown = False


def _lines(label: str, width: int, colors: bool) -> list[str]:
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
