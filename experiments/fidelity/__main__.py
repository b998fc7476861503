"""Fits the shipped constants to published measurements and reports what they reach.

    python -m experiments.fidelity ../shared/measurements/measurements.csv              # report
    python -m experiments.fidelity ../shared/measurements/measurements.csv --write      # and ship

Rows of dense models take part in the fit: all of them, every source alike, or of every source
about `--rows`, drawn by whole groups of competing rows. The report goes to `--report` (default:
beside this file).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from autotune.calibration import calibrate_priced
from autotune.calibration.extrapolation import SIZES_OF, beyond_the_data
from autotune.calibration.pricing import log_ratios, price
from autotune.calibration.spreads import RowResidual, spreads_of
from autotune.validation import Case, Exclusion, make_case, make_report, read_rows
from autotune.validation.predict import outcome_of
from distir.files import write_text
from experiments.fidelity.report import report_text
from experiments.fidelity.ship import ship
from experiments.fidelity.tables import with_tables

HERE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Fits, predicts every row with what was fitted, writes the report."""
    parser = argparse.ArgumentParser(prog="experiments.fidelity", description=__doc__)
    parser.add_argument("file", type=Path, help="the measurements")
    parser.add_argument("--rows", type=int, help="of each source (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the fitted constants to distir")
    parser.add_argument("--report", type=Path, default=HERE / "report.md")
    options = parser.parse_args(argv)

    def progress(text: str) -> None:
        print(f"{time.perf_counter() - begun:6.0f} s  {text}", file=sys.stderr)

    begun = time.perf_counter()
    made = [make_case(row) for row in read_rows(options.file)]
    cases = [each for each in made if isinstance(each, Case)]
    rows, refused = price(cases)
    progress(f"{len(rows)} rows planned")
    timed = [row for row in rows if row.case.measured.seconds and not row.case.experts]
    most = len(timed) if options.rows is None else options.rows
    chosen = set(map(id, drawn([row.case for row in timed], most, options.seed)))
    own = [row for row in timed if id(row.case) in chosen]
    calibration = calibrate_priced(own, progress=progress)
    progress("predicting every row with what was fitted")
    values = calibration.values
    outcomes = [outcome_of(row.case, row.stack, row.simulate(values)) for row in rows]
    excluded = [each for each in made if isinstance(each, Exclusion)]
    validation = make_report(outcomes, [*excluded, *refused])
    mixtures = [
        RowResidual(each.case, math.log1p(each.error))
        for each in outcomes
        if each.case.experts and each.error is not None
    ]
    unknown = as_if_untold([row.case for row in own], values)
    progress("predicted rows as if nobody said which software it was")
    band = spreads_of(calibration.residuals_unseen, mixtures, unknown)
    beyond = beyond_the_data(calibration.fitted, calibration.cases)
    known = {
        name: max(size_of(row.case) for row in rows if row.case.measured.seconds)
        for name, size_of in SIZES_OF.items()
    }
    tables = with_tables(timed, values, progress)
    if options.write:
        ship(calibration, band, beyond, known, "published training runs (experiments/fidelity)")
    text = report_text(
        calibration, validation, band, beyond, mixtures, unknown, tables, options.file.name
    )
    write_text(options.report, text + "\n")
    figures = {
        "calibration": calibration.to_dict(),
        "validation": {k: each for k, each in validation.to_dict().items() if k != "rows"},
        "beyond": {name: {"known": known[name], **asdict(each)} for name, each in beyond.items()},
        "with_tables": {source: asdict(each) for source, each in tables.items()},
    }
    write_text(options.report.with_suffix(".json"), json.dumps(figures, indent=1) + "\n")
    print(text)
    progress(f"done, {time.process_time():.0f} s of processor time")
    return 0


def as_if_untold(cases: Sequence[Case], values: Mapping[str, float]) -> list[RowResidual]:
    """The residuals of rows that are predicted as if they did not say which software they were
    measured with; of those that can be predicted then."""
    made = [make_case(case.row, tells_software=False) for case in cases]
    rows, _ = price([each for each in made if isinstance(each, Case)])
    ratios = log_ratios(rows, values)
    return [RowResidual(row.case, float(ratio)) for row, ratio in zip(rows, ratios, strict=True)]


def drawn(cases: Sequence[Case], most: int, seed: int) -> list[Case]:
    """Of every source whole groups of competing rows, until there are enough."""
    by_source: dict[str, dict[object, list[Case]]] = {}
    for case in cases:
        by_source.setdefault(case.row.group, {}).setdefault(case.choice_group, []).append(case)
    chance = random.Random(seed)
    found: list[Case] = []
    for groups in by_source.values():
        own = list(groups.values())
        chance.shuffle(own)
        taken: list[Case] = []
        while own and len(taken) < most:
            taken += own.pop()
        found += taken
    return found


if __name__ == "__main__":
    sys.exit(main())
