"""What trials that failed say of other strategies, whatever made them fail but memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.samplers.residual import one_thread, scikit_learn
from distir.arrays import Floats

STEPS = 1.5
"""Choices apart over which a failure speaks of others, as the deviation of a normal curve."""
STRENGTH = 3.0
"""How far a few trials tell two kinds of strategies apart: the inverse of the weight that keeps the
coefficients of a logistic regression small."""


def chance_not_to_fail(rows: Floats, ran: Sequence[int], failed: Sequence[int]) -> Floats:
    """The chance of every strategy not to fail, given their features, [strategies, features], and
    the numbers of those that ran and of those that failed: by the choices that tell these apart;
    as long as none ran, by how far a strategy is from what failed."""
    if not failed:
        return np.ones(len(rows))
    if not ran:
        apart = np.array([np.square(rows - rows[each]).sum(axis=1) for each in failed])
        return 1 / (1 + np.exp(-0.5 * apart / STEPS**2).sum(axis=0))
    labels = np.repeat([True, False], [len(ran), len(failed)])
    _, _, linear_models = scikit_learn()
    regression = linear_models.LogisticRegression(C=STRENGTH, max_iter=1000)
    with one_thread():
        return regression.fit(rows[[*ran, *failed]], labels).predict_proba(rows)[:, 1]


__all__ = ["chance_not_to_fail"]
