"""Some of the unusual jobs: nothing is said that misleads, and what truly hangs or starves is named."""

from __future__ import annotations

import pytest

from tests.scenarios.unusual import JOBS
from tests.scenarios.unusual_score import VIEWS, Stream, in_page, lines_of, page, play, section_of

PLAYED = (
    ("early-stopping", "hooked"),
    ("early-stopping", "no stacks"),
    ("early-stopping", "attached"),
    ("silent-compile", "no stacks"),
    ("silent-compile", "attached"),
    ("rate-limited", "attached"),
    ("mining", "hooked"),
    ("notebook", "attached"),
    ("input", "no stacks"),
    ("recompile", "hooked"),
    ("gan-starved", "hooked"),
    ("deadlock", "hooked"),
    ("deadlock", "attached"),
    ("lock", "hooked"),
)


@pytest.mark.parametrize(("job", "view"), PLAYED)
def test_an_unusual_job_is_told_nothing_that_misleads(job: str, view: str) -> None:
    stream = play(job, view, 1)
    assert stream.outcome == "right", stream.why


def test_the_table_counts_outcomes_by_view_and_names_what_misled() -> None:
    wrong = Stream("upload", "attached", 1, "misleads", ["step-stalled at 90 s (nothing hangs)"], hours=0.5)
    wrong.flips["step-stalled"] = 3
    lines = lines_of([Stream("upload", view, 1, hours=0.5) for view in VIEWS[:2]] + [wrong])
    assert "| all | 2 | 0 | 1 |" in lines
    assert f"| {JOBS['upload'].title} | yes | yes | **misleads** |" in lines
    assert "- upload, attached, seed 1: step-stalled at 90 s (nothing hangs)" in lines
    assert any("step-stalled 2.0" in line for line in lines)


def test_its_section_replaces_the_one_that_a_document_has() -> None:
    section = page([Stream("upload", "hooked", 1)])
    document = in_page("# Title\n\ntext\n\n## Unusual jobs\n\nold\n\n## Random jobs\n\nkept\n", section)
    assert "old" not in document and document.endswith("\n## Random jobs\n\nkept\n")
    assert section_of(document).strip() == section.strip()
    assert in_page("# Title\n", section) == f"# Title\n\n{section.rstrip()}\n"
