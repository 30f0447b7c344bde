"""A plain training whose dataset is as slow as asked; a sleep stands for the accelerator's part of a step."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __init__(self, kind, milliseconds, length, floats):
        self.kind, self.seconds, self.length, self.floats = kind, milliseconds / 1000, length, floats

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.kind == "read":
            time.sleep(self.seconds)
        elif self.kind == "compute":
            self.compute()
        elif self.kind == "tail" and index % 100 == 37:
            time.sleep(self.seconds)
        return torch.full((self.floats,), float(index % 7)), index % 10

    def compute(self):
        end = time.thread_time() + self.seconds
        value = 1.0
        while time.thread_time() < end:
            value = value * 1.000001 + 1e-9
        return value


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="read", choices=("read", "compute", "tail", "none"))
    parser.add_argument("--milliseconds", type=float, default=10.0, help="of one item; of a slow one with 'tail'")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--step-milliseconds", type=float, default=20.0)
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--floats", type=int, default=64)
    parser.add_argument("--unordered", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    dataset = Items(args.kind, args.milliseconds, args.length, args.floats)
    loader = DataLoader(dataset, args.batch_size, num_workers=args.workers, in_order=not args.unordered)  # the loader
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for inputs, labels in loader:
            time.sleep(args.step_milliseconds / 1000)
            loss = nn.functional.cross_entropy(model(inputs[:, :64]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
