"""What a config says about rules, against the rules that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwatch.config.errors import ConfigError, shown
from gpuwatch.config.find import Source
from gpuwatch.config.load import Value, full_key
from gpuwatch.config.selection import check_words, left_out, normal
from gpuwatch.config.thresholds import Asked, known_name, thresholds_of
from gpuwatch.diagnosis.registry import all_rules
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.text.nearest import did_you_mean

Tables = Sequence[tuple[Source, Mapping[str, Any]]]


def settings_of(plain: Mapping[str, Value], tables: Tables) -> tuple[Settings, dict[tuple[str, str], Value]]:
    """The settings of the rules, and each threshold that a file sets. `tables`: the one that wins first.

    Raises:
        ConfigError: a word or key that means no rule, or a threshold that may not be.
    """
    rules = {rule.id: rule for rule in all_rules()}
    for key in ("select", "ignore"):
        if key in plain:
            check_words(plain[key].value, tuple(rules.values()), f"{plain[key].origin}: {key}")
    asked: dict[str, dict[str, Asked]] = {}
    for source, table in reversed(tables):
        for key, values in table.items():
            rule = _rule(source, key, rules)
            asked.setdefault(rule.id, {}).update(_asked(source, rule, key, values))
    thresholds = {id: thresholds_of(rules[id], values) for id, values in asked.items() if values}
    settings = Settings(_left_out(tuple(rules.values()), plain), thresholds)
    said = {
        (id, name): Value(getattr(thresholds[id], name), str(one.path))
        for id, values in asked.items()
        for name, one in values.items()
    }
    return settings, said


def _left_out(rules: tuple[Rule, ...], plain: Mapping[str, Value]) -> dict[str, str]:
    """Why each of the rules that are left out is, as a report says it."""
    select, ignore = plain.get("select"), plain.get("ignore")
    ignored, unselected = left_out(
        rules, None if select is None else select.value, () if ignore is None else ignore.value
    )
    reasons: dict[str, str] = {}
    if ignore is not None:
        reasons |= dict.fromkeys(ignored, f"ignored by {ignore.by}: {', '.join(ignore.value)}")
    if select is not None:
        words = ", ".join(select.value) or "nothing"
        reasons |= dict.fromkeys(unselected, f"ignored by {select.by}, which selects only {words}")
    return reasons


def _rule(source: Source, key: str, rules: Mapping[str, Rule]) -> Rule:
    found = rules.get(normal(key))
    if found is None:
        where = f"{source.path}: {full_key(source, 'rules', key)}"
        raise ConfigError(
            f"{where}: there is no rule {key!r}{did_you_mean(normal(key), rules)}; `gpuwatch explain` lists all"
        )
    return found


def _asked(source: Source, rule: Rule, key: str, values: Any) -> dict[str, Asked]:
    where = full_key(source, "rules", key)
    if not isinstance(values, dict):
        raise ConfigError(f"{source.path}: {where} = {shown(values)} is no table; write [{where}] and its keys below")
    asked: dict[str, Asked] = {}
    for name, value in values.items():
        one = Asked(value, source.path, f"{where}.{name}")
        known = known_name(rule, name, one)
        if known in asked:
            raise ConfigError(f"{source.path}: {one.key}: the key is given twice")
        asked[known] = one
    return asked
