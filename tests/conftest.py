"""How all tests run: the examples that random laws draw, the sample of slow tests, and files beside
the project.

`HYPOTHESIS_PROFILE=long python -m pytest -n auto` draws new and many more examples than everyday
runs, which always draw the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, seed, settings

from autotune.cli import progress
from tests.slow import sample

HEALTH_CHECKS: list[HealthCheck] = list(cast("Iterable[HealthCheck]", HealthCheck))
"""For tests whose cases take as long as they take."""

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile(
    "everyday", deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile("quick", settings.get_profile("everyday"), max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

os.environ.pop("COLUMNS", None)  # a test of a narrow terminal says how narrow it is

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background ignore interrupts; tests that interrupt would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-seconds",
        type=float,
        default=180.0,
        help="seconds of one core that the sample of slow tests may take (default: %(default)g; "
        "inf: all of them); has no effect beside -m",
    )
    parser.addoption(
        "--one-case",
        action="store_true",
        help="run one case only of a test that has parameters",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--one-case` leaves out, then skips the slow tests that are not in the
    sample, unless `-m` says which tests are wanted."""
    if config.getoption("--one-case"):
        kept = {item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = reversed(kept)
    if config.option.markexpr:
        return
    marks = {item.nodeid: item.get_closest_marker("slow") for item in items}
    slow = {name: float(mark.kwargs["seconds"]) for name, mark in marks.items() if mark}
    chosen = sample(slow, float(config.getoption("--slow-seconds") or 0))
    for item in items:
        if item.nodeid in slow and item.nodeid not in chosen:
            item.add_marker(pytest.mark.skip("slow, and not in the sample; `-m slow` runs all"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Makes every share of a random law draw examples of its own."""
    if isinstance(item, pytest.Function) and item.get_closest_marker("hypothesis"):
        share = item.callspec.params.get("share") if hasattr(item, "callspec") else None
        if share is not None and settings().derandomize:
            seed(share)(cast("Any", item).function)


def shared_path(relative: str) -> Path:
    """A file of `../shared`; skips the test, saying so, where it is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs ../shared/{relative}, which is not beside this checkout")
    return path


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> Iterator[None]:
    """What commands print depends on no machine's speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "FIRST_LINE_SECONDS", 1e6)
        yield
