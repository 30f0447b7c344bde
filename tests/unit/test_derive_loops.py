"""Loops put together at random from what people write; each knows its own steps, waits and evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from record_stream import SECOND, RecordStream, derive, phases_of, steps_of

from gpuwatch.hook import wire
from gpuwatch.sources.hook_link.run import RunDerivation


@dataclass(frozen=True)
class Shape:
    """One way to write a training loop."""

    epochs: int
    batches: int
    accumulate: int
    reads: Literal["each", "ahead", "all"]  # ahead: one, as accelerate; all: a step's batches, as HF's Trainer
    siblings: int  # loaders zipped together
    groups: int  # optimizer groups per batch, as a GAN has
    optimizers: int  # per group
    closure: bool  # the backward runs inside the optimizer
    persistent: bool
    eval_batches: int
    eval_exhausted: bool
    eval_every: int  # steps; 0: after each epoch
    eval_loader: int  # 0: the training's own
    sanity_check: bool
    save_every: int


@dataclass
class Written:
    stream: RecordStream = field(default_factory=RecordStream)
    steps: int = 0
    wait_ns: int = 0
    evaluations: int = 0
    iterator: int = 0
    trained: int = 0
    accumulated: int = 0
    trained_in_steps: int = 0  # an accumulation that is left unfinished is no step
    wait_in_steps_ns: int = 0

    def next(self, loader: int, iterator: int) -> None:
        self.stream.next(loader, iterator, 4)
        self.wait_ns += 4_000_000

    def evaluate(self, shape: Shape) -> None:
        self.iterator += 1
        exhausted = shape.eval_exhausted
        self.stream.evaluate(shape.eval_loader, self.iterator, shape.eval_batches, exhausted=exhausted)
        self.stream.work(1)
        self.evaluations += 1


def write(shape: Shape) -> Written:
    run = Written()
    stream = run.stream
    if shape.sanity_check:
        run.evaluate(shape)
        run.wait_ns = 0
    kept = [1000 + sibling for sibling in range(shape.siblings)]
    for epoch in range(shape.epochs):
        anew = [2000 + epoch * 10 + sibling for sibling in range(shape.siblings)]
        iterators = kept if shape.persistent else anew
        loaders = [0 if sibling == 0 else 50 + sibling for sibling in range(shape.siblings)]
        for loader, iterator in zip(loaders, iterators, strict=True):
            stream.iter(loader, iterator)
        unread = shape.batches
        for batch in range(shape.batches):
            if shape.reads == "each":
                wanted = 1
            elif shape.reads == "ahead":
                wanted = 2 if batch == 0 else 1
            else:
                wanted = shape.accumulate if batch % shape.accumulate == 0 else 0
            for _ in range(min(wanted, unread)):
                unread -= 1
                for loader, iterator in zip(loaders, iterators, strict=True):
                    run.next(loader, iterator)
            if shape.reads == "ahead" and batch == shape.batches - 1:
                stream.stop(0, iterators[0])
            train(run, shape, last=batch == shape.batches - 1)
        if shape.reads != "ahead":
            stream.stop(0, iterators[0])
        if not shape.eval_every:
            run.evaluate(shape)
    return run


def train(run: Written, shape: Shape, last: bool) -> None:
    stream = run.stream
    run.trained += 1
    run.accumulated += 1
    # The Trainer ends an epoch with a step; a plain loop carries a begun accumulation into the next one.
    boundary = run.accumulated == shape.accumulate or (last and shape.reads == "all")
    for _ in range(shape.groups):
        stream.work(1)
        if shape.closure and boundary:
            with stream.around(wire.OPTIMIZER):
                stream.work(1)
                stream.backward(2)
                stream.work(0.1)
        else:
            stream.backward(2)
            for ident in range(shape.optimizers if boundary else 0):
                stream.optimizer(1, ident)
    if boundary:
        run.accumulated = 0
        run.steps += 1
        run.trained_in_steps = run.trained
        run.wait_in_steps_ns = run.wait_ns
        if shape.save_every and run.steps % shape.save_every == 0:
            stream.add(wire.SAVE, 5, a=100)
        if shape.eval_every and run.steps % shape.eval_every == 0:
            run.evaluate(shape)


SHAPES = st.builds(
    Shape,
    epochs=st.integers(1, 4),
    batches=st.integers(3, 12),
    accumulate=st.integers(1, 4),
    reads=st.sampled_from(["each", "ahead", "all"]),
    siblings=st.integers(1, 2),
    groups=st.integers(1, 2),
    optimizers=st.integers(1, 2),
    closure=st.booleans(),
    persistent=st.booleans(),
    eval_batches=st.integers(2, 5),
    eval_exhausted=st.booleans(),
    eval_every=st.sampled_from([0, 3, 7]),
    eval_loader=st.sampled_from([0, 9]),
    sanity_check=st.booleans(),
    save_every=st.sampled_from([0, 4]),
)


def is_ambiguous(shape: Shape) -> bool:
    """Loops whose records could as well be those of another loop."""
    several = shape.reads != "each"
    steps_look_like_groups = several and shape.groups > 1
    # An unfinished evaluation that reads the training loader as often as a step does may be the next step.
    usual = {"each": 1, "ahead": 2, "all": shape.accumulate}[shape.reads]
    evaluation_looks_like_a_step = shape.eval_loader == 0 and not shape.eval_exhausted and shape.eval_batches <= usual
    return steps_look_like_groups or evaluation_looks_like_a_step


@settings(deadline=None, max_examples=300)
@given(SHAPES, st.integers(1, 60))
def test_every_loop_gets_back_its_own_steps_waits_and_evaluations(shape: Shape, packet: int) -> None:
    assume(not is_ambiguous(shape))
    run = write(shape)
    assume(run.steps)
    samples = derive(run.stream, packet=packet)
    steps = steps_of(samples)
    assert len(steps) == run.steps
    assert sum(step.wait_seconds or 0 for step in steps) == pytest.approx(run.wait_in_steps_ns / SECOND, abs=1e-3)
    assert len(phases_of(samples, "eval")) == run.evaluations
    for step in steps:
        spent = (step.wait_seconds or 0) + step.phase_seconds + (step.forward_seconds or 0)
        spent += (step.backward_seconds or 0) + (step.optimizer_seconds or 0)
        assert spent <= (step.end_ns - step.start_ns) / SECOND + 1e-9
    assert sum(step.samples or 0 for step in steps) == run.trained_in_steps * 8


@settings(deadline=None, max_examples=150)
@given(SHAPES, st.data())
def test_steps_around_a_loss_are_steps_that_the_whole_run_had(shape: Shape, data: st.DataObject) -> None:
    assume(not is_ambiguous(shape) and shape.groups == 1 and shape.optimizers == 1)
    records = write(shape).stream.records
    end = records[-1][5]
    whole = {(step.start_ns, step.end_ns) for step in steps_of(derive(write(shape).stream))}
    first = data.draw(st.integers(0, len(records)), "first lost")
    then = data.draw(st.integers(first, len(records)), "first after the loss")
    derivation = RunDerivation("1.1")
    samples = derivation.feed(records[:first], end)
    derivation.lose()
    samples += derivation.feed(records[then:], end) + derivation.finish(end)
    kept = [(step.start_ns, step.end_ns) for step in steps_of(samples)]
    assert len(kept) == len(set(kept))
    assert set(kept) <= whole
    after = sorted(step for step in whole if records[then:] and step[0] >= records[then][4])
    assert set(after[1:]) <= set(kept)
