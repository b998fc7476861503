"""The Gaussian process over what trials say: how it is computed."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from autotune.samplers import residual
from autotune.samplers.failures import chance_not_to_fail
from autotune.samplers.residual import Residual, one_thread


def blas_threads() -> set[int]:
    import threadpoolctl  # pyright: ignore[reportMissingTypeStubs]

    pools = cast("Any", threadpoolctl).threadpool_info()
    return {each["num_threads"] for each in pools if each["user_api"] == "blas"}


def test_processes_are_fitted_and_asked_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_thread():
        pass  # the libraries are loaded
    before, seen = blas_threads(), list[set[int]]()
    library, _, _ = residual.scikit_learn()

    base: Any = library.GaussianProcessRegressor

    class Watched(base):
        def fit(self, *given: Any) -> Any:
            seen.append(blas_threads())
            return base.fit(self, *given)

        def predict(self, *given: Any, **stated: Any) -> Any:
            seen.append(blas_threads())
            return base.predict(self, *given, **stated)

    monkeypatch.setattr(library, "GaussianProcessRegressor", Watched)
    rows = np.random.default_rng(0).random((20, 3))
    Residual.fitted(rows, rows.sum(axis=1), 0.01).at(rows)
    assert seen
    assert all(threads == {1} for threads in seen)
    assert blas_threads() == before


def test_kinds_that_fail_are_told_apart_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, linear = residual.scikit_learn()
    seen: list[set[int]] = []

    base: Any = linear.LogisticRegression

    class Watched(base):
        def fit(self, *given: Any) -> Any:
            seen.append(blas_threads())
            return base.fit(self, *given)

    monkeypatch.setattr(linear, "LogisticRegression", Watched)
    rows = np.random.default_rng(0).random((20, 3))
    chance_not_to_fail(rows, [0, 1, 2], [3, 4])
    assert seen == [{1}]
