"""A finding: what is wrong, how it is known, what to change, what that brings, how to prove it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Literal

from gpuwatch.numbers import faster, percent


class Severity(Enum):
    """How bad it is. Critical: broken, or 20% and more lost. Warning: 10% (a phase: 5%) and measured."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    HINT = "hint"

    @property
    def order(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Level(IntEnum):
    """What the evidence rests on: E0 hardware, E1 stacks and /proc, E2 hook timings, E3 GPU events or exact CPU."""

    E0 = 0
    E1 = 1
    E2 = 2
    E3 = 3


LEVEL_WORDS = {
    Level.E0: "hardware readings alone",
    Level.E1: "process readings and stacks",
    Level.E2: "the hook's timings",
    Level.E3: "the hook: its GPU event pairs, or its timings of a run that computes on the CPU",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One number behind a finding. The unit is in the name (`wait_share`, `power_watts`)."""

    name: str
    value: float | int | str | None
    text: str  # as the screen says it: "GPU idle 41% of 60 s (512 steps)"


def share_measure(name: str, share: float, what: str) -> Measure:
    """A share with its words: ("wait_share", 0.41, "waiting") reads "waiting 41%"."""
    return Measure(name, round(share, 4), f"{what} {percent(share)}")


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Another explanation, and the number that speaks against it."""

    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallEdit:
    """Keyword arguments to set in the call that starts at file:line; values are Python source text.

    `present` is what the running process has: a place in the source that says otherwise is not where it comes from.
    `is_for_it_alone`: what another such call takes from the same name is set in the call, so that the other keeps it.
    """

    call: str  # "DataLoader"
    file: str
    line: int
    keywords: Mapping[str, str]
    present: Mapping[str, str] = field(default_factory=dict)
    is_for_it_alone: bool = False


@dataclass(frozen=True, slots=True)
class SettingsEdit:
    """Keyword arguments to set in the file's only call of that name: settings for a library that builds its own.

    Without a file it is the script that the process was started with.
    """

    call: str  # "TrainingArguments"
    file: str | None
    keywords: Mapping[str, str]
    present: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopEdit:
    """Keyword arguments to set in the call that makes what the loop at file:line goes over: seen from outside."""

    call: str  # "DataLoader"
    file: str
    line: int
    keywords: Mapping[str, str]
    present: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransferEdit:
    """`non_blocking=True` for the `.to(device)` and `.cuda()` calls of the statement at file:line."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SetupEdit:
    """A statement that is to run once, behind the imports of the file: a call, of which the file keeps only one."""

    file: str
    statement: str  # 'torch.set_float32_matmul_precision("high")'


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """A statement about the model, before the optimizer is built from it, or behind the line that makes it.

    `{model}` in the statement stands for what the file calls it.
    """

    file: str
    line: int
    statement: str  # "{model} = {model}.to(memory_format=torch.channels_last)"


@dataclass(frozen=True, slots=True)
class AutocastEdit:
    """A `with torch.autocast(...)` around the statements from forward to loss, before the backward at file:line."""

    file: str
    line: int
    dtype: str = "torch.bfloat16"
    device_type: str = "cuda"


@dataclass(frozen=True, slots=True)
class IntervalEdit:
    """The statement at file:line to run every n passes of its loop only.

    Per step: what it does must be logging (`if step % 50 == 0:`). Per epoch: evaluation or a checkpoint, at the end
    of every k-th (`if (epoch + 1) % 5 == 0:`).

    With `times` an interval that is there already becomes n times as long instead of `every`, if it is one of
    `present`: what the run was seen to do, in steps, batches and epochs. `what` is for trainers of libraries, which
    take the interval as a setting.
    """

    file: str
    line: int
    every: int
    per: Literal["step", "epoch"] = "step"
    times: int | None = None
    present: tuple[int, ...] = ()
    what: Literal["log", "evaluate", "save"] = "log"


@dataclass(frozen=True, slots=True)
class WorkerInitEdit:
    """A function that each worker of the DataLoader at file:line runs first; `statements` are its body."""

    file: str
    line: int
    function: str  # "one_thread_per_worker"
    statements: tuple[str, ...]  # ("cv2.setNumThreads(0)",)


KeywordEdit = CallEdit | SettingsEdit | LoopEdit
"""An edit that sets keywords of a call, however the call is found."""


Edit = KeywordEdit | TransferEdit | SetupEdit | ModelEdit | AutocastEdit | IntervalEdit | WorkerInitEdit
"""A change of the user's source, as a rule asks for it: data only. gpuwatch/edits makes it, or says why it cannot."""


CALL = "DataLoader"

SETTINGS_OF: dict[str, tuple[str, str, frozenset[str]]] = {
    "transformers": (
        "TrainingArguments",
        "dataloader_",
        frozenset({"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last"}),
    ),
}
"""Libraries that build the loader themselves: the user's call that takes its settings, their prefix, their names."""

_TRIED_KEYWORDS = frozenset({"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "in_order"})
_TRIED_STATEMENTS = {
    'torch.set_float32_matmul_precision("high")': ("tf32", "true"),
    "torch.backends.cudnn.benchmark = True": ("cudnn_benchmark", "true"),
    "torch.backends.cudnn.benchmark = False": ("cudnn_benchmark", "false"),
}

_LITERAL = re.compile(r"\d+|True|False")


@dataclass(frozen=True, slots=True)
class Fix:
    """What to change. `value` is the one number computed for this machine, where there is one."""

    text: str
    code: str | None = None
    file: str | None = None
    line: int | None = None
    value: float | int | str | None = None
    edit: Edit | None = None
    also: tuple[Edit, ...] = ()  # what belongs to the same change, at other places
    environment: tuple[tuple[str, str], ...] = ()  # variables to start the program with, where that is the change
    can_be_tried: bool = True  # not what speeds up an evaluation: a trial measures training alone

    @property
    def trial_settings(self) -> dict[str, str] | None:
        """What `gpuwatch trial` sets to the same effect: {"num_workers": "3", "env.OMP_NUM_THREADS": "1"}.

        None where the hook cannot make the change, or a trial does not measure what it brings.
        """
        if not self.can_be_tried:
            return None
        found = {f"env.{name}": value for name, value in self.environment}
        if self.edit is None:
            return found or None
        for edit in (self.edit, *self.also):
            settings = _settings_tried(edit)
            if settings is None:
                return None
            found |= settings
        return found


def _settings_tried(edit: Edit) -> dict[str, str] | None:
    if isinstance(edit, TransferEdit):
        return {"non_blocking": "true"}
    if isinstance(edit, SetupEdit):
        return dict([_TRIED_STATEMENTS[edit.statement]]) if edit.statement in _TRIED_STATEMENTS else None
    if isinstance(edit, ModelEdit):
        return {"compile": "true"} if edit.statement == "{model}.compile()" else None
    if not isinstance(edit, CallEdit | LoopEdit | SettingsEdit):
        return None
    prefixes = {CALL: "", **{call: prefix for call, prefix, _ in SETTINGS_OF.values()}}
    prefix = prefixes.get(edit.call)
    if prefix is None or not all(name.startswith(prefix) for name in edit.keywords):
        return None
    keywords = {name.removeprefix(prefix): text for name, text in edit.keywords.items()}
    if not keywords.keys() <= _TRIED_KEYWORDS or not all(_LITERAL.fullmatch(text) for text in keywords.values()):
        return None
    return {name: text.lower() for name, text in keywords.items()}


@dataclass(frozen=True, slots=True)
class Gain:
    """Expected speed-up as factors (1.5 means 1.5 times the samples per second), capped by the next bottleneck."""

    low: float
    high: float
    cap: str | None = None  # what limits it: "then the GPU sets the pace", "then limited by the 8 CPU cores"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Where a finding's fix stands in the plan of its run, as factors on the speed of the whole run.

    `then` is what it brings once the steps before it are made, `together` what all of them bring up to this one.
    """

    number: int  # from 1
    of: int
    then: Gain
    together: Gain


def brings_something(high: float) -> bool:
    """Whether a factor is shown as more than none."""
    return high >= 1.005


def plan_words(number: int, of: int, then: tuple[float, float], together: tuple[float, float]) -> str:
    """Where a fix stands among those of its run: "step 2 of 3 of the plan: then 1.1-1.3x faster, ..."."""
    text = f"step {number} of {of} of the plan"
    if number == 1:
        return f"{text}: change this first"
    if not brings_something(then[1]):
        return f"{text}: then nothing more, because the steps before it save the same time"
    return f"{text}: then {faster(*then)}, {faster(*together)} together with the steps before it"


State = Literal["pending", "firing", "clearing"]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a rule says of one case. `fires=False`: between the clearing and the firing threshold."""

    summary: str
    severity: Severity
    level: Level
    evidence: tuple[Measure, ...]
    fires: bool = True
    stays: Severity | None = None  # its severity if it was that before: between two thresholds
    is_certain: bool = False  # said at once: the evidence of one evaluation is enough
    fix: Fix | None = None
    gain: Gain | None = None
    hint: str | None = None  # in place of a gain: the published range and its source
    ruled_out: tuple[RuledOut, ...] = ()
    verify: str = ""
    chart: tuple[str, ...] = ()  # series that show it, such as "gpu.power_watts", "run.wait_share"


@dataclass(frozen=True, slots=True)
class Finding:
    """A draft that lasted, with its subject and history."""

    rule: str
    severity: Severity
    level: Level
    summary: str
    evidence: tuple[Measure, ...]
    state: State
    since_ns: int
    run: str | None = None  # RunWindow.id
    gpu: str | None = None  # UUID
    window_seconds: float = 0.0
    fix: Fix | None = None
    gain: Gain | None = None
    hint: str | None = None
    ruled_out: tuple[RuledOut, ...] = ()
    verify: str = ""
    chart: tuple[str, ...] = ()
    behind: str | None = None  # the rule that comes first: shown "after that"
    incidents: int = 1
    confidence_notes: tuple[str, ...] = field(default_factory=tuple)
    plan: PlanStep | None = None
