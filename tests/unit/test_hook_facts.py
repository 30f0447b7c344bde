"""Which of torch's debugging switches the hook tells of, over a torch that only has those."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuwatch.hook import facts


def torch_with(*, anomaly: bool = False, deterministic: bool = False, sync: int | None = None) -> SimpleNamespace:
    """`sync` is the mode of CUDA sync checks; None: CUDA is not initialised, and must not be by asking."""

    def never() -> int:
        raise AssertionError("CUDA is not initialised")

    return SimpleNamespace(
        is_anomaly_enabled=lambda: anomaly,
        are_deterministic_algorithms_enabled=lambda: deterministic,
        cuda=SimpleNamespace(is_initialized=lambda: sync is not None),
        _C=SimpleNamespace(_cuda_get_sync_debug_mode=never if sync is None else lambda: sync),
    )


@pytest.mark.parametrize(
    ("torch", "modes"),
    [
        (torch_with(), []),
        (torch_with(sync=0), []),
        (torch_with(anomaly=True), ["anomaly"]),
        (torch_with(sync=1, deterministic=True), ["sync-debug", "deterministic"]),
    ],
    ids=["none", "no sync checks", "anomaly detection", "two"],
)
def test_switches_that_are_on_are_reported(torch: SimpleNamespace, modes: list[str]) -> None:
    assert facts.debug_modes(torch) == modes
