"""Stacks as a source: the training thread and its workers, looked at from outside many times a second."""

from __future__ import annotations

from gpuwatch.sources.stacks.source import StackSource, StackTarget

__all__ = ["StackSource", "StackTarget"]
