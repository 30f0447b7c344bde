from __future__ import annotations

import pickle
from collections.abc import Sequence

from gpuwatch.monitor.recorder import RecordedPart
from gpuwatch.samples import Candidates, GpuFacts, GpuSample, RunFacts, Sample, StepEnd, TrainerEnded
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    at,
    candidate,
    candidates,
    gpu_facts,
    gpu_processes,
    host,
    poll,
    run_facts,
    steps,
)

MINE, OTHER = 4711, 99


class Watch:
    """A timeline, and what of each batch would be recorded."""

    def __init__(self, *pids: int) -> None:
        self.pids: frozenset[int] | None = frozenset(pids) or None
        self.timeline = Timeline()
        self.part = RecordedPart(self.timeline, lambda: self.pids)

    def feed(self, seconds: float, *samples: Sample) -> Sequence[Sample]:
        self.timeline.extend(samples)
        return self.part.of(samples, at(seconds))


def pids_of(samples: Sequence[Sample]) -> set[int]:
    return {sample.pid for sample in samples if isinstance(sample, RunFacts)}


def test_everything_is_recorded_where_nothing_was_narrowed() -> None:
    batch = (run_facts(MINE), run_facts(OTHER), gpu_facts(), host(0))
    assert Watch().feed(0, *batch) == batch


def test_another_training_is_left_out_with_its_steps() -> None:
    watch = Watch(MINE)
    found = watch.feed(0, run_facts(MINE), run_facts(OTHER), host(0))
    assert found == [run_facts(MINE), host(0)]
    assert watch.feed(1, *steps(2, trainer="99.1")) == []
    assert len(watch.feed(1, *steps(2, trainer="4711.1"))) == 2


def test_a_rank_that_joins_the_tree_later_brings_its_facts() -> None:
    watch = Watch(MINE)
    watch.feed(0, run_facts(MINE), run_facts(OTHER, rank=1))
    watch.pids = frozenset({MINE, OTHER})
    found = watch.feed(1, *steps(1, trainer="99.1"))
    assert [type(sample) for sample in found] == [RunFacts, StepEnd]
    assert pids_of(found) == {OTHER}
    assert watch.feed(2, *steps(1, start=1, first=2, trainer="99.1")) == steps(1, start=1, first=2, trainer="99.1")


def test_a_watch_that_is_widened_brings_what_was_left_out() -> None:
    watch = Watch(MINE)
    watch.feed(0, run_facts(MINE), run_facts(OTHER))
    watch.pids = None
    assert pids_of(watch.feed(1, *steps(1, trainer="99.1"))) == {OTHER}


def test_the_names_of_trainings_that_were_left_out_are_forgotten_once_they_end() -> None:
    watch = Watch(MINE)
    watch.feed(0, run_facts(MINE))
    sizes = []
    for pid in range(100, 200):
        assert watch.feed(1, run_facts(pid), TrainerEnded(f"{pid}.1", at(1), "exited")) == []
        sizes.append(len(pickle.dumps(vars(watch.part)["_left_out"])))
    assert sizes[-1] == sizes[0]


def test_a_training_whose_link_was_lost_still_brings_its_facts_once_it_joins() -> None:
    watch = Watch(MINE)
    watch.feed(0, run_facts(MINE), run_facts(OTHER), TrainerEnded("99.1", at(0), "lost"))
    watch.pids = frozenset({MINE, OTHER})
    assert pids_of(watch.feed(1, *steps(1, trainer="99.1"))) == {OTHER}


def test_only_its_own_gpus_are_recorded_once_they_are_known() -> None:
    watch = Watch(MINE)
    both = (gpu_facts(0), gpu_facts(1), poll(0, "GPU-0"), poll(0, "GPU-1"))
    assert len(watch.feed(0, run_facts(MINE), *both)) == 5
    found = watch.feed(2, gpu_processes(2, MINE, uuid="GPU-1"), poll(2, "GPU-0"), poll(2, "GPU-1"))
    assert {sample.uuid for sample in found if isinstance(sample, GpuSample)} == {"GPU-1"}


def test_a_gpu_that_it_takes_later_brings_its_facts_and_one_that_it_leaves_stays() -> None:
    watch = Watch(MINE)
    watch.feed(0, run_facts(MINE), gpu_facts(0), gpu_facts(1), gpu_processes(0, MINE, uuid="GPU-0"), poll(0, "GPU-1"))
    watch.feed(1, poll(1, "GPU-1"))
    found = watch.feed(
        3, gpu_processes(3, uuid="GPU-0"), gpu_processes(3, MINE, uuid="GPU-1"), poll(3, "GPU-0"), poll(3, "GPU-1")
    )
    assert [sample.uuid for sample in found if isinstance(sample, GpuFacts)] == ["GPU-1"]
    assert {sample.uuid for sample in found if isinstance(sample, GpuSample)} == {"GPU-0", "GPU-1"}


def test_other_users_commands_are_not_recorded_as_candidates() -> None:
    watch = Watch(MINE)
    (found,) = watch.feed(0, candidates(0, candidate(MINE), candidate(OTHER)))
    assert isinstance(found, Candidates)
    assert [each.pid for each in found.processes] == [MINE]
