"""docs/faults.md and docs/security.md name tests that exist; the first has a row for each fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "fewest"), [(PAGE, 60), (SECURITY, 50)], ids=["faults", "security"])
def test_every_test_that_a_page_names_exists(page: str, fewest: int) -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", page)
    assert len(named) > fewest
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not missing


def test_each_fault_has_one_row_and_a_row_without_a_test_says_why() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \| ([^|]*)\|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 49))
    for number, state, tests in rows:
        assert tests.strip() or state.startswith("not inject"), number
        assert state.startswith("held") or ":" in state, number
