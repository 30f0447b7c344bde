"""CSV that a spreadsheet opens: names and commands of other processes stay text."""

from __future__ import annotations

import csv
import io

import pytest

from gpuwatch.export.tables import TABLES, CsvWriter

TABLE = TABLES["gpu_facts"]
EMPTY = dict.fromkeys(name for name, _ in TABLE.header())


def written(**cells: object) -> dict[str, str]:
    file = io.BytesIO()
    writer = CsvWriter(TABLE, file)
    writer.write(EMPTY | cells)
    writer.close()
    (row,) = csv.DictReader(io.StringIO(file.getvalue().decode()))
    return row


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1", "-1+cmd|'/c calc'!A0", "@SUM(A1)", "\uff1d1+1"])
def test_what_a_spreadsheet_would_run_gets_an_apostrophe(name: str) -> None:
    assert written(name=name)["name"] == f"'{name}"


def test_other_text_and_numbers_below_zero_are_as_they_are() -> None:
    row = written(name="NVIDIA H100", time_seconds=-1.5)
    assert (row["name"], row["time_seconds"]) == ("NVIDIA H100", "-1.5")
