"""Writes tables row by row: as CSV, or as Parquet in groups of rows, so that memory stays small whatever the length."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Protocol

from gpuwatch.export.tables import TABLES, Row, Table

_GROUP_ROWS = 16_384
"""Of each of some twenty tables: 50 000 as dictionaries took 263 MB, these 143, of which pyarrow itself is 68."""


class MissingLibraryError(Exception):
    """What the format needs is not installed: one sentence with the cure."""


class TableWriter(Protocol):
    """One table in one file."""

    def write(self, row: Row) -> None:
        """Adds a row."""

    def close(self) -> None:
        """Writes what is left. The caller closes the file that it opened."""


_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection), full-width ones too."""


class CsvWriter:
    """RFC 4180 with a header line, as pandas and every spreadsheet read it; an empty cell is not known.

    A text that a spreadsheet would run as a formula gets an apostrophe before it: names and commands come from other
    processes.
    """

    def __init__(self, table: Table, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._names = [name for name, _ in table.header()]
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(self._names)

    def write(self, row: Row) -> None:
        """Adds a row."""
        self._writer.writerow([_inert(row[name]) for name in self._names])

    def close(self) -> None:
        """Flushes, and leaves the file open."""
        self._text.flush()
        self._text.detach()


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


class ParquetWriter:
    """Groups of rows with typed columns; unknown is null.

    Raises:
        MissingLibraryError: pyarrow is not installed.
    """

    def __init__(self, table: Table, file: BinaryIO) -> None:
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingLibraryError(
                "--parquet is written with pyarrow, which is not installed: pip install 'gpuwatch[parquet]'"
            ) from None
        types: Mapping[str, Any] = {
            "float": arrow.float64(),
            "time": arrow.float64(),
            "int": arrow.int64(),
            "str": arrow.string(),
            "bool": arrow.bool_(),
        }
        self._arrow = arrow
        self._schema = arrow.schema([(name, types[kind]) for name, kind in table.header()])
        self._file = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name, _ in table.header()}
        self._rows = 0

    def write(self, row: Row) -> None:
        """Adds a row."""
        for name, column in self._columns.items():
            column.append(row[name])
        self._rows += 1
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Writes the last group and the footer."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(self._arrow.Table.from_pydict(self._columns, schema=self._schema))
            for column in self._columns.values():
                column.clear()
            self._rows = 0


class TableFiles:
    """The files of some tables; each is opened with its first row, so that there is none without rows."""

    def __init__(self, make: Callable[[Table, BinaryIO], TableWriter], open_file: Callable[[str], BinaryIO]) -> None:
        self._make = make
        self._open = open_file
        self._writers: dict[str, TableWriter] = {}
        self.rows: dict[str, int] = {}

    def begin(self, name: str) -> None:
        """Opens a table's file although it may stay without rows."""
        if name not in self._writers:
            self._writers[name] = self._make(TABLES[name], self._open(name))
            self.rows[name] = 0

    def write(self, name: str, row: Row) -> None:
        """Adds a row to its table."""
        self.begin(name)
        self._writers[name].write(row)
        self.rows[name] += 1

    def close(self) -> None:
        """Writes what is left of all."""
        for writer in self._writers.values():
            writer.close()
