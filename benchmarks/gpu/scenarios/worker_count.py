"""A dataset that costs CPU time for every item, loaded by any number of workers."""

import time

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Costly(Dataset):
    """Items that keep a core busy."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        values = torch.arange(20_000, dtype=torch.float32)
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            values = (values * 1.0001).sort().values
        return values[:64]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--item-ms", type=float, default=8.0)
    arguments.add_argument("--step-ms", type=float, default=40.0)
    arguments.add_argument("--batch-size", type=int, default=32)
    args = arguments.parse_args()
    device, log = setup(args)
    loader = DataLoader(
        Costly(args.item_ms / 1e3),
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
        persistent_workers=args.workers > 0,
    )
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        batch.to(device, non_blocking=True)
        train(model, optimizer, inputs)
        log.step(len(batch))


if __name__ == "__main__":
    main()
