"""What the monitor and the NVML child share: the options, the marker of the current call, the pipe of JSON lines."""

from __future__ import annotations

import json
import mmap
import os
import select
import stat
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


Avoid = dict[str, dict[str, int]]
"""GPU UUID (or "index:N", or "-" for the library) -> function -> CLOCK_MONOTONIC ns until which it is not called."""


class Options:
    """The child's settings. `argparse` would cost a megabyte, and users do not type these."""

    def __init__(
        self,
        interval_seconds: float = 1.0,
        slow_seconds: float = 5.0,
        rare_seconds: float = 30.0,
        retry_seconds: float = 5.0,
        init_seconds: float = 30.0,
        proc_root: str = "/proc",
        kernel_log: str | None = "/dev/kmsg",
        marker_fd: int | None = None,
        avoid: Avoid | None = None,
        survey: bool = False,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.slow_seconds = slow_seconds
        self.rare_seconds = rare_seconds
        self.retry_seconds = retry_seconds
        self.init_seconds = init_seconds
        self.proc_root = proc_root
        self.kernel_log = kernel_log
        self.marker_fd = marker_fd
        self.avoid: Avoid = avoid or {}
        self.survey = survey

    @classmethod
    def from_arguments(cls, arguments: list[str]) -> Options:
        """Reads `['{"interval_seconds": 1.0}']`, `["--survey"]` or both."""
        words = [word for word in arguments if word != "--survey"]
        options = cls(**json.loads(words[0])) if words else cls()
        options.survey = options.survey or "--survey" in arguments
        return options


MARKER_SIZE = 256
_BEGAN = struct.Struct("d")
_BEGAN_AT = MARKER_SIZE - _BEGAN.size
LIBRARY = "-"
"""The "device" of calls that have none."""
EVENT_WAIT = "nvmlEventSetWait"
"""The one call that is made by another thread, and so is not in the marker."""


class Marker:
    """The call that the child makes now, in memory that the parent can read after a hang or a crash.

    A killed process cannot say where it was. With this, a restart leaves out the one call that hung, on the one GPU,
    and all other values come back. Writing it costs 0.2 us a call.
    """

    def __init__(self, fd: int | None) -> None:
        self._memory = mmap.mmap(fd if fd is not None else -1, MARKER_SIZE)

    def set(self, text: bytes, began_seconds: float) -> None:
        """Names the call that begins now, by CLOCK_MONOTONIC; `text` comes from `marker_line`."""
        _BEGAN.pack_into(self._memory, _BEGAN_AT, began_seconds)
        self._memory[: len(text)] = text

    def clear(self) -> None:
        """No call is being made."""
        self._memory[:1] = b"\0"


def marker_line(device: str, function: str) -> bytes:
    """What `Marker.set` takes; made once per call site."""
    return f"{device} {function}".encode(errors="replace")[: _BEGAN_AT - 1] + b"\0"


def read_marker(fd: int) -> tuple[str, str] | None:
    """For the parent: the (device, function) that was being called, or None between calls."""
    with mmap.mmap(fd, MARKER_SIZE, prot=mmap.PROT_READ) as memory:
        text = memory[:].split(b"\0", 1)[0].decode(errors="replace")
    device, _, function = text.rpartition(" ")  # a UUID is whatever the driver says it is
    return (device, function) if device else None


def marker_began(fd: int) -> float:
    """For the parent: when the call of `read_marker` began, in seconds of CLOCK_MONOTONIC."""
    with mmap.mmap(fd, MARKER_SIZE, prot=mmap.PROT_READ) as memory:
        seconds: float = _BEGAN.unpack_from(memory, _BEGAN_AT)[0]
    return seconds


class Output:
    """Writes one JSON object a line to what was standard output.

    Standard output itself becomes standard error, because a driver library that prints would break a line. That
    does not block: the parent reads it only when a line comes, and a library that fills the pipe would never return.
    """

    def __init__(self) -> None:
        self._fd = os.dup(1)
        if stat.S_ISFIFO(os.fstat(2).st_mode):  # a terminal's mode would be everybody's
            os.set_blocking(2, False)
        os.dup2(2, 1)

    def line(self, **content: Any) -> None:
        """One line, whole; blocks while the parent is stopped, which is as it should be."""
        data = (json.dumps(content, separators=(",", ":")) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def end_with_reader(self) -> None:
        """Ends this process when the reader is gone, also in the middle of a call that never returns.

        PR_SET_PDEATHSIG would do it too, but fires already when the parent's *thread* that started us ends.
        """

        def wait() -> None:
            poll = select.poll()
            poll.register(self._fd, 0)
            poll.poll()
            os._exit(0)

        threading.Thread(target=wait, name="reader", daemon=True).start()
