"""All items, most important first: a run that is cut off is then still worth most."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu.cases import Case, Item, Question, Variant

_LOW = frozenset({"low-util", "util-fluctuation", "periodic-dips"})
_STARVED = _LOW | {"data-starvation"}

_W0 = Case(
    id="G02",
    title="JPEG files, num_workers=0",
    script="image_folder.py",
    arguments=("--workers", "0"),
    must=frozenset({"data-starvation", "workers-zero"}),
    may=_LOW,
    names_line="loader = DataLoader(",
    variants=(Variant("the workers it advises", promised_by="workers-zero", value_option="--workers"),),
)
_HIDDEN = Case(
    id="G03",
    title="num_workers=0, 60 ms load behind a 100 ms step, no sync",
    script="hidden_load.py",
    never=frozenset({"data-starvation", "workers-zero"}),
    warm_steps=5,
)
_FEW = Case(
    id="G05-1",
    title="1 worker of 16 cores",
    script="worker_count.py",
    arguments=("--workers", "1"),
    must=frozenset({"data-starvation", "workers-too-few"}),
    may=_LOW,
    names_line="loader = DataLoader(",
    variants=(Variant("the workers it advises", promised_by="workers-too-few", value_option="--workers"),),
)
_AUGMENTED = Case(
    id="G06",
    title="PIL rotates 512 px images in 12 workers",
    script="augmentation.py",
    must=frozenset({"data-starvation", "worker-cpu-bound"}),
    may=_LOW | {"host-cpu-exhausted", "workers-too-few"},
    names_line="image.rotate(",
    needs=("PIL",),
    variants=(Variant("on the GPU instead", ("--augment", "gpu"), promised_by="worker-cpu-bound"),),
)
_EVALUATION = Case(
    id="G16-eval",
    title="a slow evaluation every 50 steps",
    script="evaluation.py",
    must=frozenset({"eval-stall"}),
    may=_LOW,
    names_line="eval_loader = DataLoader(",
    watch_seconds=22.0,
)
_TINY = Case(
    id="G12",
    title="200 tiny layers, batch 8",
    script="tiny_layers.py",
    must=frozenset({"launch-bound"}),
    may=_LOW,
    variants=(Variant("as CUDA graphs", ("--graph",), promised_by="launch-bound"),),
)
_FLOAT32 = Case(
    id="G14",
    title="an MLP in fp32",
    script="precision.py",
    must=frozenset({"amp-off", "tf32-off"}),
    may=frozenset({"low-power-high-util", "compile-off"}),
    variants=(
        Variant("TF32", ("--precision", "tf32"), promised_by="tf32-off"),
        Variant("autocast to bf16", ("--precision", "bf16"), promised_by="amp-off"),
    ),
)
_SPINNING = Case(
    id="G20",
    title="a kernel that spins, in place of a hung collective",
    script="spinning.py",
    arguments=("--after", "1200", "--step-ms", "15"),
    must=frozenset({"collective-hang"}),
    may=frozenset({"low-power-high-util"}),
    watch_seconds=100.0,
)
_LOCKED = Case(
    id="G21",
    title="a worker waits for a lock",
    script="locked_worker.py",
    arguments=("--after", "1200", "--step-ms", "15"),
    must=frozenset({"step-stalled"}),
    may=_STARVED,
    watch_seconds=100.0,
)


def _attached(case: Case, must: frozenset[str]) -> Case:
    """The same without a hook: what its stacks alone tell."""
    return replace(
        case,
        id=f"{case.id}-attached",
        title=f"{case.title}; not hooked",
        how="attach",
        must=must,
        may=case.may | case.must,
        variants=(),
        watch_seconds=24.0,
    )


CATALOGUE: tuple[Item, ...] = (
    Question("F01", "versions and what the machine offers", "environment", seconds=8.0, needs=()),
    Question("F02", "CUDA event pairs: do they tell the gap, what do they cost", "event_pairs", seconds=14.0),
    Question("F03", "NVML: cost of each call, rings, GPM", "driver_calls", seconds=16.0, needs=("pynvml",)),
    Case(
        id="G01",
        title="healthy: ResNet-50 bf16, data on the GPU",
        script="healthy.py",
        variants=(Variant("without gpuwatch", seconds=12.0),),
    ),
    _W0,
    _HIDDEN,
    Case(
        id="G04",
        title="the same with loss.item() in each step",
        script="hidden_load.py",
        arguments=("--item",),
        must=frozenset({"data-starvation", "workers-zero", "sync-per-step"}),
        may=_LOW,
        warm_steps=5,
        variants=(Variant("without .item()", ("--no-item",), promised_by="sync-per-step"),),
    ),
    Case(
        id="F04",
        title="attached: shares of its stacks against its own clocks",
        script="timed_phases.py",
        how="attach",
        may=_STARVED | {"workers-zero", "sync-per-step"},
        has_truth=True,
        watch_seconds=16.0,
    ),
    Question("G23", "the sensors' windows, by square waves of .05 to 10 s", "sensor", seconds=70.0),
    _FEW,
    replace(
        _FEW,
        id="G05-12",
        title="12 workers of 16 cores: enough",
        arguments=("--workers", "12"),
        must=frozenset(),
        may=frozenset(),
        names_line=None,
        variants=(),
    ),
    _AUGMENTED,
    _TINY,
    _FLOAT32,
    Case(id="G13", title="a big model and a harmless .item()", script="harmless_sync.py", warm_steps=5),
    Case(
        id="G15",
        title="convolutions in fp32: cuDNN uses TF32 by itself",
        script="convolutions.py",
        never=frozenset({"tf32-off"}),
        may=frozenset({"low-power-high-util"}),
    ),
    _EVALUATION,
    Case(
        id="G16-checkpoint",
        title="1 GB saved every 60 steps",
        script="checkpoints.py",
        must=frozenset({"checkpoint-stall"}),
        may=_LOW,
        names_line="torch.save(",
    ),
    Case(
        id="G09",
        title="1 item in 100 takes 1 s",
        script="slow_items.py",
        must=frozenset({"data-starvation", "slow-samples"}),
        may=_LOW,
    ),
    Case(
        id="G10",
        title="20-batch epochs, workers are restarted",
        script="short_epochs.py",
        must=frozenset({"epoch-start-stall"}),
        may=_STARVED,
        variants=(Variant("persistent_workers", ("--persistent",), promised_by="epoch-start-stall"),),
    ),
    Case(
        id="G11",
        title="200 MB batches from pageable memory",
        script="big_batches.py",
        must=frozenset({"pageable-transfer"}),
        may=_STARVED | {"h2d-bound", "slow-collate-ipc"},
        variants=(Variant("pinned, non_blocking", ("--pin",), promised_by="pageable-transfer"),),
    ),
    _attached(_W0, frozenset({"workers-zero"})),
    _attached(_AUGMENTED, frozenset({"worker-cpu-bound"})),
    _attached(_EVALUATION, frozenset({"eval-stall"})),
    replace(_HIDDEN, id="G03-attached", title=f"{_HIDDEN.title}; not hooked", how="attach", watch_seconds=24.0),
    replace(
        _FEW,
        id="G05-32",
        title="32 busy workers on 16 cores",
        arguments=("--workers", "32", "--item-ms", "24"),
        must=frozenset({"too-many-workers"}),
        may=_STARVED | {"host-cpu-exhausted", "noisy-neighbour"},
        names_line=None,
        variants=(),
    ),
    replace(_FEW, id="G05-4", title="4 workers of 16 cores", arguments=("--workers", "4"), variants=()),
    Case(
        id="G07",
        title="12 workers whose library starts 16 threads each",
        script="threads_in_workers.py",
        must=frozenset({"thread-oversubscription"}),
        may=_STARVED | {"host-cpu-exhausted", "worker-cpu-bound"},
        needs=("numpy",),
        variants=(Variant("one thread per worker", ("--one-thread",), promised_by="thread-oversubscription"),),
    ),
    Case(
        id="G08",
        title="random 4 KiB reads past the page cache",
        script="random_reads.py",
        must=frozenset({"data-starvation", "io-bound"}),
        may=_LOW,
        start_seconds=14.0,
    ),
    Case(
        id="G19",
        title="another program on the same GPU",
        script="healthy.py",
        must=frozenset({"shared-gpu"}),
        beside=(("neighbour_matmul.py",),),
        watch_seconds=24.0,
    ),
    Case(
        id="G22",
        title="32 busy processes beside a small batch",
        script="healthy.py",
        arguments=("--batch-size", "24"),
        must=frozenset({"noisy-neighbour"}),
        may=_LOW | {"launch-bound"},
        beside=(("neighbour_busy.py",),),
    ),
    Case(
        id="G16-log",
        title="a plot every 20 steps",
        script="plots.py",
        must=frozenset({"log-stall"}),
        may=_LOW | {"sync-per-step"},
    ),
    Case(
        id="G16-gc",
        title="garbage collection over 5 million objects",
        script="garbage.py",
        must=frozenset({"gc-stall"}),
        may=_LOW,
        start_seconds=12.0,
    ),
    Case(
        id="G17",
        title="compiled again for each length",
        script="recompiling.py",
        must=frozenset({"recompile-storm"}),
        may=_LOW | {"launch-bound", "gc-stall"},
        start_seconds=14.0,
    ),
    Case(
        id="G18-full",
        title="memory 97.8% full",
        script="memory_full.py",
        must=frozenset({"memory-near-limit"}),
    ),
    Case(
        id="G18-creep",
        title="2 MiB more per step",
        script="memory_creep.py",
        must=frozenset({"gpu-memory-creep"}),
        may=frozenset({"memory-near-limit"}),
    ),
    replace(
        _TINY,
        id="G12-compiled",
        title="200 tiny layers, compiled with reduce-overhead",
        arguments=("--compile",),
        must=frozenset(),
        may=_LOW | {"launch-bound"},
        variants=(),
        start_seconds=60.0,
    ),
    _SPINNING,
    _LOCKED,
)


def chosen(names: str | None) -> list[Item]:
    """Those of a comma-separated list, in the order of the catalogue; `G05` is G05-1, G05-4 and so on.

    Raises:
        ValueError: a name fits none.
    """
    if not names:
        return list(CATALOGUE)
    wanted: set[str] = set()
    for name in filter(None, (name.strip() for name in names.split(","))):
        wanted |= _meant(name.casefold())
    return [item for item in CATALOGUE if item.id in wanted]


def _meant(name: str) -> set[str]:
    """The one that is called so, else all parts of it."""
    ids = [item.id for item in CATALOGUE]
    found = {id for id in ids if id.casefold() == name} or {id for id in ids if id.casefold().startswith(f"{name}-")}
    if not found:
        raise ValueError(f"there is no scenario {name!r}; there are: {', '.join(ids)}")
    return found
