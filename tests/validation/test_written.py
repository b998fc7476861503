"""A run that is written as a row is the case that it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.validation import Case, make_case, read_rows
from autotune.validation.written import add_row, row_of
from distir import Strategy, Workload, load_model
from distir.errors import DistirError
from distir.models import TransformerConfig
from distir.models.zoo import find_model

CLUSTER = """
name = "mine"
[device]
name = "core"
memory = "8 GiB"
memory_bandwidth = "20 GB/s"
peak = { fp32 = "0.1 TFLOP/s" }
[[levels]]
name = "messages"
bandwidth = "1 GB/s"
latency = "1 us"
"""


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(dp=2, microbatches=2, zero=1),
        Strategy(pp=2, microbatches=4, schedule="zb-h1"),
        Strategy(tp=2, recompute="full"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b"])
def test_a_row_reads_back_as_the_run_that_was_measured(
    name: str, strategy: Strategy, tmp_path: Path
) -> None:
    cluster, table = tmp_path / "cluster.toml", tmp_path / "runs.csv"
    cluster.write_text(CLUSTER)
    config = find_model(name)
    assert isinstance(config, TransformerConfig)
    workload = Workload(model=load_model(name), batch_size=16, sequence_length=64, precision="fp32")
    for seconds in (0.25, 0.5):
        add_row(table, row_of(config, workload, strategy, str(cluster), seconds, "here"))
    cases = [make_case(row) for row in read_rows(table)]
    assert len(cases) == 2
    for case, seconds in zip(cases, (0.25, 0.5), strict=True):
        assert isinstance(case, Case), case
        assert case.strategy == strategy
        assert (case.batch_size, case.sequence_length, case.precision) == (16, 64, "fp32")
        assert case.measured.seconds == seconds
        assert case.hardware.cluster.name == "mine"
        assert (case.model.config.layers, case.model.config.hidden) == (
            config.layers,
            config.hidden,
        )


def test_a_file_that_is_no_table_of_runs_is_left_as_it_is(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("item,price\n")
    config = find_model("gpt2")
    assert isinstance(config, TransformerConfig)
    workload = Workload(model=load_model("gpt2"), batch_size=16)
    row = row_of(config, workload, Strategy(), "c.toml", 1.0, "here")
    with pytest.raises(DistirError, match="no column id"):
        add_row(table, row)
    assert table.read_text() == "item,price\n"
