"""The report as types: what `--format json` writes, what every renderer shows, what `gpuwatch compare` reads.

The JSON schema is made of them. Shares are 0 to 1 of the time unless the name says percent. None: not known;
`unavailable` says why.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gpuwatch.samples import Visibility
from gpuwatch.text import encodable

Json = dict[str, Any]
_Part = TypeVar("_Part", bound=Struct)
SCHEMA_VERSION: Literal[2] = 2
MOST_POINTS = 1500
"""Of a curve: a screen has no more columns."""


def _note(text: str) -> Meta:
    return Meta(description=text)


Severity = Literal["critical", "warning", "info", "hint"]
Rule = Annotated[str, Meta(pattern="^[a-z0-9-]+$")]
RunId = Annotated[str | None, _note("runs[].id")]
GpuId = Annotated[str | None, _note("gpus[].uuid")]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Points = Annotated[list[float | None], Meta(max_length=MOST_POINTS)]
Reasons = dict[str, str]
TargetStatus = Literal["met", "not met", "not known"]
EnergySource = Literal["energy counter", "power samples"]
StepsSource = Literal["hook", "loop counter", "loader counter", "estimated from stacks"]


class About(Struct, frozen=True):
    """What the report is of."""

    version: str
    source: Literal["live", "simulated", "recording"]
    label: str
    started_at: Moment
    ended_at: Moment
    duration_seconds: float
    incomplete: Annotated[bool, _note("ended by a signal before its time")]
    notes: list[str]


class Factors(Struct, frozen=True):
    """1.5 means 1.5 times the samples per second."""

    low: float
    high: float


class Gain(Factors, frozen=True):
    """What a fix brings, as factors on the samples per second."""

    cap: Annotated[str | None, _note("what limits it")]


class VerdictFix(Struct, frozen=True):
    """The line to change."""

    code: str | None
    file: str | None
    line: int | None


class VerdictLine(Struct, frozen=True):
    """One sentence: of a run, or of a GPU or the machine with a problem of its own."""

    run: RunId
    gpu: GpuId
    rule: str | None
    severity: Severity | None
    judged: Annotated[bool, _note("false: too little was seen to say that nothing is wrong")]
    sentence: str
    fix: VerdictFix | None
    gain: Gain | None


class RuledOut(Struct, frozen=True):
    """A competing cause, and why it is not this one."""

    cause: str
    reason: str


class Fix(Struct, frozen=True):
    """What to change."""

    text: str
    code: str | None
    diff: Annotated[
        str | None,
        _note("unified diff for `git apply` in the root of the file's repository, else in the training's folder"),
    ]
    no_diff_reason: str | None
    file: str | None
    line: int | None
    value: Annotated[float | str | None, _note("computed for this machine")]
    trial: Annotated[str | None, _note("the command that proves it before it is edited")]


class PlanStep(Struct, frozen=True):
    """The fixes of a run one after the other, as factors on the speed of all of it."""

    number: Annotated[int, Meta(ge=1)]
    of: Annotated[int, Meta(ge=1)]
    then: Annotated[Factors, _note("after the steps before it are made")]
    together: Annotated[Factors, _note("all steps up to this one")]


class Finding(Struct, frozen=True):
    """What is wrong, its numbers, the fix, the gain, the proof."""

    rule: Rule
    severity: Severity
    level: Annotated[str, Meta(pattern="^E[0-3]$")]
    run: RunId
    gpu: GpuId
    summary: str
    evidence: dict[str, float | str | None]
    numbers: Annotated[list[str], _note("the evidence in words")]
    ruled_out: list[RuledOut]
    fix: Fix | None
    gain: Gain | None
    plan: PlanStep | None
    hint: str | None
    verify: str
    since: Moment
    state: Literal["pending", "firing", "clearing", "over"]
    stood_seconds: Annotated[float | None, _note("of a recording longer than 15 minutes")]
    behind: Annotated[str | None, _note("the rule to fix first")]
    window_seconds: float
    confidence_notes: list[str]


class JudgedRule(Struct, frozen=True):
    """A rule. judged false: what it needs was not seen, and its silence proves nothing."""

    rule: Rule
    family: str
    title: str
    judged: bool
    reason: Annotated[str | None, _note("why it could not judge")]


class Target(Struct, frozen=True):
    """A target of a well-used GPU."""

    target: str
    status: TargetStatus
    value: float | None
    unit: str
    where: Annotated[str | None, _note("the GPU that decides, of several")]


class Swing(Struct, frozen=True):
    """How a figure swung over the window."""

    mean: float
    sigma: float
    p5: float | None
    p95: float | None


class Level(Struct, frozen=True):
    """A mean and the greatest single value."""

    mean: float
    max: float


class Power(Level, frozen=True):
    """Power and its limit."""

    limit: float | None


class Memory(Level, frozen=True):
    """Memory in use, and all there is."""

    total: int | None


class Energy(Struct, frozen=True):
    """What was consumed in the window, and at the price that was given what that costs."""

    kilowatt_hours: float
    source: Annotated[
        EnergySource,
        _note("power samples: mean power times the time they cover, for GPUs without a counter"),
    ]
    covered_share: Annotated[float, _note("of the window; what was not covered is not in kilowatt_hours")]
    cost: Annotated[float | None, _note("null: no price was given")]


class Gpu(Struct, frozen=True):
    """One GPU over the window."""

    index: int
    uuid: str
    name: str
    status: Annotated[str, Meta(extra_json_schema={"enum": ["live", "stale", "lost"]})]
    status_reason: str | None
    utilization_percent: Swing | None
    train_utilization_percent: Annotated[
        Swing | None, _note("without warm-up, evaluation, saving and other pauses of the run on this GPU")
    ]
    power_watts: Power | None
    memory_bytes: Memory | None
    temperature_celsius: Level | None
    sm_clock_mhz: Level | None
    energy_joules: float | None
    throttled_share: dict[str, float]
    sensor_window_seconds: float | None
    unavailable: Reasons
    energy: Energy | None = None


class StepSeconds(Struct, frozen=True):
    """Percentiles of the time of a step."""

    p50: float
    p95: float


class StepShares(Struct, frozen=True):
    """What a step's time goes to."""

    copy: float | None
    forward: float | None
    backward: float | None
    optimizer: float | None


