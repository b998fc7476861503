"""A page as HTML, whole in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from autotune.page.contents import Page
from autotune.templates import asset, rendered
from distir import __version__
from distir.files import write_text

BUNDLE = "echarts.min.js"
"""The parts of Apache ECharts 6.1.0 that `charts/index.js` names; `make charts` makes it."""


def page_html(page: Page) -> str:
    """The page as one HTML file, which loads nothing else."""
    charts = json.dumps(_sayable([chart.data for chart in page.charts]), allow_nan=False)
    return rendered(
        "page.html.jinja",
        page=page,
        version=__version__,
        style=asset("page.css"),
        bundle=asset(BUNDLE),
        script=asset("page.js"),
        data=charts.replace("<", "\\u003c"),  # nothing may end the script that has the data
    )


def write_page(page: Page, path: str) -> None:
    """Writes the page to a file."""
    write_text(path, page_html(page))


def _sayable(value: Any) -> Any:
    """Plain values with null for numbers that JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _sayable(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in cast("list[Any]", value)]
    return value


__all__ = ["page_html", "write_page"]
