"""Columns as the text of a CSV file, as the module `csv` writes it row by row.

Most of what a large table says, it says often: what is different is put into words once, and
columns of few different values that stand side by side are put together once per combination.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.tables.columns import Coded, TableColumn

LINE_END = "\r\n"
ROWS_AT_ONCE = 1 << 15
"""Rows converted to text at a time: as many as memory allows."""


def header(table: Mapping[str, TableColumn]) -> str:
    """The line with the names of the columns."""
    return ",".join(map(_cell, table)) + LINE_END


def lines(table: Mapping[str, TableColumn]) -> Iterator[str]:
    """The rows, many lines at a time."""
    side_by_side = list(_joined(table.values()))
    for first in range(0, max(map(len, side_by_side)), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        cells = [_cells(column, rows) for column in side_by_side]
        yield LINE_END.join([*map(",".join, zip(*cells, strict=True)), ""])


def _joined(table: Iterable[TableColumn]) -> Iterator[TableColumn]:
    """Fewer columns of text: neighbouring columns become one while they have no more combinations
    of values than rows."""
    before: Coded | None = None
    for column in table:
        worded = _worded(column) if isinstance(column, Coded) else None
        if (
            before is not None
            and worded is not None
            and _combinations(before, worded) <= len(column)
        ):
            before = _pair(before, worded)
            continue
        if before is not None:
            yield before
        before = worded
        if worded is None:
            yield column
    if before is not None:
        yield before


def _worded(column: Coded) -> Coded:
    return Coded([_cell(value) for value in column.values], column.codes)


def _combinations(first: Coded, second: Coded) -> int:
    return len(first.values) * len(second.values)


def _pair(first: Coded, second: Coded) -> Coded:
    words = [f"{one},{other}" for one in first.values for other in second.values]
    return Coded(words, first.codes.astype(np.int64) * len(second.values) + second.codes)


def _cells(column: TableColumn, rows: slice) -> list[str]:
    """A column as text, row by row."""
    if isinstance(column, Coded):
        return _looked_up(column.values, column.codes[rows])
    values = column[rows]
    if values.dtype != np.float64:
        return [repr(value) for value in values.tolist()]
    bits, which = np.unique(values.view(np.int64), return_inverse=True)  # 0.0 and -0.0 are two
    return _looked_up([repr(value) for value in bits.view(np.float64).tolist()], which.reshape(-1))


def _looked_up(words: Sequence[str], codes: NDArray[np.integer[Any]]) -> list[str]:
    return np.array(words, np.object_)[codes].tolist()


def _cell(value: object) -> str:
    """A value as `csv` writes it beside others."""
    text = io.StringIO()
    csv.writer(text, lineterminator=LINE_END).writerow([value, None])
    return text.getvalue().removesuffix(f",{LINE_END}")


__all__ = ["header", "lines"]
