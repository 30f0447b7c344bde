"""`gpuwatch explain [RULE]`: a rule's page from its own docstring; without an id, the list of all rules."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwatch.cli.output import ExitCode, GpuwatchError, is_terminal, write_styled
from gpuwatch.diagnosis.page import evidence_words, sections, threshold_rows
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.text import did_you_mean

_WIDEST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gpuwatch explain`."""
    parser.add_argument("rule", nargs="?", metavar="RULE")


def explain(arguments: argparse.Namespace) -> int:
    """Prints one rule's page, or the list.

    Raises:
        GpuwatchError: there is no such rule; it names the nearest.
    """
    rule_id, rules = arguments.rule, {rule.id: rule for rule in all_rules()}
    width = min(_WIDEST, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else _WIDEST
    if rule_id is None:
        write_styled(_list(rules.values()), width)
        return ExitCode.OK
    name = rule_id.strip().lower().replace("_", "-")
    if name not in rules:
        meant = did_you_mean(name, rules)
        raise GpuwatchError(f"there is no rule {rule_id!r}{meant}; `gpuwatch explain` lists all {len(rules)}")
    write_styled(_page(rules[name]), width)
    return ExitCode.OK


def _page(rule: Rule) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text.assemble((rule.id, "bold"), f"  {rule.family.replace('_', ' ')}, evidence {evidence_words(rule)}"),
        Text(rule.title),
    ]
    for section in sections(rule):
        lines += [Text(), Text(section.heading, "bold"), Padding(Text(section.text), (0, 0, 0, 2))]
    return [*lines, *_thresholds(rule)]


def _thresholds(rule: Rule) -> list[RenderableType]:
    """What of the rule may be set, and where."""
    rows = threshold_rows(rule)
    if not rows:
        return []
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(row.key, row.default, row.allowed, row.meaning)
    heading = Text.assemble(("Thresholds", "bold"), f"  [tool.gpuwatch.rules.{rule.id}] in pyproject.toml")
    return [Text(), heading, Padding(table, (0, 0, 0, 2))]


def _list(rules: Iterable[Rule]) -> list[RenderableType]:
    shown: list[RenderableType] = []
    widest = max((len(rule.id) for rule in all_rules()), default=0)
    for family, members in groupby(sorted(rules, key=lambda rule: (rule.family, rule.id)), lambda rule: rule.family):
        table = Table.grid(padding=(0, 2))
        table.add_column(width=widest, no_wrap=True)
        table.add_column()
        for rule in members:
            table.add_row(rule.id, rule.title)
        shown += [Text(family.replace("_", " "), "bold"), Padding(table, (0, 0, 1, 2))]
    shown.append(Text("gpuwatch explain RULE shows how one is measured, when it fires, and what it asks to change."))
    return shown
