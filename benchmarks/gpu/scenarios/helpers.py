"""What the training scripts beside this file share: arguments, the log, models and images."""

import argparse
import io
import os
import time

import torch
from torch import nn


def parser(description):
    """The arguments that every script has."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--device", default="cuda")
    made.add_argument("--steps", type=int, default=1_000_000)
    made.add_argument("--log", help='one line per step: "end_seconds samples"')
    return made


def setup(args):
    """The device and the step log; on the CPU the models are toys, and two workers are enough."""
    torch.manual_seed(0)
    if args.device == "cpu":
        torch.set_num_threads(1)
        args.workers = min(getattr(args, "workers", 0), 2)
    return torch.device(args.device), StepLog(args)


class StepLog:
    """Writes down each step and ends the program after the last one."""

    def __init__(self, args):
        self.file = open(args.log, "a", buffering=1) if args.log else None
        self.left = args.steps

    def step(self, samples):
        if self.file:
            self.file.write(f"{time.monotonic():.6f} {samples}\n")
        self.left -= 1
        if self.left <= 0:
            raise SystemExit(0)


class Wide(nn.Module):
    """One wide layer, applied again and again: as much arithmetic as wanted in few kernels."""

    def __init__(self, width, repeats):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)
        self.repeats = repeats

    def forward(self, x):
        for _ in range(self.repeats):
            x = x + nn.functional.gelu(self.layer(x)) / self.repeats
        return self.head(x)


def wide_model(device, step_ms, rows=4096, width=8192):
    """A model in bfloat16 whose step takes about this many milliseconds, its optimizer and its batch."""
    if device.type == "cpu":
        rows, width = 8, 32
    model = Wide(width, 1).to(device, torch.bfloat16)
    inputs = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if device.type == "cuda":
        one = _seconds_per_step(model, inputs, optimizer)
        model.repeats = 5
        five = _seconds_per_step(model, inputs, optimizer)
        model.repeats = max(1, round(1 + (step_ms / 1e3 - one) / ((five - one) / 4)))
    return model, optimizer, inputs


def _seconds_per_step(model, inputs, optimizer, times=5):
    for attempt in range(times + 2):
        if attempt == 2:
            torch.cuda.synchronize()
            began = time.perf_counter()
        train(model, optimizer, inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def train(model, optimizer, inputs):
    """One step on a made-up target; returns the loss."""
    loss = model(inputs).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels),
        )  # fmt: skip
        self.short = nn.Identity()
        if stride > 1 or channels_in != 4 * channels:
            self.short = nn.Sequential(
                nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels)
            )

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.short(x), inplace=True)


def resnet50(device, classes=1000):
    """ResNet-50; on the CPU a stump of it."""
    if device.type == "cpu":
        return nn.Sequential(
            nn.Conv2d(3, 8, 7, 4), Bottleneck(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)
        )
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels_in = 64
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels_in, channels, 2 if block == 0 and channels > 64 else 1))
            channels_in = 4 * channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes)]
    return nn.Sequential(*layers).to(device, memory_format=torch.channels_last)


def train_images(model, optimizer, images, labels, device):
    """One step in bfloat16."""
    with torch.autocast(device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def jpeg_files(folder, count, width, height):
    """Paths of JPEG files, written where they are missing: smooth colours with noise, so that they take decoding."""
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f"{number:04d}.jpg") for number in range(count)]
    generator = torch.Generator().manual_seed(0)
    for path in paths:
        if not os.path.exists(path):
            coarse = torch.rand(1, 3, height // 16, width // 16, generator=generator)
            smooth = nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)[0]
            noisy = smooth + 0.1 * torch.rand(3, height, width, generator=generator)
            with open(path + ".part", "wb") as file:
                file.write(_encode((noisy.clamp(0, 1) * 255).to(torch.uint8)))
            os.replace(path + ".part", path)
    return paths


def _encode(image):
    """JPEG bytes, by whichever library is there."""
    try:
        from PIL import Image
    except ImportError:
        pass
    else:
        buffer = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()
    try:
        import cv2
    except ImportError:
        from torchvision.io import encode_jpeg

        return encode_jpeg(image).numpy().tobytes()
    return cv2.imencode(".jpg", image.permute(1, 2, 0).numpy())[1].tobytes()
