"""What a case is: a training, how it is watched, and what has to be said about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
START_SECONDS = 9.0  # importing torch, a CUDA context, the first steps
STOP_SECONDS = 1.5
LEAST_WATCH_SECONDS = 13.0
"""Two evaluations behind the thirtieth step; a watch that has seen all it must ends then."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The same training with a change, without gpuwatch: what does the change bring?

    `promised_by` is the rule whose gain is compared; `value_option` is given the value of its fix.
    """

    label: str
    arguments: tuple[str, ...] = ()
    promised_by: str | None = None
    value_option: str | None = None
    seconds: float = 7.0


@dataclass(frozen=True, slots=True)
class Case:
    """One watched training. Rules of severity warning and above that are in none of the sets are false positives."""

    id: str
    title: str
    script: str
    arguments: tuple[str, ...] = ()
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()  # of whatever severity
    how: Literal["hook", "attach"] = "hook"
    watch_seconds: float = 20.0
    warm_steps: int = 8
    start_seconds: float = START_SECONDS
    variants: tuple[Variant, ...] = ()
    beside: tuple[tuple[str, ...], ...] = ()  # scripts that run at the same time
    names_line: str | None = None  # text of the line of the script that a finding has to name
    needs: tuple[str, ...] = ()  # modules
    has_truth: bool = False  # it writes down its own phases

    @property
    def path(self) -> Path:
        """The script."""
        return HERE / "scenarios" / self.script

    @property
    def expected_seconds(self) -> float:
        """How long all of it takes on the machine it is for."""
        changes = sum(START_SECONDS + each.seconds + STOP_SECONDS for each in self.variants)
        return self.start_seconds + self.watch_seconds + STOP_SECONDS + changes


@dataclass(frozen=True, slots=True)
class Question:
    """Something asked of the hardware, without gpuwatch's diagnosis: a program that prints a JSON object."""

    id: str
    title: str
    module: str
    arguments: tuple[str, ...] = ()
    seconds: float = 10.0
    needs: tuple[str, ...] = ("torch",)

    @property
    def expected_seconds(self) -> float:
        """As for a case."""
        return self.seconds


Item = Case | Question
