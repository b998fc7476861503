"""Checks the distir that is installed beside this interpreter, away from its checkout.

Every file of the packages came along with the wheel, and the main job runs in an empty folder.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("distir", "search_spaces", "autotune", "experiments")
NOT_SHIPPED = (".md", "report.json")
"""Results of experiments, and what explains them, stay in the checkout."""


def missing_files() -> list[str]:
    """Tracked files of the packages that are not installed."""
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--", *PACKAGES],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {line for line in listing.stdout.splitlines() if not line.endswith(NOT_SHIPPED)}
    installed = {str(file) for file in distribution("distir").files or ()}
    return sorted(expected - installed)


def autotune(*arguments: str, folder: str) -> str:
    """What the installed command prints, run in `folder` without a path to the checkout."""
    command = Path(sys.executable).with_name("autotune")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> None:
    """Exits with a message if anything is missing or wrong."""
    missing = missing_files()
    if missing:
        sys.exit(f"not installed, though in the checkout: {', '.join(missing)}")
    release = f"distir {distribution('distir').version}"
    with tempfile.TemporaryDirectory() as folder:
        version = autotune("--version", folder=folder).strip()
        best = json.loads(autotune("run", "--model", "gpt2", "--json", "-", folder=folder))["best"]
    if version != release or best is None:
        sys.exit(f"expected {release} with a plan for GPT-2; found {version} with {best}")
    degrees = {name: best["strategy"][name] for name in ("dp", "tp", "pp", "microbatches")}
    print(f"{version} is whole; its plan for GPT-2 is {degrees}")


if __name__ == "__main__":
    main()
