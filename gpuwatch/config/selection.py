"""Which rules the user asks for: by id, by the beginning of ids, by family, or all of them.

    select = ["data", "memory-near-limit"]
    ignore = ["workers-"]

As in ruff the more exact word wins: an id before a beginning, that before a family, that before `all`. Of two that are
equally exact, `ignore` wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuwatch.config.errors import ConfigError
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.text.nearest import did_you_mean

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
