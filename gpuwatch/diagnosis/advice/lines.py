"""The user's lines as findings name them: which one, what share of what, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.sampled import busy_worker_samples, is_sampled, phase_samples, share_of
from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.wording import percent
from gpuwatch.text.numbers import grouped
from gpuwatch.timeline.windows import LineShare, RankWindow, Share, StackWindow

LEAST_SAMPLES = 20
LEAST_SHARE = 0.10
LONGEST_TEXT = 60
MAKING = ("item", "collate", "send", "other")
"""What a worker does that is not waiting for work."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line, its share of the `of` samples it was looked for in, and the phase most of its samples were in."""

    phase: str
    file: str
    line: int
    function: str
    share: Share
    of: int
    text: str | None = None
    leaf: str | None = None

    @property
    def place(self) -> str:
        """train.py:31, short enough for a sentence."""
        return place(self.file, self.line)

    @property
    def words(self) -> str:
        """train.py:31 `img = img.filter(...)`."""
        return quoted(self.file, self.line, self.text)

    def measure(self, name: str, what: str) -> Measure:
        """The line as evidence: "63 % ± 3.1 of the waits in train.py:31 `...` (900 samples)"."""
        below = f", in {self.leaf}" if self.leaf else ""
        text = f"{with_interval(self.share)} of {what} in {self.words}{below} ({grouped(self.of)} samples)"
        return Measure(name, f"{self.file}:{self.line}", text)


def place(file: str, line: int) -> str:
    """The file's name and the line; of an installed package its path in there, which tells whose it is."""
    installed = file.rpartition("-packages/")
    return f"{installed[2] if installed[0] else file.rsplit('/', 1)[-1]}:{line}"


def is_installed(line: HotLine) -> bool:
    """Whether the line belongs to an installed package: not the user's to change."""
    return "-packages/" in line.file


def at(file: str | None, line: int | None) -> str:
    """(train.py:31), to end a sentence with; nothing where the place is not known."""
    return "" if file is None or line is None else f" ({place(file, line)})"


def quoted(file: str, line: int, text: str | None) -> str:
    """The place with the line's text, shortened, where it is known."""
    if not text or not text.strip():
        return place(file, line)
    said = " ".join(text.split())
    return f"{place(file, line)} `{said if len(said) <= LONGEST_TEXT else said[: LONGEST_TEXT - 3] + '...'}`"


def with_interval(share: Share) -> str:
    """A share with half of its 95 % interval in points: "41 % ± 2.4"."""
    return f"{share.value * 100:.0f} % ± {(share.high - share.low) * 50:.1f}"


def watched(stacks: StackWindow) -> str:
    """How much a share of the training thread rests on: "(1 640 samples of its stack, 20 s)"."""
    return f"({grouped(stacks.samples)} samples of its stack, {stacks.seconds:.0f} s)"


def phase_measure(rank: RankWindow, name: str, share: float, what: str) -> Measure:
    """What a phase takes of the time; from outside, with the samples that this rests on."""
    rests = f" {watched(rank.stacks)}" if is_sampled(rank) and rank.stacks is not None else ""
    return Measure(name, round(share, 4), f"{what} {percent(share)}{rests}")


def hottest(lines: Iterable[LineShare], of: int, *phases: str) -> HotLine | None:
    """The line with the most samples of these phases, whatever was at work below it; None where none stands out."""
    found: dict[tuple[str, int], list[LineShare]] = {}
    for line in lines:
        if line.phase in phases:
            found.setdefault((line.file, line.line), []).append(line)
    if not found:
        return None
    parts = max(found.values(), key=lambda group: sum(line.samples for line in group))
    count, chief = sum(line.samples for line in parts), max(parts, key=lambda line: line.samples)
    share = share_of(count, max(of, count))
    if count < LEAST_SAMPLES or share.value < LEAST_SHARE:
        return None
    text = next((line.text for line in parts if line.text), None)
    return HotLine(chief.phase, chief.file, chief.line, chief.function, share, max(of, count), text, chief.leaf)


def hottest_of_thread(stacks: StackWindow | None, *phases: str) -> HotLine | None:
    """The same of the training thread; the share is of its samples in these phases."""
    return None if stacks is None else hottest(stacks.lines, phase_samples(stacks, *phases), *phases)


def hottest_of_workers(stacks: StackWindow | None, *phases: str) -> HotLine | None:
    """The same of the workers; the share is of all samples in which they were busy."""
    return None if stacks is None else hottest(stacks.worker_lines, busy_worker_samples(stacks), *phases)


def loading_line(rank: RankWindow) -> HotLine | None:
    """The line that loading spends most of its time in: of the waits without workers, else of the workers' work."""
    stacks, loader = rank.stacks, rank.train_loader
    if stacks is None:
        return None
    count = loader.num_workers if loader is not None and loader.num_workers is not None else stacks.workers
    if count:
        return hottest_of_workers(stacks, "item") or hottest_of_workers(stacks, *MAKING)
    return hottest_of_thread(stacks, "wait")


def loading_measures(rank: RankWindow) -> tuple[Measure, ...]:
    """That line as evidence, where it is known."""
    line = loading_line(rank)
    if line is None:
        return ()
    return (line.measure("hot_line", "the waits" if line.phase == "wait" else "the workers' time"),)
