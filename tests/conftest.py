"""Shared fixtures. Measured data and real exports live beside the project, in `../shared`."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


def shared_path(relative: str) -> Path:
    """A file of `../shared`; skips the test, saying so, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs ../shared/{relative}, which is not beside this checkout")
    return path
