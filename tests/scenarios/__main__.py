"""`python -m tests.scenarios`: plays the labelled streams and prints how often the diagnosis is right."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpuwatch.diagnosis.rules import all_rules
from tests.scenarios.attached import EVERY
from tests.scenarios.playing import play
from tests.scenarios.random_jobs import RANDOM, page, scored_random
from tests.scenarios.score import scored
from tests.scenarios.table import markdown, text
from tests.scenarios.unusual import JOBS
from tests.scenarios.unusual_score import in_page, play_all, section_of
from tests.scenarios.unusual_score import page as page_of_unusual

SEEDS = 20
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "diagnosis-accuracy.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays what was asked for; stdout is the table."""
    asked = _parser().parse_args(arguments)
    unknown = sorted(set(asked.scenario or ()) - set(EVERY))
    if unknown:
        print(f"no scenario is called {', '.join(unknown)}; there are {', '.join(EVERY)}", file=sys.stderr)
        return 2
    seeds = [
        seed
        for seed in (asked.seeds or range(1, SEEDS + 1))
        if not ((asked.even and seed % 2) or (asked.odd and not seed % 2))
    ]
    if asked.unusual:
        return _play_unusual(asked.jobs, write=asked.write)
    names = asked.scenario or list(EVERY)
    began = time.monotonic()
    results = play(
        [(name, seed) for name in names for seed in seeds if asked.scenario or EVERY[name].is_played(seed)],
        asked.jobs,
    )
    built = [rule.id for rule in all_rules()]
    score = scored([one for one in results if EVERY[one.scenario].hooked], built)
    outside = scored([one for one in results if not EVERY[one.scenario].hooked], built)
    took = time.monotonic() - began
    print(text(score, outside, seeds, took))
    unlabelled = _random_page(asked.random, asked.jobs) if asked.random else ""
    print(unlabelled)
    if asked.write:
        unusual = section_of(DOCUMENT.read_text(encoding="utf-8"))
        _write(f"{markdown(score, outside, seeds).rstrip()}\n\n{unlabelled.rstrip()}\n\n{unusual}")
    return 0


def _play_unusual(jobs: int, *, write: bool) -> int:
    section = page_of_unusual(play_all(JOBS, (1,), jobs))
    print(section)
    if write:
        _write(in_page(DOCUMENT.read_text(encoding="utf-8"), section))
    return 0


def _write(document: str) -> None:
    DOCUMENT.write_text(f"{document.rstrip()}\n", encoding="utf-8")
    print(f"wrote {DOCUMENT.relative_to(Path.cwd()) if DOCUMENT.is_relative_to(Path.cwd()) else DOCUMENT}")


def _random_page(count: int, jobs: int) -> str:
    hooked, attached = (
        scored_random(play([(name, number) for number in range(1, count + 1)], jobs)) for name in RANDOM
    )
    return page(hooked, attached)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__)
    parser.add_argument("--scenario", action="append", metavar="ID", help="only this one; may be repeated")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help=f"only these (default: 1 to {SEEDS})")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--even", action="store_true", help="even seeds: to report")
    which.add_argument("--odd", action="store_true", help="odd seeds: to look at while rules change")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="processes at a time"
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="also play N random jobs, each twice")
    parser.add_argument("--unusual", action="store_true", help="play the unusual jobs instead, each in three ways")
    parser.add_argument("--write", action="store_true", help=f"also write docs/{DOCUMENT.name}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
