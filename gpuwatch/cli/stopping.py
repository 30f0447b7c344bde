"""Ctrl-C and SIGTERM as a wish to stop, so that what was seen is still written."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """While entered, the first SIGINT, SIGTERM or SIGHUP calls `on_stop`; the second ends the command at once."""

    _SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, on_stop: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._before: dict[int, Any] = {}
        self.received = False

    def __enter__(self) -> StopSignals:
        for number in self._SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
        self._on_stop()
