"""`python -m tests.programs --programs DIR`: training programs of other people, unmodified, hooked and attached.

Nothing is downloaded: DIR holds clones of the programs that `tests/programs/catalogue.py` names, and random data of the
right shape takes the place of their data. A program that is missing, or whose modules are missing, is left out with the
reason. Each one runs three times: alone, hooked, and attached to without a hook. What is compared:

- its output: with the hook the same as alone, line for line, except for times;
- its pace: the iterations per second that it prints itself, and those in the report, for the same seconds;
- the share of the time in which it makes batches, if it has no loader: from py-spy and from the report, for the same
  seconds;
- the warnings in the report; the catalogue names those that the program deserves. Then whether the patch applies.

A run takes about 50 s. The machine should do nothing else; with few cores, use one thread per program
(OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from tests.programs.catalogue import PROGRAMS, Program
from tests.programs.running import Output, Seen, alone, missing, watched

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "real-programs.md"
TABLE = (
    "| program | how | output | iterations/s, printed | iterations/s, report | making batches, py-spy "
    "| making batches, report | warnings | patch |",
    "|---|---|---|---|---|---|---|---|---|",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, metavar="DIR", help="where the clones are")
    parser.add_argument("--only", action="append", choices=tuple(PROGRAMS), help="this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=35.0, help="how long each is watched")
    parser.add_argument("--write", metavar="CONDITIONS", help=f"also write docs/{DOCUMENT.name}: on what, from where")
    args = parser.parse_args()
    rows: list[str] = []
    print("\n".join(TABLE), flush=True)
    for name in args.only or PROGRAMS:
        for row in _rows(PROGRAMS[name], args.programs.resolve(), args.seconds):
            rows.append(row)
            print(row, flush=True)
    if args.write:
        before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
        DOCUMENT.write_text(document(before, rows, args.write), encoding="utf-8")
    return 0


def document(before: str, rows: list[str], conditions: str) -> str:
    """The document with these rows in place of its own of the same programs, in the catalogue's order."""
    played = {_program(row) for row in rows}
    kept = [row for row in before.splitlines() if _program(row) in PROGRAMS and _program(row) not in played]
    order = list(PROGRAMS)
    ordered = sorted((*kept, *rows), key=lambda row: order.index(_program(row)))
    origins = [f"- {program.id}: {program.origin}" for program in PROGRAMS.values()]
    head = (__doc__ or "").splitlines()
    taken = f"Taken {conditions}."
    return "\n".join(("# Other people's programs", "", *head, "", *origins, "", taken, "", *TABLE, *ordered, ""))


def _program(row: str) -> str:
    return row.split("|")[1].strip() if row.count("|") > 1 else ""


def _rows(program: Program, programs: Path, seconds: float) -> list[str]:
    reason = missing(program, programs)
    if reason is not None:
        return [f"| {program.id} | - | not run: {reason} | | | | | | |"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:  # one for all three runs, for a traceback or a warning names it
        plain = alone(program, programs, Path(folder), seconds)
        for hooked in (True, False):
            seen = watched(program, programs, Path(folder), seconds, hooked=hooked)
            rows.append(_row(program, plain, seen, hooked=hooked))
    return rows


def _row(program: Program, plain: Output, seen: Seen, *, hooked: bool) -> str:
    cells = (
        program.id,
        "hooked" if hooked else "attached",
        difference(program, plain.words(), seen.output.words()) or "the same",
        number(own_pace(program, seen)),
        number(reported_pace(seen)),
        percent(seen.oracle_share),
        percent(reported_share(seen)),
        ", ".join(warnings(program, seen)) or "none",
        seen.patch_fault or "applies",
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def difference(program: Program, plain: list[str], other: list[str]) -> str | None:
    """The first line that differs in more than its times; one run may have come further than the other."""
    timing = re.compile(program.timing)
    for number_of, (one, two) in enumerate(zip_longest(plain, other), 1):
        if one is None or two is None:
            return None
        if timing.sub("", one) != timing.sub("", two):
            return f"line {number_of}: {two!r} in place of {one!r}"
    return None


def own_pace(program: Program, seen: Seen) -> float | None:
    """Iterations per second, between the first and the last line about one that came while it was watched."""
    line = re.compile(program.iteration)
    moments = [at for at, words in seen.output.lines if line.search(words) and seen.began <= at <= seen.ended]
    if len(moments) < 3:
        return None
    return (len(moments) - 1) * program.iterations_per_line / (moments[-1] - moments[0])


def reported_pace(seen: Seen) -> float | None:
    run = _run(seen)
    pace = None if run is None else run["steps_per_second"]
    return None if pace is None else float(pace)


def reported_share(seen: Seen) -> float | None:
    """Of making batches: of a loop without a loader, what the finding says of its function."""
    for finding in seen.report["findings"]:
        if "own_loading_share" in finding["evidence"]:
            return float(finding["evidence"]["own_loading_share"])
    run = _run(seen)
    share = None if run is None else run["data_wait_share"]
    return None if share is None else float(share)


def _run(seen: Seen) -> dict[str, object] | None:
    runs = seen.report["runs"]
    return runs[0] if runs else None


def warnings(program: Program, seen: Seen) -> list[str]:
    """Each with a mark where it is undeserved, then those that are missing."""
    bad = [each["rule"] for each in seen.report["findings"] if each["severity"] in ("warning", "critical")]
    said = [rule if rule in program.may | program.must else f"**{rule}**" for rule in bad]
    return said + [f"**missing: {rule}**" for rule in sorted(program.must - set(bad))]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main())
