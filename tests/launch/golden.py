"""Golden launch files: what is written for published recipes. `python -m tests.launch.golden` (or
`make launch-golden`) writes them again; what changed is to be read line by line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.launch import TARGETS
from autotune.launch.emit import Prediction, emit
from tests.launch.recipes import RECIPES

FOLDER = Path(__file__).parent / "golden"

PREDICTION = Prediction(
    seconds=10.0,
    memory_bytes=60.0 * (1 << 30),
    device_bytes=80.0 * (1 << 30),
    fits=True,
    band=0.1,
    as_run_seconds=11.0,
    as_run_bytes=61.0 * (1 << 30),
    as_run_fits=True,
    stack="fsdp-compiled",
)
"""The same for all, so that golden files are about options and not about times."""

CASES = [(name, target) for name, recipe in RECIPES.items() for target in recipe.targets]


def made(name: str, target: str) -> dict[str, str]:
    """The files of a recipe, by their path in the folder of golden files."""
    emission = emit(TARGETS.get(target), RECIPES[name].launch(), PREDICTION)
    return {f"{name}/{target}/{path}": text for path, text in emission.files.files.items()}


def golden(name: str, target: str) -> dict[str, str]:
    """The files that are kept."""
    found: Iterator[Path] = (FOLDER / name / target).rglob("*")
    return {str(f.relative_to(FOLDER)): f.read_text("utf-8") for f in found if f.is_file()}


def write() -> None:
    """Writes all golden files."""
    for name, target in CASES:
        for path, text in made(name, target).items():
            file = FOLDER / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
