"""What the hook adds up of a model's parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuwatch.hook import model

TORCH = SimpleNamespace(channels_last="NHWC", float32="float32")


class Parameter:
    """A matrix on the first GPU."""

    dtype = TORCH.float32
    device = SimpleNamespace(type="cuda", index=0)
    shape = (16, 16)
    requires_grad = True

    def numel(self) -> int:
        return 256

    def element_size(self) -> int:
        return 4

    def is_floating_point(self) -> bool:
        return True

    def dim(self) -> int:
        return 2


def optimizer(number: int, parameters: int) -> Any:
    """One that has stepped."""
    found = SimpleNamespace(param_groups=[{"params": [Parameter() for _ in range(parameters)]}])
    return SimpleNamespace(number=number, stepped_ns=1, reference=lambda: found)


def test_a_model_too_large_to_add_up_is_unknown_and_not_the_part_that_stepped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepped = [optimizer(1, 2)]
    monkeypatch.setattr(model, "_PARAMETER_LIMIT", 4)
    monkeypatch.setattr(model.steps, "optimizers", lambda: stepped)
    monkeypatch.setattr(model, "belongs_to", lambda kind, package: kind is Parameter)
    for name, empty in (("_shape", {}), ("_shape_of", set()), ("_devices", [])):
        monkeypatch.setattr(model, name, empty)
    model.look(TORCH)
    assert (model._shape["parameters"], model._shape["matmul_share"]) == (512, 1.0)
    stepped.append(optimizer(2, 10))
    model.look(TORCH)
    assert set(model._shape.values()) == {None}
    assert model._shape.keys() >= {"parameters", "parameter_bytes", "misaligned_share"}, "what was told is taken back"
    assert model.cuda_indices() == [0]


def test_layers_that_are_unfrozen_are_counted_when_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "belongs_to", lambda kind, package: kind is Parameter)
    stepped = optimizer(1, 3)
    frozen = stepped.reference().param_groups[0]["params"][0]
    frozen.requires_grad = False
    assert model._count_trained([stepped]) == 512
    frozen.requires_grad = True
    assert model._count_trained([stepped]) == 768
    monkeypatch.setattr(model, "_COUNTED_AGAIN", 2)
    assert model._count_trained([stepped]) is None
