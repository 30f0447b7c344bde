"""The scenarios of `gpuwatch demo`, one machine and run each, with the rules that have to find what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpuwatch.samples import ModelFacts

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU model as its data sheet gives it. `full_load_celsius` is the rise over the room at the power limit."""

    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    power_limit_watts: float
    idle_watts: float
    sm_clock_max_mhz: int
    memory_clock_max_mhz: int
    pcie_generation: int
    has_ecc: bool
    has_gpm: bool
    full_load_celsius: float = 42.0
    slowdown_celsius: float = 87.0


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """A DataLoader and its dataset. `batch_seconds` is one worker's time for one batch on a free core."""

    num_workers: int
    batch_size: int
    batch_seconds: float
    batch_bytes: int
    batches_per_epoch: int
    cpu_share: float = 1.0  # of `batch_seconds`; the rest waits for storage
    spread: float = 0.08  # sigma of the logarithm of a batch's time
    prefetch_factor: int = 2
    persistent_workers: bool = True
    pin_memory: bool = True
    dataset: str = "ImageFolder"
    line: int = 88


@dataclass(frozen=True, slots=True)
class ComputeSpec:
    """One step on the GPU. `intensity` is the share of the power limit it draws at full clock."""

    gpu_seconds: float
    launch_seconds: float
    intensity: float
    memory_share: float
    facts: ModelFacts
    tensor_activity_percent: float = 45.0
    spread: float = 0.01


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """A stretch that is not training, after every `every_steps` steps."""

    kind: Literal["eval", "checkpoint"]
    every_steps: int
    seconds: float
    line: int
    gpu_busy_share: float = 0.0
    batches: int = 0
    wait_share: float = 0.0  # of the phase, spent waiting for its own loader
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """GPUs that somebody else has, or nobody where there is no command. `utilization_percent` 0 is a GPU that idles."""

    user: str = ""
    command: str = ""
    gpus: int = 1
    utilization_percent: float = 0.0
    memory_share: float = 0.0
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A labelled situation. `must` are the rules that have to find it, `may` those that are no mistake."""

    name: str
    description: str
    gpu: GpuSpec
    loader: LoaderSpec
    compute: ComputeSpec
    gpu_count: int = 1
    neighbours: tuple[Neighbour, ...] = ()  # on the GPUs after those of the training
    cpu_count: int = 16
    memory_total_bytes: int = 128 * GIB
    phases: tuple[PhaseSpec, ...] = ()
    heat_resistance: Mapping[int, float] = field(default_factory=dict)  # GPU index -> times the designed one
    inlet_celsius: float = 24.0
    hang_after_seconds: float | None = None
    attached: bool = False  # no hook is in the run: its stacks are read
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


_H100 = GpuSpec(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    memory_total_bytes=80 * GIB,
    power_limit_watts=700.0,
    idle_watts=72.0,
    sm_clock_max_mhz=1980,
    memory_clock_max_mhz=2619,
    pcie_generation=5,
    has_ecc=True,
    has_gpm=True,
)
_RTX_5090 = GpuSpec(
    name="NVIDIA GeForce RTX 5090",
    compute_capability=(12, 0),
    memory_total_bytes=32 * GIB,
    power_limit_watts=575.0,
    idle_watts=24.0,
    sm_clock_max_mhz=3090,
    memory_clock_max_mhz=14001,
    pcie_generation=5,
    has_ecc=False,
    has_gpm=False,
)
_TUNED = ModelFacts(
    parameters=86_567_656,
    parameter_bytes=346_270_624,
    float32_share=1.0,
    matmul_share=0.97,
    conv_share=0.01,
    autocast=True,
    autocast_dtype="bfloat16",
    float32_matmul_precision="high",
    cudnn_allow_tf32=True,
    cudnn_benchmark=False,
    compiled=True,
    optimizer="AdamW",
    optimizer_fused=True,
    optimizer_file="/simulated/train.py",
    optimizer_line=104,
    backward_file="/simulated/train.py",
    backward_line=131,
)
_FLOAT32 = replace(
    _TUNED,
    autocast=False,
    autocast_dtype=None,
    float32_matmul_precision="highest",
    compiled=False,
    optimizer_fused=False,
)
_IMAGES = LoaderSpec(
    num_workers=8,
    batch_size=256,
    batch_seconds=0.55,
    batch_bytes=256 * 3 * 224 * 224,
    batches_per_epoch=5004,
)
_COMPUTE = ComputeSpec(gpu_seconds=0.16, launch_seconds=0.018, intensity=0.9, memory_share=0.82, facts=_TUNED)
_RARE_SAVE = PhaseSpec(kind="checkpoint", every_steps=2500, seconds=1.4, line=158, bytes=1_040_000_000)

_ALL = (
    Scenario(
        name="healthy",
        description="a well-fed H100: nothing to change",
        gpu=_H100,
        loader=_IMAGES,
        compute=_COMPUTE,
        phases=(_RARE_SAVE,),
    ),
    Scenario(
        name="starved",
        description="num_workers=0: the GPU waits for every batch",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=0, batch_seconds=0.21, batch_size=64, persistent_workers=False),
        compute=replace(_COMPUTE, gpu_seconds=0.11),
        must=frozenset({"data-starvation", "workers-zero"}),
        may=frozenset({"low-util", "util-fluctuation"}),
    ),
    Scenario(
        name="fed",
        description="the starved run after its fix: 3 workers keep up",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=3, batch_seconds=0.21, batch_size=64),
        compute=replace(_COMPUTE, gpu_seconds=0.11),
    ),
    Scenario(
        name="augmentation",
        description="12 workers at full load: the augmentation costs more CPU than the machine has",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=12, batch_seconds=2.7, cpu_share=0.97, dataset="AugmentedImages"),
        compute=replace(_COMPUTE, gpu_seconds=0.12),
        must=frozenset({"data-starvation", "worker-cpu-bound"}),
        may=frozenset({"low-util", "util-fluctuation", "host-cpu-exhausted"}),
    ),
    Scenario(
        name="fluctuation",
        description="validation and checkpoints that stop the GPU again and again",
        gpu=_H100,
        loader=_IMAGES,
        compute=_COMPUTE,
        phases=(
            PhaseSpec(
                kind="eval", every_steps=90, seconds=6.0, line=164, gpu_busy_share=0.25, batches=40, wait_share=0.7
            ),
            PhaseSpec(kind="checkpoint", every_steps=60, seconds=1.6, line=158, bytes=320_000_000),
        ),
        must=frozenset({"eval-stall", "checkpoint-stall"}),
        may=frozenset({"low-util", "util-fluctuation", "periodic-dips"}),
    ),
    Scenario(
        name="attached",
        description="no hook in it: two workers fall behind, and the stacks name the line that costs them",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=2, batch_seconds=0.52, cpu_share=0.96, dataset="AugmentedImages"),
        compute=replace(_COMPUTE, gpu_seconds=0.11, launch_seconds=0.11),
        attached=True,
        must=frozenset({"data-starvation", "workers-too-few"}),
        may=frozenset({"low-util", "util-fluctuation", "worker-cpu-bound", "sync-per-step"}),
    ),
    Scenario(
        name="low-power",
        description="100% busy at 300 of 575 W: 32-bit arithmetic on a card with 16-bit units",
        gpu=_RTX_5090,
        loader=replace(_IMAGES, batch_size=128),
        compute=replace(_COMPUTE, intensity=0.52, facts=_FLOAT32, memory_share=0.71, tensor_activity_percent=2.0),
        must=frozenset({"low-power-high-util", "amp-off"}),
        may=frozenset({"tf32-off", "compile-off", "batch-headroom"}),
    ),
    Scenario(
        name="throttled",
        description="hardly any air: the GPU lowers its clock to stay at its temperature limit",
        gpu=_H100,
        loader=_IMAGES,
        compute=_COMPUTE,
        heat_resistance={0: 2.1},
        must=frozenset({"thermal-throttle"}),
    ),
    Scenario(
        name="eight-gpus",
        description="8 ranks in step: GPU 5 is hot and slow, and the other seven wait for it",
        gpu=_H100,
        loader=_IMAGES,
        compute=_COMPUTE,
        gpu_count=8,
        cpu_count=96,
        memory_total_bytes=1024 * GIB,
        phases=(_RARE_SAVE,),
        heat_resistance={5: 3.6},
        must=frozenset({"straggler-rank", "thermal-throttle"}),
        may=frozenset({"gpu-imbalance"}),
    ),
    Scenario(
        name="shared-server",
        description="8 GPUs of five users: one run is starved, two GPUs idle in somebody's hands, one is free",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=0, batch_seconds=0.21, batch_size=64, persistent_workers=False),
        compute=replace(_COMPUTE, gpu_seconds=0.11),
        neighbours=(
            Neighbour("ben", "python -u pretrain.py --model 7b", 3, 97.0, 0.89, 40 * 3600.0),
            Neighbour("elif", "python eval.py --split test", 1, 62.0, 0.31, 1_440.0),
            Neighbour("carla", "python -m ipykernel_launcher -f kernel.json", 1, 0.0, 0.28, 75 * 3600.0),
            Neighbour("dmitri", "python -m vllm.entrypoints.openai.api_server", 1, 0.0, 0.85, 260 * 3600.0),
            Neighbour(),
        ),
        must=frozenset({"data-starvation", "workers-zero"}),
        may=frozenset({"low-util", "util-fluctuation", "idle-gpu-allocated"}),
    ),
    Scenario(
        name="many-gpus",
        description="64 GPUs of eight users: one run is starved, four GPUs idle in somebody's hands, five are free",
        gpu=_H100,
        loader=replace(_IMAGES, num_workers=0, batch_seconds=0.21, batch_size=64, persistent_workers=False),
        compute=replace(_COMPUTE, gpu_seconds=0.11),
        cpu_count=96,
        memory_total_bytes=1024 * GIB,
        neighbours=(
            *(
                Neighbour(user, f"python -u {job}.py", 8, percent, 0.8, hours * 3600.0)
                for user, job, percent, hours in (
                    ("ben", "pretrain", 97.0, 40.0),
                    ("elif", "diffusion", 93.0, 7.0),
                    ("dmitri", "sft", 88.0, 2.0),
                    ("farah", "detector", 41.0, 90.0),
                    ("goran", "speech", 95.0, 13.0),
                    ("hana", "rlhf", 72.0, 26.0),
                )
            ),
            Neighbour("carla", "python -m ipykernel_launcher -f kernel.json", 4, 0.0, 0.28, 75 * 3600.0),
            Neighbour("ana", "python -u train_large.py", 6, 96.0, 0.9, 9 * 3600.0),
            Neighbour(gpus=5),
        ),
        must=frozenset({"data-starvation", "workers-zero"}),
        may=frozenset({"low-util", "util-fluctuation", "idle-gpu-allocated"}),
    ),
    Scenario(
        name="hang",
        description="a collective that never ends: 100% busy at a third of the power, and no more steps",
        gpu=_H100,
        loader=_IMAGES,
        compute=_COMPUTE,
        gpu_count=2,
        cpu_count=32,
        memory_total_bytes=256 * GIB,
        hang_after_seconds=45.0,
        must=frozenset({"collective-hang"}),
        may=frozenset({"low-power-high-util"}),
    ),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""Name -> scenario, in the order in which `gpuwatch demo` lists them."""
