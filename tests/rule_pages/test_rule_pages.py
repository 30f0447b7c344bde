"""docs/rules is what the rules say of themselves today, and each page has all that a reader needs."""

from __future__ import annotations

import re

import pytest

from gpuwatch.cli.explain import sections, threshold_rows
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules
from tests.rule_pages.pages import FOLDER, HEADINGS, INDEX, content, names

RULES = all_rules()


@pytest.mark.parametrize("name", names())
def test_the_page_is_what_the_rule_says_today(name: str) -> None:
    path = FOLDER / name
    assert path.exists(), "python -m tests.rule_pages --write makes it"
    assert path.read_text(encoding="utf-8") == content(name), "stale: python -m tests.rule_pages --write makes it again"


def test_there_is_no_page_of_a_rule_that_is_gone() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(names())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_page_has_all_parts_and_an_example(rule: Rule) -> None:
    text = (FOLDER / f"{rule.id}.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert found == [*HEADINGS, "Thresholds", "Example"]
    assert f"| Evidence | {rule.level.name}" in text
    assert re.search(r"\| Severity \| \w", text)
    example = text.split("```text\n")[1].split("```")[0]
    assert re.match(rf"(CRITICAL|WARNING|INFO|HINT) {rule.id} \(E[0-3]\): \S", example)
    for row in threshold_rows(rule):
        assert f"| `{row.key}` | {row.default} |" in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_part_of_a_page_says_something_of_its_own(rule: Rule) -> None:
    texts = {section.heading: section.text for section in sections(rule)}
    assert all(len(text) >= 5 for text in texts.values())
    assert len(set(texts.values())) == len(texts)


def test_the_index_links_every_page_once() -> None:
    links = re.findall(r"\]\(([a-z0-9-]+\.md)\)", (FOLDER / INDEX).read_text(encoding="utf-8"))
    assert sorted(links) == sorted(set(names()) - {INDEX})
