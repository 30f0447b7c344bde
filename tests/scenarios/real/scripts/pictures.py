"""A training on JPEG pictures that are decoded and rotated on the CPU."""

import argparse
import io
import random
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, side):
        noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "JPEG", quality=85)
        self.bytes = file.getvalue()

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        picture = Image.open(io.BytesIO(self.bytes)).convert("RGB")
        picture = picture.rotate(random.uniform(-15, 15), resample=Image.Resampling.BICUBIC)  # the rotation
        picture = picture.resize((64, 64))
        return torch.from_numpy(np.asarray(picture).copy()), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--side", type=int, default=384)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(args.side), batch_size=8, num_workers=args.workers)  # the loader
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, labels in loader:
        time.sleep(0.01)
        loss = nn.functional.cross_entropy(model(inputs.float() / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
