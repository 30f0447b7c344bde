"""`python -m tests.man_page --write` makes docs/gpuwatch.1 of the command line; without it, the page is printed."""

from __future__ import annotations

import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from gpuwatch.cli.arguments import _parser

PAGE = Path(__file__).parents[1] / "docs/gpuwatch.1"
_NAME = ".SH NAME\ngpuwatch\n"


def page() -> str:
    """The page, as this Python's argparse words it."""
    parser = _parser()
    parser.complete_all()
    parser._manpage = []  # type: ignore[attr-defined]  # where argparse-manpage looks for sections of its own
    made = Manpage(parser)
    made.manual, made.date = "User Commands", ""
    text = str(made)
    assert _NAME in text
    return text.replace(_NAME, f"{_NAME.rstrip()} \\- why the GPU idles during training, and the line to change\n")


def main() -> int:
    """Writes or prints it."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
