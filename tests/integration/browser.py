"""Opens pages in a headless Chromium, and notes what a page asks for and complains of."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import PATIENCE_SECONDS

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), None)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="no Chromium or no playwright here: apt-get install chromium, pip install playwright",
)


@dataclass
class Opened:
    """A page in the browser, with everything it fetched beyond its own file and every complaint."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[Opened]:
    """The page of a file; `options` are those of playwright's `new_page`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        milliseconds = PATIENCE_SECONDS * 1000
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=milliseconds)
        try:
            seen = Opened(browser.new_page(**options))
            seen.page.set_default_timeout(milliseconds)
            seen.page.on("request", lambda request: seen.requests.append(request.url))
            seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
            seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            seen.page.on("dialog", lambda dialog: seen.complaints.append(f"dialog: {dialog.message}"))
            seen.page.goto(path.as_uri())
            yield seen
        finally:
            browser.close()
