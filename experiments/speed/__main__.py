"""`python -m experiments.speed`: what is wanted and what is, and JSON for comparisons later."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from distir.files import write_text
from experiments.speed.grids import CHUNKS
from experiments.speed.measurements import Measurement, Options, measure_all


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(prog="experiments.speed", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of the quick ones")
    parser.add_argument("--slice", type=int, default=1 << 18, help="strategies of a slice")
    parser.add_argument("--slices", type=int, default=3, help="how many, spread over the space")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="of eight full spaces each")
    parser.add_argument(
        "--quick", action="store_true", help="without the million strategies on two cores"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    asked = parser.parse_args(argv)
    options = Options(
        asked.repeats, asked.slice, asked.slices, asked.chunks, million=not asked.quick
    )
    found = list(measure_all(options, lambda name: print(f"… {name}", file=sys.stderr)))
    print(table(found))
    if asked.json is not None:
        write_text(asked.json, json.dumps(report(found), indent=2) + "\n")
    return 0


def table(found: Sequence[Measurement]) -> str:
    """One line each: the median, the least, the most, and what is wanted."""
    lines = [f"{'':44}{'median':>11}{'least':>11}{'most':>11}  {'unit':10}{'wanted':>10}"]
    for each in found:
        columns = (each.median, min(each.values), max(each.values))
        numbers = "".join(
            f"{value:11,.3f}" if value < 100 else f"{value:11,.0f}" for value in columns
        )
        wanted = ""
        if each.wanted is not None:
            wanted = f"{'>' if each.more_is_better else '<'} {each.wanted:,g}"
        said = {True: "  met", False: "  missed", None: ""}[each.met]
        lines.append(f"{each.name:44}{numbers}  {each.unit:10}{wanted:>10}{said}")
    return "\n".join(lines)


def report(found: Sequence[Measurement]) -> dict[str, object]:
    """The figures, with what they depend on."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "measurements": [each.to_dict() for each in found],
    }


if __name__ == "__main__":
    sys.exit(main())
