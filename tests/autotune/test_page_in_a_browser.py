"""A browser draws every chart of a report, in light and in dark, on wide and on narrow windows.

Debian has one: `apt-get install chromium`. Without one, these tests are skipped.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune import load_problem, tune
from autotune.page.render import page_html
from autotune.page.reports import Told, study_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

PROBE = """
<script>
window.addEventListener("error", (event) => { parent.document.body.dataset.error = event.message; });
window.addEventListener("load", () => setTimeout(() => {
  const seen = [...document.querySelectorAll(".chart")].map((element) => {
    const canvas = element.querySelector("canvas");
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    const entries = [...document.getElementById(element.id.replace("chart", "legend")).children];
    const before = pixels.join();
    if (entries.length) { entries[0].click(); charts.get(element).getZr().flush(); }
    const after = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer).join();
    return { draw: element.dataset.draw, colors: new Set(pixels).size, width: canvas.clientWidth,
             legend: entries.map((entry) => entry.textContent), toggled: before !== after };
  });
  parent.document.body.dataset.found = JSON.stringify({
    charts: seen,
    drawn: Number(document.documentElement.dataset.drawn),
    scroll: document.documentElement.scrollWidth,
    width: window.innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    selects: document.querySelectorAll("select").length,
  });
}, 50));
</script>
"""  # noqa: E501


@cache
def report() -> str:
    problem = load_problem("gpt2", "dgx-a100", devices=4, batch_size=8)
    page = study_page(tune(problem, trials=10, compare_grid=True), Told("autotune run"))
    return page_html(page)


def seen(tmp_path: Path, width: int, dark: bool) -> dict[str, Any]:
    """What a browser makes of the report in a frame of this width."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"there is no browser; looked for {', '.join(BROWSERS)}")
    before, end, after = report().rpartition("</body>")  # the bundle has the text, too
    framed = html.escape(f"{before}{PROBE}{end}{after}")
    file = tmp_path / "frame.html"
    style = f"border: 0; width: {width}px; height: 900px"
    file.write_text(f'<body><iframe style="{style}" srcdoc="{framed}"></iframe></body>', "utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [found[0], *options, profile, scheme, "--window-size=1400,1000", "--dump-dom", str(file)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "data-error" not in done.stdout
    data = re.search(r'data-found="([^"]*)"', done.stdout)
    assert data is not None, done.stderr[-1000:]
    return json.loads(html.unescape(data[1]))


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(
    width: int, dark: bool, tmp_path: Path
) -> None:
    found = seen(tmp_path, width, dark)
    kinds = [chart["draw"] for chart in found["charts"]]
    assert set(kinds) == {
        "bars", "gantt", "lines", "space", "parallel", "effects", "heat", "search",
    }  # fmt: skip
    for chart in found["charts"]:
        assert chart["colors"] > 10, f"{chart['draw']} is blank"
        assert chart["width"] > 0.7 * width
        assert (
            bool(chart["legend"]) == chart["toggled"] == (chart["draw"] not in ("parallel", "heat"))
        )
        assert "limit" not in chart["legend"]
    assert found["drawn"] > 0
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["selects"] == 2
    assert (found["background"] == "rgb(20, 23, 28)") == dark