class Model(Struct, frozen=True):
    """What two reports must have in common to be compared, and the precision."""

    parameters: int | None
    parameter_bits: Annotated[int | None, _note("in the mean over parameters")]
    autocast: Annotated[str | None, _note("the type it computes in; empty where it is off")]


class Phase(Struct, frozen=True):
    """All phases of one kind."""

    count: int
    seconds: float
    share: float
    longest_seconds: float


class Share(Struct, frozen=True):
    """A share of samples with its 95% interval."""

    share: float
    low: float
    high: float


class Line(Struct, frozen=True):
    """A line of the user's own code: the innermost such frame of the samples it counts."""

    file: str
    line: int
    function: str
    text: Annotated[str | None, _note("null: not readable, or newer than the process")]
    phase: str
    leaf: Annotated[str | None, _note("the library function at work below it")]
    samples: int
    share: Annotated[float, _note("of all samples of its kind of thread, idle workers left out")]
    low: float
    high: float


class HotLine(Line, frozen=True):
    """The line of the user's own code that makes the batches slow, or calls the function that does."""

    where: Annotated[
        Literal["main thread while waiting", "loading thread", "workers"],
        _note("the share is of all time of that thread, or of the workers' time less their idling"),
    ]
    callee: Annotated[
        str | None,
        _note(
            "the function that the line calls, where no line of that function has half of its samples; "
            "the share is then that of the call with all below it"
        ),
    ]
    callee_lines: Annotated[
        list[int], _note("the few lines that have half of that function's samples, empty where many do")
    ]


class CurrentLine(Struct, frozen=True):
    """The line on which the training thread has been for 5 s or more, at the last sample."""

    file: str
    line: int
    function: str
    text: str | None
    leaf: str | None
    phase: str
    seconds: float
    seen_seconds_ago: float


