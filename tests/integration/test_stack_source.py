"""The stack source over a real, unmodified training that logs where its time goes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from gpuwatch.samples import NO_LOADER, BatchCount, CurrentLine, PhaseSpan, RunFacts, Sample, StackTally, TrainerEnded
from gpuwatch.sources.stacks import StackTarget
from tests.integration.command_line import PATIENCE_SECONDS
from tests.integration.stack_training import (
    TRAINING,
    Log,
    collect_until,
    line_of,
    lines_of,
    looking,
    looks_of,
    started,
    undisturbed,
    watching,
)

LOOKS = 500
BETWEEN_LOOKS = 5  # batches
NEAR = 0.1  # the strict comparison is a benchmark: here other work shares the cores
PAUSES = {"eval", "checkpoint"}


def kinds_of(samples: list[Sample]) -> set[str]:
    return {sample.kind for sample in samples if isinstance(sample, PhaseSpan) and sample.end_ns is not None}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_shares_lines_batches_and_loaders_are_those_of_the_training(workers: str, tmp_path: Path) -> None:
    with started(tmp_path, TRAINING, workers, str(tmp_path / "state.pt")) as (process, script):
        log = Log(process)
        log.wait()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            samples = collect_until(source, lambda seen: any(isinstance(sample, BatchCount) for sample in seen))
            start_ns = time.monotonic_ns()
            samples += collect_until(source, lambda seen: looks_of(seen) >= LOOKS and kinds_of(seen) == PAUSES)
            tallies = undisturbed([s for s in samples if isinstance(s, StackTally) and start_ns <= s.start_ns])
            spent = log.spent((tally.start_ns, tally.end_ns) for tally in tallies)

    looks = sum(tally.samples for tally in tallies)
    for phase, seconds in spent.items():
        seen = sum(tally.phases.get(phase, 0) for tally in tallies) / looks
        assert seen == pytest.approx(seconds / sum(spent.values()), abs=NEAR), phase
    assert all(tally.samples == sum(tally.phases.values()) for tally in tallies)

    lines = lines_of(samples, "wait") if workers == "0" else lines_of(samples, "item", of_workers=True)
    assert lines.most_common(1)[0][0] == line_of(TRAINING, "# HOT")
    assert max(tally.workers for tally in tallies) == int(workers)

    facts = [sample for sample in samples if isinstance(sample, RunFacts)][-1]
    assert (facts.visibility, facts.device, facts.cwd) == ("sampled", "cpu", str(tmp_path))
    loaders = {loader.role: loader for loader in facts.loaders}
    assert {(role, loader.line) for role, loader in loaders.items()} == {
        ("train", line_of(TRAINING, "loader = DataLoader")),
        ("eval", line_of(TRAINING, "validation = DataLoader")),
    }
    train = loaders["train"]
    assert (train.file, train.num_workers, train.batch_size) == (str(script), int(workers), 4)
    assert (train.loop_line, loaders["eval"].loop_line) == (
        line_of(TRAINING, "        for x, y in loader:"),
        line_of(TRAINING, "    for x, y in loader:"),
    )
    assert kinds_of(samples) == PAUSES
    saves = [span for span in samples if isinstance(span, PhaseSpan) and span.kind == "checkpoint"]
    assert {span.line for span in saves} == {line_of(TRAINING, "torch.save")}


def test_batches_are_counted_one_by_one(tmp_path: Path) -> None:
    with started(tmp_path, TRAINING, "0", str(tmp_path / "state.pt")) as (process, _):
        log = Log(process)
        log.wait()
        with watching(StackTarget(process.pid, hooked=False)) as source:

            def of_training(samples: list[Sample]) -> list[BatchCount]:
                return [sample for sample in samples if isinstance(sample, BatchCount) and sample.role == "train"]

            samples = collect_until(source, lambda seen: any(count.batches >= 100 for count in of_training(seen)))
        counts = of_training(samples)
        first, last = counts[0], counts[-1]
        least_before, most_before = log.batches_at(first.time_ns)
        least, most = log.batches_at(last.time_ns)
    assert first.exact
    assert {count.loader for count in counts} == {first.loader}
    # The iterator counts a batch when it gives it, the script when it is done with it; a count is as old as a look.
    counted = last.batches - first.batches
    assert least - most_before - BETWEEN_LOOKS <= counted <= most - least_before + BETWEEN_LOOKS


def test_of_a_hooked_trainer_only_looks_are_reported(tmp_path: Path) -> None:
    with started(tmp_path, TRAINING, "0", str(tmp_path / "state.pt")) as (process, _):
        Log(process).wait()
        with watching(StackTarget(process.pid, hooked=True)) as source:
            samples = collect_until(
                source, lambda seen: looks_of(seen) >= 20 and any(isinstance(sample, CurrentLine) for sample in seen)
            )
    assert {type(sample) for sample in samples} == {StackTally, CurrentLine}


def test_the_end_of_a_training_is_reported_once_and_its_pid_followed_no_more(tmp_path: Path) -> None:
    with started(tmp_path, TRAINING, "0", str(tmp_path / "state.pt")) as (process, _):
        Log(process).wait()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            samples = collect_until(source, lambda seen: looks_of(seen) >= 20)
            process.send_signal(signal.SIGTERM)
            process.wait()
            samples += collect_until(source, lambda seen: any(isinstance(sample, TrainerEnded) for sample in seen))
    ended = [sample for sample in samples if isinstance(sample, TrainerEnded)]
    facts = next(sample for sample in samples if isinstance(sample, RunFacts))
    assert [(end.trainer, end.how) for end in ended] == [(facts.trainer, "exited")]
    opened = [s.start_ns for s in samples if isinstance(s, PhaseSpan) and s.end_ns is None]
    closed = [s.start_ns for s in samples if isinstance(s, PhaseSpan) and s.end_ns is not None]
    assert opened == closed


def test_closing_ends_the_thread_and_leaves_the_training_alone(tmp_path: Path) -> None:
    with started(tmp_path, TRAINING, "0", str(tmp_path / "state.pt")) as (process, _):
        log = Log(process)
        log.wait()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            collect_until(source, lambda seen: looks_of(seen) >= 20)
        for thread in looking():
            thread.join(PATIENCE_SECONDS)  # one that a busy machine holds for longer than `close` waits
        assert not looking()
        source.close()
        assert source.fileno() is None
        assert list(source.collect(time.monotonic_ns())) == []
        log.wait(time.monotonic_ns())
        assert process.poll() is None


def test_without_targets_there_is_no_thread() -> None:
    before = looking()
    with watching() as source:
        assert list(source.collect(time.monotonic_ns())) == []
        assert not set(looking()) - set(before)


WITHOUT_LOADER = """
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(4096, 512)


