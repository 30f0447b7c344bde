"""`python -m tests.rule_pages`: says which pages of docs/rules are stale; `--write` makes them again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.rule_pages.pages import FOLDER, content, names


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares or writes all pages, or those named."""
    asked = _parser().parse_args(arguments)
    wanted = [name for name in names() if not asked.rule or name.removesuffix(".md") in asked.rule]
    FOLDER.mkdir(exist_ok=True)
    stale = [name for name in wanted if _has_changed(name, write=asked.write)]
    if not asked.rule:
        for left in sorted({path.name for path in FOLDER.glob("*.md")} - set(names())):
            stale.append(left)
            if asked.write:
                (FOLDER / left).unlink()
    for name in stale:
        print(f"{'wrote' if asked.write else 'stale'}: docs/rules/{name}")
    return 1 if stale and not asked.write else 0


def _has_changed(name: str, *, write: bool) -> bool:
    path, now = FOLDER / name, content(name)
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if write and before != now:
        path.write_text(now, encoding="utf-8")
    return before != now


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.rule_pages", description=__doc__)
    parser.add_argument("rule", nargs="*", help="only these")
    parser.add_argument("--write", action="store_true", help="write what is stale")
    return parser


if __name__ == "__main__":
    sys.exit(main())
