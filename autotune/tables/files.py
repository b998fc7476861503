"""Every evaluated strategy as a row of a file: CSV, or Parquet for large spaces."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from autotune.tables.columns import Coded, TableColumn, columns
from autotune.tables.csv_text import header, lines
from distir.errors import DistirError
from distir.files import whole_file

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk

SUFFIXES = (".csv", ".parquet")


def check_table_file(path: str) -> None:
    """Raises if no table can be written to a file of this name."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise DistirError(f"{path} is not a table; expected a name that ends in .csv or .parquet")
    if suffix == ".parquet":
        _pyarrow()


@contextmanager
def table_file(path: str, batch_size: int) -> Generator[Callable[[Chunk], None], None, None]:
    """A function that appends a chunk to the file, which is there when all is written; without any
    chunk, the old file stays as it is, or there is none. Metrics have the columns of the first
    chunk in which there are any. What cannot be written is raised at the end: chunks take long to
    evaluate, and none is lost for it.
    """
    check_table_file(path)
    make = _Csv if Path(path).suffix.lower() == ".csv" else _Parquet
    waiting: list[Chunk] = []
    metrics: list[str] | None = None
    writer: _Csv | _Parquet | None = None
    failure: DistirError | None = None

    def append(chunk: Chunk) -> None:
        nonlocal metrics, failure
        if failure is not None:
            return
        waiting.append(chunk)
        metrics = metrics or list(chunk.evaluations.metrics) or None
        try:
            flush(metrics)
        except DistirError as error:
            failure = error

    def flush(names: Sequence[str] | None) -> None:
        nonlocal writer
        if names is None:
            return
        for each in waiting:
            writer = writer or make(stack.enter_context(whole_file(path)))
            writer.write(columns(each, batch_size, names))
        waiting.clear()

    with ExitStack() as stack:
        yield append
        if failure is not None:
            raise failure
        flush(metrics or ())
        if writer is not None:
            writer.close()


class _Csv:
    def __init__(self, file: BinaryIO):
        self._file = file
        self._begun = False

    def write(self, table: Mapping[str, TableColumn]) -> None:
        if not self._begun:
            self._file.write(header(table).encode())
            self._begun = True
        self._file.writelines(line.encode() for line in lines(table))

    def close(self) -> None:
        """Nothing is left to write."""


class _Parquet:
    def __init__(self, file: BinaryIO):
        self._arrow = _pyarrow()
        self._file = file
        self._writer: Any = None

    def write(self, table: Mapping[str, TableColumn]) -> None:
        arrow = self._arrow
        arrays = {name: _array(arrow, column) for name, column in table.items()}
        if self._writer is None:
            fields = [(name, _kind(arrow, each.type)) for name, each in arrays.items()]
            parquet: Any = import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(self._file, arrow.schema(fields))
        self._writer.write_table(arrow.table(arrays, self._writer.schema))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _array(arrow: Any, column: TableColumn) -> Any:
    if not isinstance(column, Coded):
        return arrow.array(column)
    return arrow.array(list(column.values)).take(arrow.array(column.codes))


def _kind(arrow: Any, found: Any) -> Any:
    """The type of a column: reasons are text, also where there is none yet."""
    return arrow.string() if arrow.types.is_null(found) else found


def _pyarrow() -> Any:
    """Imported late: it is large, and only Parquet files need it."""
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise DistirError(
            "a .parquet file needs pyarrow; try: pip install pyarrow, or a .csv file"
        ) from error
