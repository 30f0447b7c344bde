"""Epochs of twenty batches, whose workers are restarted each time."""

import time

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Small(Dataset):
    """Little data, and an index that each worker reads when it starts."""

    def __init__(self, batches, batch_size):
        self.length = batches * batch_size
        self.index = None

    def __len__(self):
        return self.length

    def __getitem__(self, item):
        if self.index is None:
            time.sleep(0.2)
            self.index = torch.randperm(self.length)
        return torch.full((16,), float(self.index[item]))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=8)
    arguments.add_argument("--batches", type=int, default=20)
    arguments.add_argument("--step-ms", type=float, default=40.0)
    arguments.add_argument("--persistent", action="store_true")
    args = arguments.parse_args()
    device, log = setup(args)
    loader = DataLoader(
        Small(args.batches, 8), batch_size=8, num_workers=args.workers, persistent_workers=args.persistent
    )
    model, optimizer, inputs = wide_model(device, args.step_ms)
    while True:
        for batch in loader:
            batch.to(device)
            train(model, optimizer, inputs)
            log.step(len(batch))


if __name__ == "__main__":
    main()
