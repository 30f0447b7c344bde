"""Runs what may take seconds off the event loop, without holding up the end of the program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


async def in_background(
    function: Callable[_Parameters, _Result], *arguments: _Parameters.args, **keywords: _Parameters.kwargs
) -> _Result:
    """The function's result, from a thread that quitting does not wait for.

    A disk, a parser or another process's memory may take seconds to answer, or forever; `asyncio.to_thread` keeps the
    loop from ending until it has.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: Exception | None) -> None:
        if answered.cancelled():
            return
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(result)  # type: ignore[arg-type]  # None only where that is its result

    def run() -> None:
        result, raised = None, None
        try:
            result = function(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            raised = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=run, name="gpuwatch-background", daemon=True).start()
    return await answered
