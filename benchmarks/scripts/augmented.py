"""A plain PyTorch training script with PIL and numpy augmentation; gpuwatch does not appear in it.

    python augmented.py [--workers N] [--epochs N] [--batch-size N] [--loop plain|enumerate|tqdm|next|zip] ...

With TRUTH=FOLDER in the environment it also writes down what it really does, so that a report about it can be
checked: stamps of CLOCK_MONOTONIC at each change of phase on the training thread (PID.phases) and at each line of the
augmentation, in whatever process it runs (PID.lines). A stamp is 16 bytes in a mapped file, so it costs about half a
microsecond and survives a kill; files are read with `benchmarks.attach_truth`.
"""

import argparse
import mmap
import os
import random
import struct
import sys
import tempfile
import time

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

WAIT, COPY, FORWARD, BACKWARD, OPTIMIZER, ITEM, EVAL, SAVE = range(1, 9)
FINISHED = 0


class Stamps:
    """One file of stamps per process; a forked worker opens its own."""

    BYTES = 64 << 20  # sparse: only what was stamped takes room

    def __init__(self, kind):
        self.kind, self.pid = kind, None

    def open(self):
        self.pid, self.offset, self.pack = os.getpid(), 0, struct.Struct("<qq").pack_into
        with open(os.path.join(os.environ["TRUTH"], f"{self.pid}.{self.kind}"), "w+b") as file:
            file.truncate(self.BYTES)
            self.room = mmap.mmap(file.fileno(), self.BYTES)

    def __call__(self, what):
        if self.pid != os.getpid():
            self.open()
        self.pack(self.room, self.offset, time.monotonic_ns(), what)
        self.offset += 16

    def next_line(self):
        self(sys._getframe(1).f_lineno + 1)


def nothing(what=None):
    pass


phase = Stamps("phases") if "TRUTH" in os.environ else nothing
lines = Stamps("lines") if "TRUTH" in os.environ else nothing
next_line = lines.next_line if "TRUTH" in os.environ else nothing


class Photos(Dataset):
    """A folder of JPEG files, each seen many times, each time a little different."""

    def __init__(self, folder, length, size, noise, clip):
        self.files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".jpg")]
        self.length, self.size, self.noise, self.clip = length, size, noise, clip

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        next_line()
        image = Image.open(self.files[index % len(self.files)]).convert("RGB")
        next_line()
        image = image.rotate(random.uniform(-20, 20), resample=Image.BICUBIC)
        next_line()
        image = image.resize((self.size, self.size), Image.LANCZOS)
        next_line()
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2)))
        next_line()
        image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        next_line()
        array = np.asarray(image, dtype=np.float32) / 255.0
        if self.noise:
            next_line()
            array = array + np.random.normal(0, 0.05, (self.noise, *array.shape)).mean(axis=0, dtype=np.float32)
        if self.clip:
            array = clip(array, self.clip)
        next_line()
        tensor = torch.from_numpy(array).permute(2, 0, 1).contiguous()
        lines(FINISHED)
        return tensor, index % 10


def clip(array, rows):
    next_line()
    values = [min(max(value, 0.0), 1.0) for value in array[:rows].ravel().tolist()]
    next_line()
    array[:rows] = np.array(values, dtype=np.float32).reshape(rows, *array.shape[1:])
    return array


class Plain(Photos):
    """The same files without augmentation, for the evaluation."""

    def __getitem__(self, index):
        next_line()
        image = Image.open(self.files[index % len(self.files)]).convert("RGB").resize((self.size, self.size))
        next_line()
        tensor = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1) / 255.0
        lines(FINISHED)
        return tensor, index % 10


def make_photos(folder, count=48, size=160):
    os.makedirs(folder, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        path = os.path.join(folder, f"{number:03}.jpg")
        if not os.path.exists(path):
            coarse = generator.integers(0, 255, (size // 16, size // 16, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((size, size), Image.BICUBIC).save(path + ".new", "JPEG")
            os.replace(path + ".new", path)


def make_model(width, depth):
    layers = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(width * 64, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers, *head)


class Training:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = make_model(args.width, args.depth).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loss = nn.CrossEntropyLoss()
        train = Photos(args.data, args.epoch_steps * args.batch_size, args.size, args.noise, args.clip)
        self.loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        self.second = DataLoader(train, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
        held_out = Plain(args.data, args.eval_batches * args.batch_size, args.size, 0, 0)
        keep = args.workers > 0
        self.eval_loader = DataLoader(held_out, args.batch_size, num_workers=args.workers, persistent_workers=keep)
        self.weights = list(self.model.parameters())
        self.steps = 0
        self.recent = []

    def epoch(self):
        phase(WAIT)
        if self.args.loop == "plain":
            for images, labels in self.loader:
                self.step(images, labels)
        elif self.args.loop == "enumerate":
            for number, (images, labels) in enumerate(self.loader):
                self.step(images, labels, number)
        elif self.args.loop == "tqdm":
            from tqdm import tqdm

            for images, labels in tqdm(self.loader, mininterval=1.0):
                self.step(images, labels)
        elif self.args.loop == "next":
            batches = iter(self.loader)
            while (batch := next(batches, None)) is not None:
                self.step(*batch)
        elif self.args.loop == "zip":
            for (images, labels), _ in zip(self.loader, self.second, strict=True):
                self.step(images, labels)

    def step(self, images, labels, number=None):
        phase(COPY)
        images, labels = images.to(self.device), labels.to(self.device)
        phase(FORWARD)
        logits = self.model(images)
        loss = self.loss(logits, labels) / self.args.accumulate
        phase(BACKWARD)
        loss.backward()
        self.steps += 1
        if self.steps % self.args.accumulate == 0:
            phase(OPTIMIZER)
            self.optimizer.step()
            self.optimizer.zero_grad()
        phase(ITEM)
        norms = [torch.stack([p.detach().norm() for p in self.weights]).norm().item() for _ in range(self.args.norms)]
        self.recent += norms
        if self.args.eval_every and self.steps % self.args.eval_every == 0:
            phase(EVAL)
            self.evaluate()
        if self.args.save_every and self.steps % self.args.save_every == 0:
            phase(SAVE)
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.args.output)
        phase(WAIT)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        correct = 0
        for images, labels in self.eval_loader:
            correct += (self.model(images.to(self.device)).argmax(1) == labels.to(self.device)).sum().item()
        self.model.train()
        return correct


def main():
    scratch = os.path.join(tempfile.gettempdir(), f"augmented-{os.getuid()}")
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--loop", default="plain", choices=["plain", "enumerate", "tqdm", "next", "zip"])
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epoch-steps", type=int, default=200)
    parser.add_argument("--eval-every", type=int, default=100)
    parser.add_argument("--eval-batches", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--size", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--noise", type=int, default=1, help="draws of noise per image")
    parser.add_argument("--clip", type=int, default=4, help="rows clipped in Python")
    parser.add_argument("--norms", type=int, default=1, help="times that the norm of the weights is logged per step")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--data", default=os.path.join(scratch, "photos"))
    parser.add_argument("--output", default=os.path.join(scratch, "checkpoint.pt"))
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    make_photos(args.data)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    training = Training(args)
    for epoch in range(args.epochs):
        training.epoch()
        print(f"epoch {epoch}: {training.steps} steps, norm {training.recent[-1]:.3f}", flush=True)
        training.recent.clear()


if __name__ == "__main__":
    main()
