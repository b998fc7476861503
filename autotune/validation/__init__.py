"""Predictions against measurements: rows of a CSV file become plans, plans become seconds and
bytes, and these are compared with what was measured.

rows.py → words.py, hardware.py, software.py → strategies.py → cases.py → predict.py
→ statistics.py, doubts.py → report.py
"""

from __future__ import annotations

from autotune.validation.cases import Case, Exclusion, make_case, without_copies
from autotune.validation.doubts import Timed, doubts_of
from autotune.validation.predict import PredictedRow, predict
from autotune.validation.report import Report, make_report
from autotune.validation.rows import MeasuredRow, read_rows

__all__ = [
    "Case",
    "Exclusion",
    "MeasuredRow",
    "PredictedRow",
    "Report",
    "Timed",
    "doubts_of",
    "make_case",
    "make_report",
    "predict",
    "read_rows",
    "without_copies",
]
