"""Executes strategies for eight devices, for many models, and compares the numbers.

    python -m experiments.proof                               # every family, all of the small space
    python -m experiments.proof --space full --limit 40       # 40 strategies of the full space each
    python -m experiments.proof model.onnx --space standard --json proof.json
    python -m experiments.proof --space full --limit 12 --processes  # on real processes

Models are made small (`autotune verify` does the same for one model); the batch has many divisors.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import distir
from distir.errors import DistirError
from distir.execute.verify import Verification, Verifier
from distir.files import write_text
from distir.plan import Planner
from distir.plan.axis_lists import AxisLists
from distir.strategy import Strategy
from search_spaces import distribution_space

FAMILIES = (
    "gpt2", "gpt3-125M", "llama3-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b",
    "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "bert-base", "t5-small",
    "vit-b", "mlp-small", "mlp-8x512",
)  # fmt: skip
"""One model of every family of the zoo."""

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "models"
"""Real exports, where they lie beside the project."""

DEVICES = 8
BATCH = 16


def every_model() -> list[str]:
    """One model of every family, and the real exports that are there."""
    return [*FAMILIES, *map(str, sorted(SHARED.glob("*.onnx")))]


def prove(
    name: str,
    space_name: str,
    limit: int | None,
    mode: str = "training",
    seed: int = 0,
    processes: bool = False,
) -> dict[str, Any]:
    """Verifies all strategies of the space (or `limit` of them, at random) for one model, on
    virtual devices or with a process per device."""
    start = time.process_time()
    model = distir.load_model(name)
    workload = distir.Workload(model=model, batch_size=BATCH, mode=mode)  # pyright: ignore[reportArgumentType]
    lists = AxisLists(Planner(workload))
    space = distribution_space(workload, DEVICES, space_name, lists)
    chosen = space.samples(random.Random(seed), limit) if limit else space.enumerate()
    verifier = Verifier(workload)
    verify = real_verify(verifier) if processes else verifier.verify
    done, refused = verify_all(verify, chosen)
    return {
        "model": name,
        "space": space_name,
        "mode": mode,
        "strategies": len(done) + len(refused),
        "of": space.count(),
        "failed": [each.strategy.label for each in done if not each.passed],
        "refused": refused,
        "peaks_differ": [
            each.strategy.label
            for each in done
            if each.simulated_peak_bytes != each.executed_peak_bytes
        ],
        "max_relative_error": max((each.max_relative_error for each in done), default=0.0),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def real_verify(verifier: Verifier) -> Callable[[Strategy], Verification]:
    """Verifies on real processes. What they send is an error unless it is as long as planned."""
    from autotune.distributed.execution import RealVerifier

    real = RealVerifier(verifier)

    def verify(strategy: Strategy) -> Verification:
        found = real.verify(strategy)
        for name, each in found.traffic.items():
            if each.planned != each.sent:
                raise DistirError(f"{each.sent:,} bytes over {name}; planned {each.planned:,}")
        return found.verification

    return verify


def verify_all(
    verify: Callable[[Strategy], Verification], strategies: Iterable[Strategy]
) -> tuple[list[Verification], dict[str, str]]:
    """What came out, and by label the reasons of those that were not executed."""
    done: list[Verification] = []
    refused: dict[str, str] = {}
    for strategy in strategies:
        try:
            done.append(verify(strategy))
        except DistirError as error:
            refused[strategy.label] = str(error)
    return done, refused


def line(found: dict[str, Any]) -> str:
    """One model's results for people."""
    faults = [
        f"{len(found[what])} {words}, the first {next(iter(found[what]))}"
        for what, words in (
            ("failed", "differ"),
            ("refused", "not executed"),
            ("peaks_differ", "hold other bytes than simulated"),
        )
        if found[what]
    ]
    return (
        f"{Path(found['model']).name:<18} {found['mode']} {found['strategies']:>4} of "
        f"{found['of']:>6}, largest relative error {found['max_relative_error']:.1e}, "
        f"{'; '.join(faults) or 'none differs'}, {found['cpu_seconds']} s of CPU"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="experiments.proof",
        description="Execute the strategies of a space for eight devices and compare the numbers.",
    )
    parser.add_argument("models", nargs="*", help="default: every family and ../shared/models")
    parser.add_argument("--space", default="small", help="small, standard, full or a YAML file")
    parser.add_argument("--limit", type=int, help="number of strategies at most, drawn at random")
    parser.add_argument("--mode", default="training", help="training or inference")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument(
        "--processes", action="store_true", help="with a process per device (needs PyTorch)"
    )
    parser.add_argument("--json", type=Path, help="write all results here")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in arguments.models or every_model():
        results.append(
            prove(
                name,
                arguments.space,
                arguments.limit,
                arguments.mode,
                arguments.seed,
                arguments.processes,
            )
        )
        print(line(results[-1]), flush=True)
        if arguments.json:
            write_text(arguments.json, json.dumps(results, indent=2))
    if any(found["failed"] or found["refused"] or found["peaks_differ"] for found in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
