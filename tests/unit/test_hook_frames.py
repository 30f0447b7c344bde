"""Whose line a call is attributed to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwatch.hook import quiet

PACKAGES = "/opt/venv/lib/python3.11/site-packages"


def module(name: str, file: str, source: str, **names: Any) -> dict[str, Any]:
    """The names of a module with that source, as if it had been imported from that file."""
    namespace: dict[str, Any] = {"__name__": name, "__file__": file, **names}
    exec(compile(source, file, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("hook", ["_gpuwatch_hook", "gpuwatch.hook"])
def test_the_library_that_built_a_loader_is_named_where_the_hook_is_installed_too(hook: str) -> None:
    folder = f"{PACKAGES}/gpuwatch/hook"
    source = Path(quiet.__file__).read_text(encoding="utf-8")
    place = module(f"{hook}.quiet", f"{folder}/quiet.py", source, __package__="gpuwatch.hook")["calling_place"]
    wrapper = "def __init__():\n    return calling_place()\n"
    built = module(f"{hook}.built", f"{folder}/built.py (importlib_bootstrap)", wrapper, calling_place=place)
    loader = module("torch.utils.data", f"{PACKAGES}/torch/utils/data.py", "def make(): return init()\n")
    trainer = module("transformers.trainer", f"{PACKAGES}/transformers/trainer.py", "def train(): return make()\n")
    loader["init"], trainer["make"] = built["__init__"], loader["make"]
    by_library = module("__main__", "/home/ada/train.py", "def main(): return train()\n", train=trainer["train"])
    by_user = module("__main__", "/home/ada/train.py", "def main(): return make()\n", make=loader["make"])
    assert by_library["main"]() == ("/home/ada/train.py", 1, "main", "transformers")
    assert by_user["main"]() == ("/home/ada/train.py", 1, "main", None)
