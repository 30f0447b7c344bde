"""What the user decides about the rules: which of them speak, and from which thresholds on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SYMPTOMS = frozenset({"data-starvation", "launch-bound", "low-util", "pcie-degraded"})
"""Rules that others need to hold before they name a cause: ignored, they are still judged, and only not shown."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Rules by their ids.

    `ignored` says why each of them is; `thresholds` holds instances of the rules' own Thresholds, where one differs.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
