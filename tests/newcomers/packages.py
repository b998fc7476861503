"""Packages as newcomers write them: one module, and the metadata of its installation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Package:
    """A package of one file: the text of its module, and its entry points by group and name."""

    name: str
    module: str
    entry_points: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )

    def write(self, folder: Path) -> Path:
        """Writes module and metadata into `folder`, as pip would; returns `folder`, which is then
        to be on the path."""
        (folder / f"{self.name}.py").write_text(self.module, encoding="utf-8")
        info = folder / f"{self.name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 1.0\n")
        groups = (
            "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
            for group, points in self.entry_points.items()
        )
        (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
        return folder


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in `folder`, whose packages are installed, as a command of its own."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def autotune(folder: Path, *arguments: str) -> str:
    """What `python -m autotune` prints in `folder`; fails with what it complains about."""
    done = python(folder, "-m", "autotune", *arguments)
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
