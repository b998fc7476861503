"""The original DistIR side by side: `python -m experiments.distir_paper --help`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import distir
from distir.files import write_text
from experiments.distir_paper import measured, orders, original, reference, studies
from experiments.distir_paper.plots import draw
from experiments.distir_paper.statistics import mean_error, spearman

CLUSTER, DEVICES = "dgx-a100", 16
MEMORY_OF_THEN = "dgx2-v100"
"""Sixteen GPUs with 32 GB each, where large models fit on several alone."""
MLP_BATCH_SIZES = tuple(2**k for k in range(6, 15, 2))
GPT_BATCH_SIZES = tuple(2**k for k in range(4, 13, 2))
GPT_SEQUENCE_LENGTH = 128
PIPELINE_LAYERS, PIPELINE_WIDTH, PIPELINE_BATCH_SIZE = 64, 4096, 4096
PIPELINE_STAGES, PIPELINE_MICROBATCHES = (2, 4, 8, 16, 32), (2, 4, 8, 16, 32, 64)
"""Of the MLP whose pipeline runs in two orders."""


def main() -> None:
    """Compares, searches, reports, draws."""
    parser = argparse.ArgumentParser(
        prog="experiments.distir_paper",
        description="Compare with the original DistIR and with what it measured; repeat its grids.",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        default=Path(__file__).parents[2] / "../shared/reference",
        help="folder with the original's outputs and measurements",
    )
    parser.add_argument("--plots", type=Path, help="write the pictures into this folder")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--no-studies", action="store_true", help="leave the grids out")
    arguments = parser.parse_args()
    if not arguments.reference.is_dir():
        parser.error(f"{arguments.reference}: there is no such folder; --reference names one")
    compared, left_out = reference.compare(arguments.reference)
    rows = measured.compare(arguments.reference)
    print("Against the original's simulator, its hardware numbers, the simple stack\n")
    print(reference.report(compared, left_out))
    print(f"\nAgainst its measured MLP steps, stack {measured.STACK.stem}\n")
    print(measured.report(rows))
    found: list[studies.Study] = []
    pipelines: list[orders.OrderTimes] = []
    if not arguments.no_studies:
        cluster = distir.load_cluster(CLUSTER, DEVICES)
        found = [
            studies.mlp_training(cluster, MLP_BATCH_SIZES),
            *(
                studies.gpt_inference(each, GPT_BATCH_SIZES, GPT_SEQUENCE_LENGTH)
                for each in (cluster, distir.load_cluster(MEMORY_OF_THEN, DEVICES))
            ),
        ]
        for study in found:
            print(f"\n{studies.report(study)}")
        pipelines = _pipelines()
        print(f"\n{orders.report(pipelines)}")
    if arguments.plots:
        for path in draw(arguments.plots, compared, rows, found, pipelines):
            print(path)
    if arguments.json:
        write_text(
            arguments.json, json.dumps(_figures(compared, rows, found, pipelines), indent=2) + "\n"
        )


def _pipelines() -> list[orders.OrderTimes]:
    """Both orders of pipelines on eight GPUs a node."""
    workload = original.mlp_training(
        original.mlp(PIPELINE_LAYERS, PIPELINE_WIDTH), PIPELINE_BATCH_SIZE, "fp16"
    )
    cluster = distir.load_cluster(CLUSTER, max(PIPELINE_STAGES))
    return list(orders.compare_orders(workload, cluster, PIPELINE_STAGES, PIPELINE_MICROBATCHES))


def _figures(
    compared: list[reference.Compared],
    rows: list[measured.Measured],
    found: list[studies.Study],
    pipelines: list[orders.OrderTimes],
) -> dict[str, Any]:
    tasks, right, original_right = measured.right_choices(rows)
    return {
        "reference": {
            "spearman": spearman(
                [r.seconds for r in compared], [r.original_seconds for r in compared]
            ),
            "rows": [asdict(each) for each in compared],
        },
        "measured": {
            "mean_error": mean_error(
                [row.predicted_seconds for row in rows], [row.seconds for row in rows]
            ),
            "tasks": tasks,
            "right_number_of_devices": right,
            "right_number_of_devices_original": original_right,
            "rows": [asdict(each) for each in rows],
        },
        "orders": [asdict(each) for each in pipelines],
        "studies": [
            {
                "name": study.name,
                "cluster": study.cluster,
                "configurations": len(study.trials),
                "seconds": study.seconds,
                "original_seconds": study.original_seconds,
                "best": [
                    {
                        "model": model,
                        "batch_size": batch,
                        "family": family,
                        "strategy": trial.strategy.to_dict(),
                        "samples_per_second": trial.samples_per_second,
                    }
                    for (model, batch), trials in studies.by_workload(study).items()
                    for family, trial in studies.best_of_families(trials).items()
                ],
            }
            for study in found
        ],
    }


if __name__ == "__main__":
    main()
