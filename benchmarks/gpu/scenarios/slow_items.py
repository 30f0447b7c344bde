"""A dataset of which one item in a hundred takes a second."""

import random
import time

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class Uneven(Dataset):
    """Mostly quick items."""

    def __init__(self, slow_seconds, period):
        self.slow_seconds, self.period = slow_seconds, period

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(self.slow_seconds if random.Random(index).randrange(self.period) == 0 else 0.001)
        return torch.full((16,), float(index))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--slow-seconds", type=float, default=1.0)
    arguments.add_argument("--period", type=int, default=100)
    arguments.add_argument("--step-ms", type=float, default=40.0)
    args = arguments.parse_args()
    device, log = setup(args)
    if device.type == "cpu":
        args.slow_seconds = 0.05
    loader = DataLoader(
        Uneven(args.slow_seconds, args.period),
        batch_size=4,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model, optimizer, inputs = wide_model(device, args.step_ms)
    for batch in loader:
        batch.to(device)
        train(model, optimizer, inputs)
        log.step(len(batch))


if __name__ == "__main__":
    main()