class Stacks(Struct, frozen=True):
    """Stacks sampled from outside. Shares of samples are shares of time."""

    seconds: Annotated[float, _note("covered by samples")]
    samples: Annotated[int, _note("of the training thread")]
    rejected_samples: int
    phases: Annotated[dict[str, Share], _note("of all samples of the training thread")]
    train_phases: Annotated[dict[str, Share], _note("of those outside evaluation, saving and compiling")]
    eval_wait_share: Annotated[float | None, _note("of the evaluation's samples")]
    first_wait_share: Annotated[
        float | None, _note("of all: how much longer the first batches of an epoch wait than others")
    ]
    receiving_share: Annotated[float | None, _note("of all: receiving what a worker sent")]
    lines: Annotated[list[Line], _note("of the training thread, most samples first")]
    workers: int
    worker_samples: Annotated[int, _note("of all workers, idle ones too")]
    worker_phases: dict[str, Share]
    worker_lines: Annotated[list[Line], _note("of the workers, most samples first")]
    batches: Annotated[int, _note("of the training loader, in the window")]
    batches_exact: Annotated[bool, _note("read from the loader's own counter")]
    epochs_started: int
    cpu_share: Annotated[float | None, _note("what the samples cost gpuwatch, of one core")]


class Loader(Struct, frozen=True):
    """A DataLoader, with the line that built it."""

    file: str | None
    line: int | None
    num_workers: int | None
    batch_size: int | None
    pin_memory: bool | None
    persistent_workers: bool | None
    prefetch_factor: int | None
    role: Literal["train", "eval", "unknown"]


class Rank(Struct, frozen=True):
    """One process of a run."""

    pid: int
    rank: int | None
    gpus: list[str]
    steps: int | None
    step_seconds_p50: float | None
    data_wait_share: float | None
    gpu_idle_from_wait_share: float | None
    current_line: CurrentLine | None


class Run(Struct, frozen=True):
    """One training run; its figures are those of the rank that all others wait for."""

    id: str
    title: str
    pid: int
    command: str
    cwd: str | None
    visibility: Annotated[
        Visibility,
        _note(
            "exact: timed by the hook. sampled: stacks read from outside. process: /proc only. hardware: the GPU only"
        ),
    ]
    how_to_see_more: Annotated[str | None, _note("one line on how to see more, below exact")]
    state: Annotated[str | None, _note("training, checkpointing, stalled, not training, ended (killed) ...")]
    device: str | None
    gpus: Annotated[list[str], _note("gpus[].uuid")]
    steps: Annotated[int | None, _note("optimizer steps; batches if steps_source is not the hook")]
    steps_total: int | None
    step_seconds: StepSeconds | None
    batches_per_step: Annotated[float | None, _note("over 1 where gradients are accumulated")]
    steps_per_second: Annotated[
        float | None,
        _note("over all of the window, evaluation and saving included; batches if steps_source is not the hook"),
    ]
    steps_source: StepsSource | None
    train_seconds: Annotated[float | None, _note("of the window, without evaluation, saving and other pauses")]
    batch_size: Annotated[int | None, _note("of the training loader, of one rank")]
    model: Model
    samples_per_second: float | None
    data_wait_share: float | None
    wait_seconds_per_batch: float | None
    gpu_idle_from_wait_share: float | None
    energy_joules_per_sample: Annotated[float | None, _note("of all GPUs of the run, over the samples of all ranks")]
    step_shares: StepShares
    phases: dict[str, Phase]
    hot_line: Annotated[HotLine | None, _note("null: the threads that load were not read")]
    current_line: CurrentLine | None
    stacks: Stacks | None
    loaders: list[Loader]
    ranks: list[Rank]
    ended: str | None
    torch: str | None
    python: str | None
    unavailable: Reasons
    energy: Annotated[
        Energy | None,
        _note(
            "of the run's GPUs over all of the window, other processes on them included; null: of one it is not known"
        ),
    ] = None


class History(Struct, frozen=True):
    """A short curve."""

    series: str
    key: Annotated[str, _note("gpus[].uuid or runs[].id; empty for the host")]
    bucket_seconds: float
    mean: list[float | None]


