"""What the parent tells the child, as one JSON argument."""

from __future__ import annotations

import json

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
