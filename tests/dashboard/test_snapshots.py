from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwatch.monitor.snapshot import Snapshot
from tests.dashboard import situations
from tests.dashboard.piloting import driven

SIZES = ((80, 24), (120, 36), (200, 60))
SCREENS = {
    "starved": situations.starved,
    "eight-ranks": lambda: situations.many_gpus(8, 8),
    "lost": situations.lost,
    "nothing-to-watch": situations.no_gpu,
    "attached": situations.attached,
}


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_main_screen_reads_as_it_did(
    name: str, size: tuple[int, int], assert_snapshot: Callable[[str, str], None]
) -> None:
    async with driven(SCREENS[name](), size) as driver:
        assert_snapshot(f"{name}-{size[0]}x{size[1]}.txt", driver.text)


@pytest.mark.parametrize(("name", "keys"), [("finding", ("enter",)), ("timeline", ("t",)), ("processes", ("p",))])
async def test_the_other_screens_read_as_they_did(
    name: str, keys: tuple[str, ...], assert_snapshot: Callable[[str, str], None]
) -> None:
    async with driven(situations.starved(), (120, 44)) as driver:
        await driver.press(*keys)
        await driver.settle()
        assert_snapshot(f"{name}-120x44.txt", driver.text)


@pytest.mark.parametrize(
    ("name", "situation", "keys"),
    [
        ("attach", situations.unwatched, ("a",)),
        ("attach-again", situations.attached, ("a",)),
        ("finding-attached", situations.attached, ("enter",)),
        ("stuck", situations.stuck, ()),
    ],
)
async def test_the_screens_around_attaching_read_as_they_did(
    name: str, situation: Callable[[], Snapshot], keys: tuple[str, ...], assert_snapshot: Callable[[str, str], None]
) -> None:
    async with driven(situation(), (100, 30)) as driver:
        await driver.press(*keys)
        await driver.settle()
        assert_snapshot(f"{name}-100x30.txt", driver.text)


@pytest.mark.parametrize("theme", ["gpuwatch-night", "gpuwatch-colour-blind"])
async def test_colours_are_as_they_were(theme: str, assert_snapshot: Callable[[str, str], None]) -> None:
    async with driven(situations.starved(), (80, 24)) as driver:
        driver.app.theme = theme
        await driver.pilot.pause()
        assert_snapshot(f"colours-{theme}.txt", driver.painted)
