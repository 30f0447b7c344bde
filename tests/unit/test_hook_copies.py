"""A trial's copies to the GPU: those of pinned memory wait or do not, everything else stays as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatch.hook import overrides


class Tensor:
    """What the wrapper asks a tensor for."""

    def __init__(self, device: str = "cpu", pinned: bool = True) -> None:
        self.device = SimpleNamespace(type=device)
        self.is_cuda = device == "cuda"
        self._pinned = pinned

    def is_pinned(self) -> bool:
        return self._pinned

    def to(self, *arguments: Any, **named: Any) -> Any:
        return arguments, named

    def cuda(self, *arguments: Any, **named: Any) -> Any:
        return arguments, named


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> type[Tensor]:
    """Tensors whose copies a trial has changed."""
    kind = type("Copied", (Tensor,), {"to": Tensor.to, "cuda": Tensor.cuda})
    monkeypatch.setattr(overrides, "_asked", {"non_blocking": True})
    monkeypatch.setattr(overrides, "_applied", set())
    torchs = (kind, SimpleNamespace)
    monkeypatch.setattr(overrides, "belongs_to", lambda found, package: found in torchs and package == "torch")
    overrides.wrap_copies(SimpleNamespace(Tensor=kind))  # type: ignore[arg-type]
    return kind


GPU = SimpleNamespace(type="cuda")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("cuda",), {}),
        (("cuda:1",), {}),
        ((0,), {}),
        ((GPU,), {}),
        ((), {"device": GPU}),
        ((GPU,), {"non_blocking": False}),
    ],
)
def test_pinned_memory_is_copied_to_a_gpu_without_waiting(
    copied: type[Tensor], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert copied().to(*arguments, **named) == (arguments, {**named, "non_blocking": True})
    assert overrides.in_effect() == ["non_blocking"]


def test_cuda_without_an_argument_is_a_copy_to_a_gpu(copied: type[Tensor]) -> None:
    assert copied().cuda() == ((), {"non_blocking": True})


@pytest.mark.parametrize(
    ("tensor", "target"),
    [
        ({"pinned": False}, "cuda"),
        ({"device": "cuda"}, "cpu"),
        ({"device": "cuda"}, "cuda:1"),
        ({}, "cpu"),
        ({}, SimpleNamespace(is_floating_point=True)),  # a dtype
    ],
)
def test_every_other_copy_stays_as_it_is(copied: type[Tensor], tensor: dict[str, Any], target: Any) -> None:
    assert copied(**tensor).to(target) == ((target,), {})
    assert overrides.in_effect() == []


def test_a_change_of_type_alone_is_no_copy_to_a_gpu(copied: type[Tensor]) -> None:
    assert copied().to(dtype="float16") == ((), {"dtype": "float16"})
    assert overrides.in_effect() == []


def test_a_place_given_by_position_is_the_programs_own_choice(copied: type[Tensor]) -> None:
    assert copied().to("cuda", None, True) == (("cuda", None, True), {})
