"""`python -m tests.scenarios.real`: real trainings with known troubles, and what the diagnosis says of each.

About 40 s for each workload, hooked and attached, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.scenarios.real.catalogue import WORKLOADS
from tests.scenarios.real.judging import Verdict, judged
from tests.scenarios.real.playing import reports

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "real-workloads.md"
HEAD = """# Real trainings on the CPU

`python -m tests.scenarios.real --write` wrote this page. Each training really runs, on a CPU, once with the hook and
once without it, attached to from outside; a sleep takes the place of the GPU's part of a step. A row is right if the
report has every finding that it must have and no other warning, and names the right line and the right state. Each run
of the command replaces only the rows that it played.

"""
TABLE = ("| workload | how | right | findings | what is wrong |", "|---|---|---|---|---|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=tuple(WORKLOADS), help="only this one; may be repeated")
    parser.add_argument("--how", choices=("hooked", "attached"), help="only watched in this way (default: both)")
    parser.add_argument("--twice", action="store_true", help="a second monitor after the first must say the same")
    parser.add_argument("--write", action="store_true", help=f"also write docs/{DOCUMENT.name}")
    args = parser.parse_args()
    print("\n".join(TABLE), flush=True)
    rows: list[str] = []
    wrong = 0
    for name in args.workload or WORKLOADS:
        for how in (args.how,) if args.how else ("hooked", "attached"):
            row, is_right = _played(name, how == "attached", 2 if args.twice else 1)
            wrong += not is_right
            rows.append(row)
            print(row, flush=True)
    if args.write:
        before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
        DOCUMENT.write_text(document(before, rows), encoding="utf-8")
    return int(wrong > 0)


def document(before: str, rows: list[str]) -> str:
    """The document with these rows in place of those of the same training and way, in the catalogue's order."""
    kept = {_subject(row): row for row in before.splitlines() if row.startswith("| R")}
    kept.update((_subject(row), row) for row in rows)
    place = {name: number for number, name in enumerate(WORKLOADS)}
    known = {subject: row for subject, row in kept.items() if subject[0] in place}
    ordered = sorted(known.items(), key=lambda item: (place[item[0][0]], item[0][1] == "attached"))
    return HEAD + "\n".join((*TABLE, *(row for _, row in ordered))) + "\n"


def _subject(row: str) -> tuple[str, str]:
    """The workload's id and how it was watched."""
    _, workload, how, *_ = row.split("|")
    return workload.split()[0], how.strip()


def _played(name: str, attached: bool, times: int) -> tuple[str, bool]:
    """A row of the table, and whether all is right."""
    workload = WORKLOADS[name]
    head = f"| {name} {workload.title} | {'attached' if attached else 'hooked'} |"
    reason = workload.needs()
    if reason is not None:
        return f"{head} - | not run: {reason} | |", True
    verdicts = [
        judged(workload, report, attached=attached) for report in reports(workload, attached=attached, times=times)
    ]
    is_right = all(each.is_right for each in verdicts)
    said = " / ".join(", ".join(each.found) or "nothing" for each in verdicts)
    return f"{head} {'yes' if is_right else '**no**'} | {said} | {' / '.join(map(_faults, verdicts))} |", is_right


def _faults(verdict: Verdict) -> str:
    faults = [
        *(f"missing {each}" for each in verdict.missing),
        *(f"false {each}" for each in verdict.false),
        verdict.misplaced or "",
        verdict.misnamed or "",
    ]
    return "; ".join(fault.replace("|", "·") for fault in faults if fault)


if __name__ == "__main__":
    sys.exit(main())
