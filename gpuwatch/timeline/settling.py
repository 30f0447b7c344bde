"""Which steps of a trainer speak of its pace: not those of an epoch's start, not those of a batch cut short."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from gpuwatch.samples import LoaderFacts

UNKNOWN = -1

_RECENT = 128
_DEFAULT_PREFETCH = 2
_PARTIAL_BATCH = 0.9


class Settling:
    """The borders of epoch starts, by loader, and the usual size of a batch."""

    __slots__ = ("_batch_counts", "_batch_sizes", "_epoch_heads", "_heads", "_usual_batch")

    def __init__(self) -> None:
        self._batch_sizes: deque[int] = deque(maxlen=_RECENT)
        self._batch_counts: Counter[int] = Counter()
        self._usual_batch = 0
        self._heads: dict[int, int] = {}
        self._epoch_heads: dict[int, int] = {}

    def learn_loaders(self, loaders: Iterable[LoaderFacts]) -> bool:
        """Takes the loaders' settings. Whether a border of an epoch's start has moved."""
        known = list(loaders)
        self._epoch_heads = {loader.loader: max(1, loader.num_workers or 1) for loader in known}
        before, self._heads = self._heads, {loader.loader: head_batches(loader) for loader in known}
        return before != self._heads

    def learn_batch_size(self, samples: int | None) -> bool:
        """Follows the size of most of the last 128 batches, of fewer the most frequent. Whether it has changed."""
        if samples is None:
            return False
        sizes, counts = self._batch_sizes, self._batch_counts
        if len(sizes) == _RECENT:
            counts[sizes[0]] -= 1
            if not counts[sizes[0]]:
                del counts[sizes[0]]
        sizes.append(samples)
        counts[samples] += 1
        most = max(counts[self._usual_batch], len(sizes) // 2 if len(sizes) == _RECENT else 0)
        is_new = samples != self._usual_batch and counts[samples] > most
        if is_new:
            self._usual_batch = samples
        return is_new

    def epoch_head(self, loader: int) -> int:
        """The batches that one round of the workers makes: they are the late ones of an epoch."""
        if loader == UNKNOWN and len(self._epoch_heads) == 1:
            return next(iter(self._epoch_heads.values()))
        return self._epoch_heads.get(loader, 1)

    def holds(self, position: int, loader: int, samples: float) -> bool:
        """Whether a step at this place of its epoch, with so many samples, speaks of the pace."""
        if 0 <= position < self._heads.get(loader, 1):
            return False
        return not samples < _PARTIAL_BATCH * self._usual_batch


def head_batches(loader: LoaderFacts) -> int:
    """The first batches of an epoch, which the workers prefetch: they wait for the start, not for the pace."""
    workers = loader.num_workers or 0
    prefetch = _DEFAULT_PREFETCH if loader.prefetch_factor is None else loader.prefetch_factor
    return max(1, workers * prefetch)
