"""Charts as rows of text: two values per cell and four levels per row in braille, one value per cell in ASCII.

Pure. The range is always given: a chart that scales itself shows a steady 94 % like a starved GPU.
"""

from __future__ import annotations

from functools import lru_cache

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


@lru_cache(maxsize=512)
def area(
    values: tuple[float | None, ...],
    *,
    low: float,
    high: float,
    height: int = 1,
    peaks: tuple[float | None, ...] | None = None,
    headroom: bool = True,
    unicode: bool = True,
) -> tuple[str, ...]:
    """A filled chart, `height` rows from the top down.

    A measured value shows at least its lowest dot; None and NaN show nothing: a gap is not a zero. `peaks` adds
    one dot per value above the area, which makes swings inside one value's bucket visible. Cached: most charts of a
    frame are those of the frame before.

    Args:
        values: Oldest first; one dot column each.
        low: The value at the bottom edge.
        high: The value at the top edge.
        height: Rows of text.
        peaks: The largest reading inside each value's bucket.
        headroom: Leaves the topmost dots free, so that full charts in lines below each other stay apart.
        unicode: False draws with ASCII characters, one value per cell.
    """
    if not unicode:
        return _ascii_area(values, low, high, height)
    top = 4 * height - (1 if headroom else 0)
    scale = top / (high - low) if high > low else 0.0
    # One comprehension per chart: 20 charts of 90 values a second cost 40 ms a minute this way, thrice with calls.
    levels = [
        0 if value is None or value != value else max(1, min(top, int((value - low) * scale + 0.5))) for value in values
    ]
    columns = [(1 << level) - 1 for level in levels]
    if peaks is not None:
        tops = [0 if peak is None or peak != peak else int((peak - low) * scale + 0.5) for peak in peaks]
        columns = [
            column | 1 << max(0, min(top, peak) - 1) if column else 0
            for column, peak in zip(columns, tops, strict=True)
        ]
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
    return tuple(rows)


def _ascii_area(values: tuple[float | None, ...], low: float, high: float, height: int) -> tuple[str, ...]:
    steps = len(_ASCII_LEVELS) - 1
    scale = steps * height / (high - low) if high > low else 0.0
    rows = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in values:
            if value is None or value != value:
                cells.append(" ")
                continue
            level = max(1, int((value - low) * scale + 0.5)) - steps * row
            cells.append(_ASCII_LEVELS[max(0, min(steps, level))])
        rows.append("".join(cells))
    return tuple(rows)
