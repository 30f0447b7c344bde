from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from textual.dom import DOMNode

from gpuwatch.dashboard.actions import ACTIONS, Bound, Place, bottom_line
from gpuwatch.dashboard.app import DashboardApp
from gpuwatch.dashboard.panels.hardware import GpuTable
from gpuwatch.dashboard.replay import ReplayApp
from gpuwatch.dashboard.screens.attach import AttachScreen
from gpuwatch.dashboard.screens.base import PageScreen
from gpuwatch.dashboard.screens.finding import FindingScreen, TrialScreen
from gpuwatch.dashboard.screens.gpu import GpuScreen
from gpuwatch.dashboard.screens.main import MainScreen
from gpuwatch.dashboard.screens.processes import ProcessesScreen, ProcessScreen, SignalScreen
from gpuwatch.dashboard.screens.run import RunScreen
from gpuwatch.dashboard.screens.timeline import TimelineScreen
from gpuwatch.dashboard.widgets import CursorList, FilterInput

CLASSES: dict[Place, tuple[type[DOMNode], ...]] = {
    "app": (DashboardApp,),
    "player": (ReplayApp,),
    "main": (MainScreen,),
    "page": (PageScreen,),
    "finding": (FindingScreen,),
    "timeline": (TimelineScreen,),
    "processes": (ProcessesScreen,),
    "process": (ProcessScreen,),
    "signal": (SignalScreen,),
    "gpu": (GpuScreen,),
    "run": (RunScreen,),
    "attach": (AttachScreen,),
    "list": (CursorList, GpuTable),
    "filter": (FilterInput,),
    "trial": (TrialScreen,),
}


def has_action(place: Place, run: str) -> bool:
    space, _, name = run.partition("(")[0].rpartition(".")
    classes = CLASSES[place] if not space else (ReplayApp if place == "player" else DashboardApp,)
    if place == "player" and not space:
        classes = (MainScreen,) if not hasattr(ReplayApp, f"action_{name}") else (ReplayApp,)
    return all(hasattr(each, f"action_{name}") for each in classes)


@pytest.mark.parametrize("place", get_args(Place))
def test_a_key_means_one_thing_in_one_place(place: Place) -> None:
    keys = Counter(
        key for action in ACTIONS for each in action.bound if each.place == place for key in each.keys.split(",")
    )
    assert not {key: times for key, times in keys.items() if times > 1}


@pytest.mark.parametrize("bound", [each for action in ACTIONS for each in action.bound], ids=lambda each: each.keys)
def test_what_a_key_runs_exists_where_it_is_bound(bound: Bound) -> None:
    assert has_action(bound.place, bound.run)


@pytest.mark.parametrize("place", [place for place in get_args(Place) if place not in ("app", "list", "filter")])
def test_what_a_click_on_a_bottom_line_runs_exists_on_that_screen(place: Place) -> None:
    everything = frozenset(need for action in ACTIONS for each in action.shown for need in each.needs)
    keys = bottom_line(place, everything)
    assert keys
    for key in keys:
        assert has_action(place, key.run), key
