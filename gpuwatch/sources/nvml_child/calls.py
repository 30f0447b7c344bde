"""Making NVML calls: each is probed once, timed, named in the marker, and its refusals remembered."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from gpuwatch.sources.nvml_child import reasons
from gpuwatch.sources.nvml_child.marker import Marker, line
from gpuwatch.sources.nvml_child.options import Avoid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Ledger:
    """What NVML costs this process, and what of its answers was thrown away."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.dropped = 0


class CallError(Exception):
    """A call gave no value; `code` is NVML's or one of ours (see reasons)."""

    def __init__(self, code: int) -> None:
        super().__init__(reasons.reason_of(code))
        self.code = code


def wheel(name: str) -> Callable[..., Any] | None:
    """The wrapper of this name in nvidia-ml-py; older wheels lack newer functions."""
    return getattr(pynvml, name, None)


def attempt(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Calls once and turns every way to fail into CallError.

    `NVMLLibraryMismatchError` is no NVMLError; a wrapper that meets an unexpected structure raises plain
    ValueError, TypeError or ctypes.ArgumentError, one that believes an absurd count MemoryError or OverflowError;
    NVMLError(0) means "no data".
    """
    if function is None:
        raise CallError(reasons.NOT_IN_WHEEL)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise CallError(error.value or reasons.NOT_FOUND) from None
    except pynvml.NVMLLibraryMismatchError:
        raise CallError(reasons.FUNCTION_NOT_FOUND) from None
    except (MemoryError, OverflowError, UnicodeDecodeError):
        raise CallError(reasons.NOT_SENSIBLE) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise CallError(reasons.INVALID_ARGUMENT) from error


class Caller:
    """Makes the calls of one device. `device` is its UUID, which names it for the parent."""

    def __init__(self, handle: Any, device: str, ledger: Ledger, marker: Marker, avoid: Avoid) -> None:
        self.handle = handle
        self.device = device
        self.ledger = ledger
        self._marker = marker
        self._avoid = avoid.get(device)
        self._lines: dict[str, bytes] = {}
        self._refused: dict[tuple[str, object], int] = {}

    def call(self, name: str, *arguments: Any, using: Callable[..., Any] | None = None, variant: object = None) -> Any:
        """Calls `name` of nvidia-ml-py (or `using`, ours for the same function) with the handle.

        `variant` tells apart uses of one function that a GPU may support or not on their own.

        Raises:
            CallError: with the code; permanent refusals come from memory and cost no call.
        """
        key = (name, variant)
        refused = self._refused.get(key)
        if refused is not None:
            raise CallError(refused)
        if self._avoid and self._is_avoided(name):
            raise CallError(reasons.AVOIDED)
        text = self._lines.get(name)
        if text is None:
            text = self._lines[name] = line(self.device, name)
        function = using or wheel(name)
        ledger = self.ledger
        began = time.perf_counter()
        self._marker.set(text, began)
        try:
            return attempt(function, self.handle, *arguments)
        except CallError as error:
            if error.code in reasons.PERMANENT:
                self._refused[key] = error.code
            raise
        finally:
            ledger.calls += 1
            ledger.seconds += time.perf_counter() - began

    def ask(self, name: str, *arguments: Any, using: Callable[..., Any] | None = None) -> tuple[Any, int]:
        """As `call`, but returns (value, 0) or (None, code)."""
        try:
            return self.call(name, *arguments, using=using, variant=arguments), 0
        except CallError as error:
            return None, error.code

    def is_avoided_entirely(self) -> bool:
        """Whether an earlier child hung or crashed in several calls on this device."""
        return bool(self._avoid) and self._is_avoided("*")

    def _is_avoided(self, name: str) -> bool:
        avoid = self._avoid or {}
        until = max(avoid.get(name, 0), avoid.get("*", 0))
        return until > time.monotonic_ns()
