"""After some batches a worker waits for a lock that nobody gives back."""

import multiprocessing

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Shared(Dataset):
    """Items that are read under a lock."""

    def __init__(self, lock, length, batch_size):
        self.lock, self.last, self.batch_size = lock, length, batch_size

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index >= self.last:
            self.lock.acquire()
        return torch.full((16,), float(index))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--after", type=int, default=150)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()
    loader = DataLoader(Shared(lock, args.after * 8, 8), batch_size=8, num_workers=2, multiprocessing_context="fork")
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        batch.to(device)
        train(model, optimizer, inputs)
        log.step(len(batch))


if __name__ == "__main__":
    main()
