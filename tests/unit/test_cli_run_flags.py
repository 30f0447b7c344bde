"""Options of Python with which a command would run without the hook."""

from __future__ import annotations

import pytest

from gpuwatch.cli.run import flag_that_ignores_the_environment


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["python3.11", "-u", "-E", "train.py"], "-E"),
        (["python", "-uS", "train.py"], "-uS"),
        (["python", "-X", "dev", "-I", "train.py"], "-I"),
        (["python", "-Wignore", "-I", "train.py"], "-I"),
        (["python", "-W", "ignore::Exception", "-Xfaulthandler", "-E", "train.py"], "-E"),
        (["python", "train.py", "-I"], None),
        (["python", "-m", "train", "-I"], None),
        (["python", "-mIPython"], None),
        (["python", "-cprint('EIS')"], None),
        (["python", "-WError", "-XImporttime", "train.py"], None),
        (["python", "-W", "-I", "train.py"], None),
        (["python", "-", "-I"], None),
        (["torchrun", "-I"], None),
    ],
)
def test_the_flag_is_found_where_python_reads_it(argv: list[str], flag: str | None) -> None:
    assert flag_that_ignores_the_environment(argv) == flag
