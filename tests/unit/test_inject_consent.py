"""Consent to `--inject` is for one process: not for whoever has its pid by the time the user has answered."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwatch import inject
from gpuwatch.inject import FIRST_VERSION, CannotInjectError, Plan, plan_for


def test_another_process_with_the_same_pid_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(*arguments: object) -> int:
        raise AssertionError("a process that nobody consented for was written to")

    monkeypatch.setattr(inject.os, "pwrite", written)
    earlier = Plan(os.getpid(), 1, os.getuid(), os.getgid(), FIRST_VERSION, inject.SITE)
    with pytest.raises(CannotInjectError, match="has ended"):
        inject.perform(earlier, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_process_that_ends_while_it_is_looked_at_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = SimpleNamespace(version=FIRST_VERSION, start_ticks=5, close=lambda: None)
    monkeypatch.setattr(inject, "attach", lambda pid, proc_root: target)
    with pytest.raises(CannotInjectError, match="has ended"):
        plan_for(7, proc_root=tmp_path)
