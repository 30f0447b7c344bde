"""Fixtures of the dashboard's tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day are written in local time: here always in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture(autouse=True)
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may want no colours; what is tested has them."""
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def assert_snapshot() -> Callable[[str, str], None]:
    """Compares text with a kept file; GPUWATCH_UPDATE_SNAPSHOTS=1 writes the file instead.

    A plugin for this exists (pytest-textual-snapshot), but it pins pytest below 9.
    """

    def compare(name: str, text: str) -> None:
        kept = SNAPSHOTS / name
        text = text.rstrip() + "\n"
        if os.environ.get("GPUWATCH_UPDATE_SNAPSHOTS") == "1":
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(text, encoding="utf-8")
        assert text == kept.read_text(encoding="utf-8"), (
            f"the screen is not that of {kept.name}; look at it, then run with GPUWATCH_UPDATE_SNAPSHOTS=1"
        )

    return compare
