"""`python -m experiments.speed.page report.html …`: how long a browser takes to open a report.

Milliseconds from the begin of the navigation to the last chart drawn, as the page itself counts
them, by a headless Chromium with a profile of its own each time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

LONGEST_MILLISECONDS = 20_000
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000")


def main(argv: Sequence[str] | None = None) -> int:
    """Opens each page several times, and prints a line each."""
    parser = argparse.ArgumentParser(prog="experiments.speed.page", description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path, help="reports, as --report writes them")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("pages are opened by Chromium; try: apt-get install chromium")
    for page in asked.pages:
        found = [load_milliseconds(browser, page) for _ in range(asked.repeats)]
        size = page.stat().st_size / 2**20
        print(f"{page}: {size:.1f} MiB, median {median(found):.0f} ms, least {min(found)} ms")
    return 0


def load_milliseconds(browser: str, page: Path) -> int:
    """Milliseconds until all charts of a page are drawn. Raises `RuntimeError` if none ever is."""
    with tempfile.TemporaryDirectory() as profile:
        limits = (f"--user-data-dir={profile}", f"--timeout={LONGEST_MILLISECONDS}")
        command = [browser, *OPTIONS, *limits, "--dump-dom", page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    drawn = re.search(r'<html[^>]* data-drawn="(\d+)"', done.stdout)
    if drawn is None:
        raise RuntimeError(f"the charts of {page} were not drawn")
    return int(drawn[1])


if __name__ == "__main__":
    sys.exit(main())
