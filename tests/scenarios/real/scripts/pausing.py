"""A training that is fast but for what happens between its steps: saving, collecting garbage, evaluating."""

import argparse
import gc
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __init__(self, length, seconds=0.0):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(64), index % 10


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--save-megabytes", type=int, default=50)
    parser.add_argument("--garbage", type=int, default=0, help="objects that each full collection has to look at")
    parser.add_argument("--evaluate-every", type=int, default=0)
    return parser.parse_args()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in loader)
    model.train()
    return correct


def main():
    args = parse()
    torch.set_num_threads(1)
    loader = DataLoader(Items(1_000_000), batch_size=8)  # the loader
    evaluation = DataLoader(Items(64, 0.01), batch_size=16)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ballast = {"weights": torch.zeros(args.save_megabytes * 250_000)} if args.save_every else {}
    garbage = [[index] for index in range(args.garbage)]
    with tempfile.TemporaryDirectory() as folder:
        for step, (inputs, labels) in enumerate(loader, 1):
            time.sleep(0.02)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.save_every and step % args.save_every == 0:
                torch.save({"model": model.state_dict(), **ballast}, Path(folder) / "last.pt")  # the save
            if garbage and step % 20 == 0:
                gc.collect()
            if args.evaluate_every and step % args.evaluate_every == 0:
                evaluate(model, evaluation)


if __name__ == "__main__":
    main()
