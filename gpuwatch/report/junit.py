"""The report as JUnit XML: a test case per rule, as GitHub, GitLab and Jenkins show them.

A rule passes where it judged and found nothing that bad; where it could not judge it is skipped with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gpuwatch.report import model, words
from gpuwatch.text import printable, printable_lines

FAILING = {"warning": ("critical", "warning"), "critical": ("critical",)}
"""--fail-on -> the severities that fail."""

_NOT_XML = re.compile("[\ufffe\uffff]")


def render_junit(report: model.Report, fail_on: str = "warning") -> str:
    """The whole document."""
    failing = FAILING[fail_on]
    cases = [_case(rule, _of_rule(report, rule.rule), failing) for rule in report.rules]
    about = report.gpuwatch
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{about.duration_seconds:.3f}",
    }
    root = Element("testsuites", {"name": "gpuwatch", **counts})
    suite = SubElement(
        root,
        "testsuite",
        {
            "name": "gpuwatch",
            **counts,
            "timestamp": about.started_at.removesuffix("Z"),
            "hostname": _clean(report.host.hostname or "unknown"),
        },
    )
    properties = SubElement(suite, "properties")
    for name, value in _properties(report):
        SubElement(properties, "property", {"name": name, "value": _clean(value)})
    suite.extend(cases)
    out = SubElement(suite, "system-out")
    out.text = _clean("\n".join(_sentence(*line) for line in words.verdict_lines(report)))
    indent(root)
    return "<?xml version='1.0' encoding='UTF-8'?>\n" + tostring(root, encoding="unicode") + "\n"


def _of_rule(report: model.Report, rule: str) -> list[model.Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def _properties(report: model.Report) -> Iterator[tuple[str, str]]:
    about = report.gpuwatch
    yield "gpuwatch.version", about.version
    yield "gpuwatch.source", about.label
    if about.incomplete:
        yield "gpuwatch.incomplete", "true"
    for run in report.runs:
        yield "run", f"{run.title} ({run.pid}): {run.command}"


def _case(rule: model.JudgedRule, findings: list[model.Finding], failing: tuple[str, ...]) -> Element:
    case = Element("testcase", {"classname": f"gpuwatch.{rule.family}", "name": rule.rule, "time": "0"})
    bad = [finding for finding in findings if finding.severity in failing]
    if not rule.judged:
        SubElement(case, "skipped", {"message": _clean(rule.reason or "not judged")})
    elif bad:
        file = next((finding.fix.file for finding in bad if finding.fix and finding.fix.file), None)
        if file:
            case.set("file", _clean(file))
        message = "; ".join(finding.summary for finding in bad)
        failure = SubElement(case, "failure", {"type": bad[0].severity, "message": _clean(message)})
        failure.text = _clean("\n\n".join(map(_details, bad)))
    others = [finding for finding in findings if finding not in bad]
    if others:
        SubElement(case, "system-out").text = _clean("\n\n".join(map(_details, others)))
    return case


def _details(finding: model.Finding) -> str:
    return "\n".join(map(printable, _lines(finding)))


def _lines(finding: model.Finding) -> Iterator[str]:
    yield f"{finding.severity.upper()} ({finding.level}): {finding.summary}"
    yield from words.details(finding)
    if finding.fix is not None:
        yield from printable_lines(finding.fix.diff or finding.fix.code or "")


def _sentence(word: str, sentence: str, change: str) -> str:
    return printable(f"{word} {sentence}") + (f"\n    {printable(change)}" if change else "")


def _clean(text: str) -> str:
    """Text that XML can hold: it knows no control characters, not even as references."""
    return "\n".join(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", line) for line in printable_lines(text))
