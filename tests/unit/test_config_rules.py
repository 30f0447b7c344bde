"""Which rules are asked for, which thresholds may be set, and what the engine makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scene_builder import findings, gpu, later, loader, rank, run, run_case, scene

from gpuwatch.config import Asked, ConfigError, check_words, known_name, left_out, thresholds_of
from gpuwatch.diagnosis.engine import Engine
from gpuwatch.diagnosis.finding import Finding
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.rules import all_rules, rule_by_id
from gpuwatch.diagnosis.thresholds import SYMPTOMS, Settings, declared
from gpuwatch.timeline.windows import Scene

RULES = all_rules()
FAMILIES = {rule.family for rule in RULES}


def starved() -> Scene:
    """A run that loads in its own thread, half of its time."""
    return scene(run(rank(step=0.2, wait=0.11, gap=0.1, loader=loader(num_workers=0))), gpus=[gpu(utilization=48)])


def said(moment: Scene, settings: Settings) -> dict[str, Finding]:
    """What an engine with these settings says of a picture that stays."""
    engine = Engine(settings=settings)
    found: tuple[Finding, ...] = ()
    for number in range(3):
        found = engine.evaluate(later(moment, 5.0 * number))
    return {finding.rule: finding for finding in found}


def ignoring(*ids: str) -> Settings:
    return Settings(ignored=dict.fromkeys(ids, "ignored by config"))


def setting(rule_id: str, **values: Any) -> Settings:
    thresholds = rule_by_id(rule_id).thresholds
    assert thresholds is not None
    return Settings(thresholds={rule_id: thresholds(**values)})


def asked(value: Any, key: str = "rules.x.y") -> Asked:
    return Asked(value, Path("/home/user/pyproject.toml"), key)


class TestSelection:
    def off(self, select: list[str] | None, ignore: list[str]) -> set[str]:
        return set().union(*left_out(RULES, select, ignore))

    def test_everything_speaks_where_nothing_is_said(self) -> None:
        assert self.off(None, []) == set()

    def test_a_family_is_a_group(self) -> None:
        assert self.off(None, ["data"]) == {rule.id for rule in RULES if rule.family == "data"}

    def test_the_beginning_of_ids_is_a_group(self) -> None:
        assert self.off(None, ["workers-"]) == {"workers-zero", "workers-too-few"}

    def test_only_what_is_selected_speaks(self) -> None:
        on = {rule.id for rule in RULES} - self.off(["power", "amp-off"], [])
        assert on == {"amp-off", *(rule.id for rule in RULES if rule.family == "power")}

    def test_the_more_exact_word_wins_whichever_list_it_is_in(self) -> None:
        assert "workers-zero" not in self.off(["workers-zero"], ["data"])
        assert "workers-zero" in self.off(["data"], ["workers-"])
        assert "io-bound" not in self.off(["data"], ["workers-"])

    def test_of_equally_exact_words_ignore_wins(self) -> None:
        assert "amp-off" in self.off(["amp-off"], ["amp-off"])

    def test_ids_and_families_are_understood_however_they_are_written(self) -> None:
        assert self.off(None, ["Multi_GPU", "AMP_OFF"]) == self.off(None, ["multi-gpu", "amp-off"])

    def test_an_empty_selection_selects_nothing(self) -> None:
        assert self.off([], []) == {rule.id for rule in RULES}

    def test_a_word_that_means_no_rule_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"no rule or family 'work-zero' \(did you mean 'workers-zero'\?\)"):
            check_words(["work-zero"], RULES, "--ignore")

    def test_an_empty_word_means_no_rule(self) -> None:
        with pytest.raises(ConfigError, match="no rule or family ''"):
            check_words([""], RULES, "--ignore")


class TestThresholds:
    def refused(self, rule_id: str, **values: Any) -> str:
        with pytest.raises(ConfigError) as refusal:
            thresholds_of(rule_by_id(rule_id), {name: asked(value) for name, value in values.items()})
        return str(refusal.value)

    def test_what_is_not_set_keeps_its_default(self) -> None:
        limits = thresholds_of(rule_by_id("data-starvation"), {"fire_share": asked(0.15)})
        assert (limits.fire_share, limits.clear_share, limits.critical_share) == (0.15, 0.06, 0.20)

    def test_a_whole_number_is_one_for_a_share_as_well(self) -> None:
        limits = thresholds_of(rule_by_id("gc-stall"), {"fire_seconds": asked(2)})
        assert limits.fire_seconds == 2.0 and isinstance(limits.fire_seconds, float)

    @pytest.mark.parametrize("value", ["0.2", True, [0.2], None, {"a": 1}])
    def test_what_is_no_number_is_refused_with_the_range(self, value: Any) -> None:
        sentence = self.refused("data-starvation", fire_share=value)
        assert "/home/user/pyproject.toml: rules.x.y = " in sentence
        assert "is not a number; it may be between 0 and 1" in sentence

    @pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf"), 10**400])
    def test_what_is_out_of_range_is_refused_with_the_range(self, value: Any) -> None:
        assert "is out of range; it may be between 0 and 1" in self.refused("data-starvation", fire_share=value)

    def test_a_count_has_to_be_whole(self) -> None:
        assert "is not a whole number" in self.refused("slow-samples", steps=200.5)

    def test_clearing_may_not_ask_for_more_than_firing(self) -> None:
        sentence = self.refused("data-starvation", clear_share=0.11)
        assert "lies above fire-share = 0.1; it may be at most 0.1" in sentence

    def test_firing_may_not_fall_below_a_clearing_that_stays(self) -> None:
        sentence = self.refused("data-starvation", fire_share=0.05)
        assert "leaves clear-share = 0.06 above it; give clear-share, too, at most 0.05" in sentence

    def test_where_less_is_worse_clearing_lies_above_firing(self) -> None:
        assert "at least 85" in self.refused("low-util", clear_percent=80)
        assert thresholds_of(rule_by_id("low-util"), {"fire_percent": asked(90), "clear_percent": asked(90)})

    def test_an_unknown_threshold_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"no threshold 'fire_shar' \(did you mean 'fire-share'\?\); it has fire"):
            known_name(rule_by_id("data-starvation"), "fire_shar", asked(0.1))

    def test_a_rule_without_thresholds_says_so(self) -> None:
        with pytest.raises(ConfigError, match="xid-error has no thresholds to set"):
            known_name(rule_by_id("xid-error"), "fire-share", asked(0.1))

    @pytest.mark.parametrize("rule", [rule for rule in RULES if rule.thresholds], ids=lambda rule: rule.id)
    def test_every_default_may_be_set_to_itself(self, rule: Rule) -> None:
        known = declared(rule.thresholds)
        assert thresholds_of(rule, {each.name: asked(each.default) for each in known}) == rule.thresholds()
        for each in known:
            assert each.meaning and each.least < each.most
            assert each.bounded_by is None or each.bounded_by in {other.name for other in known}

    @pytest.mark.parametrize("rule", [rule for rule in RULES if rule.thresholds], ids=lambda rule: rule.id)
    def test_what_clears_is_bound_to_what_fires(self, rule: Rule) -> None:
        """A clearing threshold without a partner could be set so that a finding never ends."""
        assert [
            each.name for each in declared(rule.thresholds) if each.name.startswith("clear_") and not each.bounded_by
        ] == []


class TestEngine:
    def test_without_settings_all_is_as_ever(self) -> None:
        usual = findings(starved())
        assert {finding.rule for finding in usual} >= {"data-starvation", "workers-zero"}
        assert tuple(said(starved(), Settings()).values()) == usual

    def test_a_higher_threshold_keeps_a_rule_silent(self) -> None:
        settings = setting("data-starvation", fire_share=0.6, critical_share=0.7)
        assert "data-starvation" not in said(starved(), settings)

    def test_severity_follows_its_threshold(self) -> None:
        usual, mild = said(starved(), Settings()), said(starved(), setting("data-starvation", critical_share=0.9))
        assert usual["data-starvation"].severity.value == "critical"
        assert mild["data-starvation"].severity.value == "warning"

    def test_an_ignored_rule_is_not_said(self) -> None:
        assert "workers-zero" not in said(starved(), ignoring("workers-zero"))

    def test_an_ignored_cause_is_no_cause(self) -> None:
        named = {
            each.name: each.value for each in said(starved(), ignoring("workers-zero"))["data-starvation"].evidence
        }
        assert named["cause"] != "workers-zero"
        fix = said(starved(), ignoring("workers-zero"))["data-starvation"].fix
        assert fix is not None and "some rules are ignored" in fix.text

    def test_an_ignored_symptom_still_lets_its_causes_speak(self) -> None:
        assert "data-starvation" in SYMPTOMS
        found = said(starved(), ignoring("data-starvation"))
        assert "data-starvation" not in found and "workers-zero" in found

    def test_an_ignored_rule_puts_nothing_behind_it(self) -> None:
        moment = starved()
        usual, alone = said(moment, Settings()), said(moment, ignoring("data-starvation"))
        behind = [rule for rule, finding in usual.items() if finding.behind == "data-starvation"]
        assert behind and all(alone[rule].behind is None for rule in behind if rule in alone)

    def test_a_rule_asked_outside_of_an_engine_has_its_defaults(self) -> None:
        draft = rule_by_id("data-starvation").check(run_case(starved()))
        assert draft is not None and draft.fires


def test_every_symptom_is_a_rule() -> None:
    assert {rule.id for rule in RULES} >= SYMPTOMS


def test_no_family_is_called_like_a_rule() -> None:
    assert not {family.replace("_", "-") for family in FAMILIES} & {rule.id for rule in RULES}
