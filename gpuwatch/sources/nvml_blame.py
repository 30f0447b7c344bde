"""Which NVML calls a new child leaves out because an old one hung or died in them.

The driver can hang in one call on one GPU while all else works; without this, each new child would walk into
the same call and nothing would ever be shown.
"""

from __future__ import annotations

from gpuwatch.sources.nvml_child.marker import LIBRARY

_FIRST_NS = 60 * 10**9
_LONGEST_NS = 3600 * 10**9
_FUNCTIONS_TO_GIVE_UP = 3
_NEEDED = frozenset({"nvmlInit", "nvmlDeviceGetCount"})


class Blame:
    """Counts, by device and function, how often a child was lost there."""

    def __init__(self) -> None:
        self._strikes: dict[tuple[str, str], int] = {}
        self._until: dict[str, dict[str, int]] = {}

    def add(self, device: str, function: str, now_ns: int) -> bool:
        """Leaves the call out: for a minute, twice as long each further time. Returns whether it can be."""
        if device == LIBRARY and function in _NEEDED:
            return False
        strikes = self._strikes[(device, function)] = self._strikes.get((device, function), 0) + 1
        until = now_ns + min(_FIRST_NS << min(strikes - 1, 10), _LONGEST_NS)
        functions = self._until.setdefault(device, {})
        functions[function] = until
        if device != LIBRARY and sum(end > now_ns for end in functions.values()) >= _FUNCTIONS_TO_GIVE_UP:
            functions["*"] = until
        return True

    def avoid(self, now_ns: int) -> dict[str, dict[str, int]]:
        """What the next child is to leave out: device -> function -> until when."""
        current = {
            device: {function: until for function, until in functions.items() if until > now_ns}
            for device, functions in self._until.items()
        }
        return {device: functions for device, functions in current.items() if functions}
