"""Executes every strategy of a space for eight devices, for many models, and compares the numbers.

    python -m experiments.proof                      # the zoo's families, the small space
    python -m experiments.proof model.onnx --space standard --json proof.json

Models are made small (`autotune verify` does the same for one model); the batch has many divisors.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import distir
from distir.execute.verify import Verifier
from search_spaces import distribution_space

FAMILIES = (
    "gpt2", "llama3-8b", "mistral-7b", "qwen2.5-7b", "bert-base", "t5-small", "vit-b", "mlp-small",
)  # fmt: skip
DEVICES = 8
BATCH = 16


def prove(name: str, space_name: str, limit: int | None) -> dict[str, Any]:
    """Verifies all strategies of the space (or `limit` of them, evenly spread) for one model."""
    start = time.perf_counter()
    workload = distir.Workload(model=distir.load_model(name), batch_size=BATCH)
    space = distribution_space(workload, DEVICES, space_name)
    step = max(1, space.count() // limit) if limit else 1
    verifier = Verifier(workload)
    done = [verifier.verify(space.at(index)) for index in range(0, space.count(), step)]
    return {
        "model": name,
        "space": space_name,
        "strategies": len(done),
        "of": space.count(),
        "failed": [each.strategy.label for each in done if not each.passed],
        "max_relative_error": max(each.max_relative_error for each in done),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="experiments.proof",
        description="Execute every strategy of a space for eight devices and compare the numbers.",
    )
    parser.add_argument("models", nargs="*", default=FAMILIES)
    parser.add_argument("--space", default="small", help="small, standard or full")
    parser.add_argument("--limit", type=int, help="at most about so many strategies per model")
    parser.add_argument("--json", type=Path, help="write all results here")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in arguments.models:
        found = prove(name, arguments.space, arguments.limit)
        results.append(found)
        print(
            f"{Path(name).name:<22} {found['strategies']:>6} of {found['of']:>7} strategies, "
            f"largest relative error {found['max_relative_error']:.1e}, "
            f"{len(found['failed'])} failed, {found['seconds']} s",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    if any(found["failed"] for found in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
