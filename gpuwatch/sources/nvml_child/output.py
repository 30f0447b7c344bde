"""The pipe to the parent: JSON lines out, and noticing that they are no longer read."""

from __future__ import annotations

import json
import os
import select
import stat
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
