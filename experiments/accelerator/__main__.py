"""`python -m experiments.accelerator --device h100-sxm5-80gb --output my-stack.toml`; with several
GPUs `torchrun --nproc-per-node 8 -m experiments.accelerator …` measures collectives, too.

Measures what a stack's constants state (products by shape and type, attention, memory-bound
kernels, launches from Python and in a graph, collectives) and writes a software stack with them,
for `autotune run --stack my-stack.toml`. Where there is no GPU it says so in one line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from distir.cost import load_device
from distir.files import write_text
from distir.units import parse_bytes_per_second
from experiments.accelerator import measure
from experiments.accelerator.fit import constants, stack_file, table


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, and writes the stack."""
    parser = argparse.ArgumentParser(prog="experiments.accelerator", description=__doc__)
    parser.add_argument("--device", required=True, help="its datasheet: a name or a TOML file")
    parser.add_argument("--link", metavar="RATE", help='between GPUs, one direction: "450 GB/s"')
    parser.add_argument("--dispatch", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--output", type=Path, metavar="FILE.toml", default="measured-stack.toml")
    options = parser.parse_args(argv)
    device = load_device(options.device)
    link = None if options.link is None else parse_bytes_per_second(options.link)
    missing = measure.why_not()
    if missing is not None:
        print(f"nothing measured: {missing}")
        return 0
    samples = list(measure.samples())
    if os.environ.get("RANK", "0") != "0":
        return 0
    today = datetime.now(timezone.utc).date()
    source = f"measured on {measure.described()}, {today}, against {device.name}"
    found = constants([s for s in samples if s.dtype != "fp32"], device, link)
    print(table(samples))
    write_text(
        options.output, stack_file(options.output.stem, found, source, options.dispatch, "fused")
    )
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
