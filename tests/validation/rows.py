"""A measured run to vary."""

from __future__ import annotations

import csv
from pathlib import Path

from autotune.validation import Case, Exclusion, MeasuredRow, make_case

BASE = {
    "id": "run-1",
    "source": "somewhere",
    "source_group": "here",
    "hardware": "A100 80GB",
    "gpus_per_node": "8",
    "num_gpus": "16",
    "num_layers": "4",
    "hidden": "256",
    "heads": "4",
    "ffn_hidden": "1024",
    "vocab": "1000",
    "gated_mlp": "no",
    "seq_len": "128",
    "global_batch": "32",
    "micro_batch": "2",
    "dp": "4",
    "tp": "2",
    "pp": "2",
    "precision": "bf16",
    "schedule": "1F1B",
    "iteration_time_s": "0.5",
}


def row(**changes: str) -> MeasuredRow:
    """The run, changed; an empty text makes a blank."""
    values = {name: text for name, text in {**BASE, **changes}.items() if text}
    return MeasuredRow(2, values)


def case(**changes: str) -> Case:
    """The changed run as a case."""
    made = make_case(row(**changes))
    assert isinstance(made, Case), made
    return made


def reason(**changes: str) -> str:
    """Why the changed run cannot be used."""
    made = make_case(row(**changes))
    assert isinstance(made, Exclusion), made
    return made.reason


def write_csv(path: Path, *changes: dict[str, str]) -> Path:
    """A file of runs; returns its path."""
    rows = [{**BASE, **change} for change in changes]
    header = list(dict.fromkeys(name for each in rows for name in each))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
