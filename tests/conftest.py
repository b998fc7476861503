"""Shared fixtures. Measured data and real exports live beside the project, in `../shared`.

`HYPOTHESIS_PROFILE=long python -m pytest -n auto` draws new and many more examples than everyday
runs, which always draw the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile(
    "everyday", deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


def shared_path(relative: str) -> Path:
    """A file of `../shared`; skips the test, saying so, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs ../shared/{relative}, which is not beside this checkout")
    return path
