from __future__ import annotations

import asyncio
import threading

import pytest

from gpuwatch.dashboard.screens.base import in_background

PATIENCE_SECONDS = 30.0


async def test_the_result_or_the_error_of_the_function_comes_back() -> None:
    assert await in_background(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_background(divmod, 7, 0)


def test_the_end_does_not_wait_for_what_never_answers() -> None:
    release, begun = threading.Event(), threading.Event()

    def never() -> None:
        begun.set()
        release.wait(PATIENCE_SECONDS)

    async def main() -> None:
        asking = asyncio.ensure_future(in_background(never))
        while not begun.is_set():
            await asyncio.sleep(0)
        assert not asking.done()

    thread = threading.Timer(PATIENCE_SECONDS / 2, release.set)  # so that a failing test ends
    thread.start()
    asyncio.run(main())
    assert not release.is_set()
    thread.cancel()
    release.set()
