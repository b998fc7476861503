"""Measured runs as rows: what `autotune measure --csv` writes and `rows.py` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from autotune.validation.rows import COLUMNS
from distir.errors import DistirError
from distir.files import read_text, user_path, write_text
from distir.models import TransformerConfig
from distir.strategy import Strategy
from distir.workload import Workload

__all__ = ["add_row", "check_table", "row_of"]


STATED = (
    "id source source_group hardware num_gpus model num_layers hidden heads kv_heads ffn_hidden "
    "vocab gated_mlp seq_len global_batch micro_batch dp tp pp vpp cp sequence_parallel zero_stage "
    "recompute schedule precision optimizer iteration_time_s"
).split()
"""The columns of rows that are written."""


def row_of(
    config: TransformerConfig,
    workload: Workload,
    strategy: Strategy,
    hardware: str,
    seconds: float,
    source: str,
) -> dict[str, str]:
    """A row of a training step that took so long. `hardware` is the file of a cluster.

    Raises `DistirError` for what rows cannot state: inference, experts, a list of axes.
    """
    if not workload.training or config.experts or strategy.axes:
        raise DistirError(
            "a row states training of a dense transformer by degrees; expected no inference, no "
            "experts and no list of axes: leave out --csv"
        )
    micro = workload.batch_size // (strategy.dp * strategy.microbatches)
    stated = {
        "id": f"{config.name} batch {workload.batch_size} {strategy.label}",
        "source": source,
        "source_group": "measured",
        "hardware": hardware,
        "num_gpus": strategy.devices,
        "model": config.name,
        "num_layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads or config.heads,
        "ffn_hidden": config.ffn_width,
        "vocab": config.vocabulary,
        "gated_mlp": "yes" if config.gated else "no",
        "seq_len": workload.sequence_length or config.sequence_length,
        "global_batch": workload.batch_size,
        "micro_batch": micro,
        "dp": strategy.dp,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "vpp": strategy.chunks if strategy.chunks > 1 else "",
        "cp": strategy.cp,
        "sequence_parallel": "yes" if strategy.sequence_parallel else "no",
        "zero_stage": strategy.zero,
        "recompute": strategy.recompute,
        "schedule": strategy.schedule,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "iteration_time_s": f"{seconds:.6g}",
    }
    return {name: str(stated[name]) for name in STATED}


def check_table(path: str | Path) -> None:
    """Raises `DistirError` if no row can be added to the file, as far as that can be told."""
    file = user_path(path)
    if not file.parent.is_dir():
        raise DistirError(f"{file} cannot be written: there is no folder {file.parent}")
    _header(file, _text(file))


def add_row(path: str | Path, row: Mapping[str, str]) -> None:
    """Adds a row to a CSV file of measured runs, which is made if it is not there.

    Raises `DistirError` if the file has other columns.
    """
    file = user_path(path)
    text = _text(file)
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, _header(file, text), lineterminator="\n")
    if not text:
        writer.writeheader()
    writer.writerow(dict(row))
    whole = text if not text or text.endswith("\n") else text + "\n"
    write_text(file, whole + written.getvalue())


def _text(file: Path) -> str:
    return read_text(file, DistirError) if file.exists() else ""


def _header(file: Path, text: str) -> list[str]:
    """The columns of a file, all that rows state among them."""
    header = next(csv.reader(io.StringIO(text)), None) or list(COLUMNS)
    missing = [name for name in STATED if name not in header]
    if missing:
        raise DistirError(f"{file} has no column {missing[0]}; expected a file of measured runs")
    return header