class Nvml(Struct, frozen=True):
    """The driver's library."""

    status: str
    reason: str | None
    missed_polls: int
    restarts: int


class DataQuality(Struct, frozen=True):
    """How well it was measured."""

    problems: Annotated[list[str], _note("what is missing of a recording, and jumps of the machine's clock")]
    window_seconds: float
    findings_window_seconds: float | None
    poll_interval_seconds: float
    gpu_samples: int
    poll_gap_p95_seconds: float | None
    longest_gap_seconds: float | None
    received_records: int
    dropped_records: int
    malformed_packets: int
    nvml: Nvml | None
    nvml_calls_per_gpu_second: float | None
    own_cpu_share: Annotated[float | None, _note("of one core")]


class Host(Struct, frozen=True):
    """The machine."""

    hostname: str | None
    kernel: str | None
    cpu_model: str | None
    cpu_count: int | None
    cpu_quota_cores: float | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    container: bool | None
    wsl: bool | None
    cpu_percent: float | None
    pressure_cpu_percent: float | None
    pressure_io_percent: float | None
    pressure_memory_percent: float | None
    driver_version: str | None
    cuda_version: str | None


class Curve(Struct, frozen=True):
    """A curve of a page with charts: points in the middles of equal buckets."""

    series: str
    key: Annotated[str, _note("gpus[].uuid or runs[].id; empty for the host")]
    subject: str
    unit: str
    start_seconds: Annotated[float, _note("of the first bucket, from the beginning")]
    bucket_seconds: float
    mean: Points
    min: Annotated[Points | None, _note("null: the same as mean")]
    max: Annotated[Points | None, _note("null: the same as mean")]


class WallTime(Struct, frozen=True):
    """What the clock on the wall showed."""

    start_seconds: Annotated[float, _note("from the beginning, as those of series")]
    wall_time: Annotated[float, _note("seconds since 1970")]


class Span(Struct, frozen=True):
    """A phase or a finding over the time of the curves."""

    kind: Literal["phase", "finding"]
    name: str
    run: RunId
    gpu: GpuId
    severity: Severity | None
    series: Annotated[list[str], _note("that show a finding")]
    start_seconds: float
    end_seconds: float


class Report(Struct, frozen=True):
    """Everything that was seen. `series`, `clock` and `spans` are there with --series only."""

    schema_version: Literal[2]
    gpuwatch: About
    verdict: Annotated[list[VerdictLine], Meta(min_length=1)]
    findings: list[Finding]
    rules: Annotated[list[JudgedRule], _note("every rule by id")]
    checklist: list[Target]
    gpus: list[Gpu]
    runs: list[Run]
    history: list[History]
    data_quality: DataQuality
    host: Host
    series: list[Curve] | UnsetType = UNSET
    clock: Annotated[list[WallTime] | UnsetType, _note("at the beginning and behind each jump")] = UNSET
    spans: list[Span] | UnsetType = UNSET


def figure(value: float | None) -> float | None:
    """A number with six significant digits; None for NaN and infinity, which JSON does not know."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def cleaned(part: Any) -> Any:
    """A part of the report, or all of it, as JSON can hold it: its numbers by `figure`, its texts encodable."""
    match part:
        case float():
            return figure(part)
        case str():
            return encodable(part)
        case list():
            return [cleaned(each) for each in part]
        case dict():
            return {key: cleaned(each) for key, each in part.items()}
        case Struct():
            return type(part)(*(cleaned(getattr(part, name)) for name in part.__struct_fields__))
    return part


def like(kind: type[_Part], thing: object) -> _Part:
    """A part of the report from an object that has its fields."""
    return kind(*(getattr(thing, name) for name in kind.__struct_fields__))


def as_json(report: Report) -> Json:
    """The report as the objects that JSON has."""
    document: Json = msgspec.to_builtins(report)
    return document


def json_schema() -> Json:
    """The JSON schema of a report; what it does not name is refused."""
    (root,), parts = msgspec.json.schema_components([Report])
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
    title = f"gpuwatch report, schema version {SCHEMA_VERSION}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **root, "$defs": parts}
