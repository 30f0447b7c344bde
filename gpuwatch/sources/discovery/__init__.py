"""Who trains on this machine: found from outside, by what a training process leaves in /proc and on the GPUs."""

from __future__ import annotations

from gpuwatch.sources.discovery.source import DiscoverySource
from gpuwatch.sources.discovery.tree import TreeTrainers, looks_like_training, trainers_below

__all__ = ["DiscoverySource", "TreeTrainers", "looks_like_training", "trainers_below"]
