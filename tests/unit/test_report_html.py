from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.diagnosis.finding import Fix, Severity
from gpuwatch.report.build import build_report
from gpuwatch.report.html import chart_plan, lanes, page_view, render_html
from gpuwatch.report.model import Report, as_json
from gpuwatch.report.observation import Stretch
from tests.unit import scene_builder as build
from tests.unit.report_builder import chart, observation, starvation
from tests.unit.test_report_document import check_schema

HOSTILE = "</script><img src=x onerror=alert(1)>{{7*7}}<!-- \x1b]0;title\x07 \u202e & \udcff"
SECOND = build.SECOND


class Page(HTMLParser):
    """What a browser would make of it: elements with their attributes, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._in: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in in self.raw:
            self.raw[self._in].append(data)
        else:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def document(*, findings: Iterable[Any] = (), **fields: Any) -> Report:
    gpu = build.gpu()
    run = build.run(build.rank(facts={"command": ("python", HOSTILE)}), title=fields.pop("title", "train.py"))
    curves = (
        chart("gpu.utilization_percent", gpu.facts.uuid, 10.0, 50.0, None, 90.0),
        chart("run.step_seconds", run.id, 0.2, 0.25, 0.2, 0.3),
    )
    stretches = (
        Stretch("phase", "eval", build.START_NS + 2 * SECOND, build.START_NS + 4 * SECOND, run.id),
        Stretch(
            "finding", "data-starvation", build.START_NS, build.START_NS + 8 * SECOND, run.id, None, Severity.CRITICAL
        ),
    )
    anchors = fields.pop("wall_anchors", ())
    usual: dict[str, Any] = {"charts": curves, "curves": curves, "stretches": stretches}
    seen = observation(build.scene(run, gpus=[gpu]), findings, **(usual | fields))
    return build_report(replace(seen, snapshot=replace(seen.snapshot, wall_anchors=anchors)), with_series=True)


def policy(page: Page) -> dict[str, str]:
    (meta,) = [each for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    parts = (part.strip().partition(" ") for part in (meta["content"] or "").split(";"))
    return {name: value for name, _, value in parts}


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_policy_lets_only_the_pages_own_script_and_style_run() -> None:
    page = Page(render_html(document()))
    rules = policy(page)
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == sha256(page.raw["script"][-1])
    assert rules["style-src"] == sha256("".join(page.raw["style"]))
    assert "unsafe" not in str(rules)
    assert not [name for _, attributes in page.elements for name in attributes if name == "style" or name[:2] == "on"]


def test_nothing_is_fetched() -> None:
    page = Page(render_html(document(findings=[starvation()])))
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action")
    ]
    assert addresses == ["data:,"]
    assert not re.search(r"@import|url\(", "".join(page.raw["style"]))


def test_island_is_the_report_and_ends_no_script() -> None:
    report = document(title=HOSTILE, findings=[starvation(summary=HOSTILE)])
    html = render_html(report)
    page = Page(html)
    assert json.loads(page.raw["script"][0]) == as_json(report)
    assert len(page.raw["script"]) == 3
    assert "<img" not in html
    assert html.count("</script") == 3


def test_hostile_text_stays_text_wherever_it_stands() -> None:
    fix = starvation().fix
    assert fix is not None
    found = starvation(
        summary=HOSTILE, verify=HOSTILE, fix=replace(fix, text=HOSTILE, code=HOSTILE, file=HOSTILE, edit=None)
    )
    page = Page(render_html(document(title=HOSTILE, findings=[found], notes=(HOSTILE,))))
    assert not page.of("img")
    assert "</script><img src=x onerror=alert(1)>{{7*7}}<!--" in page.text
    assert "\\x1b]0;title\\x07 \\u202e & " in page.text
    assert not set("\x1b\x07\u202e") & set(page.text)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_any_name_gives_a_page_with_the_same_elements(name: str) -> None:
    usual = [tag for tag, _ in Page(render_html(document(title="train.py"))).elements]
    html = render_html(document(title=name))
    assert [tag for tag, _ in Page(html).elements] == usual
    html.encode()


def test_diff_is_shown_line_by_line_with_what_each_does() -> None:
    source = "\n" * 87 + "loader = DataLoader(data, num_workers=4)\n"
    page = Page(render_html(document(findings=[starvation()], read_source=lambda path, started, of: source.encode())))
    kinds = [attributes.get("class") for tag, attributes in page.elements if tag == "span"]
    assert "added" in kinds
    assert "removed" in kinds
    assert "+loader = DataLoader(data, num_workers=10)" in page.text


def test_the_verdict_and_what_to_change_come_before_everything_else() -> None:
    text = Page(render_html(document(findings=[starvation()]))).text
    order = [
        "the GPU idles 41%", "load with 10 workers", "num_workers=10", "gpuwatch trial", "Findings", "GPUs",
        "Training runs", "Over time", "Data quality", "Environment",
    ]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_page_is_readable_without_its_script() -> None:
    page = Page(render_html(document()))
    paths = [attributes["d"] or "" for attributes in page.of("path") if attributes.get("class") != "grid"]
    assert len(paths) == 2
    assert paths[0].count("M") == 2, "where nothing was measured the curve is broken"
    assert page.of("polyline")
    assert [attributes["class"] for attributes in page.of("rect") if "band" in (attributes.get("class") or "")] == [
        "band phase-eval"
    ] * 2


@pytest.mark.parametrize("runs", [0, 2])
def test_each_sentence_stands_before_its_own_gpus_remedy(runs: int) -> None:
    scene = build.scene(
        *(build.run(build.rank(pid=4711 + index, gpus=(index,)), title=f"{index}.py") for index in range(runs)),
        gpus=[build.gpu(index) for index in range(2)],
    )
    hot = [
        starvation(
            rule="thermal-throttle", run=None, gpu=f"GPU-{index}", summary=f"hot {index}", fix=Fix(f"cool {index}")
        )
        for index in range(2)
    ]
    view = page_view(build_report(observation(scene, hot)))
    shown = [view["first"], *view["others"]]
    assert len(shown) == 2
    for verdict in shown:
        number = "0" if "hot 0" in verdict.sentence else "1"
        assert verdict.finding.fix.text == f"cool {number}"


def test_lanes_show_when_findings_and_phases_were() -> None:
    starved, evaluation = lanes(document())
    assert (starved.name, starved.tone, starved.bars) == ("data-starvation", "critical", ((0.0, 100.0),))
    assert (evaluation.name, evaluation.bars) == ("eval", ((25.0, 25.0),))


def test_page_without_curves_has_no_charts() -> None:
    report = build_report(observation())
    assert chart_plan(report) == []
    assert "Over time" not in Page(render_html(report)).text


def test_report_with_series_fits_the_schema_and_without_has_none() -> None:
    report = as_json(document(findings=[starvation()]))
    check_schema(report)
    assert [each["unit"] for each in report["series"]] == ["%", "s"]
    assert report["series"][0]["min"] is None, "a bucket of one value has no spread to tell"
    assert report["spans"][0]["start_seconds"] >= 0
    assert "series" not in as_json(build_report(observation()))
