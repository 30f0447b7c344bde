"""The boundary at which a bug in one part stops: the rest of the watch goes on, and says what is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


class Guard:
    """Turns the failure of a part into a notice that stands until the part works again."""

    def __init__(self) -> None:
        self._notices: dict[str, str] = {}
        self._logged: set[str] = set()

    @property
    def notices(self) -> tuple[str, ...]:
        """One sentence for each part that fails now."""
        return tuple(self._notices.values())

    @contextmanager
    def part(self, name: str, *, proves: bool = True) -> Iterator[None]:
        """Runs a block as one part of the watch.

        Args:
            name: of the part. Its traceback is logged once, not at every turn.
            proves: whether to get through this block shows that the part works again.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - sources, rules and views are many; none may end the others
            if name not in self._logged:
                self._logged.add(name)
                _log.warning("%s failed", name, exc_info=True)
            self._notices[name] = f"The {name} failed, and its part is missing here ({type(error).__name__}: {error})."
        else:
            if proves:
                self._notices.pop(name, None)
