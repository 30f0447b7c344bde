"""Data of the right shape for programs that would fetch theirs: random, seeded, and made in a moment."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
from pathlib import Path

_WORDS = 5_000


def token_files(folder: Path) -> None:
    """nanoGPT's `train.bin`, `val.bin` and `meta.pkl`: tokens of a vocabulary of 65 characters, two bytes each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))
    numbers = random.Random(1)
    for name, tokens in (("train.bin", 1_000_000), ("val.bin", 100_000)):
        (folder / name).write_bytes(b"".join(struct.pack("<H", numbers.randrange(65)) for _ in range(tokens)))


def text_files(folder: Path) -> None:
    """The three texts of a language model's corpus, drawn from a vocabulary of 5,000 words."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(2)
    for name, lines in (("train.txt", 20_000), ("valid.txt", 1_000), ("test.txt", 1_000)):
        text = "\n".join(" ".join(f"w{numbers.randrange(_WORDS)}" for _ in range(20)) for _ in range(lines))
        (folder / name).write_text(text + "\n", encoding="utf-8")


def mnist_files(folder: Path) -> None:
    """MNIST's four files as `torchvision.datasets.MNIST(folder, download=True)` finds them already there."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(3)
    for part, images in (("train", 60_000), ("t10k", 10_000)):
        pixels = numbers.randbytes(28 * 28 * images)
        labels = bytes(numbers.randrange(10) for _ in range(images))
        _write(raw / f"{part}-images-idx3-ubyte", struct.pack(">IIII", 0x803, images, 28, 28) + pixels)
        _write(raw / f"{part}-labels-idx1-ubyte", struct.pack(">II", 0x801, images) + labels)


def _write(path: Path, data: bytes) -> None:
    """The file, and the archive that torchvision looks for as well."""
    path.write_bytes(data)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 0))
