"""The search for a program's batch size over made-up runs: what is tried, what is said, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from trial_runs import LOADER_FACTS, Silent, facts, run

from gpuwatch.trial.batch_size import SizeSearch, document, headline, render_markdown, render_text
from gpuwatch.trial.changes import Arm, Change, Place, TrialError, command_of, overrides_of
from gpuwatch.trial.results import Failure, RunResult, Usage

GIB = 1 << 30
OUT_OF_MEMORY = Failure("it ran out of the GPU's memory", 1, ("torch.OutOfMemoryError: CUDA out of memory",), True)
LOADER = replace(LOADER_FACTS, batches_per_epoch=10_000)


@dataclass
class FakeProgram:
    """Its speed, and the share of a GPU of 10 GiB that it takes, by batch size; None where memory runs out."""

    speed: Callable[[int], float] = lambda size: 1000.0 * size / (size + 64)
    share: Callable[[int], float | None] = lambda size: None if size > 100 else size / 100
    utilization: Callable[[int], float] = lambda size: min(99.0, 10.0 + size)
    own: int = 16
    deaf: bool = False
    stop_at: int | None = None
    made: list[str] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def look(self, on_progress: Any) -> Any:
        raise AssertionError("the search needs no findings")

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
        self.made.append(arm.label)
        self.places.append(at)
        if len(self.made) == self.stop_at:
            return RunResult(place, None, None, interrupted=True)
        size = next((int(change.value or 0) for change in arm.changes), self.own)
        share = self.share(size)
        if share is None:
            return run(place, None, failure=OUT_OF_MEMORY)
        seen = self.own if self.deaf else size
        overrides = () if self.deaf else ("batch_size",)
        return replace(
            run(place, self.speed(size), facts(replace(LOADER, batch_size=seen), "cuda:0", overrides=overrides)),
            usage=Usage(
                self.utilization(size),
                int(10 * GIB * share),
                10 * GIB,
                reserved_bytes=int(9 * GIB * share),
                host_bytes=3 * GIB,
            ),
        )


def searched(program: FakeProgram, *command: str, **settings: Any) -> SizeSearch:
    search = SizeSearch(command or ("python", "train.py"), **settings)
    search.perform(program, Silent())
    return search


def test_the_programs_own_size_comes_first_and_the_loader_of_its_line_is_set() -> None:
    program = FakeProgram()
    search = searched(program)
    assert program.made[:3] == ["unchanged", "batch_size=32", "batch_size=64"]
    assert program.places == [None] + [("/home/me/train.py", 12)] * (len(program.made) - 1)
    assert [each.size for each in search.runs] == [16, 32, 64, 128, 96, 80, 88]
    assert [each.outcome for each in search.runs][3:5] == ["out of memory", "too much memory"]
    assert search.recommended is not None and search.recommended.size == 88
    text = render_text(search)
    assert "batch size 88: 579 samples/s, 88% of the GPU's memory, 2.89x of the 200 samples/s" in text
    assert "8.8 GiB (88%)" in text and "3.0 GiB" not in text, (
        "the host's memory, which is read as well, is not the limit"
    )
    assert "Memory stops it: 96 needs too much" in text and "5.5x the samples per step" in text
    assert "learning rates to begin with: 5.5x for SGD, 2.3x for Adam" in text


def test_a_command_that_takes_the_size_is_given_it() -> None:
    program = FakeProgram()
    search = searched(program, "python", "train.py", "--bs={}")
    assert program.made[:2] == ["batch size 8", "batch size 16"]
    assert "To change: python train.py --bs=88" in render_text(search)


def test_the_arm_of_a_size_sets_it_where_it_is_taken() -> None:
    assert command_of(Arm((Change("{}", 64),)), ["python", "t.py", "--bs={}"]) == ["python", "t.py", "--bs=64"]
    text = overrides_of(Arm((Change("batch_size", 64),)), ("t.py", 3))
    assert text == '{"loader": {"batch_size": 64}, "at": ["t.py", 3]}'


def test_where_no_size_is_faster_the_own_one_is_kept() -> None:
    search = searched(FakeProgram(speed=lambda size: 500.0, share=lambda size: 0.1))
    assert headline(search).startswith("keep batch size 16, 500 samples/s, 10% of the GPU's memory: no size")
    assert len(search.runs) == 3


def test_a_utilization_that_is_asked_for_is_reached_by_the_smallest_size() -> None:
    search = searched(FakeProgram(), target_percent=60.0)
    assert search.recommended is not None and search.recommended.size == 64
    never = searched(FakeProgram(utilization=lambda size: 20.0), target_percent=85.0)
    assert "No size reaches a utilization of 85%: the highest is 20%" in render_text(never)


def test_sizes_end_with_what_an_epoch_holds() -> None:
    few = replace(LOADER, batches_per_epoch=5)

    class Short(FakeProgram):
        def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
            made = super().run(arm, at, place, on_progress)
            assert made.facts is not None and made.loader is not None
            return replace(
                made, facts=facts(replace(few, batch_size=made.loader.batch_size), overrides=("batch_size",))
            )

    assert max(each.size for each in searched(Short(share=lambda size: 0.1)).runs) == 64


def test_a_program_that_sets_its_size_itself_is_refused_with_the_cure() -> None:
    with pytest.raises(TrialError, match=r"did not take effect: .*write \{\} in the command"):
        searched(FakeProgram(deaf=True))
    with pytest.raises(TrialError, match="16 whatever the command says; check where"):
        searched(FakeProgram(deaf=True), "python", "{}")


def test_a_program_without_a_loader_or_a_batch_size_is_refused_with_the_cure() -> None:
    class Bare(FakeProgram):
        def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
            return run(of=facts(None))

    with pytest.raises(TrialError, match="no DataLoader was read in training: write"):
        searched(Bare())


def test_what_fails_for_another_reason_ends_the_search_at_once_and_a_larger_size_only_itself() -> None:
    broken = Failure("it ended with exit code 1", 1, ("ValueError: boom",))

    class Broken(FakeProgram):
        def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
            made = super().run(arm, at, place, on_progress)
            return run(place, None, failure=broken) if len(self.made) > self.own else made

    with pytest.raises(TrialError, match="exit code 1"):
        searched(Broken(own=0), "python", "{}")
    search = searched(Broken(own=1, share=lambda size: 0.1), "python", "{}")
    assert [each.outcome for each in search.runs][:2] == ["passed", "failed"]
    assert search.recommended is not None and search.recommended.size == 8


def test_where_no_size_fits_it_says_so() -> None:
    search = searched(FakeProgram(share=lambda size: None), "python", "{}")
    assert [each.size for each in search.runs] == [8, 4, 2, 1]
    assert search.recommended is None and headline(search) == "no batch size fits, not even 1"
    assert "it ran out of the GPU's memory" in render_text(search)


@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_interrupted_it_says_what_is_known(stop_at: int) -> None:
    search = searched(FakeProgram(stop_at=stop_at))
    assert search.interrupted and len(search.runs) == stop_at - 1
    assert "INCOMPLETE: stopped" in render_text(search) and "INCOMPLETE" in render_markdown(search)
    assert document(search, "1.0")["gpuwatch"]["incomplete"]


def test_the_document_has_every_size_and_its_memory() -> None:
    content = document(searched(FakeProgram()), "1.0")
    assert content["batch_size"]["recommended"] == 88 and content["batch_size"]["own"] == 16
    sizes = {each["size"]: each for each in content["sizes"]}
    assert sizes[128]["outcome"] == "out of memory" and sizes[128]["samples_per_second"] is None
    assert sizes[64]["gpu_used_bytes"] == int(6.4 * GIB) and sizes[64]["utilization_percent"] == 74.0
