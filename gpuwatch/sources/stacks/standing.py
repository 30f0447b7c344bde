"""Where the training thread stands, and since when."""

from __future__ import annotations

from gpuwatch.reader.stacks import Stack
from gpuwatch.samples.stacks import Standing
from gpuwatch.sources.stacks.culprit import Culprit
from gpuwatch.sources.stacks.looks import Look


class StandingLine:
    """The line of the last look. It stands there only as long as no batch is taken and no caller moves on."""

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self._since_ns = 0
        self._key: tuple[object, ...] | None = None
        self._look: Look | None = None
        self._leaf: Culprit | None = None
        self._in_loop: bool | None = None
        self.main_file: str | None = None

    def see(self, stack: Stack, look: Look, in_loop: bool | None = None) -> None:
        """Takes the newest sample; `in_loop` says whether it is inside a loop that trains, as far as one is known."""
        culprit = look.reading.culprit
        if culprit is None:
            innermost = stack.frames[0]
            code = innermost.code
            culprit = Culprit(code.file, innermost.line or code.first_line, code.name, None, None)
        key = culprit.file, culprit.line, look.reading.where, look.batches
        if key != self._key:
            self._key, self._since_ns = key, look.time_ns
        self._look, self._leaf, self._in_loop = look, culprit, in_loop
        self.main_file = stack.frames[-1].code.file

    def now(self) -> Standing | None:
        """The last look, as a sample."""
        if self._look is None or self._leaf is None:
            return None
        line = self._leaf
        return Standing(
            self._trainer,
            self._look.time_ns,
            self._since_ns,
            self._look.phase,
            line.file,
            line.line,
            line.function,
            text=line.text,
            leaf=line.leaf,
            in_loop=self._in_loop,
        )
