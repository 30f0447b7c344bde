"""Unusual but realistic jobs, for which no rule was written: what a stranger's script does between its steps.

Each is played hooked, hooked where its stacks cannot be read, and attached. A warning is right if its change, made in
the same program, makes it faster, or if the job is made of what it says; a hang is one only while the job truly hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.scenarios.job import About, Computing, Fault, Host, Job, Loading
from tests.scenarios.program import Acts, Player, Program

MIXED_LOADER = 3
"""The number of a second training loader."""
SHORT = Loading(batches_per_epoch=300)
USUAL = Job(SHORT)
SLEEPING = About(210, "time.sleep(POLL_SECONDS)", in_loop=False)


@dataclass(frozen=True, slots=True)
class Unusual:
    """One job. `must` are warnings that are missed otherwise, `true` those that hold by what the job is."""

    id: str
    title: str
    program: Program
    job: Job = USUAL
    seconds: int = 500
    loaders: dict[int, Loading] = field(default_factory=dict)
    must: frozenset[str] = frozenset()
    true: frozenset[str] = frozenset()
    infers: bool = False
    optimizer: bool = True


JOBS: dict[str, Unusual] = {}


def job(id: str, title: str, **settings: object) -> Callable[[Program], Program]:
    """Puts a program into the set."""

    def take(program: Program) -> Program:
        JOBS[id] = Unusual(id, title, program, **settings)  # type: ignore[arg-type]
        return program

    return take


def steps(p: Player, count: int, **how: object) -> Acts:
    """So many of them."""
    for _ in range(count):
        yield from p.step(**how)  # type: ignore[arg-type]


def forever(p: Player, **how: object) -> Acts:
    """Trains on."""
    while True:
        yield from p.step(**how)  # type: ignore[arg-type]


# ---- behind the training, and between two


@job("upload", "uploads its model for five minutes after the training")
def _upload(p: Player) -> Acts:
    yield from steps(p, 1500)
    p.end_pass()
    yield from p.save(4.0)
    yield from p.code(300.0, About(201, "api.upload_folder(out)", in_loop=False), cores=0.12)


@job("upload-idle", "waits for a slow upload without using a core")
def _upload_idle(p: Player) -> Acts:
    yield from steps(p, 1500)
    p.end_pass()
    yield from p.code(300.0, About(201, "api.upload_folder(out)", in_loop=False), cores=0.01)


@job("plots", "plots for three minutes at the end of the script, then ends")
def _plots(p: Player) -> Acts:
    yield from steps(p, 2000)
    p.end_pass()
    yield from p.code(180.0, About(205, "plt.savefig(path)", in_loop=False, moves=True))


@job("notebook", "a notebook that is idle between cells")
def _notebook(p: Player) -> Acts:
    for _ in range(4):
        p.iterate()
        yield from steps(p, 500)
        p.end_pass()
        yield from p.code(150.0, About(7, "events = self._selector.select(timeout)", in_loop=False), cores=0.0)


@job("input", "asks its user whether to go on, after an epoch that was left by break")
def _input(p: Player) -> Acts:
    yield from steps(p, 1500)
    yield from p.code(300.0, About(208, 'answer = input("go on? ")', in_loop=False), cores=0.0)
    yield from forever(p)


@job("early-stopping", "stops early by break, then writes a report on the CPU")
def _early_stopping(p: Player) -> Acts:
    yield from steps(p, 1700)
    yield from p.code(240.0, About(206, "report = summarize(history)", in_loop=False, moves=True), cores=0.9)


@job("rate-limited", "polls a service between epochs: two minutes of sleep in the outer loop")
def _rate_limited(p: Player) -> Acts:
    while True:
        yield from steps(p, 600)
        p.end_pass()
        p.iterate()
        yield from p.code(120.0, replace(SLEEPING, in_loop=True), cores=0.01)


@job("mining", "mines hard examples between epochs: scores on the GPU, then sorts on the CPU")
def _mining(p: Player) -> Acts:
    while True:
        yield from steps(p, 600)
        p.end_pass()
        p.iterate()
        yield from p.evaluate(400, 60.0, 0.9)
        yield from p.code(60.0, About(180, "order = hardest(scores)", moves=True))


@job("mining-break", "mines hard examples and leaves that pass by break")
def _mining_break(p: Player) -> Acts:
    while True:
        yield from steps(p, 600)
        yield from p.evaluate(300, 45.0, 0.9, leaves=True)
        yield from p.code(80.0, About(180, "order = hardest(scores)", moves=True))


@job("metrics", "computes metrics on the CPU for 90 s after each epoch")
def _metrics(p: Player) -> Acts:
    while True:
        yield from steps(p, 1000)
        p.end_pass()
        p.iterate()
        yield from p.code(90.0, About(184, "auc = roc_auc_score(y, scores)"))


@job("tokenizes", "tokenizes with 16 processes for four minutes before it trains")
def _tokenizes(p: Player) -> Acts:
    yield from p.code(240.0, About(30, "data = data.map(tokenize, num_proc=16)", in_loop=False), cores=12.0)
    yield from forever(p)


# ---- saves and compilations


@job("long-save", "saves for 100 s, once in a while")
def _long_save(p: Player) -> Acts:
    while True:
        yield from steps(p, 4000)
        yield from p.save(100.0)


@job("nfs-save", "saves for 100 s to a slow NFS, with nothing on its core", job=Job(SHORT))
def _nfs_save(p: Player) -> Acts:
    yield from steps(p, 1500)
    yield from p.save(100.0, cores=0.01, write=2e6)
    yield from forever(p)


@job("own-save", "writes its weights for 100 s with a library of its own")
def _own_save(p: Player) -> Acts:
    yield from steps(p, 1500)
    about = About(161, "save_file(weights, path)", write_bytes_per_second=4e7)
    yield from p.code(100.0, about, cores=0.15, phase="save")
    yield from forever(p)


@job("async-save", "copies its state for a second, then writes in the background")
def _async_save(p: Player) -> Acts:
    while True:
        yield from steps(p, 600)
        yield from p.save(1.0, cores=1.0)


@job("recompile", "compiles again for each new sequence length, for 70 s")
def _recompile(p: Player) -> Acts:
    for place in range(3):
        p.shapes(place + 1)
        yield from p.compile(70.0)
        yield from steps(p, 900, times=1.0 + 0.5 * place)
    yield from forever(p, times=2.5)


@job("silent-compile", "compiles a kernel of its own for 90 s in the middle of the run")
def _silent_compile(p: Player) -> Acts:
    yield from steps(p, 1200)
    yield from p.code(90.0, About(124, "logits = model(images)"), cores=1.0, phase="forward")
    yield from forever(p)


@job("nvcc", "waits for nvcc in a child process for two minutes")
def _nvcc(p: Player) -> Acts:
    yield from steps(p, 1200)
    yield from p.code(120.0, About(124, "logits = model(images)"), cores=1.0, phase="compile")
    yield from forever(p)


# ---- evaluations


@job("long-eval", "evaluates longer than it trains, on a busy GPU")
def _long_eval(p: Player) -> Acts:
    while True:
        yield from steps(p, 400)
        yield from p.evaluate(600, 60.0, 0.96)


@job("sanity", "validates before the first step, as Lightning does, for 40 s")
def _sanity(p: Player) -> Acts:
    yield from p.evaluate(200, 40.0, 0.9)
    yield from forever(p)


@job("eval-first", "evaluates a checkpoint for three minutes before any optimizer exists", optimizer=False)
def _eval_first(p: Player) -> Acts:
    yield from p.evaluate(1200, 180.0, 0.95)
    p.facts(optimizer="AdamW", optimizer_fused=True)
    yield from forever(p)


@job("eval-in-memory", "evaluates for two minutes from tensors in memory, without a loader")
def _eval_in_memory(p: Player) -> Acts:
    while True:
        yield from steps(p, 900)
        about = About(150, "logits = model(chunk)", moves=True)
        yield from p.code(120.0, about, gpu_share=0.97, intensity=0.4, phase="eval")


@job("ema", "evaluates its model and the mean of its weights, one after the other")
def _ema(p: Player) -> Acts:
    while True:
        yield from steps(p, 1500)
        yield from p.evaluate(100, 8.0, 0.95)
        yield from p.evaluate(100, 8.0, 0.95)


@job("sampling", "samples pictures for a minute every 500 steps, from noise")
def _sampling(p: Player) -> Acts:
    while True:
        yield from steps(p, 500)
        about = About(152, "x = sampler.step(model, x, t)", moves=True)
        yield from p.code(60.0, about, gpu_share=0.98, intensity=0.42, phase="eval")


@job("generation", "generates texts for prompts, without a loader", infers=True, optimizer=False)
def _generation(p: Player) -> Acts:
    while True:
        about = About(52, "out = model.generate(**inputs)", moves=True)
        yield from p.code(30.0, about, gpu_share=0.75, intensity=0.35, phase="forward")


@job("inference-break", "infers over a loader, leaves it by break, then writes files", infers=True, optimizer=False)
def _inference_break(p: Player) -> Acts:
    for _ in range(1500):
        yield from p.read(seconds=0.12, gpu_share=0.95)
    yield from p.code(300.0, About(60, "client.wait()", in_loop=False), cores=0.01)


@job("inference", "infers over a loader, then uploads what it found", infers=True, optimizer=False)
def _inference(p: Player) -> Acts:
    for _ in range(300):
        yield from p.read(seconds=0.12, gpu_share=0.95)
    p.end_pass()
    yield from p.code(300.0, About(60, "client.wait()", in_loop=False), cores=0.01)


# ---- loops that are not one loop


@job(
    "gan",
    "trains a generator and a discriminator, each from its own loader; both keep up",
    job=Job(Loading(workers=4, cpu_seconds=0.3)),
    loaders={MIXED_LOADER: Loading(workers=4, cpu_seconds=0.3)},
)
def _gan(p: Player) -> Acts:
    while True:
        yield from p.step(also=(MIXED_LOADER,), times=2.0)


@job(
    "gan-starved",
    "a second loader with one worker holds both up",
    job=Job(Loading(workers=4, cpu_seconds=0.2)),
    loaders={MIXED_LOADER: Loading(workers=1, cpu_seconds=0.4)},
    must=frozenset({"data-starvation"}),
)
def _gan_starved(p: Player) -> Acts:
    while True:
        yield from p.step(also=(MIXED_LOADER,))


@job("rl", "rolls out on the CPU for 8 s, then makes ten updates")
def _rl(p: Player) -> Acts:
    while True:
        p.drain()
        yield from p.code(8.0, About(40, "obs, reward, done, info = envs.step(action)", moves=True), cores=1.0)
        yield from steps(p, 10, loader=None)


@job("rl-gpu", "rolls out on the GPU for 5 s, then makes forty updates")
def _rl_gpu(p: Player) -> Acts:
    while True:
        about = About(42, "tokens = policy.sample(tokens)", moves=True)
        yield from p.code(5.0, about, gpu_share=0.7, intensity=0.5, phase="eval")
        yield from steps(p, 40, loader=None)


@job("in-memory", "trains on tensors that lie on the GPU, without a loader")
def _in_memory(p: Player) -> Acts:
    yield from forever(p, loader=None)


@job("finder", "looks for a learning rate on a hundred batches, then trains")
def _finder(p: Player) -> Acts:
    yield from steps(p, 100)
    yield from p.code(5.0, About(33, "fig = finder.plot(suggest=True)", in_loop=False))
    p.iterate()
    yield from forever(p)


def _sweep_facts(p: Player, place: int) -> None:
    p.facts(parameters=10_000_000 * (place + 1), trained_parameters=10_000_000 * (place + 1))


@job("sweep", "trains six models of different size, one after the other, in one process")
def _sweep(p: Player) -> Acts:
    for place, times in enumerate((0.5, 1.0, 2.0, 0.7, 3.0, 1.5)):
        p.iterate()
        _sweep_facts(p, place)
        yield from steps(p, round(900 / (times + 0.5)), times=times)
        p.end_pass()
        yield from p.evaluate(40, 5.0, 0.9)


@job("folds", "trains five folds, each with new loaders and workers", job=Job(replace(SHORT, persistent=False)))
def _folds(p: Player) -> Acts:
    while True:
        p.iterate()
        yield from steps(p, 600)
        p.end_pass()
        yield from p.evaluate(60, 6.0, 0.9)
        yield from p.code(10.0, About(220, "scores.append(fold_score(oof))", moves=True))


@job("resume", "skips 2,000 batches when it is resumed", job=Job(Loading(workers=8, cpu_seconds=0.6)))
def _resume(p: Player) -> Acts:
    for _ in range(2000):
        yield from p.read()
    yield from forever(p)


@job(
    "tiny-epochs",
    "epochs of three batches, with new workers for each",
    job=Job(Loading(workers=4, cpu_seconds=0.2, batches_per_epoch=3, persistent=False, start_seconds=0.3)),
    must=frozenset({"epoch-start-stall"}),
    seconds=240,
)
def _tiny_epochs(p: Player) -> Acts:
    yield from forever(p)


# ---- steps of all sizes


@job("curriculum", "sequences grow every minute, and steps with them")
def _curriculum(p: Player) -> Acts:
    for place in range(9):
        p.shapes(place + 1)
        yield from steps(p, round(600 / (1.0 + 0.35 * place)), times=1.0 + 0.35 * place)
    yield from forever(p, times=4.0)


@job("bucketed", "batches of very uneven length, by buckets", job=Job(computing=Computing(spread=0.6, batch_shapes=40)))
def _bucketed(p: Player) -> Acts:
    yield from forever(p)


@job(
    "mixed-resolution",
    "turns between three resolutions every fifty steps",
    job=Job(computing=Computing(batch_shapes=3)),
)
def _mixed(p: Player) -> Acts:
    while True:
        for times in (0.5, 1.0, 2.2):
            yield from steps(p, 50, times=times)


@job("growing-batch", "its batch grows by half every two minutes")
def _growing(p: Player) -> Acts:
    for place in range(4):
        times = 1.5**place
        p.iterate(loading=replace(p.job.loading, batch_size=round(64 * times), cpu_seconds=0.4 * times))
        yield from steps(p, round(1200 / times), times=times)
    yield from forever(p, times=1.5**3)


@job("unfreezes", "unfreezes more layers every two minutes")
def _unfreezes(p: Player) -> Acts:
    for place in range(4):
        p.facts(trained_parameters=1_000_000 * 10**place)
        times = 1.0 + 0.4 * place
        yield from steps(p, round(1200 / times), times=times)
    yield from forever(p, times=2.2)


@job(
    "unfreezes-unseen",
    "takes 40% longer for its steps from some moment on, by a change that its hook does not see",
    true=frozenset({"step-time-regression"}),
)
def _unfreezes_unseen(p: Player) -> Acts:
    yield from steps(p, 1800)
    yield from forever(p, times=1.4)


@job("accumulates", "64 batches to a step of 20 s", job=Job(computing=Computing(gpu_seconds=0.31)), seconds=900)
def _accumulates(p: Player) -> Acts:
    yield from forever(p, micro=64)


@job(
    "accumulates-starved",
    "64 batches to a step, and a loader that is too slow",
    job=Job(Loading(workers=2, cpu_seconds=1.2), Computing(gpu_seconds=0.31)),
    seconds=900,
    must=frozenset({"data-starvation"}),
)
def _accumulates_starved(p: Player) -> Acts:
    yield from forever(p, micro=64)


@job(
    "tiny-steps",
    "steps of 2 ms",
    job=Job(
        Loading(workers=4, cpu_seconds=0.004, batch_bytes=20_000), Computing(gpu_seconds=0.002, launch_seconds=0.001)
    ),
    seconds=100,
)
def _tiny_steps(p: Player) -> Acts:
    yield from forever(p)


@job(
    "huge-steps",
    "steps of 40 s",
    job=Job(Loading(workers=4, cpu_seconds=30.0), Computing(gpu_seconds=40.0, launch_seconds=0.5)),
    seconds=1200,
)
def _huge_steps(p: Player) -> Acts:
    yield from forever(p)


@job(
    "huge-steps-starved",
    "steps of 20 s that wait 20 s for their batch",
    job=Job(Loading(workers=1, cpu_seconds=40.0), Computing(gpu_seconds=20.0, launch_seconds=0.5)),
    seconds=1500,
    must=frozenset({"data-starvation"}),
)
def _huge_steps_starved(p: Player) -> Acts:
    yield from forever(p)


@job("profiler", "profiles twenty steps, then exports the trace for 25 s")
def _profiler(p: Player) -> Acts:
    yield from steps(p, 1000)
    for _ in range(20):
        yield from p.step(asks=True)
        yield from p.code(0.3, About(132, "profiler.step()"), cores=1.0)
    yield from p.code(25.0, About(132, "profiler.step()"), cores=1.0)
    yield from forever(p)


@job("offloaded", "its optimizer computes on the CPU for half a second a step", job=Job(Loading(workers=4)))
def _offloaded(p: Player) -> Acts:
    yield from forever(p, offloaded_seconds=0.5, times=4.0)


@job("own-optimizer", "an engine whose optimizer is none of torch's, four batches to a step", optimizer=False)
def _own_optimizer(p: Player) -> Acts:
    yield from forever(p, micro=4, optimizer=False)


@job("checkpointing", "computes its forward twice to save memory", job=Job(computing=Computing(gpu_seconds=0.5)))
def _checkpointing(p: Player) -> Acts:
    yield from forever(p)


# ---- data


_DOWNLOADING = Job(Loading(workers=4, cpu_seconds=0.1, io_seconds=1.0, batches_per_epoch=500))


@job("downloads", "fetches its data in the first epoch and has it cached later", job=_DOWNLOADING)
def _downloads(p: Player) -> Acts:
    yield from steps(p, 500)
    p.end_pass()
    p.iterate(loading=replace(p.job.loading, io_seconds=0.0))
    yield from forever(p)


@job(
    "lazy-import",
    "workers import for half a minute and more before their first batch",
    job=Job(Loading(workers=4, cpu_seconds=0.3, start_seconds=30.0)),
    seconds=900,
)
def _lazy_import(p: Player) -> Acts:
    yield from forever(p)


@job(
    "cache-misses",
    "reads past the page cache once in a while",
    job=Job(Loading(slow_share=0.001, slow_times=4.0)),
    seconds=900,
)
def _cache_misses(p: Player) -> Acts:
    yield from forever(p)


@job(
    "bursty-stream",
    "streams shards, with a pause of 2 s at each new one",
    job=Job(Loading(slow_share=0.004, slow_times=5.0)),
)
def _bursty_stream(p: Player) -> Acts:
    yield from forever(p)


@job("quota", "a quota of cores that is just enough", job=Job(host=Host(cores=64, quota=6.0)))
def _quota(p: Player) -> Acts:
    yield from forever(p)


@job(
    "jitter",
    "healthy, with jitter, for half an hour",
    job=Job(Loading(spread=0.3), Computing(spread=0.12)),
    seconds=1800,
)
def _jitter(p: Player) -> Acts:
    yield from forever(p)


# ---- stops


@job("breakpoint", "stands at a breakpoint for five minutes")
def _breakpoint(p: Player) -> Acts:
    yield from steps(p, 1500)
    yield from p.code(300.0, About(129, "breakpoint()"), cores=0.0)
    yield from forever(p)


@job("ctrl-z", "is stopped with Ctrl-Z for two minutes, then goes on")
def _ctrl_z(p: Player) -> Acts:
    yield from steps(p, 1500)
    p.drain()
    yield from p.code(120.0, About(131, "seen += labels.size(0)", state="T"), cores=0.0)
    yield from forever(p)


@job("deadlock", "its loader truly hangs", must=frozenset({"step-stalled"}), seconds=400)
def _deadlock(p: Player) -> Acts:
    yield from steps(p, 1500)
    yield from p.hang(400.0, About(120, "for images, labels in loader:"))


@job("lock", "truly deadlocks on a lock of its own after an evaluation", must=frozenset({"step-stalled"}), seconds=400)
def _lock(p: Player) -> Acts:
    yield from steps(p, 1500)
    yield from p.evaluate(60, 6.0, 0.9)
    yield from p.hang(400.0, About(133, "with lock:"), phase="other")


# ---- ranks


_RANKS = Job(SHORT, ranks=4, host=Host(cores=64))


@job("nccl-hang", "four ranks truly hang in a collective", job=_RANKS, must=frozenset({"collective-hang"}), seconds=400)
def _nccl_hang(p: Player) -> Acts:
    yield from steps(p, 1200)
    yield from p.hang(400.0, About(127, "loss.backward()"), spins=True, phase="backward")


@job("rank0-saves", "rank 0 saves for 100 s while the others wait in a barrier", job=_RANKS, seconds=400)
def _rank0_saves(p: Player) -> Acts:
    yield from steps(p, 1200)
    yield from p.save(100.0, only=0)
    yield from forever(p)


@job("rank0-evaluates", "rank 0 evaluates alone for two minutes, from memory", job=_RANKS, seconds=400)
def _rank0_evaluates(p: Player) -> Acts:
    yield from steps(p, 1200)
    about = About(150, "logits = model(chunk)", moves=True)
    yield from p.code(120.0, about, gpu_share=0.97, intensity=0.4, phase="eval", only=0)
    yield from forever(p)


@job("rank0-samples", "rank 0 samples pictures for two minutes", job=_RANKS, seconds=400)
def _rank0_samples(p: Player) -> Acts:
    yield from steps(p, 1200)
    about = About(152, "x = sampler.step(model, x, t)", moves=True)
    yield from p.code(120.0, about, gpu_share=0.97, intensity=0.42, phase="forward", only=0)
    yield from forever(p)


@job(
    "rank0-logs",
    "rank 0 logs to a slow disk while the others wait",
    job=_RANKS,
    seconds=400,
    true=frozenset({"straggler-rank"}),
)
def _rank0_logs(p: Player) -> Acts:
    while True:
        yield from steps(p, 10)
        yield from p.log(0.4, only=0)


@job("rank0-starts", "rank 0 indexes the data for three minutes before all train", job=_RANKS, seconds=400)
def _rank0_starts(p: Player) -> Acts:
    yield from p.code(180.0, About(28, "index = build_index(files)", in_loop=False), only=0)
    yield from forever(p)


# ---- the machine


@job(
    "laptop",
    "a GPU that throttles",
    job=Job(SHORT, faults=(Fault("heat", 60.0),)),
    true=frozenset({"thermal-throttle", "step-time-regression"}),
    seconds=400,
)
def _laptop(p: Player) -> Acts:
    yield from forever(p)


@job(
    "inference-server",
    "shares its GPU with a server that answers requests",
    job=Job(SHORT, faults=(Fault("share", 30.0, 0.3),)),
    true=frozenset({"shared-gpu", "step-time-regression"}),
    seconds=400,
)
def _inference_server(p: Player) -> Acts:
    yield from forever(p)


@job(
    "two-jobs",
    "two trainings on one GPU",
    job=Job(SHORT, faults=(Fault("share", 0.0, 0.5),)),
    true=frozenset({"shared-gpu"}),
    seconds=400,
)
def _two_jobs(p: Player) -> Acts:
    yield from forever(p)
