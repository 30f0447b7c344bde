"""Wrappers that neither warnings nor Dynamo trip over.

`warnings.warn(..., stacklevel=2)` below a wrapper would name our file instead of the user's line. CPython leaves
out frames whose file name holds both "importlib" and "_bootstrap" (Python/_warnings.c, is_internal_frame), so our
wrappers carry such a name. Dynamo would compile a wrapper it meets after a graph break; it skips marked code.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself would cost 3 ms at the start of every Python
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

MARK = " (importlib_bootstrap)"


def hidden(function: AnyFunction) -> AnyFunction:
    """The same function, passed over by warnings and, when torch is there, by Dynamo."""
    code = function.__code__
    function.__code__ = code.replace(co_filename=code.co_filename + MARK)
    if "torch" in sys.modules:
        _skip(function, with_what_it_calls=False)
    return function


def hide_from_dynamo(*functions: Callable[..., Any]) -> None:
    """Makes Dynamo skip functions with everything they call.

    Called from a wrapper inside a compiled step, a flush would otherwise be compiled, 15 frames of it.
    """
    for function in functions:
        _skip(function, with_what_it_calls=True)


def _skip(function: Callable[..., Any], with_what_it_calls: bool) -> None:
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if with_what_it_calls else action.DEFAULT)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError, TypeError):
        pass  # before torch 2.6 there is no such switch, and Dynamo compiles the function at worst
