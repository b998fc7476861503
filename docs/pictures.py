"""The pictures of the documentation: `make pictures`, which needs Chromium.

Studies are made and recorded in a folder that is thrown away; each page is shown as a browser shows
it, and written to `docs/static` as a PNG.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

from PIL import Image

from autotune import MlflowTracker, TuneResult, tune
from autotune.page.render import write_page
from autotune.page.reports import study_page

PICTURES = Path(__file__).with_name("static")
COLORS = 64
"""Of a picture: enough for charts, and small."""
MLFLOW_WINDOW, MLFLOW_SHOWN = 1600, 1190
"""Pixels of MLflow's window, and of what stands in it beside its assistant."""
REPORT = "its report"
"""The link to the page that is pictured by itself."""
WIDTH_LEAST = 500
"""Chromium's windows are no narrower; a narrow page is shown in a frame."""


def main() -> None:
    """Makes all pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uri = f"sqlite:///{folder}/mlflow.db"
        result = tune("gpt2", "dgx-a100", devices=16, tracker=MlflowTracker(uri))
        page = folder / "report.html"
        write_page(study_page(result), str(page))
        show(page.as_uri(), "report", 1280, 1900, folder)
        show(page.as_uri(), "report-narrow-dark", 390, 1200, folder, dark=True)
        compared = tune(result.problem, sampler="random", trials=30, tracker=MlflowTracker(uri))
        with served(uri, compared, folder) as links:
            for what, url in links.items():
                if what == REPORT:
                    continue  # in a frame that is drawn after a picture is taken
                show(url, "mlflow-" + what.replace(" ", "-"), MLFLOW_WINDOW, 1000, folder)


def show(url: str, name: str, width: int, height: int, folder: Path, *, dark: bool = False) -> None:
    """Writes what a browser shows of a page in a window of this size, in pixels."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("pictures need Chromium; try: apt-get install chromium")
    if width < WIDTH_LEAST:
        frame = folder / "frame.html"
        style = f"border:0;width:{width}px;height:{height}px"
        frame.write_text(f'<body style="margin:0"><iframe style="{style}" src="{url}"></iframe>')
        url = frame.as_uri()
    file = folder / "shot.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", scheme]
    size = f"--window-size={max(width, WIDTH_LEAST)},{height}"
    waits = ["--virtual-time-budget=40000", "--timeout=60000", f"--user-data-dir={folder}/profile"]
    command = [browser, *options, *waits, size, f"--screenshot={file}", url]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    shown = MLFLOW_SHOWN if width == MLFLOW_WINDOW else width
    picture = Image.open(file).crop((0, 0, shown, height)).convert("RGB")
    made = PICTURES / f"{name}.png"
    picture.quantize(COLORS).save(made, optimize=True)
    sys.stdout.write(f"{made.name}: {made.stat().st_size / 1024:.0f} KiB\n")


@contextlib.contextmanager
def served(uri: str, result: TuneResult, folder: Path) -> Generator[dict[str, str]]:
    """The links of a recorded study, on a server that runs meanwhile."""
    assert result.tracking is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--workers", "1"]
    server = subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            time.sleep(0.2)
        links = result.tracking.links
        yield {what: url.replace(":5000/", f":{port}/") for what, url in links.items()}
    finally:
        os.killpg(server.pid, 9)
        server.wait()


if __name__ == "__main__":
    main()
