"""A rule's page in parts: its sentence, then headed paragraphs, in the order of every page, and its thresholds."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.sampled import SAMPLES
from gpuwatch.diagnosis.advice.stream import EARLY_STEPS
from gpuwatch.diagnosis.finding import LEVEL_WORDS
from gpuwatch.diagnosis.gates import GPU_SAMPLES, UNHOOKED_SECONDS
from gpuwatch.diagnosis.rule import Rule
from gpuwatch.diagnosis.thresholds import declared
from gpuwatch.diagnosis.track import EVALUATION_NS, HOLD_NS
from gpuwatch.timeline.columns import SECOND_NS
from gpuwatch.timeline.figures import STEPS
from gpuwatch.timeline.trainer import RAW_NS

HEADINGS = (
    "Means", "Evidence", "Window", "Fires", "Clears", "Not when", "Causes", "Fix", "Gain", "Verify", "Source"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Section:
    """One headed paragraph; the text is one line, to be wrapped where it is shown."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One threshold, as a table shows it."""

    key: str  # as a config has it: "fire-share"
    default: str
    allowed: str
    meaning: str


def sections(rule: Rule) -> tuple[Section, ...]:
    """The paragraphs below the rule's sentence: those of its docstring, and how its window is judged."""
    found: list[Section] = []
    heading, words = "", list[str]()
    for line in [*rule.page.splitlines()[1:], "End:"]:
        if line.endswith(":") and not line.startswith(" "):
            if heading:
                found.append(Section(heading, " ".join(words)))
            if heading == "Evidence":
                found.append(Section("Window", _window(rule)))
            heading, words = line.removesuffix(":"), []
        else:
            words.extend(line.split())
    return tuple(found)


def evidence_words(rule: Rule) -> str:
    """The level that proof needs, in words: "E2 or better: the hook's timings"."""
    better = " or better" if rule.level.name != "E3" else ""
    return f"{rule.level.name}{better}: {LEVEL_WORDS[rule.level]}"


def threshold_rows(rule: Rule) -> tuple[Row, ...]:
    """What of the rule may be set; empty for a rule that has nothing to set."""
    rows = []
    for each in declared(rule.thresholds):
        allowed = f"{each.least:g} to {each.most:g}"
        if each.bounded_by is not None:
            side = next(other for other in declared(rule.thresholds) if other.name == each.bounded_by)
            allowed = f"{'at most' if each.default <= side.default else 'at least'} {_key(each.bounded_by)}"
        rows.append(Row(_key(each.name), f"{each.default:g}", allowed, each.meaning))
    return tuple(rows)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _window(rule: Rule) -> str:
    """What the rule judges, how often, and what it takes to report and to clear it."""
    every = EVALUATION_NS // SECOND_NS
    return (
        f"{_judged(rule)} The rule is evaluated every {every} s. A finding appears when it has fired "
        f"{_times(rule.fire_after, every)} and goes when it has been clear {_times(rule.clear_after, every)}, after at "
        f"least {HOLD_NS // SECOND_NS} s."
        f"{' The newest half of the window is enough to clear it.' if rule.fades else ''}"
    )


def _judged(rule: Rule) -> str:
    if not rule.gated:
        return "From the first second on, whatever the window contains."
    if rule.subject == "machine":
        return f"The last 60 s, as soon as {UNHOOKED_SECONDS:.0f} s were seen."
    if rule.subject == "gpu":
        return (
            f"The last 60 s, with at least {GPU_SAMPLES} samples of the GPU; where a run trains on it, after the "
            f"run's warm-up and with at least {STEPS} of its steps"
            f"{f', and {GPU_SAMPLES} samples of its training' if rule.needs_gpu else ''}."
        )
    gpu = f" and {GPU_SAMPLES} samples of each of its GPUs" if rule.needs_gpu else ""
    early = f", or from {EARLY_STEPS} on where an interval of the figure leaves no doubt" if rule.early else ""
    return (
        f"The last 60 s of the run, longer where {STEPS} steps take longer ({RAW_NS // (60 * SECOND_NS)} min at most), "
        f"after its warm-up and with at least {STEPS} steps{gpu}{early}; seen by stacks alone, with at least {SAMPLES} "
        "samples of the training thread."
    )


def _times(count: int, every: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times in a row" if count <= 12 else f"{count * every / 60:g} min in a row"
