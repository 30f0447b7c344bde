"""Makes the screens that lie above the main one, each imported when it is asked for: the first frame needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.dashboard.screens.base import ViewScreen
    from gpuwatch.dashboard.view import FindingKey


def help_screen() -> ViewScreen:
    """Keys and words."""
    from gpuwatch.dashboard.screens.pages import HelpScreen

    return HelpScreen()


def timeline_screen() -> ViewScreen:
    """Everything on one axis."""
    from gpuwatch.dashboard.screens.pages import TimelineScreen

    return TimelineScreen()


def processes_screen() -> ViewScreen:
    """Who uses the GPUs."""
    from gpuwatch.dashboard.screens.pages import ProcessesScreen

    return ProcessesScreen()


def attach_screen() -> ViewScreen:
    """Who trains here and can be attached to."""
    from gpuwatch.dashboard.screens.attach import AttachScreen

    return AttachScreen()


def gpu_screen(uuid: str) -> ViewScreen:
    """All about one GPU."""
    from gpuwatch.dashboard.screens.pages import GpuScreen

    return GpuScreen(uuid)


def finding_screen(key: FindingKey) -> ViewScreen:
    """One finding in full."""
    from gpuwatch.dashboard.screens.finding import FindingScreen

    return FindingScreen(key)


def rule_screen(rule_id: str) -> ViewScreen:
    """A rule's page, or that there is none."""
    from gpuwatch.dashboard.screens.pages import RuleScreen
    from gpuwatch.diagnosis.registry import rule_by_id

    try:
        text: str | None = rule_by_id(rule_id).page
    except KeyError:
        text = None
    return RuleScreen(rule_id, text)
