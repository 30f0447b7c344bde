"""What a DataLoader iterator's attributes say of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gpuwatch.reader.attributes import Attributes
from gpuwatch.reader.objects import Objects

ITERATOR_ATTRIBUTES = frozenset(
    {
        "_num_workers",
        "_pin_memory",
        "_prefetch_factor",
        "_persistent_workers",
        "_in_order",
        "_drop_last",
        "_dataset",
        "_dataset_kind",
        "_index_sampler",
        "_auto_collation",
        "_IterableDataset_len_called",
    }
)
_SAMPLER_ATTRIBUTES = frozenset(
    {
        "batch_size",
        "drop_last",
        "sampler",
        "batch_sampler",
        "data_source",
        "_num_samples",
        "num_samples",
        "replacement",
        "indices",
        "num_processes",
        "process_index",
        "split_batches",
        "even_batches",
    }
)
_DATASET_ATTRIBUTES = frozenset({"indices", "cumulative_sizes"})
_KINDS: dict[int | None, bool] = {0: False, 1: True}  # torch.utils.data.dataloader._DatasetKind: iterable
_NESTED = 3  # samplers in samplers


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """The settings of one iterator; `loader` is the address that its loader is known by."""

    loader: int
    num_workers: int | None
    batch_size: int | None
    pin_memory: bool | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    in_order: bool | None
    drop_last: bool | None
    dataset: str | None
    iterable: bool | None
    batches_per_epoch: int | None


class SettingsReader:
    """Reads settings. Lengths that only a call of the target's own `__len__` could tell stay unknown."""

    def __init__(self, objects: Objects, attributes: Attributes) -> None:
        self._objects = objects
        self._attributes = attributes

    def read(self, iterator: int) -> LoaderSettings | None:
        """The settings of the iterator there, None where not even its loader is found."""
        own = self._attributes.values(iterator, ITERATOR_ATTRIBUTES)
        sampler, dataset = own.get("_index_sampler"), own.get("_dataset")
        loader = sampler or dataset
        if loader is None:
            return None
        index = {} if sampler is None else self._attributes.values(sampler, _SAMPLER_ATTRIBUTES)
        collates = self._flag(own, "_auto_collation")
        batch_size = self._batch_size(index, _NESTED) if collates is not False else None
        drop_last = self._flag(index, "drop_last")
        drop_last = self._flag(own, "_drop_last") if drop_last is None else drop_last
        called = self._count(own, "_IterableDataset_len_called")
        if called is None:
            batches = None if sampler is None else self._sampler_length(sampler, _NESTED)
        elif collates is False:
            batches = called
        else:
            batches = _batches(called, batch_size, drop_last)
        info = None if dataset is None else self._objects.type_of(dataset)
        return LoaderSettings(
            loader=loader,
            num_workers=self._count(own, "_num_workers"),
            batch_size=batch_size,
            pin_memory=self._flag(own, "_pin_memory"),
            prefetch_factor=self._count(own, "_prefetch_factor"),
            persistent_workers=self._flag(own, "_persistent_workers"),
            in_order=self._flag(own, "_in_order"),
            drop_last=drop_last,
            dataset=None if info is None else info.name,
            iterable=_KINDS.get(self._count(own, "_dataset_kind")),
            batches_per_epoch=batches,
        )

    def _batch_size(self, sampler: Mapping[str, int], depth: int) -> int | None:
        size = self._count(sampler, "batch_size")
        if size is not None or "batch_sampler" not in sampler or not depth:
            return size or None
        return self._batch_size(self._attributes.values(sampler["batch_sampler"], _SAMPLER_ATTRIBUTES), depth - 1)

    def _sampler_length(self, sampler: int, depth: int) -> int | None:
        """`len(sampler)` of torch's and accelerate's own samplers."""
        info = self._objects.type_of(sampler)
        if info is None or not depth:
            return None
        if not info.heap:
            return self._objects.length(sampler)
        values = self._attributes.values(sampler, _SAMPLER_ATTRIBUTES)
        if info.name == "BatchSampler" and "sampler" in values:
            return _batches(
                self._sampler_length(values["sampler"], depth - 1),
                self._count(values, "batch_size"),
                self._flag(values, "drop_last"),
            )
        if info.name == "BatchSamplerShard" and "batch_sampler" in values:
            return self._shard_length(values, self._sampler_length(values["batch_sampler"], depth - 1))
        if info.name in ("RandomSampler", "SeedableRandomSampler", "SequentialSampler"):
            length = self._count(values, "_num_samples")
            return length if length is not None else self._dataset_length(values.get("data_source"))
        if info.name in ("DistributedSampler", "WeightedRandomSampler"):
            return self._count(values, "num_samples")
        if info.name == "SubsetRandomSampler" and "indices" in values:
            return self._objects.length(values["indices"])
        return None

    def _shard_length(self, shard: Mapping[str, int], batches: int | None) -> int | None:
        processes, split = self._count(shard, "num_processes"), self._flag(shard, "split_batches")
        if batches is None or not processes or split is None:
            return None
        if split or batches % processes == 0:
            return batches if split else batches // processes
        if self._flag(shard, "drop_last"):
            return batches // processes
        index = self._count(shard, "process_index")
        if self._flag(shard, "even_batches"):
            return batches // processes + 1
        return None if index is None else batches // processes + (index < batches % processes)

    def _dataset_length(self, dataset: int | None) -> int | None:
        """The length of a list, and of torch's own views over other datasets."""
        info = None if dataset is None else self._objects.type_of(dataset)
        if dataset is None or info is None:
            return None
        if not info.heap:
            return self._objects.length(dataset)
        values = self._attributes.values(dataset, _DATASET_ATTRIBUTES)
        if info.name == "Subset" and "indices" in values:
            return self._objects.length(values["indices"])
        if info.name == "ConcatDataset" and "cumulative_sizes" in values:
            sizes = self._objects.items(values["cumulative_sizes"], 4096)
            return self._objects.integer(sizes[-1]) if sizes else None
        return None

    def _count(self, values: Mapping[str, int], name: str) -> int | None:
        number = self._objects.plain(values[name]) if name in values else None
        return number if type(number) is int and 0 <= number < 1 << 62 else None

    def _flag(self, values: Mapping[str, int], name: str) -> bool | None:
        value = self._objects.plain(values[name]) if name in values else None
        return value if isinstance(value, bool) else None


def _batches(samples: int | None, batch_size: int | None, drop_last: bool | None) -> int | None:
    if samples is None or not batch_size or drop_last is None:
        return None
    return samples // batch_size if drop_last else ceil(samples / batch_size)
