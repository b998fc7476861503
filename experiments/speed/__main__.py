"""`python -m experiments.speed`: a table of medians, and JSON for comparisons later."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from experiments.speed.measurements import Measurement, measure_all


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(prog="experiments.speed", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    options = parser.parse_args(argv)
    found = measure_all(options.repeats, lambda name: print(f"… {name}", file=sys.stderr))
    print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(report(found), indent=2) + "\n", encoding="utf-8")
    return 0


def table(found: Sequence[Measurement]) -> str:
    """One line each: median, fastest, slowest, and what is wanted."""
    lines = [f"{'':32}{'median':>10}{'fastest':>10}{'slowest':>10}{'wanted':>10}"]
    for each in found:
        wanted = "" if each.wanted_seconds is None else f"< {each.wanted_seconds:g} s"
        columns = (each.median_seconds, min(each.seconds), max(each.seconds))
        lines.append(f"{each.name:32}{''.join(f'{value:8.3f} s' for value in columns)}{wanted:>10}")
    return "\n".join(lines)


def report(found: Sequence[Measurement]) -> dict[str, object]:
    """The figures, with what they depend on."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "measurements": [each.to_dict() for each in found],
    }


if __name__ == "__main__":
    sys.exit(main())
