"""A big model on a dataset that is slow to read in the training process itself; --item asks for the loss each step."""

import argparse
import time

import torch
from helpers import parser, setup, train, wide_model
from torch.utils.data import DataLoader, Dataset


class SlowDisk(Dataset):
    """Whole batches that take a while to read."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((1,), float(index))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--load-ms", type=float, default=60.0)
    arguments.add_argument("--step-ms", type=float, default=100.0)
    arguments.add_argument("--item", action=argparse.BooleanOptionalAction, default=False)
    args = arguments.parse_args()
    device, log = setup(args)
    loader = DataLoader(SlowDisk(args.load_ms / 1e3), batch_size=None, num_workers=0)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    total = 0.0
    for _ in loader:
        loss = train(model, optimizer, inputs)
        if args.item:
            total += loss.item()
        log.step(len(inputs))


if __name__ == "__main__":
    main()
