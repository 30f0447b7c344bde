"""The pages of docs/rules: those of `gpuwatch explain`, with an example, and the index of all of them."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from gpuwatch.cli.explain import evidence_words, sections, threshold_rows
from gpuwatch.diagnosis.finding import Severity
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.text import markdown
from tests.rule_pages.examples import example

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "rules"
INDEX = "README.md"
MADE = "<!-- Made by `python -m tests.rule_pages --write` from the rules themselves. Do not edit. -->"
WIDTH = 119
HEADINGS = (
    "Means", "Evidence", "Window", "Triggers when", "Clears when", "Exceptions",
    "Causes", "Fix", "Gain", "Verify", "Source",
)  # fmt: skip
BY_TABLE = frozenset({"xid-error", "xid-unplaced"})
"""Rules whose severity stands in NVIDIA's table of errors, not in their own file."""


def page(rule: Rule) -> str:
    """One rule's page."""
    shown = example(rule.id)
    parts = [
        f"# {rule.id}",
        MADE,
        markdown(rule.title),
        _table(
            ("", ""),
            [
                ("Family", _family(rule)),
                ("About", {"run": "a training run", "gpu": "a GPU", "machine": "the machine"}[rule.subject]),
                ("Severity", _severities(rule)),
                ("Evidence", evidence_words(rule)),
            ],
        ),
    ]
    for section in sections(rule):
        parts += [f"## {section.heading}", _wrapped(markdown(section.text))]
    parts += _thresholds(rule)
    parts += ["## Example", f"From {shown.origin}:", f"```text\n{shown.text}\n```"]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The table of all rules by family."""
    rules = sorted(all_rules(), key=lambda rule: (rule.family, rule.id))
    parts = [
        "# Rules",
        MADE,
        _wrapped(
            f"gpuwatch judges {len(rules)} rules every 5 seconds. `gpuwatch explain RULE` shows a rule's page in the "
            "terminal. Rules are selected and ignored by id, by the beginning of ids or by family, and their "
            "thresholds set, in `[tool.gpuwatch]` of pyproject.toml or in `~/.config/gpuwatch/config.toml`:"
        ),
        '```toml\n[tool.gpuwatch]\nignore = ["power-capped", "workers-"]\n\n[tool.gpuwatch.rules.data-starvation]\n'
        "fire-share = 0.15\n```",
        _wrapped(
            "Evidence is the level from which on a finding counts as proven: E0 hardware readings, E1 stacks and "
            "/proc, E2 the hook's timings, E3 GPU event pairs. With less it is said as likely."
        ),
    ]
    for family, members in groupby(rules, key=_family):
        rows = [
            (f"[{rule.id}]({rule.id}.md)", markdown(rule.title), _severities(rule), rule.level.name) for rule in members
        ]
        parts += [f"## {family}", _table(("Rule", "What it says", "Severity", "Evidence"), rows)]
    return "\n\n".join(parts) + "\n"


def names() -> tuple[str, ...]:
    """The files of the folder."""
    return (INDEX, *(f"{rule.id}.md" for rule in all_rules()))


def content(name: str) -> str:
    """What a file has to hold."""
    if name == INDEX:
        return index()
    return page(next(rule for rule in all_rules() if f"{rule.id}.md" == name))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _family(rule: Rule) -> str:
    return rule.family.replace("_", " ")


def _severities(rule: Rule) -> str:
    """Those that the rule's file can give, the worst first."""
    if rule.id in BY_TABLE:
        return "by the number of the error"
    source = Path(str(sys.modules[rule.check.__module__].__file__)).read_text(encoding="utf-8")
    given = set(re.findall(r"\bSeverity\.([A-Z]+)\b", source))
    return ", ".join(each.value for each in Severity if each.name in given)


def _thresholds(rule: Rule) -> list[str]:
    rows = threshold_rows(rule)
    if not rows:
        return ["## Thresholds", "This rule has none that could be set."]
    table = _table(
        ("Key", "Default", "Allowed", "Meaning"),
        [(f"`{row.key}`", row.default, row.allowed, row.meaning) for row in rows],
    )
    return ["## Thresholds", f"To be set in `[tool.gpuwatch.rules.{rule.id}]`:", table]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
