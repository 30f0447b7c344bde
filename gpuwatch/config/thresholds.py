"""Checks thresholds that a config sets: their names, types and ranges, and that nothing clears above where it fires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.config.errors import ConfigError, shown
from gpuwatch.config.selection import normal
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.thresholds import Threshold, declared
from gpuwatch.text.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class Asked:
    """A value for one threshold, and the file that asks for it."""

    value: Any
    path: Path
    key: str  # in full, as the file has it: "tool.gpuwatch.rules.io-bound.blocked-share"

    def refusal(self, why: str) -> ConfigError:
        """The error that names file, key and value."""
        return ConfigError(f"{self.path}: {self.key} = {shown(self.value)} {why}")


def written(name: str) -> str:
    """A threshold as a config and a page write it: `fire_share` is fire-share."""
    return name.replace("_", "-")


def number(value: float) -> str:
    """A number as short as it can be: 0.1, 512, 1e+09."""
    return f"{value:g}"


def thresholds_of(rule: Rule, asked: Mapping[str, Asked]) -> Any:
    """The rule's Thresholds with what was asked for, by names with underscores; None if nothing was.

    Raises:
        ConfigError: a value of the wrong type, out of its range, or on the wrong side of its partner.
    """
    if not asked or rule.thresholds is None:
        return None
    known = {each.name: each for each in declared(rule.thresholds)}
    values = {name: _checked(known[name], one) for name, one in asked.items()}
    all_values = {name: values.get(name, each.default) for name, each in known.items()}
    for each in known.values():
        if each.beside is not None:
            _check_side(each, known[each.beside], all_values, asked)
    return rule.thresholds(**values)


def known_name(rule: Rule, key: str, asked: Asked) -> str:
    """The name of the threshold that a key means.

    Raises:
        ConfigError: the rule has none of that name.
    """
    names = [each.name for each in declared(rule.thresholds)]
    name = normal(key).replace("-", "_")
    if name in names:
        return name
    if not names:
        raise ConfigError(f"{asked.path}: {asked.key}: {rule.id} has no thresholds to set")
    keys = list(map(written, names))
    meant = did_you_mean(normal(key), keys)
    raise ConfigError(f"{asked.path}: {asked.key}: {rule.id} has no threshold {key!r}{meant}; it has {_list(keys)}")


def _checked(threshold: Threshold, asked: Asked) -> float | int:
    value = asked.value
    allowed = f"it may be between {number(threshold.least)} and {number(threshold.most)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise asked.refusal(f"is no number; {allowed}")
    if threshold.is_whole and not isinstance(value, int):
        raise asked.refusal(f"is no whole number; {allowed}")
    if not threshold.least <= value <= threshold.most:  # nan is nowhere
        raise asked.refusal(f"is out of range; {allowed}")
    return value if threshold.is_whole else float(value)


def _check_side(each: Threshold, other: Threshold, values: Mapping[str, Any], asked: Mapping[str, Asked]) -> None:
    """Whether a threshold is still on the side of its partner where its default is."""
    below = each.default <= other.default
    mine, its = values[each.name], values[other.name]
    if mine == its or (mine < its) == below:
        return
    side = "above" if below else "below"
    guilty = asked.get(each.name) or asked[other.name]
    if each.name in asked:
        most = f"{'at most' if below else 'at least'} {number(its)}"
        raise guilty.refusal(f"lies {side} {written(other.name)} = {number(its)}; it may be {most}")
    raise guilty.refusal(
        f"leaves {written(each.name)} = {number(mine)} {side} it; give {written(each.name)}, too, "
        f"{'at most' if below else 'at least'} {number(its)}"
    )


def _list(words: Iterable[str]) -> str:
    return ", ".join(words)
