"""Rules are found by being files, judged in the order they ask for, and carry the page that explains them."""

from __future__ import annotations

import pytest
from test_engine_hysteresis import a_rule

from gpuwatch.cli.explain import sections
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules, in_order, rule_by_id
from tests.rule_pages.pages import HEADINGS


def silent(case: object) -> None:
    return None


def test_a_rule_is_judged_behind_those_it_reads() -> None:
    rules = [a_rule(silent, id="a", after=("z",)), a_rule(silent, id="z"), a_rule(silent, id="m", after=("a",))]
    assert [rule.id for rule in in_order(rules)] == ["z", "a", "m"]


def test_a_rule_may_name_one_that_is_not_installed() -> None:
    assert [rule.id for rule in in_order([a_rule(silent, id="a", after=("elsewhere",))])] == ["a"]


def test_rules_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        in_order([a_rule(silent, id="a", after=("b",)), a_rule(silent, id="b", after=("a",))])


def test_two_rules_of_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="two rules are called a"):
        in_order([a_rule(silent, id="a"), a_rule(silent, id="a")])


def test_an_unknown_rule_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        rule_by_id("workers-hero")


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_every_rule_lies_in_the_file_of_its_name_and_explains_itself(rule: Rule) -> None:
    module = rule.check.__module__
    assert module == f"gpuwatch.diagnosis.rules.{rule.id.replace('-', '_')}"
    assert rule.title.endswith(".")
    assert tuple(section.heading for section in sections(rule)) == HEADINGS
    assert all(section.text for section in sections(rule))
