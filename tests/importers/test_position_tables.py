"""Tables of positions in ONNX files: how many positions they have rows for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from distir import Strategy, Workload, load_model
from distir.errors import TransformError
from distir.execute.verify import verify
from distir.importers.onnx import import_onnx
from distir.models.transformer import TransformerConfig
from distir.program import build_program
from tests.importers.models import INT64, integers, model, node, weights

Array = Any

ROWS = 514
"""Rows of the table, as RoBERTa's."""

COUNTED = [
    node("Range", "zero length one", "arange"),
    node("Unsqueeze", "arange zero_1", "counted"),
]
"""Positions from 0."""


def _placed(
    making: Sequence[Any], inputs: dict[str, Any] | None = None, table_rows: int = ROWS
) -> Any:
    """A layer of attention on embeddings and those of `positions`, which `making` computes from
    `ids`, its length, and further inputs."""
    return model(
        {"ids": (INT64, ["batch", "sequence"]), **(inputs or {})},
        [
            node("Shape", "ids", "shape"),
            node("Gather", "shape one", "length"),
            *making,
            node("Gather", "words ids", "x"),
            node("Gather", "table positions", "placed"),
            node("Add", "x placed", "n"),
            node("MatMul", "n query", "q"),
            node("Transpose", "n", "k", perm=[0, 2, 1]),
            node("MatMul", "q k", "scores"),
            node("Softmax", "scores", "weights", axis=-1),
            node("MatMul", "weights n", "mixed"),
            node("MatMul", "mixed head", "logits"),
        ],
        "logits",
        {
            "words": weights(50, 12),
            "table": weights(table_rows, 12),
            "query": weights(12, 12),
            "head": weights(12, 50),
            "zero": np.asarray(0, np.int64),
            "one": np.asarray(1, np.int64),
            "two": np.asarray(2, np.int64),
            "zero_1": integers(0),
        },
    )


def _longest(made: Any) -> int | None:
    return build_program(import_onnx(made), training=True).longest_sequence


def _after_padding(mask: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    """Positions counted among what is no padding: running sums of `mask`, times it, and more."""
    return [
        *mask,
        node("CumSum", "mask one", "sums"),
        node("Mul", "sums mask", "kept"),
        *added,
    ]


UNPADDED = [
    node("Equal", "ids one", "is_padding"),
    node("Not", "is_padding", "is_word"),
    node("Cast", "is_word", "mask", to=INT64),
]
OF_MASK = {"mask": (INT64, ["batch", "sequence"])}


@pytest.mark.parametrize(
    ("making", "inputs", "longest"),
    [
        ([*COUNTED, node("Identity", "counted", "positions")], {}, 514),
        ([*COUNTED, node("Add", "counted two", "positions")], {}, 512),
        ([*COUNTED, node("Add", "one counted", "c"), node("Add", "c two", "positions")], {}, 511),
        (_after_padding(UNPADDED, [node("Add", "kept one", "positions")]), {}, 512),
        (
            _after_padding([], [node("Sub", "kept one", "p"), node("Add", "p two", "positions")]),
            OF_MASK,
            512,
        ),
        (
            [node("Add", "places two", "positions")],
            {"places": (INT64, ["batch", "sequence"])},
            None,
        ),
        ([*UNPADDED, node("Add", "mask one", "positions")], {}, None),
    ],
    ids=["counted", "two more", "sums", "after padding", "of a mask", "given", "two kinds"],
)
def test_rows_before_the_first_position_are_no_positions(
    making: Sequence[Any], inputs: dict[str, Any], longest: int | None
) -> None:
    assert _longest(_placed(making, inputs)) == longest


def test_the_length_that_is_taken_has_a_row_for_every_position() -> None:
    made = _placed([*COUNTED, node("Add", "counted two", "positions")])
    workload = Workload(model=load_model(lambda: made))
    assert workload.length == 512
    with pytest.raises(TransformError, match="table has rows for 512 positions"):
        workload.program.sizes(4, 513)


def test_rows_that_are_cut_off_in_front_are_no_positions() -> None:
    cut = model(
        {"ids": (INT64, ["batch", 24])},
        [
            node("Slice", "table start end", "placed"),
            node("Gather", "words ids", "x"),
            node("Add", "x placed", "n"),
            node("Transpose", "n", "k", perm=[0, 2, 1]),
            node("MatMul", "n k", "scores"),
            node("MatMul", "scores n", "mixed"),
            node("MatMul", "mixed head", "logits"),
        ],
        "logits",
        {
            "words": weights(50, 12),
            "table": weights(66, 12),
            "head": weights(12, 50),
            "start": integers(2),
            "end": integers(26),
        },
    )
    assert _longest(cut) == 64


def test_a_configuration_and_its_function_agree_on_the_rows_before_the_first_position() -> None:
    config = TransformerConfig(
        name="small", layers=2, hidden=8, heads=2, vocabulary=50, sequence_length=64,
        position_offset=3,
    )  # fmt: skip
    program = build_program(config.build(11, 23), training=True)
    assert program.longest_sequence == config.longest == 64


def test_positions_after_padding_are_verified() -> None:
    made = _placed(_after_padding(UNPADDED, [node("Add", "kept one", "positions")]))
    found = verify(Workload(model=load_model(lambda: made), batch_size=8), Strategy(dp=2, tp=2))
    assert found.passed


def test_the_range_of_a_long_sum_is_found_at_once() -> None:
    """A sum of 40 terms is least where all are least: not all corners are tried."""
    terms = [node("Cast", f"b{i}", f"t{i}", to=7) for i in range(40)]
    making = [
        *terms,
        node("Sum", " ".join(f"t{i}" for i in range(40)), "total"),
        *COUNTED,
        node("Add", "counted total", "positions"),
    ]
    inputs = {f"b{i}": (9, ["batch", "sequence"]) for i in range(40)}
    program = build_program(import_onnx(_placed(making, inputs)), training=False)
    assert program.longest_sequence == ROWS - 40


def test_positions_that_are_counted_in_floats_are_made_of_constants() -> None:
    """As the newer exporter writes OPT: ones are expanded, added up and become integers."""
    made = model(
        {"ids": (INT64, ["n", "s"])},
        [
            node("Shape", "ids", "shape"),
            node("Expand", "one shape", "ones"),
            node("CumSum", "ones last", "counted"),
            node("Sub", "counted one", "from_zero"),
            node("Cast", "from_zero", "places", to=INT64),
            node("Gather", "positions places", "p"),
            node("Gather", "words ids", "w"),
            node("Add", "p w", "h"),
            node("LayerNormalization", "h scale bias", "normed"),
            node("MatMul", "normed head", "y"),
        ],
        "y",
        {
            "one": np.asarray(1, np.float32), "last": np.asarray(1), "positions": weights(40, 6),
            "words": weights(9, 6), "scale": weights(6), "bias": weights(6),
            "head": weights(6, 9),
        },
    )  # fmt: skip
    function = import_onnx(made)
    names = {value.name for value in function.parameters}
    assert names == {"positions", "words", "scale", "bias", "head"}
