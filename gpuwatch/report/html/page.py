"""Puts the page together from the report, the template and the vendored chart library.

The page names the hashes of its own script and style in its policy, so whatever a process calls itself, no other
script runs; and all text is escaped by the template engine, so it does not even get that far.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from gpuwatch.report.html.charts import chart_plan, lanes
from gpuwatch.report.html.view import page_view
from gpuwatch.report.observation import Json
from gpuwatch.text.escape import json_text, printable

_SCRIPTS = ("vendor/uPlot.iife.min.js", "charts.js")
_STYLES = ("vendor/uPlot.min.css", "page.css")
_IN_SCRIPT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def render_html(report: Json) -> str:
    """The whole page; with charts where the report holds their series."""
    scripts, styles = _together(_SCRIPTS), _together(_STYLES)
    plan = chart_plan(report)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            **page_view(report),
            policy=f"default-src 'none'; script-src {_hash(scripts)}; style-src {_hash(styles)}; img-src data:; "
            "base-uri 'none'; form-action 'none'",
            script=Markup(scripts),
            style=Markup(styles),
            lanes=lanes(report),
            charts=plan,
            island=_island(report),
            chart_island=_island([chart.island for chart in plan]),
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Every text on its way into the page: control characters and the like become codes."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _read(name: str) -> str:
    return resources.files("gpuwatch.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def _together(names: tuple[str, ...]) -> str:
    """Several files as one element; a form feed or a lone CR would come out of the browser's parser as another text."""
    return "\n".join(_read(name).strip() for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _island(data: Any) -> Markup:
    """Data between script tags: no `<` can end them."""
    text = json_text(data, compact=True)
    return Markup(text.translate(_IN_SCRIPT))
