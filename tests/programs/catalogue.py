"""Which programs, where their source is, and what stands in for the data that they would fetch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.programs import data


@dataclass(frozen=True, slots=True)
class Program:
    """One training program of somebody else's.

    `iteration` matches the line that it prints after each `iterations_per_line` iterations of its loop. `timing`
    matches what differs between two runs that compute the same. `batch_function` makes the batches of a loop without
    a loader. `must` and `may` hold the rules whose warnings are right here; any other warning counts as undeserved.
    """

    id: str
    origin: str
    folder: str
    script: str
    arguments: tuple[str, ...]
    data: Callable[[Path], None]
    iteration: str
    iterations_per_line: int = 1
    timing: str = r"(?!)"
    needs: tuple[str, ...] = ()
    batch_function: str | None = None
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


def _no_data(_: Path) -> None:
    """It makes its own."""


def _slowed_get_batch(folder: Path) -> None:
    """nanoGPT with its data on a slow disk, as a line that sleeps: the one change that is made to any program."""
    data.token_files(folder / "data" / "shakespeare_char")
    script = folder / "train.py"
    text = script.read_text(encoding="utf-8")
    head = "def get_batch(split):\n"
    if head not in text:
        raise RuntimeError(f"{script} has no get_batch(split)")
    script.write_text(text.replace(head, f"{head}    time.sleep(0.1)\n"), encoding="utf-8")


_SMALL_GPT = (
    "--dataset=shakespeare_char",
    "--device=cpu",
    "--compile=False",
    "--eval_interval=100000",
    "--eval_iters=2",
    "--log_interval=1",
    "--block_size=64",
    "--batch_size=12",
    "--n_layer=4",
    "--n_head=4",
    "--n_embd=128",
    "--gradient_accumulation_steps=1",
    "--dtype=float32",
)

PROGRAMS = {
    program.id: program
    for program in (
        Program(
            "nanogpt",
            "github.com/karpathy/nanoGPT",
            "nanoGPT",
            "train.py",
            _SMALL_GPT,
            lambda folder: data.token_files(folder / "data" / "shakespeare_char"),
            iteration=r"^iter \d+: loss",
            timing=r"time [\d.]+ms, mfu [-\d.]+%",
            batch_function="get_batch",
        ),
        Program(
            "nanogpt-slow-disk",
            "github.com/karpathy/nanoGPT, with 0.1 s of sleep in get_batch",
            "nanoGPT",
            "train.py",
            _SMALL_GPT,
            _slowed_get_batch,
            iteration=r"^iter \d+: loss",
            timing=r"time [\d.]+ms, mfu [-\d.]+%",
            batch_function="get_batch",
            must=frozenset({"data-starvation"}),
        ),
        Program(
            "nanogpt-accumulating",
            "github.com/karpathy/nanoGPT",
            "nanoGPT",
            "train.py",
            (*_SMALL_GPT[:-2], "--gradient_accumulation_steps=8", "--dtype=float32"),
            lambda folder: data.token_files(folder / "data" / "shakespeare_char"),
            iteration=r"^iter \d+: loss",
            timing=r"time [\d.]+ms, mfu [-\d.]+%",
            batch_function="get_batch",
        ),
        Program(
            "word-language-model",
            "github.com/pytorch/examples, word_language_model",
            "pytorch-examples/word_language_model",
            "main.py",
            ("--data", "data", "--log-interval", "5", "--epochs", "100"),
            lambda folder: data.text_files(folder / "data"),
            iteration=r"^\| epoch +\d+ \| +\d+/ *\d+ batches",
            iterations_per_line=5,
            timing=r"(ms/batch +[\d.]+|time: +[\d.]+s)",
            batch_function="get_batch",
        ),
        Program(
            "mnist",
            "github.com/pytorch/examples, mnist",
            "pytorch-examples",
            "mnist/main.py",
            ("--no-cuda", "--epochs", "100", "--log-interval", "10"),
            lambda folder: data.mnist_files(folder.parent / "data"),
            iteration=r"^Train Epoch: \d+ \[",
            iterations_per_line=10,
            needs=("torchvision",),
        ),
        Program(
            "vae",
            "github.com/pytorch/examples, vae",
            "pytorch-examples",
            "vae/main.py",
            ("--no-accel", "--epochs", "100", "--log-interval", "10"),
            lambda folder: (data.mnist_files(folder.parent / "data"), (folder / "results").mkdir())[0],
            iteration=r"^Train Epoch: \d+ \[",
            iterations_per_line=10,
            needs=("torchvision",),
        ),
        Program(
            "dcgan",
            "github.com/pytorch/examples, dcgan",
            "pytorch-examples/dcgan",
            "main.py",
            ("--dataset", "fake", "--manualSeed", "1", "--batchSize", "16", "--ngf", "16", "--ndf", "16"),
            _no_data,
            iteration=r"^\[\d+/\d+\]\[\d+/\d+\] Loss_D",
            needs=("torchvision",),
        ),
    )
}
