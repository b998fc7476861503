"""A calibration as a software stack on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from autotune.calibration.calibrate import Calibration, ConstantFit
from distir.cost import SoftwareStack
from distir.cost.reader import toml_value

__all__ = ["constant_lines", "constants_text", "origin", "stack_text"]

_FACTS = tuple(
    field.name
    for field in fields(SoftwareStack)
    if field.type != "float" and field.name not in ("name", "summary", "sources", "products")
)
"""What a stack states of itself; all else are constants."""


def stack_text(
    calibration: Calibration,
    base: SoftwareStack,
    name: str,
    source: str,
    products: str | None = None,
    doubts: Sequence[str] = (),
) -> str:
    """A stack with the facts of `base` and the fitted constants, as TOML that `--stack` reads.
    `products` is the path of a file of measured products that belongs to it; `doubts` of the times
    that the constants are fitted to are remarks, as the file outlives what a terminal said."""
    facts = _FACTS
    lines = [
        f"name = {toml_value(name)}",
        f"summary = {toml_value(f'{base.name}, with constants fitted to {source}')}",
        *("# doubted: " + " ".join(said.split()) for said in doubts),
        "",
        *(f"{fact} = {toml_value(getattr(base, fact))}" for fact in facts),
        *([] if products is None else [f"products = {toml_value(products)}"]),
        "",
        "[sources]",
        *(f"{fact} = {toml_value(f'as in {base.name}')}" for fact in facts),
        "",
        "[constants]",
        *constants_text(calibration, source, "[constants.sources]"),
    ]
    return "\n".join(lines)


def constants_text(calibration: Calibration, source: str, sources_head: str) -> list[str]:
    """Lines of a table of constants and of the table that says where they come from. What devices
    sustain belongs to device files, and stands in a remark."""
    own = constant_lines(calibration, source)
    of_devices = [each for each in calibration.constants if ":" in each.name and each.fitted]
    return [
        *(f"{key} = {value}" for key, value, _ in own),
        *(
            f"# {each.name.replace(':', ' of ')} = {each.value:.3g}: for the device file"
            for each in of_devices
        ),
        "",
        sources_head,
        *(f"{key} = {toml_value(said)}" for key, _, said in own),
    ]


def constant_lines(calibration: Calibration, source: str) -> list[tuple[str, str, str]]:
    """Key, value as TOML, and origin of every constant of software, fitted or kept."""
    return [
        (each.name.removesuffix("_seconds"), _quantity(each), origin(each, source))
        for each in calibration.constants
        if ":" not in each.name
    ]


def _quantity(each: ConstantFit) -> str:
    if each.name.endswith("_seconds"):
        return f'"{_duration(each.value)}"'
    return f"{each.value:.3g}"


def _duration(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro / 1e3:.3g} ms" if micro >= 1e3 else f"{micro:.3g} us"


def origin(each: ConstantFit, source: str) -> str:
    """Where the value of a constant comes from, in a line."""
    if not each.fitted:
        return f"{each.because}; {source} hardly constrain it"
    low, high = each.interval or (each.value, each.value)
    pinned = f", pinned by {each.pinned_by}" if each.pinned_by else ""
    return f"fitted to {source}, 90 % interval {_span(each, low, high)}{pinned}"


def _span(each: ConstantFit, low: float, high: float) -> str:
    if each.name.endswith("_seconds"):
        return f"{_duration(low)} to {_duration(high)}"
    return f"{low:.3g} to {high:.3g}"
