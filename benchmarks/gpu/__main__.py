"""The labelled trainings on one NVIDIA GPU: what gpuwatch says against what it has to say.

    python -m benchmarks.gpu [--scenario G02,G05] [--list] [--out FOLDER] [--budget-seconds 570]

Runs the items most important first, prints a row for each as it goes, and writes table.md, table.json and the recorded
sample streams under --out after each. What no longer fits into the budget is listed as not run. Exits 1 when a verdict
is wrong or an item failed. Changes no clocks, no power limit and no MIG, and resets nothing.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks.gpu.catalogue import chosen

DEFAULT_OUT = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", metavar="IDS", help="only these, with commas; G05 means all that begin so")
    parser.add_argument("--list", action="store_true", help="what there is, and how long each takes")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="FOLDER")
    parser.add_argument("--budget-seconds", type=float, default=570.0, metavar="S")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=argparse.SUPPRESS)
    parser.add_argument("--watch-seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        items = chosen(args.scenario)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for item in items:
            print(f"{item.id:15} {item.expected_seconds:4.0f} s  {item.title}")
        print(f"{'all':15} {sum(item.expected_seconds for item in items):4.0f} s")
        return 0
    signal.signal(signal.SIGTERM, _end)
    from benchmarks.gpu.suite import Suite

    try:
        wrong = Suite(args.out, args.budget_seconds, device=args.device, watch_seconds=args.watch_seconds).run(items)
    except KeyboardInterrupt:
        return 130
    return int(wrong > 0)


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the trainings too, as an exception that unwinds does."""
    sys.exit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main())
