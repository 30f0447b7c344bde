"""`gpuwatch explain [RULE]`: a rule's page from its own docstring; without an id, the list of all rules."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwatch.cli.arguments import completed_from
from gpuwatch.cli.output import ExitCode, GpuwatchError, is_terminal, write_styled
from gpuwatch.diagnosis.advice.sampled import SAMPLES
from gpuwatch.diagnosis.advice.stream import EARLY_STEPS
from gpuwatch.diagnosis.finding import LEVEL_WORDS
from gpuwatch.diagnosis.gates import EVALUATION_NS, GPU_SAMPLES, HOLD_NS, UNHOOKED_SECONDS
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules
from gpuwatch.diagnosis.thresholds import declared
from gpuwatch.text import did_you_mean
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.trainer import RAW_NS


@dataclass(frozen=True, slots=True)
class Section:
    """One headed paragraph; the text is one line, to be wrapped where it is shown."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One threshold, as a table shows it."""

    key: str  # as a config has it: "fire-share"
    default: str
    allowed: str
    meaning: str


_SHOWN = {"Fires": "Triggers when", "Clears": "Clears when", "Not when": "Exceptions"}
"""Headings of a docstring that are shown in other words."""


def sections(rule: Rule) -> tuple[Section, ...]:
    """The paragraphs below the rule's sentence: those of its docstring, and how its window is judged."""
    found: list[Section] = []
    heading, words = "", list[str]()
    for line in [*rule.page.splitlines()[1:], "End:"]:
        if line.endswith(":") and not line.startswith(" "):
            if heading:
                found.append(Section(_SHOWN.get(heading, heading), " ".join(words)))
            if heading == "Evidence":
                found.append(Section("Window", _window(rule)))
            heading, words = line.removesuffix(":"), []
        else:
            words.extend(line.split())
    return tuple(found)


def evidence_words(rule: Rule) -> str:
    """The level that proof needs, in words: "E2 or better: the hook's timings"."""
    better = " or better" if rule.level.name != "E3" else ""
    return f"{rule.level.name}{better}: {LEVEL_WORDS[rule.level]}"


def threshold_rows(rule: Rule) -> tuple[Row, ...]:
    """What of the rule may be set; empty for a rule that has nothing to set."""
    rows = []
    for each in declared(rule.thresholds):
        allowed = f"{each.least:g} to {each.most:g}"
        if each.bounded_by is not None:
            side = next(other for other in declared(rule.thresholds) if other.name == each.bounded_by)
            allowed = f"{'at most' if each.default <= side.default else 'at least'} {_key(each.bounded_by)}"
        rows.append(Row(_key(each.name), f"{each.default:g}", allowed, each.meaning))
    return tuple(rows)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _window(rule: Rule) -> str:
    """What the rule judges, how often, and what it takes to report and to clear it."""
    every = EVALUATION_NS // SECOND_NS
    return (
        f"{_judged(rule)} The rule is evaluated every {every} s. A finding appears when it has fired "
        f"{_times(rule.fire_after, every)} and goes when it has been clear {_times(rule.clear_after, every)}, after at "
        f"least {HOLD_NS // SECOND_NS} s."
        f"{' The newest half of the window is enough to clear it.' if rule.fades else ''}"
    )


def _judged(rule: Rule) -> str:
    if not rule.gated:
        return "From the first second on, whatever the window contains."
    if rule.subject == "machine":
        return f"The last 60 s, as soon as {UNHOOKED_SECONDS:.0f} s were seen."
    if rule.subject == "gpu":
        return (
            f"The last 60 s, with at least {GPU_SAMPLES} samples of the GPU; where a run trains on it, after the "
            f"run's warm-up and with at least {STEPS} of its steps"
            f"{f', and {GPU_SAMPLES} samples of its training' if rule.needs_gpu else ''}."
        )
    gpu = f" and {GPU_SAMPLES} samples of each of its GPUs" if rule.needs_gpu else ""
    early = f", or from {EARLY_STEPS} on where an interval of the figure leaves no doubt" if rule.early else ""
    return (
        f"The last 60 s of the run, longer where {STEPS} steps take longer ({RAW_NS // (60 * SECOND_NS)} min at most), "
        f"after its warm-up and with at least {STEPS} steps{gpu}{early}; seen by stacks alone, with at least {SAMPLES} "
        "samples of the training thread."
    )


def _times(count: int, every: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times in a row" if count <= 12 else f"{count * every / 60:g} min in a row"


_WIDEST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints what a rule means, when it fires and when it does not. Without RULE: lists all rules."
    rule = parser.add_argument("rule", nargs="?", metavar="RULE")
    completed_from(rule, lambda: [each.id for each in all_rules()])


def explain(arguments: argparse.Namespace) -> int:
    """Prints one rule's page, or the list; the beginning of a name will do where no other begins so.

    Raises:
        GpuwatchError: there is no such rule; it names the nearest.
    """
    rule_id, rules = arguments.rule, {rule.id: rule for rule in all_rules()}
    width = min(_WIDEST, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else _WIDEST
    if rule_id is None:
        write_styled(_list(rules.values()), width)
        return ExitCode.OK
    name = rule_id.strip().lower().replace("_", "-")
    begun = [rule for rule in rules if rule.startswith(name)] if name else []
    if name not in rules and len(begun) == 1:
        name = begun[0]
    if name not in rules:
        if begun:
            raise GpuwatchError(f"{rule_id!r} begins several rules: {', '.join(begun)}")
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
