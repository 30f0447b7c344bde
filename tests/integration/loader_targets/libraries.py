"""Loops as torchdata, accelerate and tqdm make them, by a target that writes down each batch.

Usage: libraries.py LOG WORKERS STEP_SECONDS EPOCHS KIND...; the log is that of loops.py.
"""

import sys
import time
from pathlib import Path

from pacing import Pace
from torch.utils.data import DataLoader, Dataset

STEPS = 12


class TrainSet(Dataset):
    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        return index


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(TrainSet(), batch_size=4, num_workers=WORKERS), 0


def accelerated():
    from accelerate import Accelerator

    loader = DataLoader(TrainSet(), batch_size=4, num_workers=WORKERS, shuffle=True)
    return Accelerator(cpu=True).prepare(loader), 1


def barred():
    from tqdm import tqdm

    return tqdm(DataLoader(TrainSet(), batch_size=4, num_workers=WORKERS), disable=False, file=sys.stderr), 0


KINDS = {function.__name__: function for function in (stateful, accelerated, barred)}


def train(log, kind, loader, ahead):
    for _ in range(EPOCHS):
        log.write(f"{time.monotonic_ns()} {kind} TrainSet 0\n")
        for count, _batch in enumerate(loader, 1 + ahead):
            log.write(f"{time.monotonic_ns()} {kind} TrainSet {min(count, STEPS)}\n")
            PACE.step()


if __name__ == "__main__":
    WORKERS, PACE, EPOCHS = int(sys.argv[2]), Pace(sys.argv[1], float(sys.argv[3])), int(sys.argv[4])
    with Path(sys.argv[1]).open("a", buffering=1) as lines:
        for name in sys.argv[5:]:
            prepared, steps_ahead = KINDS[name]()
            lines.write(f"{time.monotonic_ns()} {name} begin 0\n")
            train(lines, name, prepared, steps_ahead)
            lines.write(f"{time.monotonic_ns()} {name} end 0\n")