def get_batch():
    rows = [data[i] for i in torch.randint(4096, (256,)).tolist()]  # ROWS
    return torch.stack(rows)


@torch.no_grad()
def estimate_loss():
    return sum(model(get_batch()).pow(2).mean().item() for _ in range(20))


print("ready", flush=True)
step = 0
while True:
    loss = model(get_batch()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if step % 50 == 0:
        estimate_loss()
"""


def phases_of(samples: list[Sample]) -> set[str]:
    return {phase for sample in samples if isinstance(sample, StackTally) for phase in sample.phases}


def test_a_loop_without_any_loader_has_phases_and_lines_but_no_wait(tmp_path: Path) -> None:
    with started(tmp_path, WITHOUT_LOADER) as (process, _):
        assert process.stdout is not None
        process.stdout.readline()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            samples = collect_until(
                source, lambda seen: looks_of(seen) >= 200 and {"backward", "optimizer", "eval"} <= phases_of(seen)
            )
    assert "wait" not in phases_of(samples)
    rows = line_of(WITHOUT_LOADER, "# ROWS")
    assert rows in lines_of(samples, "sync") | lines_of(samples, "other")
    assert {sample.loader for sample in samples if isinstance(sample, BatchCount)} <= {NO_LOADER}


def tallies_of(samples: list[Sample]) -> list[StackTally]:
    return [sample for sample in samples if isinstance(sample, StackTally)]


def counts_of(samples: list[Sample]) -> list[BatchCount]:
    return [sample for sample in samples if isinstance(sample, BatchCount)]


BEHIND_A_THREAD = """
import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.004)  # DECODE
        return torch.randn(64)


def produce(loader, batches):
    for batch in loader:
        batches.put(batch)


model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = queue.Queue(2)
threading.Thread(target=produce, args=(DataLoader(Slow(), batch_size=8), batches), daemon=True).start()
print("ready", flush=True)
while True:
    batch = batches.get()
    for _ in range(20):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
"""


def test_batches_that_a_thread_makes_are_waited_for_counted_and_known_by_its_line(tmp_path: Path) -> None:
    with started(tmp_path, BEHIND_A_THREAD) as (process, _):
        assert process.stdout is not None
        process.stdout.readline()
        with watching(StackTarget(process.pid, hooked=False)) as source:
            samples = collect_until(
                source,
                lambda seen: (
                    sum(tally.handed_samples for tally in tallies_of(seen)) >= 100
                    and sum(count.batches for count in counts_of(seen)[-1:]) >= 20
                ),
            )
    tallies = tallies_of(samples)
    made, lines = Counter[str](), Counter[int]()
    for tally in tallies:
        made.update(tally.feeder_phases)
        for line in tally.feeder_lines:
            lines[line.line] += line.samples
    assert made.most_common(1)[0][0] == "make"
    assert lines.most_common(1)[0][0] == line_of(BEHIND_A_THREAD, "# DECODE")
    (count,) = counts_of(samples)[-1:]
    (loader,) = [sample for sample in samples if isinstance(sample, RunFacts)][-1].loaders
    assert (count.role, count.exact, loader.num_workers, loader.batch_size, loader.role) == (
        "train",
        True,
        0,
        8,
        "train",
    )
