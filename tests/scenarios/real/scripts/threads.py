"""A training whose workers multiply matrices, each with a pool of threads of its own."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Projections(Dataset):
    def __init__(self):
        self.matrix = np.random.default_rng(0).random((384, 384), dtype=np.float32)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        projected = self.matrix
        for _ in range(2):
            projected = projected @ self.matrix / 192.0
        return torch.from_numpy(projected[0, :64].copy()), index % 10


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Projections(), batch_size=8, num_workers=4)  # the loader
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, labels in loader:
        time.sleep(0.005)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
