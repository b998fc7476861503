"""Figures in files: .png, .svg, .pdf, or .html with the picture in it."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import Any

from distir.errors import DistirError
from distir.files import whole_file

FORMATS = (".png", ".svg", ".pdf", ".html")


def check_format(path: str) -> None:
    """Raises if the file's ending is none that can be drawn."""
    if Path(path).suffix.lower() not in FORMATS:
        raise DistirError(f"{path}: cannot draw that; expected a file in {', '.join(FORMATS)}")


def new_figure(inches: tuple[float, float]) -> Any:
    """A figure of this width and height. Raises `DistirError` where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DistirError("--plot needs matplotlib: pip install matplotlib") from error
    return Figure(figsize=inches, layout="constrained")


def draw(figure: Any, path: str, title: str) -> None:
    """Writes a figure to a file; its ending says how."""
    check_format(path)
    suffix = Path(path).suffix.lower()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg" if suffix == ".html" else suffix[1:], dpi=150)
    content = drawn.getvalue()
    if suffix == ".html":
        head = f"<!DOCTYPE html><meta charset='utf-8'><title>{escape(title)}</title>"
        content = head.encode() + content[content.index(b"<svg") :]
    with whole_file(path) as file:
        file.write(content)
