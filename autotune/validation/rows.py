"""Measured runs from a CSV file: one row each, blank where something was not stated.

The columns are those of `COLUMNS`; further ones are ignored, and of these only `REQUIRED` must be
there. Texts stay as they are (`words.py` knows what they mean); numbers are read when asked for.

Cells are separated by commas, tabs or semicolons, whichever shows most of the columns. Spreadsheets
write semicolons where a comma is the decimal point, so there it is.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from distir.errors import DistirError
from distir.files import read_text

__all__ = ["COLUMNS", "REQUIRED", "SAYS_NONE", "MeasuredRow", "UnusableRowError", "read_rows"]

REQUIRED = ("hardware", "num_gpus", "num_layers", "hidden", "heads", "seq_len", "global_batch")
"""Without these columns no row could be used."""

COLUMNS = (
    "id source source_group tier notes hardware gpus_per_node num_gpus interconnect model "
    "num_layers hidden heads kv_heads ffn_hidden vocab num_experts moe_topk gated_mlp seq_len "
    "global_batch micro_batch dp tp pp vpp cp ep sequence_parallel zero_stage recompute schedule "
    "precision optimizer iteration_time_s tokens_per_sec_per_gpu iter_time_derived_s "
    "tflops_per_gpu tflops_def peak_memory_gb mem_unit flags software release date etp "
    "token_dispatcher"
).split()
"""Columns that are read where they exist."""

SEPARATORS = (",", ";", "\t")
"""Of cells; the first of those that show as many columns is taken."""


class UnusableRowError(Exception):
    """Why a row cannot be used; `detail` is what is particular to it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured run. `values` are texts by column, without those that are blank."""

    number: int
    """Line of the file on which it begins, the header being line 1."""
    values: Mapping[str, str]
    decimal_point: str = "."

    @property
    def id(self) -> str:
        """The row's own name, or its line."""
        return self.values.get("id", f"line {self.number}")

    @property
    def group(self) -> str:
        """What rows of one origin are reported under."""
        return self.values.get("source_group") or self.values.get("source") or "all"

    def text(self, column: str) -> str:
        """The text of a column, empty where it is blank."""
        return self.values.get(column, "")

    def words(self, columns: Iterable[str]) -> str:
        """The texts of several columns as one, in lower case."""
        return " ; ".join(self.text(column) for column in columns).lower()

    def number_of(self, column: str) -> float | None:
        """A number above zero, or None where the column is blank (`UnusableRowError`)."""
        text = self.text(column)
        if not text or (column in _MAY_SAY_NONE and text.lower() in SAYS_NONE):
            return None
        try:
            number = float(text.replace(self.decimal_point, "."))
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise UnusableRowError(f"{column} is not a number above zero", text)
        return number

    def count(self, column: str) -> int | None:
        """A whole number above zero, or None where the column is blank (`UnusableRowError`)."""
        number = self.number_of(column)
        if number is None:
            return None
        if number != int(number):
            raise UnusableRowError(f"{column} is not a whole number", self.text(column))
        return int(number)

    def needed(self, column: str) -> int:
        """A whole number above zero that must be stated; raises `UnusableRowError`."""
        count = self.count(column)
        if count is None:
            raise UnusableRowError(f"{column} not stated")
        return count

    @property
    def measured_seconds(self) -> float | None:
        """Seconds per iteration: as stated, from the tokens per second, or as the file derives it
        from another figure."""
        stated = self.number_of("iteration_time_s")
        if stated is not None:
            return stated
        rate = self.number_of("tokens_per_sec_per_gpu")
        sizes = [self.count(name) for name in ("global_batch", "seq_len", "num_gpus")]
        if rate is not None and None not in sizes:
            batch, length, devices = (size or 0 for size in sizes)
            return batch * length / (rate * devices)
        return self.number_of("iter_time_derived_s")


def read_rows(path: str | Path) -> list[MeasuredRow]:
    """The rows of a CSV file; raises `DistirError` if it is none, or lacks a needed column."""
    file = Path(path)
    text = read_text(file, DistirError)
    separator = max(SEPARATORS, key=lambda each: len(_KNOWN & {*_header(text, each)}))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = _names(next(reader, list[str]()))
        _check_header(file, header)
        return [
            _row(file, header, line, cells, "," if separator == ";" else ".")
            for line, cells in _numbered(reader)
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise DistirError(f"{file}, line {reader.line_num}: not CSV: {error}") from error


def _header(text: str, separator: str) -> list[str]:
    """The names of columns if cells were separated so; none where that makes no sense."""
    try:
        return _names(
            next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), list[str]())
        )
    except csv.Error:
        return []


def _names(cells: Iterable[str]) -> list[str]:
    """Names of columns; those that are known are so in capitals, too."""
    names = [cell.strip() for cell in cells]
    return [name.lower() if name.lower() in _KNOWN else name for name in names]


def _numbered(reader: Iterable[list[str]]) -> Iterable[tuple[int, list[str]]]:
    """Every record with the number of the line on which it begins."""
    lines: int = reader.line_num + 1  # type: ignore[attr-defined]
    for cells in reader:
        yield lines, cells
        lines = reader.line_num + 1  # type: ignore[attr-defined]


def _check_header(file: Path, header: list[str]) -> None:
    if not any(header):
        raise DistirError(f"{file}: empty; expected a header and rows of measurements")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        columns = "column" if len(missing) == 1 else "columns"
        raise DistirError(
            f"{file}: the header has no {columns} {', '.join(missing)}, without which no row can "
            "be used; see docs/validation.md"
        )
    repeated = {name for name in header if name and header.count(name) > 1}
    if repeated:
        raise DistirError(f"{file}: the header has {', '.join(sorted(repeated))} more than once")


def _row(
    file: Path, header: list[str], line: int, cells: list[str], decimal_point: str
) -> MeasuredRow:
    if len(cells) != len(header):
        raise DistirError(
            f"{file}, line {line}: {len(cells)} cells, but the header has {len(header)}"
        )
    pairs = zip(header, (cell.strip() for cell in cells), strict=True)
    values = {name: cell for name, cell in pairs if cell and name in _KNOWN}
    return MeasuredRow(line, values, decimal_point)


_KNOWN = frozenset(COLUMNS)
_MAY_SAY_NONE = frozenset(("num_experts", "moe_topk", "ep", "vpp", "etp"))
SAYS_NONE = frozenset(("0", "0.0", "none", "no", "-", "n/a", "na", "nan"))
"""Texts that mean "none" in these columns: no experts, no chunks."""
