"""The rules: a file here is a rule, named after its id; nothing else registers it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module

from gpuwatch.diagnosis.rule import Rule


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the package, in the order of judgement."""
    modules = (import_module(module.name) for module in pkgutil.iter_modules(__path__, f"{__name__}."))
    found = [value for module in modules for value in vars(module).values() if _is_own(value, module.__name__)]
    return in_order(found)


def in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules so that each comes behind those it names in `after`; by id where that leaves a choice.

    Raises:
        ValueError: Two rules share an id, or they wait for each other.
    """
    by_id: dict[str, Rule] = {}
    for candidate in rules:
        if by_id.setdefault(candidate.id, candidate) is not candidate:
            raise ValueError(f"two rules are called {candidate.id}")
    # Tests sort a few rules of the catalogue, and these may name others.
    sorter = TopologicalSorter({id: [a for a in by_id[id].after if a in by_id] for id in sorted(by_id)})
    order: list[Rule] = []
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(f"rules wait for each other: {' -> '.join(error.args[1])}") from error
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order.extend(by_id[id] for id in ready)
        sorter.done(*ready)
    return tuple(order)


def rule_by_id(rule_id: str) -> Rule:
    """The rule of that id.

    Raises:
        KeyError: There is no such rule.
    """
    for rule in all_rules():
        if rule.id == rule_id:
            return rule
    raise KeyError(rule_id)


def _is_own(value: object, module: str) -> bool:
    """Whether a module's value is a rule made there; one that it imports from a sibling is not its own."""
    return isinstance(value, Rule) and value.check.__module__ == module
