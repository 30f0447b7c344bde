"""The thresholds of a rule: declared once in its file, read by the rule, its page, and the user's settings of them.

    @dataclass(frozen=True, slots=True)
    class Thresholds:
        fire_share: float = threshold(0.10, "reported from this share of the time on")
        clear_share: float = threshold(0.06, "until it falls below this", bounded_by="fire_share")

`bounded_by` names the threshold that this one may reach and not pass: it stays on the side where its default lies, so
that what clears a finding never asks for more than what fired it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_KEY = "threshold"
_RANGES = {"share": (0.0, 1.0), "percent": (0.0, 100.0), "points": (0.0, 100.0), "seconds": (0.0, 7 * 86_400.0)}
_MOST = 1_000_000_000

SYMPTOMS = frozenset({"data-starvation", "launch-bound", "low-util", "pcie-degraded"})
"""Rules that others need to hold before they name a cause: ignored, they are still judged, and only not shown."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """One of them as pages and settings see it. The unit is in the name."""

    name: str
    default: float | int
    least: float
    most: float
    meaning: str
    bounded_by: str | None

    @property
    def is_whole(self) -> bool:
        """Whether it counts something."""
        return isinstance(self.default, int)


def threshold(
    default: float,
    meaning: str,
    *,
    bounded_by: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A field of a rule's Thresholds; a range that is not given is that of the unit in its name.

    Any, because it stands where a dataclass has its default: `field` of dataclasses lies to the checker as well.
    """
    return field(default=default, metadata={_KEY: (default, meaning, bounded_by, least, most)})


def declared(thresholds: type[Any] | None) -> tuple[Threshold, ...]:
    """Those of a Thresholds class, in the order of its fields."""
    if thresholds is None:
        return ()
    found = []
    for each in fields(thresholds):
        default, meaning, bounded_by, least, most = each.metadata[_KEY]
        lowest, highest = _RANGES.get(each.name.rsplit("_", 1)[-1], (0.0, _MOST))
        found.append(
            Threshold(
                name=each.name,
                default=default,
                least=lowest if least is None else least,
                most=highest if most is None else most,
                meaning=meaning,
                bounded_by=bounded_by,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Settings:
    """Rules by their ids.

    `ignored` says why each of them is; `thresholds` holds instances of the rules' own Thresholds, where one differs.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
