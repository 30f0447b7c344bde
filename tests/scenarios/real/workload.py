"""What a real workload is: a script, its arguments, and what has to be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True)
class Workload:
    """One training with a known trouble, or without one.

    Each group of `must` needs one of its rules among the findings; what else is a warning counts against us unless it
    is in `may`. `place` is a rule and the mark at the end of the line that it has to name, in its fix or its numbers.
    """

    id: str
    title: str
    script: str
    arguments: tuple[str, ...] = ()
    must: tuple[frozenset[str], ...] = ()
    may: frozenset[str] = frozenset()
    must_attached: tuple[frozenset[str], ...] | None = None  # where the hook alone can tell, what remains
    place: tuple[str, str] | None = None
    state: str | None = None  # what the run has to be called at the end
    seconds: float = 25.0
    act: Callable[[int], None] | None = None  # done to the trainer's pid after its warm-up
    around: tuple[str, ...] = ()  # a command that starts the script
    needs: Callable[[], str | None] = lambda: None  # why it cannot run here

    def must_be(self, *, attached: bool) -> tuple[frozenset[str], ...]:
        """What has to be found when it is watched in this way."""
        return self.must_attached if attached and self.must_attached is not None else self.must

    @property
    def path(self) -> Path:
        """The script."""
        return SCRIPTS / self.script

    def marked_line(self, mark: str) -> int:
        """The line of the script that ends with a comment of these words."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
