"""Stands in for torch/utils/data/dataloader.py where torch is not installed: the same classes and attributes.

Runs on Python 3.8 and later. Batches come from a sleep, workers are not started.
"""

import time


class Dataset:
    pass


class SequentialSampler:
    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        return iter(range(len(self.data_source)))


class BatchSampler:
    def __init__(self, sampler, batch_size, drop_last):
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self):
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


class _BaseDataLoaderIter:
    def __init__(self, loader):
        self._dataset = loader.dataset
        self._dataset_kind = 0
        self._IterableDataset_len_called = None
        self._auto_collation = True
        self._drop_last = loader.drop_last
        self._index_sampler = loader.batch_sampler
        self._num_workers = loader.num_workers
        self._pin_memory = loader.pin_memory
        self._timeout = 0
        self._collate_fn = list
        self._sampler_iter = iter(self._index_sampler)
        self._base_seed = id(self) * 7919
        self._persistent_workers = loader.persistent_workers
        self._num_yielded = 0
        self._profile_name = "enumerate(DataLoader)#" + type(self).__name__ + ".__next__"

    def __iter__(self):
        return self

    def _reset(self, loader, first_iter=False):
        self._sampler_iter = iter(self._index_sampler)
        self._num_yielded = 0

    def _next_index(self):
        return next(self._sampler_iter)

    def _next_data(self):
        raise NotImplementedError

    def __next__(self):
        data = self._next_data()
        self._num_yielded += 1
        return data

    def __len__(self):
        return len(self._index_sampler)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    def __init__(self, loader):
        super().__init__(loader)
        self._dataset_fetcher = None

    def _next_data(self):
        index = self._next_index()
        time.sleep(0.001)
        return [self._dataset[at] for at in index]


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    def __init__(self, loader):
        super().__init__(loader)
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = True
        self._worker_init_fn = self._worker_result_queue = self._workers_done_event = self._data_queue = None
        self._worker_pids_set = self._shutdown = False
        self._index_queues = self._workers = self._workers_status = self._workers_num_tasks = ()
        self._send_idx = self._rcvd_idx = self._tasks_outstanding = self._worker_queue_idx_cycle = 0
        self._task_info = {}
        self._pin_memory_thread = self._pin_memory_thread_done_event = None
        self._reset(loader, first_iter=True)

    _next_data = _SingleProcessDataLoaderIter._next_data


class DataLoader:
    def __init__(self, dataset, batch_size=1, num_workers=0, drop_last=False, persistent_workers=False):
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers else None
        self.pin_memory = False
        self.drop_last = drop_last
        self.batch_size = batch_size
        self.batch_sampler = BatchSampler(SequentialSampler(dataset), batch_size, drop_last)
        self.persistent_workers = persistent_workers
        self._iterator = None

    def _get_iterator(self):
        return _MultiProcessingDataLoaderIter(self) if self.num_workers else _SingleProcessDataLoaderIter(self)

    def __iter__(self):
        if self.persistent_workers and self.num_workers > 0:
            if self._iterator is None:
                self._iterator = self._get_iterator()
            else:
                self._iterator._reset(self)
            return self._iterator
        return self._get_iterator()
