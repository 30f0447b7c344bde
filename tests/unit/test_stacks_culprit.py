"""Which line of a stack is the user's own, and what is at work below it."""

from __future__ import annotations

import pytest
from stack_looks import CALL, MAIN, NEXT, SITE, STDLIB, frame, read

from gpuwatch.hook import hidden
from gpuwatch.sources.stacks.classify import Mark, Owner, Places, culprit_index, mark_of

AUGMENT = "import numpy\n\ndef __getitem__(self, index):\n    return image.resize((64, 64))\n"


def test_the_innermost_line_of_the_user_is_named_with_the_library_function_below_it() -> None:
    found = read(
        ("posixpath.py", "join", 7),
        ("PIL/Image.py", "resize", 2300),
        (MAIN, "__getitem__", 4),
        NEXT,
        (MAIN, "train", 9),
        source=AUGMENT,
    )
    assert found.culprit is not None
    assert (found.culprit.line, found.culprit.function) == (4, "__getitem__")
    assert found.culprit.text == "return image.resize((64, 64))"
    assert found.culprit.leaf == "PIL/Image.py:resize"


def test_a_line_that_runs_itself_has_no_leaf() -> None:
    found = read((MAIN, "__getitem__", 4), NEXT, (MAIN, "train", 9), source=AUGMENT)
    assert found.culprit is not None
    assert found.culprit.leaf is None


def test_a_line_whose_file_cannot_be_read_is_named_without_its_text() -> None:
    found = read((MAIN, "__getitem__", 4), NEXT)
    assert found.culprit is not None
    assert (found.culprit.line, found.culprit.text) == (4, None)


def test_the_calls_that_led_to_the_line_are_known_up_to_the_loaders_next() -> None:
    found = read(
        ("PIL/Image.py", "resize", 2300),
        (MAIN, "warp", 57),
        ("torchvision/transforms/transforms.py", "__call__", 95),
        (MAIN, "walk", 41),
        (MAIN, "walk", 44),
        (MAIN, "__getitem__", 4),
        NEXT,
        (MAIN, "train", 9),
        source=AUGMENT,
    )
    assert [(call.line, call.function, call.callee) for call in found.calls] == [
        (41, "walk", "warp"),
        (4, "__getitem__", "walk"),
    ]
    assert found.calls[1].text == "return image.resize((64, 64))"


def test_calls_are_of_what_may_make_batches_only() -> None:
    own = read((MAIN, "tokenize", 30), (MAIN, "get_batch", 20), (MAIN, "train", 9)).calls
    assert [call.callee for call in own] == ["tokenize", "get_batch", "train"]
    assert read(("torch/optim/sgd.py", "step", 7), (MAIN, "update", 30), (MAIN, "train", 9)).calls == ()


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/ada/project/data.py", Owner.USER),
        ("train.py", Owner.USER),
        ("/tmp/ipykernel_12/345.py", Owner.USER),
        (SITE + "numpy/core.py", Owner.LIBRARY),
        ("/usr/lib/python3/dist-packages/numpy/core.py", Owner.LIBRARY),
        (STDLIB + "json/decoder.py", Owner.STANDARD),
        ("/root/miniconda3/lib/python3.12/random.py", Owner.STANDARD),
        ("<frozen importlib._bootstrap>", Owner.NOBODY),
        ("<string>", Owner.NOBODY),
        ("/tmp/torchinductor_ada/ab/cabc.py", Owner.NOBODY),
        ("/home/ada/gpuwatch/gpuwatch/hook/waits.py", Owner.GPUWATCH),
        ("/home/ada/torch/helpers.py", Owner.USER),
    ],
)
def test_whose_a_file_is(file: str, owner: Owner) -> None:
    assert Places().of(file).owner is owner


def test_a_torch_that_was_built_in_place_is_a_library() -> None:
    places = Places(exists=lambda file: file == "/src/pytorch/torch/nn/modules/module.py")
    assert places.of("/src/pytorch/torch/optim/adam.py").module == "torch/optim/adam.py"
    assert places.of("/src/pytorch/torch/optim/adam.py").owner is Owner.LIBRARY


def test_an_installed_trainer_is_the_users_where_nothing_else_is() -> None:
    inner = [frame(*CALL), frame("mytrainer/model.py", "forward", 5), frame("mytrainer/main.py", "<module>", 9)]
    places = [Places().of(each.code.file) for each in inner]
    assert culprit_index(inner, places) == 1


def test_a_launcher_is_nobodys_own_code() -> None:
    inner = [frame("torch/distributed/run.py", "main", 5), frame("torch/distributed/run.py", "<module>", 9)]
    assert culprit_index(inner, [Places().of(each.code.file) for each in inner]) is None


SAVING = "def keep(path):\n    torch.save(state, path)\n\ndef __getstate__(self):\n    return dict(vars(self))\n"


@pytest.mark.parametrize("called_back", [[], [(MAIN, "__getstate__", 5)], [("pickle.py", "dumps", 3), (MAIN, "f", 5)]])
def test_a_save_is_the_line_that_calls_it_whatever_of_the_users_it_calls_back(
    called_back: list[tuple[str, str, int]],
) -> None:
    saving = [("torch/serialization.py", "_save", 900), ("torch/serialization.py", "save", 800)]
    found = read(*called_back, *saving, (MAIN, "keep", 2), (MAIN, "train", 9), source=SAVING)
    assert (found.phase, found.culprit and found.culprit.line) == ("save", 2)
    assert found.culprit is not None
    assert found.culprit.text == "torch.save(state, path)"
    assert found.culprit.leaf == "torch/serialization.py:_save"


def test_a_save_that_a_save_calls_back_is_the_outer_ones_line() -> None:
    saving = ("torch/serialization.py", "save", 800)
    found = read(saving, (MAIN, "__reduce__", 5), saving, (MAIN, "keep", 2), source=SAVING)
    assert found.culprit is not None
    assert found.culprit.line == 2


def test_what_the_hook_puts_in_the_place_of_torchs_functions_is_gpuwatchs() -> None:
    places = Places(lambda path: False)
    assert places.of(hidden.FILE).owner is Owner.GPUWATCH
    assert mark_of(places.of(f"{hidden.FILE}/hook/api.py"), "__next__") is Mark.NEXT
