"""Two ranks over gloo, one of them slower than the other by as much as asked."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.randn(64), index % 10


def train(rank, args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{args.meeting}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    loader = DataLoader(Items(), batch_size=8)
    model = DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, labels in loader:
        time.sleep((args.step_milliseconds + (args.late_milliseconds if rank == 1 else 0)) / 1000)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--meeting", required=True, help="a file that does not exist yet")
    parser.add_argument("--step-milliseconds", type=float, default=20.0)
    parser.add_argument("--late-milliseconds", type=float, default=0.0)
    args = parser.parse_args()
    mp.spawn(train, (args,), nprocs=2)


if __name__ == "__main__":
    main()
