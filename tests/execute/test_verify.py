"""`autotune verify`: what users run to see that a plan computes the right numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from autotune.cli import main
from distir import Strategy, Workload, load_model
from distir.errors import StrategyError, TransformError
from distir.execute import executor
from distir.execute.sequential import evaluate
from distir.execute.shrink import shrink
from distir.execute.verify import (
    ROUNDING_MARGIN,
    Difference,
    Verification,
    Verifier,
    relative_error,
    verify,
)
from distir.importers.load import LoadedModel
from distir.ir import Builder, DType, Function
from distir.ir.core import Array
from distir.models.experts import Experts
from distir.models.layers import linear
from distir.models.transformer import llama_config
from distir.ops.activations import Relu
from distir.ops.arithmetic import Exp, Mul, Sin
from distir.ops.collective import AllReduce
from distir.ops.elementwise import Unary
from distir.ops.lookup import GatherND
from distir.workload import Mode
from tests.importers.models import FLOAT, INT64, integers, model, node, stripped, weights

COMMAND = ["verify", "--model", "gpt2-xs", "--dp", "2", "--tp", "2", "--microbatches", "2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_right_plan_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    status, shown = run(capsys, *COMMAND, "--pp", "2", "--schedule", "1f1b")
    assert status == 0
    assert "The same numbers as on one device" in shown
    assert "dp2-tp2-pp2-m2-1f1b" in shown


def test_json_says_what_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = run(capsys, *COMMAND, "--json", "-")
    found = json.loads(shown)
    assert status == 0
    assert found["max_relative_error"] < 1e-10
    assert found["compared"] > 20
    assert found["devices"] == 4
    assert found["simulated_peak_bytes"] == found["executed_peak_bytes"] > 0


def test_inference_compares_the_outputs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = run(capsys, *COMMAND, "--mode", "inference", "--json", "-")
    assert status == 0
    assert json.loads(shown)["compared"] == 1


def test_all_verifies_samples_of_the_space(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("verify", "--model", "mlp-xs", "--all", "--samples", "5", "--devices", "4")
    status, shown = run(capsys, *arguments, "--json", "-")
    found = json.loads(shown)
    assert status == 0
    assert found["strategies"] == len(found["results"]) == 5
    assert found["max_relative_error"] < 1e-10


def _always(*_: object, **__: object) -> bool:
    return True


def test_a_wrong_plan_is_shown_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(self: AllReduce, shards: Any) -> list[Any]:
        return list(shards)

    monkeypatch.setattr(AllReduce, "exchange", forgetful)
    monkeypatch.setattr(executor.np, "allclose", _always)
    status, shown = run(capsys, *COMMAND, "--pp", "2")
    assert status == 1
    assert "is the first that differs" in shown


def test_an_impossible_strategy_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = run(capsys, "verify", "--model", "gpt2-xs", "--tp", "5")
    assert status == 2
    assert "is not divisible by tp = 5" in shown
    workload = Workload(model=load_model("gpt2-xs"), batch_size=4)
    with pytest.raises(StrategyError, match="is not divisible by"):
        verify(workload, Strategy(dp=3))


def test_tables_without_values_are_made_up_and_named() -> None:
    from tests.conftest import shared_path

    model = load_model(str(shared_path("models/gpt2.onnx")))
    found = verify(Workload(model=model, batch_size=4), Strategy(dp=2, microbatches=2))
    assert found.passed
    assert found.invented


def test_small_versions_are_kept() -> None:
    verifier = Verifier(Workload(model=load_model("mlp-xs"), batch_size=8))
    first = verifier.small(Strategy(dp=2, microbatches=2))
    assert verifier.small(Strategy(dp=2, microbatches=2, schedule="gpipe")) is first


def test_errors_are_relative_to_the_largest_value() -> None:
    assert relative_error(np.ones(3), np.ones(3)) == 0
    assert relative_error(np.array([2.0, 1.0]), np.array([2.0, 1.5])) == 0.25
    assert relative_error(np.array([1e-9]), np.zeros(1), least=1.0) == 1e-9
    assert relative_error(np.array([1e-9]), np.zeros(1)) == float("inf")
    assert relative_error(np.array([np.nan]), np.ones(1)) == float("inf")
    assert relative_error(np.ones(2), np.ones(3)) == float("inf")


def test_what_is_no_number_does_not_pass() -> None:
    found = Verification(
        Strategy(), 1, (Difference("loss", 0.0), Difference("x", float("nan"))), 0.0, 0.0, ()
    )
    assert found.first_difference == found.differences[1]
    assert not found.passed


def waves(batch_size: int, number: float) -> Function:
    """Two layers, and so many waves of a sine: an error of the sum is as many times larger behind
    it."""
    builder = Builder("waves")
    x = builder.input("x", (batch_size, 8))
    hidden = builder.add(Relu(), linear(builder, x, "first", 16))
    y = builder.add(Mul(), linear(builder, hidden, "second", 8), builder.scalar(number))
    return builder.build([builder.add(Sin(), y)])


@pytest.mark.parametrize(("number", "lost"), [(1.0, False), (1e7, True)])
def test_what_rounding_explains_passes_and_is_said(number: float, lost: bool) -> None:
    workload = Workload(model=LoadedModel("waves", waves(4, number)), batch_size=4, loss="mse")
    found = verify(workload, Strategy(tp=4))
    assert found.passed
    assert bool(found.rounded) is (found.max_relative_error > found.tolerance) is lost
    assert all(each.error < ROUNDING_MARGIN * each.rounding for each in found.rounded)


def test_what_rounding_does_not_explain_fails() -> None:
    assert Difference("x", 1e-9, rounding=2e-10).within(1e-10)
    assert not Difference("x", 1e-8, rounding=2e-10).within(1e-10)
    assert not Difference("x", 1e-3, rounding=1e-2).within(1e-10)
    assert not Difference("x", float("inf"), rounding=float("inf")).within(1e-10)
    assert not Difference("x", float("nan")).within(1e-10)


def _with_tables(kinds: int, sequence: int, longest: int) -> Any:
    """A model in the style of BERT exports: positions and kinds of tokens are buffers, cut to the
    sequence, and chosen from tables of `longest` and `kinds` rows."""
    cut = "start end axis"
    return model(
        {"ids": (INT64, ["batch", sequence])},
        [
            node("Gather", "words ids", "x"),
            node("Slice", f"positions {cut}", "p"),
            node("Gather", "position_table p", "xp"),
            node("Slice", f"token_types {cut}", "t"),
            node("Gather", "type_table t", "xt"),
            node("Add", "x xp", "y"),
            node("Add", "y xt", "z"),
            node("LayerNormalization", "z scale bias", "n", axis=-1),
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
            "position_table": weights(longest, 12),
            "type_table": weights(kinds, 12),
            "positions": np.arange(longest)[None],
            "token_types": np.zeros((1, longest), np.int64),
            "start": integers(0),
            "end": integers(sequence),
            "axis": integers(1),
            "scale": weights(12),
            "bias": weights(12),
            "query": weights(12, 12),
            "head": weights(12, 50),
        },
    )


@pytest.mark.parametrize("has_values", [True, False], ids=["values", "no values"])
@pytest.mark.parametrize("longest", [16, 40], ids=["just long enough", "longer"])
@pytest.mark.parametrize("kinds", [1, 2, 3, 16, 17])
def test_an_index_along_the_sequence_needs_no_more_rows_than_its_table_has(
    kinds: int, longest: int, has_values: bool
) -> None:
    made = _with_tables(kinds, 16, longest)
    loaded = load_model(lambda: made if has_values else stripped(made))
    strategy = Strategy(dp=2, tp=2, microbatches=2)
    found = verify(Workload(model=loaded, batch_size=8), strategy)
    assert found.passed


def _with_written_rows(rows: int, *indices: int) -> Any:
    """A model that overwrites some of the rows of its input, in a dim that no parameter has."""
    return model(
        {"x": (FLOAT, ["batch", rows, 16])},
        [
            node("MatMul", "x up", "h"),
            node("Transpose", "h", "by_row", perm=[1, 0, 2]),
            node("Slice", "by_row start end", "first"),
            node("Mul", "first scale", "updates"),
            node("ScatterND", "by_row indices updates", "new"),
            node("Transpose", "new", "back", perm=[1, 0, 2]),
            node("MatMul", "back down", "y"),
        ],
        "y",
        {
            "up": weights(16, 24),
            "down": weights(24, 16),
            "scale": weights(24),
            "start": integers(0),
            "end": integers(len(indices)),
            "indices": np.asarray(indices, np.int64)[:, None],
        },
    )


@pytest.mark.parametrize("has_values", [True, False], ids=["values", "no values"])
@pytest.mark.parametrize("indices", [(7, 3), (31, 30, 2), (-32, -1)])
def test_rows_that_are_written_at_constant_indices_are_verified(
    indices: tuple[int, ...], has_values: bool
) -> None:
    made = _with_written_rows(32, *indices)
    loaded = load_model(lambda: made if has_values else stripped(made))
    strategy = Strategy(dp=2, tp=2, microbatches=2)
    assert verify(Workload(model=loaded, batch_size=8), strategy).passed


@pytest.mark.parametrize(
    ("op", "operands", "rows"),
    [
        ("GatherND", "table tuples", 21),
        ("ScatterND", "table tuples updates", 21),
        ("ScatterElements", "table elements updates", 21),
        ("GatherElements", "table elements", 21),
        ("GatherND", "table from_the_end", 18),  # -23 of 40 is 17
        ("ScatterND", "table from_the_end updates", 23),
        ("Gather", "table rows", 21),
    ],
)
def test_a_table_keeps_the_rows_that_constant_indices_reach(
    op: str, operands: str, rows: int
) -> None:
    made = model(
        {"x": (FLOAT, ["batch", 16])},
        [node(op, operands, "chosen"), node("Gemm", "x chosen", "y", transB=1)],
        "y",
        {
            "table": weights(40, 16),
            "tuples": np.asarray([[20], [5]], np.int64),
            "elements": np.asarray([[20] * 16, [5] * 16], np.int64),
            "from_the_end": np.asarray([[-23], [5]], np.int64),
            "rows": integers(20, 5),
            "updates": weights(2, 16),
        },
    )
    loaded = load_model(lambda: made, onnx_options={"parameters": ["table", "updates"]})
    workload = Workload(model=loaded, batch_size=8)
    small = shrink(workload, [Strategy()])
    table = next(value for value in small.model.function.parameters if value.name == "table")
    assert table.type.shape[0] == rows
    assert verify(workload, Strategy(dp=2)).passed


def _with_differences(rows: int, *, tied: bool) -> Any:
    """A model that chooses rows at differences of its inputs, as LayoutLM those of widths: a
    negative one counts from the end. The head may have the same table, whose rows are padded."""
    head = node("Transpose", "table", "head", perm=[1, 0])
    return model(
        {name: (INT64, ["batch", "sequence"]) for name in ("left", "right")},
        [
            node("Sub", "right left", "widths"),
            node("Gather", "table widths", "x"),
            node("MatMul", "x up", "h"),
            node("Relu", "h", "r"),
            node("MatMul", "r down", "y"),
            *((head,) if tied else ()),
            node("MatMul", "y head", "logits"),
        ],
        "logits",
        {
            "table": weights(rows, 16),
            "up": weights(16, 64),
            "down": weights(64, 16),
            **({} if tied else {"head": weights(16, 32)}),
        },
    )


@pytest.mark.parametrize(
    ("rows", "tied", "strategy"),
    [
        (16, False, Strategy(dp=2, tp=2)),
        (16, True, Strategy(dp=2, tp=2, zero=3, microbatches=2)),
        (33, True, Strategy(tp=2, pp=2, microbatches=2)),
        (33, True, Strategy(tp=2, axes="tp=batch,vocabulary")),
    ],
    ids=["apart", "tied", "padded", "padded and whole"],
)
def test_rows_may_be_counted_from_the_end_of_a_split_table(
    rows: int, tied: bool, strategy: Strategy
) -> None:
    workload = Workload(model=load_model(_with_differences(rows, tied=tied)), batch_size=8)
    assert verify(workload, strategy).passed


def _with_first_rows() -> Any:
    """A model of frames that takes as many rows as there are samples from the rows of all frames
    of all samples, as TimesFormer does: most samples get a row of another one."""
    return model(
        {"x": (FLOAT, ["batch", 6, 16])},
        [
            node("Reshape", "x folded", "frames"),
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "samples"),
            node("Slice", "frames zero samples", "first"),
            node("Unsqueeze", "first one", "apart"),
            node("Add", "x apart", "y"),
            node("MatMul", "y up", "h"),
            node("Relu", "h", "r"),
            node("MatMul", "r down", "z"),
        ],
        "z",
        {
            "folded": integers(-1, 16),
            "zero": integers(0),
            "one": integers(1),
            "up": weights(16, 64),
            "down": weights(64, 16),
        },
    )


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(
    "strategy", [Strategy(dp=2), Strategy(tp=2), Strategy(dp=2, tp=2, microbatches=2)]
)
def test_the_first_rows_are_as_many_as_there_are_samples(strategy: Strategy, mode: Mode) -> None:
    workload = Workload(model=load_model(_with_first_rows()), batch_size=8, mode=mode)
    assert verify(workload, strategy).passed


def test_a_sequence_of_rows_and_columns_gets_no_longer() -> None:
    """Tokens of windows of windows of an image, so that the sequence is six axes of 2."""
    halves = [2] * 6
    made = model(
        {"x": (FLOAT, ["n", 64, 8])},
        [
            node("Reshape", "x grid", "halves"),
            node("Transpose", "halves", "windows", perm=[0, 1, 3, 5, 2, 4, 6, 7]),
            node("Reshape", "windows tokens", "t"),
            node("MatMul", "t w", "k"),
            node("Transpose", "k", "turned", perm=[0, 2, 1]),
            node("MatMul", "t turned", "scores"),
            node("Softmax", "scores", "p"),
            node("MatMul", "p t", "mixed"),
            node("MatMul", "mixed v", "y"),
        ],
        "y",
        {
            "w": weights(8, 8),
            "v": weights(8, 8),
            "grid": integers(0, *halves, 8),
            "tokens": integers(0, 64, 8),
        },
    )
    workload = Workload(model=load_model(made), batch_size=4)
    assert len(workload.program.extents.sequences) == len(halves)
    small = shrink(workload, [Strategy()])
    assert small.program.file_length == workload.program.file_length == 64


def test_indices_beyond_what_they_choose_from_are_an_error_of_one_line() -> None:
    builder = Builder("beyond")
    x = builder.input("x", (4, 3))
    where = builder.input("where", (1, 2), DType.INT64)
    function = builder.build([builder.add(GatherND(), x, where)])
    with pytest.raises(TransformError, match="beyond: GatherND cannot be computed at these sizes"):
        evaluate(function, [np.zeros((4, 3)), np.array([[9, 0]])])


@dataclass(frozen=True, slots=True)
class FirstColumn(Unary):
    """Makes an array of another shape than it says."""

    name: ClassVar[str] = "FirstColumn"

    def apply(self, x: Array) -> Array:
        return x[:, :1]

    def slope(self, x_or_y: Array) -> Array:
        return np.ones_like(x_or_y)


@dataclass(frozen=True, slots=True)
class Failing(FirstColumn):
    """Raises what it likes."""

    name: ClassVar[str] = "Failing"

    def apply(self, x: Array) -> Array:
        raise KeyError("scale")


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (FirstColumn(), r"FirstColumn computes an array of shape \[4, 1\]; expected \[4, 3\]"),
        (Failing(), r"Failing cannot be computed at these sizes: KeyError: 'scale' \(at .*py:\d+"),
    ],
)
def test_an_op_that_is_not_what_it_says_is_named_in_one_line(op: Unary, says: str) -> None:
    builder = Builder("own")
    x = builder.input("x", (4, 3))
    function = builder.build([builder.add(Exp(), builder.add(op, x))])
    with pytest.raises(TransformError, match=says) as caught:
        evaluate(function, [np.ones((4, 3))])
    assert "\n" not in str(caught.value)


def test_devices_that_split_a_sequence_split_the_slots_of_experts_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Experts have 583.68 rows of a sequence of 1,024, which as 584 would not divide by 16; no
    token is dropped, or kept, for being split."""
    dense = llama_config(
        "mixture",
        layers=1,
        hidden=8,
        heads=4,
        kv_heads=4,
        ffn=4,
        vocabulary=16,
        sequence_length=1024,
    )
    config = replace(dense, experts=Experts(count=4, top_k=2, ffn=4, imbalance=1.14))
    workload = Workload(model=LoadedModel(config.name, config.build(2, 1024)), batch_size=2)

    def whole(self: Verifier, strategy: Strategy) -> Workload:
        return workload

    monkeypatch.setattr(Verifier, "small", whole)
    assert workload.sequence_lengths == (1024, 592)
    assert verify(workload, Strategy(cp=4, tp=4, sequence_parallel=True)).passed
