"""Every number that is fitted or chosen, with what it rests on: from the files that state it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import autotune
from autotune.calibration.constants import known_constants
from autotune.validation.words import read_data, read_toml_data
from distir.cost import load_stack, stack_names
from experiments.fidelity.ship import COST

__all__ = ["CODE", "origins", "reason_in_code"]

PACKAGES = Path(autotune.__file__).resolve().parents[1]

COUNTS = ("loss_copies", "loss_metrics", "routing_kernels")
"""Numbers among the facts of stacks."""

CODE: Sequence[tuple[str, str]] = (
    ("distir/cost/collectives.py", "PROTOCOLS"),
    ("distir/simulation/pricing/instructions.py", "LOSS_PASSES"),
    ("distir/simulation/pricing/instructions.py", "NORM_PASSES"),
    ("distir/simulation/pricing/instructions.py", "METRIC_PASSES"),
    ("distir/ops/linalg.py", "ALIGNMENT_BYTES"),
    ("distir/ops/routing.py", "LEAST_CAPACITY"),
    ("distir/ops/routing.py", "ALIGNMENT"),
    ("distir/ops/routing.py", "ROUNDING"),
    ("autotune/calibration/fit.py", "SCALE"),
    ("autotune/calibration/fit.py", "ROWS_PER_SOURCE"),
    ("autotune/calibration/calibrate.py", "IDENTIFIED"),
    ("autotune/calibration/folds.py", "PINNED"),
    ("autotune/calibration/spreads.py", "CENTRAL"),
    ("autotune/calibration/extrapolation.py", "CUTS"),
    ("autotune/calibration/extrapolation.py", "FEWEST_SOURCES"),
    ("autotune/calibration/products.py", "TURNS"),
)
"""Numbers that stand in code, by file and name; what they rest on is the text below them."""


def origins() -> list[str]:
    """The tables in Markdown."""
    return [
        "## What every number rests on",
        "",
        "| | value | rests on |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in _rows()),
        "",
        "What devices sustain stands in `distir/cost/devices/`, each number with its source. That",
        "a gather is pipelined with as many pieces of products as there are devices, and that an",
        "operand in fp8 is cast in one pass for both layouts, has no number of its own.",
        "",
        "### What is believed before any run is seen",
        "",
        "| | value, times a factor of | rests on |",
        "|---|---|---|",
        *(
            f"| {each.name} | {each.prior:.3g}, {2.718281828**each.spread:.2f} | {each.because} |"
            for each in known_constants()
        ),
        "",
    ]


def _rows() -> Iterator[tuple[str, str, str]]:
    constants = read_toml_data(COST / "constants.toml")
    for name, because in constants["sources"].items():
        yield name, str(constants[name]), because
    for name, entry in read_data("memory.toml").items():
        yield f"memory of a counter of kind {name}, times", str(entry["times"]), entry["because"]
    for name in stack_names():
        stack = load_stack(name)
        for fact in COUNTS:
            if getattr(stack, fact):
                yield f"{fact} of {name}", str(getattr(stack, fact)), stack.sources[fact]
    general = read_data("software.toml")["general"]
    said = "where a row of a mixture does not say how balanced it is"
    yield f"imbalance {said}", str(general["assumes"]["imbalance"]), general["because"]["imbalance"]
    for file, name in CODE:
        yield f"{name} ({file})", *reason_in_code(file, name)


def reason_in_code(file: str, name: str) -> tuple[str, str]:
    """The value of a module's constant as it is written, in short, and the text below it. Raises
    `KeyError` where there is no such constant, or no text."""
    body = ast.parse((PACKAGES / file).read_text(encoding="utf-8")).body
    for statement, following in pairwise(body):
        if name not in _assigned(statement):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            value = ast.unparse(statement).partition("=")[2].strip()
            short = value if len(value) <= LONGEST else "see there"
            return short, " ".join(str(following.value.value).split())
    raise KeyError(f"{file} has no {name} with a text below it")


def _assigned(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns to."""
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return set()
    walked = (each for target in targets for each in ast.walk(target))
    return {each.id for each in walked if isinstance(each, ast.Name)}


LONGEST = 24
"""Characters of a value that is repeated."""
