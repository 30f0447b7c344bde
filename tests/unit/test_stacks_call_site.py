"""Where the text of a script says that a loop's loader was built."""

from __future__ import annotations

import ast
import textwrap

import pytest

from gpuwatch.sources.syntax_child import loader_line


def found(source: str, loop: str | None) -> str | None:
    """The text of the line that is found for the loop that begins with `loop`."""
    text = textwrap.dedent(source)
    lines = text.splitlines()
    line = None if loop is None else next(n for n, each in enumerate(lines, 1) if each.strip().startswith(loop))
    built = loader_line(ast.parse(text), line)
    return None if built is None else lines[built - 1].strip()


TWO = """
    train_loader = DataLoader(train, shuffle=True)
    val_loader = torch.utils.data.DataLoader(val)
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for x in train_loader:",
        "for step, x in enumerate(train_loader):",
        "for x in tqdm(train_loader, desc='epoch'):",
        "for step, x in enumerate(tqdm(train_loader), 1):",
    ],
)
def test_a_name_is_followed_through_what_passes_batches_on(loop: str) -> None:
    assert found(TWO + f"    {loop}\n        pass\n", "for") == "train_loader = DataLoader(train, shuffle=True)"


def test_next_on_an_iterator_is_followed_to_its_loader() -> None:
    source = TWO + "    batches = iter(val_loader)\n    while True:\n        x = next(batches)\n"
    assert found(source, "x = next") == "val_loader = torch.utils.data.DataLoader(val)"


def test_an_argument_is_followed_to_the_caller() -> None:
    source = """
    def train(model, loader):
        for x in loader:
            pass

    def main():
        a = DataLoader(first)
        b = DataLoader(second)
        train(model, b)
    """
    assert found(source, "for x") == "b = DataLoader(second)"


def test_one_function_over_two_loaders_names_neither() -> None:
    source = """
    def run(loader):
        for x in loader:
            pass

    a = DataLoader(first)
    b = DataLoader(second)
    run(a)
    run(b)
    """
    assert found(source, "for x") is None


def test_an_attribute_is_followed_to_where_it_is_set() -> None:
    source = """
    class Trainer:
        def __init__(self):
            self.train_loader = DataLoader(train)
            self.val_loader = DataLoader(val)

        def fit(self):
            for x in self.val_loader:
                pass
    """
    assert found(source, "for x") == "self.val_loader = DataLoader(val)"


def test_a_prepared_loader_is_the_one_that_was_handed_over() -> None:
    source = (
        TWO
        + "    model, train_loader = accelerator.prepare(model, train_loader)\n"
        + "    for x in train_loader:\n        pass\n"
    )
    assert found(source, "for x") == "train_loader = DataLoader(train, shuffle=True)"


def test_a_function_that_returns_a_loader_is_looked_into() -> None:
    source = """
    def make(data):
        loader = DataLoader(data)
        return loader

    other = DataLoader(more)
    for x in make(train):
        pass
    """
    assert found(source, "for x") == "loader = DataLoader(data)"


def test_the_only_loader_of_a_file_is_taken_where_the_loop_is_elsewhere() -> None:
    assert found("loader = DataLoader(data)\ntrainer.fit(model, loader)\n", None) == "loader = DataLoader(data)"


def test_of_two_loaders_none_is_guessed() -> None:
    assert found(TWO, None) is None
