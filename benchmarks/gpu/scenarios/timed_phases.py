"""A training that writes down where its own time goes, by the host's clock and by CUDA events."""

import json
import time

import torch
from helpers import parser, setup, wide_model
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """Items that cost CPU time."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        values = torch.arange(20_000, dtype=torch.float32)
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            values = (values * 1.0001).sort().values
        return values[:16]


class Truth:
    """Seconds per phase of the training thread, and milliseconds that the GPU idled in waits; a line a second."""

    def __init__(self, path, device):
        self.file = open(path, "a", buffering=1) if path else None
        self.seconds = {}
        self.now = time.monotonic()
        self.due = 0.0
        self.on_gpu = device.type == "cuda"
        self.pairs = []
        self.idle_ms = 0.0

    def mark(self, phase):
        """All since the last mark was this."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.now
        self.now = now

    def event(self):
        if not self.on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def waited(self, before, after):
        if before is not None:
            self.pairs.append((before, after))
        while len(self.pairs) > 4 and self.pairs[0][1].query():
            first, second = self.pairs.pop(0)
            self.idle_ms += first.elapsed_time(second)

    def write(self):
        if self.file and self.now >= self.due:
            self.due = self.now + 1.0
            self.file.write(json.dumps({"at": self.now, "gpu_idle": self.idle_ms / 1e3, **self.seconds}) + "\n")


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--truth", help="JSON lines, cumulative")
    arguments.add_argument("--batch-size", type=int, default=8)
    arguments.add_argument("--step-ms", type=float, default=30.0)
    args = arguments.parse_args()
    device, log = setup(args)
    loader = DataLoader(Slow(), batch_size=args.batch_size, num_workers=0)
    model, optimizer, inputs = wide_model(device, args.step_ms)
    truth = Truth(args.truth, device)
    batches = iter(loader)
    total = 0.0
    while True:
        before = truth.event()
        batch = next(batches)
        truth.mark("wait")
        truth.waited(before, truth.event())
        loss = model(inputs).float().square().mean()
        truth.mark("forward")
        optimizer.zero_grad()
        truth.mark("optimizer")
        loss.backward()
        truth.mark("backward")
        optimizer.step()
        truth.mark("optimizer")
        total += loss.item()
        truth.mark("sync")
        truth.write()
        log.step(len(batch))


if __name__ == "__main__":
    main()
