"""What a config says about rules: which of them count, and their thresholds.

    select = ["data", "memory-near-limit"]
    ignore = ["workers-"]

As in ruff the more exact word wins: an id before a beginning, that before a family, that before `all`. Of two that are
equally exact, `ignore` wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwatch.config.files import ConfigError, Source, Value, full_key, shown
from gpuwatch.diagnosis.registry import all_rules
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.diagnosis.thresholds import Threshold, declared
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


ALL = "all"


def left_out(
    rules: Sequence[Rule], select: Sequence[str] | None, ignore: Sequence[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The ids of the rules that are ignored, and of those that are not selected. `select` None: all of them are."""
    chosen = (ALL,) if select is None else tuple(map(normal, select))
    refused = tuple(map(normal, ignore))
    exactness = [(rule.id, _exactness(rule, refused), _exactness(rule, chosen)) for rule in rules]
    ignored = frozenset(id for id, off, on in exactness if off and off >= on)
    return ignored, frozenset(id for id, off, on in exactness if not off and not on)


def check_words(words: Iterable[str], rules: Sequence[Rule], where: str) -> None:
    """Refuses a word that means no rule.

    Raises:
        ConfigError: with the nearest id or family.
    """
    for word in words:
        if not any(_exactness(rule, (normal(word),)) > 0.0 for rule in rules):
            known = [*(rule.id for rule in rules), *sorted({normal(rule.family) for rule in rules}), ALL]
            meant = did_you_mean(normal(word), known)
            raise ConfigError(f"{where}: there is no rule or family {word!r}{meant}; `gpuwatch explain` lists all")


def normal(word: str) -> str:
    """Ids and families as people write them: `Workers_Zero` is workers-zero."""
    return word.strip().lower().replace("_", "-")


def _exactness(rule: Rule, words: Iterable[str]) -> float:
    """How exactly the best of the words means the rule; 0 if none does."""
    return max((_exactness_of(rule, word) for word in words), default=0.0)


def _exactness_of(rule: Rule, word: str) -> float:
    if word == rule.id:
        return 1_000.0
    if word == normal(rule.family):
        return 2.0
    if word and rule.id.startswith(word):
        return 2.0 + len(word)
    return 1.0 if word == ALL else 0.0


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
