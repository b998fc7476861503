"""Writes fitted constants to where distir reads them: `constants.toml` and the device files."""

from __future__ import annotations

import re
from pathlib import Path

import distir.cost
from autotune.calibration import Calibration
from autotune.calibration.stack import constant_lines, origin
from distir.files import write_text

COST = Path(distir.cost.__file__).resolve().parent

DEVICES = {
    "V100": "v100-*.toml",
    "H100": "h[12]00-*.toml",
    "B200": "*b200-*.toml",
    "B300": "*b300-*.toml",
}
"""Device files by generation."""

SPREAD = (
    "root mean square of the mean errors of sources, each predicted with constants that were "
    "fitted without it"
)


def ship(calibration: Calibration, source: str) -> list[Path]:
    """Rewrites the values and sources of what was fitted; returns the files."""
    files = [COST / "constants.toml"]
    text = files[0].read_text(encoding="utf-8")
    for key, value, origin_text in constant_lines(calibration, source):
        text = replaced(text, key, value, origin_text)
    spread = f"{calibration.source_spread:.2g}"
    text = replaced(text, "source_spread", spread, f"fitted to {source}: {SPREAD}")
    write_text(files[0], text)
    for each in calibration.constants:
        name, _, generation = each.name.partition(":")
        if not generation:
            continue
        for path in sorted((COST / "devices").glob(DEVICES[generation])):
            text = path.read_text(encoding="utf-8")
            said = f"{origin(each, source)}; A100 = 1"
            write_text(path, replaced(text, name, f"{each.value:.3g}", said))
            files.append(path)
    return files


def replaced(text: str, key: str, value: str, source: str) -> str:
    """A TOML text with the first line of a key set to a value, and the second, which is among the
    sources, to where it comes from."""
    lines = text.splitlines()
    found = [at for at, line in enumerate(lines) if re.match(rf"{re.escape(key)} *=", line)]
    if len(found) != 2:
        raise SystemExit(f"{key}: expected a value and a source, found {len(found)} lines")
    lines[found[0]] = f"{key} = {value}"
    lines[found[1]] = f'{key} = "{source}"'
    return "\n".join(lines) + "\n"
