"""What a table of measured products is worth: products that one half of a source's groups of
competing rows tells, judged on the other half, and the halves change places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from autotune.calibration import Priced, products_of_runs, with_products
from autotune.calibration.folds import halves
from autotune.validation.statistics import Choice, regret_of

__all__ = ["WITH_TABLES", "WithTable", "with_tables"]

WITH_TABLES: Mapping[str, tuple[float, float]] = {"vtrain-single": (0.05, 0.01)}
"""Mean error and regret that are wanted of sources whose products are known."""


@dataclass(frozen=True, slots=True)
class WithTable:
    """Errors of rows of one source that the table has not seen."""

    rows: int
    error: float
    regret: float | None


def with_tables(
    rows: Sequence[Priced], values: Mapping[str, float], progress: Callable[[str], None]
) -> dict[str, WithTable]:
    """By source, the errors of either half with the products of the other."""
    found: dict[str, WithTable] = {}
    for source in WITH_TABLES:
        own = [row for row in rows if row.case.row.group == source]
        if own:
            progress(f"products of {source}")
            found[source] = _judged(own, values)
    return found


def _judged(rows: Sequence[Priced], values: Mapping[str, float]) -> WithTable:
    cases = [row.case for row in rows]
    choices: list[Choice] = []
    for half in halves(cases, np.ones(len(cases), np.bool_)):
        seen = [row for row, judged in zip(rows, half, strict=True) if not judged]
        table = products_of_runs(seen, values)
        for row, judged in zip(rows, half, strict=True):
            if judged:
                seconds = with_products(row, table).seconds(values)
                measured = row.case.measured.seconds or 0.0
                choices.append(Choice(row.case.choice_group, seconds, measured))
    error = fmean(abs(each.predicted / each.measured - 1.0) for each in choices)
    return WithTable(len(rows), error, regret_of(choices))
