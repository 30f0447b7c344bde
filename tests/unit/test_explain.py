"""`gpuwatch explain`: the page, the list, and the nearest name for one that does not exist."""

from __future__ import annotations

from argparse import Namespace

import pytest

from gpuwatch.cli.explain import explain
from gpuwatch.cli.output import GpuwatchError
from gpuwatch.diagnosis.rules import all_rules, rule_by_id
from tests.rule_pages.pages import HEADINGS


def test_a_page_shows_its_sentence_and_all_sections_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(Namespace(rule="workers-zero")) == 0
    out = capsys.readouterr().out
    assert rule_by_id("workers-zero").title in out
    lines = out.splitlines()
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert "\x1b" not in out


def test_underscores_and_capitals_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(Namespace(rule="Workers_Zero")) == 0
    assert capsys.readouterr().out.startswith("workers-zero")


def test_without_a_name_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(Namespace(rule=None)) == 0
    out = capsys.readouterr().out
    assert all(rule.id in out for rule in all_rules())


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(GpuwatchError, match="did you mean 'workers-zero'"):
        explain(Namespace(rule="worker-zero"))


def test_a_name_like_no_other_is_sent_to_the_list() -> None:
    with pytest.raises(GpuwatchError, match="`gpuwatch explain` lists all"):
        explain(Namespace(rule="zzzzqqq"))
