"""The search for a batch size: which sizes are tried, which one is recommended, and what a search leaves behind."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.tune import SAME_SPEED, Tried, best, find_batch_size, next_size


def searched(limit: int, half_speed: int, start: int = 8, most: int = 1 << 16) -> list[Tried]:
    """A program that takes sizes up to a limit, and is at half of its top speed with a certain size."""
    tried: list[Tried] = []
    while (size := next_size(tried, start, most)) is not None:
        assert size not in {each.size for each in tried}
        fits = size <= limit
        tried.append(Tried(size, fits, 1000.0 * size / (size + half_speed) if fits else None))
    return tried


class TestSearch:
    @given(
        limit=st.integers(0, 100_000),
        half_speed=st.integers(0, 100_000),
        start=st.integers(1, 4096),
        most=st.integers(1, 1 << 16),
    )
    def test_it_ends_soon_and_recommends_nothing_that_failed(
        self, limit: int, half_speed: int, start: int, most: int
    ) -> None:
        tried = searched(limit, half_speed, start, most)
        sizes = [each.size for each in tried]
        assert max(sizes) <= most and min(sizes) >= 1
        assert len(sizes) <= 2 * math.log2(max(max(sizes) / min(*sizes, 8), 1)) + 3
        found = best(tried)
        assert (found is None) == (limit < 1)
        if found is not None:
            assert found.size <= limit and found.fits

    @given(limit=st.integers(8, 1 << 15), half_speed=st.integers(0, 100_000))
    def test_the_recommended_size_is_nearly_as_fast_as_any_that_fits(self, limit: int, half_speed: int) -> None:
        found = best(searched(limit, half_speed))
        assert found is not None and found.samples_per_second is not None
        fastest = 1000.0 * limit / (limit + half_speed)
        assert found.samples_per_second >= (1 - 3 * SAME_SPEED) * fastest or limit - found.size < 8

    def test_it_doubles_then_bisects_to_multiples_of_eight(self) -> None:
        assert [each.size for each in searched(200, 10_000)] == [8, 16, 32, 64, 128, 256, 192, 224, 208, 200]

    def test_where_the_first_size_fails_it_halves(self) -> None:
        assert [each.size for each in searched(20, 10_000, start=128)] == [128, 64, 32, 16, 24]
        assert [each.size for each in searched(0, 10, start=4)] == [4, 2, 1]

    def test_sizes_that_bring_no_speed_are_left(self) -> None:
        assert [each.size for each in searched(1 << 16, 0)] == [8, 16, 32]
        found = best(searched(1 << 16, 0))
        assert found is not None and found.size == 8

    def test_one_that_takes_too_much_memory_is_not_recommended_though_it_ran(self) -> None:
        tried = [Tried(8, True, 100.0), Tried(16, False, 200.0, reason="above 90% of the memory")]
        found = best(tried)
        assert found is not None and found.size == 8


class TestInAScript:
    def test_the_search_leaves_everything_as_it_was(self) -> None:
        torch = pytest.importorskip("torch")
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.5))
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch: object) -> None:
            optimizer.zero_grad()
            model.train()
            model(batch).sum().backward()
            optimizer.step()
            random.random()

        step(torch.randn(8, 64))
        model.eval()
        model[0].weight.grad.fill_(3.0)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        moments = {key: dict(value) for key, value in optimizer.state_dict()["state"].items()}
        counts = [value["exp_avg"].clone() for value in moments.values()]
        expected = random.Random()
        expected.setstate(random.getstate())
        numbers = torch.get_rng_state()

        found = find_batch_size(
            step,
            lambda size: torch.randn(size, 64),
            model=model,
            optimizer=optimizer,
            most=64,
            steps=2,
            memory_budget_bytes=1 << 40,
        )
        assert found.recommended in {each.size for each in found.tried}
        assert f"recommended: {found.recommended}" in str(found)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        after = optimizer.state_dict()["state"]
        assert all(torch.equal(each["exp_avg"], count) for each, count in zip(after.values(), counts, strict=True))
        assert not model.training and not model[1].training
        assert model[0].weight.grad.eq(3.0).all()
        assert torch.equal(torch.get_rng_state(), numbers) and random.random() == expected.random()

    def test_a_budget_bounds_what_is_recommended(self) -> None:
        torch = pytest.importorskip("torch")
        held: list[object] = []
        base = _resident_bytes()
        budget = base + (300 << 20)

        def step(batch: object) -> None:
            held[:] = [batch]

        def make_batch(size: int) -> object:
            held.clear()
            return torch.ones(size, 1 << 20)  # 4 MiB a sample

        found = find_batch_size(step, make_batch, steps=1, memory_budget_bytes=budget, most=1024)
        too_large = [each for each in found.tried if not each.fits]
        assert too_large and all(each.reason == "above 90% of the memory" for each in too_large)
        assert found.recommended is not None and found.recommended < min(each.size for each in too_large)

    def test_a_size_for_which_memory_runs_out_is_not_recommended(self) -> None:
        torch = pytest.importorskip("torch")

        def make_batch(size: int) -> object:
            return torch.empty(1 << 60) if size > 16 else torch.ones(size)

        found = find_batch_size(lambda batch: None, make_batch, steps=1, memory_budget_bytes=1 << 40)
        assert found.recommended is not None and found.recommended <= 16
        assert {each.size: each.reason for each in found.tried}[32] == "out of memory"

    def test_an_error_of_the_step_is_the_users_own(self) -> None:
        pytest.importorskip("torch")

        def step(batch: object) -> None:
            raise RuntimeError("shapes do not match")

        with pytest.raises(RuntimeError, match="shapes do not match"):
            find_batch_size(step, lambda size: size, memory_budget_bytes=1 << 40)

    def test_without_a_gpu_it_asks_for_a_budget(self) -> None:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(ValueError, match="memory_budget_bytes"):
            find_batch_size(lambda batch: None, lambda size: size)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
