from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.report.html import render_html
from tests.integration.browser import needs_chromium, opened
from tests.integration.command_line import gpuwatch
from tests.unit import scene_builder as build
from tests.unit.report_builder import starvation
from tests.unit.test_report_html import HOSTILE, document

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the starved demo."""
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    done = gpuwatch(folder, "report", "--simulate", "starved", "--duration", "120", "--format", "html", "-o", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_draws_its_charts_without_a_request_or_a_complaint(starved: Path, scheme: str) -> None:
    with opened(starved, color_scheme=scheme, viewport={"width": 1440, "height": 900}) as seen:
        charts = seen.page.locator("figure.chart")
        assert charts.count() >= 8
        assert seen.page.locator("figure.chart canvas").count() == charts.count()
        assert seen.page.locator(".static:visible").count() == 0
        drawn = seen.page.evaluate(
            "[...document.querySelectorAll('canvas')].map(c => new Set(c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data).size)"
        )
        assert min(drawn) > 4, "a canvas with nothing on it has one colour"
        assert seen.requests == [starved.as_uri()]
        assert seen.complaints == []


def test_cursor_shows_the_same_moment_in_all_charts(starved: Path) -> None:
    with opened(starved, viewport={"width": 1440, "height": 900}) as seen:
        seen.page.locator("figure.chart .u-over").first.hover()
        moments = seen.page.locator("figure.chart .at").all_inner_texts()
        assert moments[0]
        assert set(moments) == {moments[0]}
        values = seen.page.locator("figure.chart .legend b").all_inner_texts()
        assert all(values)


def test_cursor_shows_the_time_of_day_from_before_the_machine_slept(tmp_path: Path) -> None:
    path = tmp_path / "slept.html"
    anchors = ((build.START_NS, 1_795_176_000.0), (build.START_NS + 5 * build.SECOND, 1_795_180_000.0))  # 12:00 UTC
    path.write_text(render_html(document(wall_anchors=anchors)), encoding="utf-8")
    with opened(path, timezone_id="UTC") as seen:
        plot = seen.page.locator("figure.chart .u-over").first
        plot.hover(position={"x": 3, "y": 20})
        assert "12:00:01" in seen.page.locator("figure.chart .at").first.inner_text()
        plot.hover(position={"x": round((plot.bounding_box() or {"width": 0})["width"]) - 3, "y": 20})
        assert "13:06:42" in seen.page.locator("figure.chart .at").first.inner_text()


def test_page_fits_a_telephone(starved: Path) -> None:
    with opened(starved, viewport={"width": 390, "height": 844}) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        assert seen.page.locator("h1").inner_text().startswith("train.py (4711)")
        assert seen.complaints == []


def test_page_is_readable_without_javascript(starved: Path) -> None:
    with opened(starved, java_script_enabled=False) as seen:
        assert seen.page.locator(".static svg:visible").count() >= 8
        assert seen.page.locator("svg.spark:visible").count() >= 2
        assert seen.page.get_by_text("What to change").first.is_visible()


def test_printed_page_has_the_drawings_and_every_finding_open(starved: Path) -> None:
    with opened(starved) as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.locator(".static svg:visible").count() >= 8
        assert seen.page.locator("canvas:visible").count() == 0
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.locator("details:not([open])").count() == 0


def test_hostile_process_name_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(
        render_html(document(title=HOSTILE, findings=[starvation(summary=HOSTILE)], notes=(HOSTILE,))), encoding="utf-8"
    )
    with opened(path) as seen:
        assert "<img src=x onerror=alert(1)>{{7*7}}" in seen.page.locator("h1").inner_text()
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("figure.chart canvas").count() == 2
        assert (seen.requests, seen.complaints) == ([path.as_uri()], [])


def test_script_that_got_into_the_page_would_not_run(starved: Path, tmp_path: Path) -> None:
    path = tmp_path / "injected.html"
    injected = "<script>document.title = 'mine'</script><img src=x onerror=\"document.title = 'mine'\"></main>"
    path.write_text(starved.read_text(encoding="utf-8").replace("</main>", injected), encoding="utf-8")
    with opened(path) as seen:
        assert seen.page.title().startswith("gpuwatch report")
        assert sum("Content Security Policy" in complaint for complaint in seen.complaints) >= 2
