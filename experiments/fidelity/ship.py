"""Writes fitted constants to where distir reads them: `constants.toml` and the device files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import distir.cost
from autotune.calibration import Calibration
from autotune.calibration.extrapolation import Extrapolation
from autotune.calibration.stack import constant_lines, origin
from distir.cost import Band
from distir.cost.band import SIZES
from distir.files import write_text

COST = Path(distir.cost.__file__).resolve().parent

DEVICES = {
    "V100": "v100-*.toml",
    "H100": "h[12]00-*.toml",
    "B200": "*b200-*.toml",
    "B300": "*b300-*.toml",
}
"""Device files by generation."""

UNSEEN = "by constants that have not seen the source"
BEYOND = (
    "what larger rows need, by constants and bands that have seen smaller ones of other "
    "sources alone, per doubling"
)
SPREADS = {
    "source_spread": ("source", f"root mean square of the mean errors of sources, {UNSEEN}"),
    "mixture_spread": (
        "model",
        "what is added so that 68 and 95 % of mixtures that state their dispatcher lie within it",
    ),
    "software_spread": (
        "software",
        "what is added so that 68 and 95 % of rows lie within it, as if none said its software",
    ),
    "dispatcher_spread": (
        "dispatcher",
        "as mixture_spread, what is added beside for mixtures that do not",
    ),
    "layout_spread": (
        "layout",
        f"root mean square of errors between layouts of one problem, {UNSEEN}, every source alike",
    ),
    "repeat_spread": (
        "repeat",
        "as layout_spread, between plans that differ in schedule and microbatches alone",
    ),
    "band_width": ("width", f"68 % of rows, mean over sources, lie within it {UNSEEN}"),
    "band95_width": ("width95", f"95 % of rows, mean over sources, lie within it {UNSEEN}"),
}
"""By constant: the field of `Band` it comes from, and what it is."""


def ship(
    calibration: Calibration,
    band: Band,
    beyond: Mapping[str, Extrapolation],
    known: Mapping[str, float],
    source: str,
) -> list[Path]:
    """Rewrites the values and sources of what was fitted, and of the band's deviations; returns
    the files."""
    files = [COST / "constants.toml"]
    text = files[0].read_text(encoding="utf-8")
    for key, value, origin_text in constant_lines(calibration, source):
        text = replaced(text, key, value, origin_text)
    for key, (name, said) in SPREADS.items():
        text = replaced(text, key, f"{getattr(band, name):.2g}", f"fitted to {source}: {said}")
    for name, words in SIZES.items():
        said = f"the most {words} of {source}"
        text = replaced(text, f"known_{name}", f"{rounded_up(known[name]):g}", said)
        spread = beyond[name].spread if name in beyond else 0.0
        said = f"fitted to {source}: {BEYOND} of {words}"
        text = replaced(text, f"{name}_spread", f"{spread:.2g}", said)
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


def rounded_up(size: float) -> float:
    """A size to three digits, and never less."""
    step = 10.0 ** max(0, math.floor(math.log10(size)) - 2)
    return math.ceil(size / step) * step


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
