"""Whether autocast was active in training.

Its state is off again at step boundaries, so its entrance is watched, until it has been seen once with gradients on.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Optional

from .hidden import hidden
from .quiet import quietly
from .ring import pulse

autocast_dtype: Optional[str] = None


def wrap_autocast(torch: ModuleType) -> None:
    """Wraps `autocast.__enter__`."""
    kind = torch.amp.autocast_mode.autocast
    original = kind.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if getattr(self, "_enabled", False) and torch.is_grad_enabled():
            quietly(_note, self)
            if kind.__enter__ is enter:
                kind.__enter__ = original
        return original(self)

    kind.__enter__ = hidden(enter)


def _note(autocast: Any) -> None:
    """Its attributes are torch's own: in another version they may have other names."""
    global autocast_dtype
    autocast_dtype = str(autocast.fast_dtype).replace("torch.", "")
    pulse.facts_changed = True


PATCHES = {"torch": (wrap_autocast,)}
