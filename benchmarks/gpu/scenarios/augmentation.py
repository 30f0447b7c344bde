"""Rotation and scaling of large images, in the workers with PIL or on the GPU after the copy."""

import math
import os
import random
import tempfile

import torch
from helpers import jpeg_files, parser, resnet50, setup, train_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    """Images in memory; `turn` rotates and scales each of them here."""

    def __init__(self, paths, size, turn):
        self.images = []
        for path in paths:
            with Image.open(path) as file:
                self.images.append(file.convert("RGB").resize((size, size)))
        self.size, self.turn = size, turn

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        image = self.images[index % len(self.images)]
        if self.turn:
            image = image.rotate(random.uniform(-30, 30), Image.Resampling.BICUBIC, expand=True)
            image = image.resize((self.size, self.size), Image.Resampling.LANCZOS)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1)


def turned(images):
    """The same on the device of the images, for all of them at once."""
    angles = (torch.rand(len(images), device=images.device) - 0.5) * math.pi / 3
    scale = angles.abs().cos() + angles.abs().sin()
    cos, sin, zero = angles.cos() * scale, angles.sin() * scale, torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = nn.functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, mode="bilinear", align_corners=False)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "gpuwatch-jpeg"))
    arguments.add_argument("--augment", choices=("workers", "gpu"), default="workers")
    arguments.add_argument("--workers", type=int, default=12)
    arguments.add_argument("--size", type=int, default=512)
    arguments.add_argument("--batch-size", type=int, default=32)
    args = arguments.parse_args()
    device, log = setup(args)
    small = device.type == "cpu"
    dataset = Augmented(
        jpeg_files(args.data, 8 if small else 64, 500, 375), 64 if small else args.size, args.augment == "workers"
    )
    loader = DataLoader(
        dataset, batch_size=2 if small else args.batch_size, num_workers=args.workers, pin_memory=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    model = resnet50(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images in loader:
        images = images.to(device, non_blocking=True).float() / 255
        if args.augment == "gpu":
            images = turned(images)
        edge = images.shape[-1] * 9 // 32
        images = images[:, :, edge:-edge, edge:-edge]
        labels = torch.zeros(len(images), dtype=torch.long, device=device)
        train_images(model, optimizer, images.contiguous(memory_format=torch.channels_last), labels, device)
        log.step(len(images))


if __name__ == "__main__":
    main()
