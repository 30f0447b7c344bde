"""Whether autocast was active in training.

Its state is off again at step boundaries, so its entrance is watched, until it has been seen once with gradients on.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Optional

from .hidden import around
from .quiet import own, quietly
from .ring import pulse

autocast_dtype: Optional[str] = None


def wrap_autocast(torch: ModuleType) -> None:
    """Wraps `autocast.__enter__`."""
    kind = torch.amp.autocast_mode.autocast
    original = kind.__enter__

    def enter(autocast: Any) -> None:
        if own(autocast, "_enabled") is True and torch.is_grad_enabled():
            quietly(_note, autocast, torch.dtype)
            if kind.__enter__ is wrapper:
                kind.__enter__ = original

    def leave(token: None, autocast: Any, result: Any, raised: bool) -> None:
        return None

    kind.__enter__ = wrapper = around(original, enter, leave, "self")


def _note(autocast: Any, kind: type) -> None:
    global autocast_dtype
    dtype = own(autocast, "fast_dtype")  # in another version of torch it may have another name
    if type(dtype) is not kind:
        raise AttributeError("autocast has no fast_dtype")
    autocast_dtype = str(dtype).replace("torch.", "")
    pulse.facts_changed = True


PATCHES = {"torch": (wrap_autocast,)}
