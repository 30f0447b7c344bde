"""Charts as rows of text: two values per cell and four levels per row in braille, one value per cell in ASCII.

Pure. The range is always given: a chart that scales itself shows a steady 94 % like a starved GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

# A column of four dots from the bottom up, as bits 0..3, to the bits of its braille pattern (Unicode chapter 21).
_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)


def _pattern(left: int, right: int) -> str:
    code = sum(dot for bit, dot in enumerate(_LEFT_DOTS) if left >> bit & 1)
    code += sum(dot for bit, dot in enumerate(_RIGHT_DOTS) if right >> bit & 1)
    return chr(0x2800 + code) if code else " "


_CELLS = tuple(_pattern(pair >> 4, pair & 15) for pair in range(256))
_ASCII_LEVELS = " _.-=#"


def values_per_cell(unicode: bool) -> int:
    """How many values one cell of a chart's row shows."""
    return 2 if unicode else 1


def area(
    values: Sequence[float | None],
    *,
    low: float,
    high: float,
    height: int = 1,
    peaks: Sequence[float | None] | None = None,
    unicode: bool = True,
) -> list[str]:
    """A filled chart, `height` rows from the top down.

    A measured value shows at least its lowest dot; None and NaN show nothing: a gap is not a zero. `peaks` adds
    one dot per value above the area, which makes swings inside one value's bucket visible.

    Args:
        values: Oldest first; one dot column each.
        low: The value at the bottom edge.
        high: The value at the top edge.
        height: Rows of text.
        peaks: The largest reading inside each value's bucket.
        unicode: False draws with ASCII characters, one value per cell.
    """
    if not unicode:
        return _ascii_area(values, low, high, height)
    top = 4 * height
    scale = top / (high - low) if high > low else 0.0
    columns = [_column(value, low, scale, top) for value in values]
    if peaks is not None:
        columns = [_with_peak(column, peak, low, scale, top) for column, peak in zip(columns, peaks, strict=True)]
    if len(columns) % 2:
        columns.append(0)
    rows = []
    for row in range(height - 1, -1, -1):
        shift = 4 * row
        rows.append(
            "".join(
                [
                    _CELLS[(left >> shift & 15) << 4 | right >> shift & 15]
                    for left, right in zip(columns[::2], columns[1::2], strict=True)
                ]
            )
        )
    return rows


def _level(value: float, low: float, scale: float, top: int) -> int:
    return max(1, min(top, round((value - low) * scale)))


def _column(value: float | None, low: float, scale: float, top: int) -> int:
    if value is None or value != value:
        return 0
    return (1 << _level(value, low, scale, top)) - 1


def _with_peak(column: int, peak: float | None, low: float, scale: float, top: int) -> int:
    if peak is None or peak != peak or not column:
        return column
    return column | 1 << (_level(peak, low, scale, top) - 1)


def _ascii_area(values: Sequence[float | None], low: float, high: float, height: int) -> list[str]:
    steps = len(_ASCII_LEVELS) - 1
    scale = steps * height / (high - low) if high > low else 0.0
    rows = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in values:
            if value is None or value != value:
                cells.append(" ")
                continue
            level = _level(value, low, scale, steps * height) - steps * row
            cells.append(_ASCII_LEVELS[max(0, min(steps, level))])
        rows.append("".join(cells))
    return rows
