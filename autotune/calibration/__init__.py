"""The few constants of the cost model, fitted to measured runs.

constants.py (what may be fitted, with priors) → pricing.py (rows -> logarithms of seconds) →
fit.py (robust, with priors) → folds.py (what a source left out says) → calibrate.py → stack.py

products.py makes a table of products of the same rows.
"""

from __future__ import annotations

from autotune.calibration.calibrate import Calibration, calibrate, calibrate_priced
from autotune.calibration.constants import Constant, known_constants
from autotune.calibration.pricing import Priced, doubts, price
from autotune.calibration.products import one_device, products_of_runs, with_products
from autotune.calibration.stack import stack_text

__all__ = [
    "Calibration",
    "Constant",
    "Priced",
    "calibrate",
    "calibrate_priced",
    "doubts",
    "known_constants",
    "one_device",
    "price",
    "products_of_runs",
    "stack_text",
    "with_products",
]
