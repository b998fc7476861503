"""Inputs with samples of their own all get the batch size, and are split like the batch; sizes of
batches have limits."""

from __future__ import annotations

import pytest

from distir import Strategy, Workload, load_model
from distir.errors import StrategyError, TransformError
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.load import LoadedModel
from distir.ir.builder import Builder
from distir.ir.core import Value
from distir.ir.function import Function
from distir.ir.types import DType
from distir.limits import MOST_MICROBATCHES
from distir.mesh import mesh_axes
from distir.ops.activations import Relu
from distir.ops.linalg import MatMul
from distir.ops.tensor import Transpose
from search_spaces import distribution_space


def two_towers() -> Function:
    """Each of 3 texts beside each of 5 images, as CLIP compares them."""
    builder = Builder("towers")
    ends: list[Value] = []
    for name, samples, width in (("texts", 3, 8), ("images", 5, 12)):
        x = builder.input(name, (samples, width), DType.FLOAT32)
        inner = builder.parameter(f"{name}.in", (width, 16), DType.FLOAT32)
        outer = builder.parameter(f"{name}.out", (16, 4), DType.FLOAT32)
        hidden = builder.add(Relu(), builder.add(MatMul(), x, inner))
        ends.append(builder.add(MatMul(), hidden, outer))
    texts, images = ends
    scores = builder.add(MatMul(), texts, builder.add(Transpose((1, 0)), images), name="scores")
    return builder.build([scores])


def workload(**options: object) -> Workload:
    made = {"batch_size": 8, **options}
    return Workload(model=LoadedModel("towers", two_towers()), **made)  # pyright: ignore[reportArgumentType]


def test_every_input_gets_the_batch_size() -> None:
    program = workload().program
    sizes = program.sizes(8)
    assert len(program.batches) == 2
    assert [program.axes.type_at(v, sizes).shape[0] for v in program.function.inputs[:2]] == [8, 8]
    assert program.axes.type_at(program.function.inputs[2], sizes).shape == (8, 8)  # the target


def test_dp_splits_all_samples() -> None:
    program = workload().program
    (dp,) = mesh_axes(program, Strategy(dp=2))
    assert [entry.axis for entry in dp.entries] == list(program.batches)
    assert program.named("batch") == program.batches


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [
        ("training", Strategy(dp=2)),
        ("training", Strategy(dp=2, tp=2, microbatches=2, zero=3)),
        ("training", Strategy(dp=4, tp=2, zero=1)),
        ("inference", Strategy(dp=4)),
        ("inference", Strategy(dp=2, tp=2, microbatches=2)),
    ],
    ids=str,
)
def test_numbers_are_those_of_one_device(mode: str, strategy: Strategy) -> None:
    assert verify(workload(mode=mode), strategy).max_relative_error < RELATIVE_TOLERANCE


def test_what_follows_the_batch_in_an_input_is_none() -> None:
    """Positions beside the samples of the same input are no samples."""
    builder = Builder("positions")
    x = builder.input("x", (3, 7, 8), DType.FLOAT32)
    w = builder.parameter("w", (8, 6), DType.FLOAT32)
    function = builder.build([builder.add(MatMul(), x, w)])
    program = Workload(model=LoadedModel("positions", function), batch_size=8).program
    assert program.batches == (program.batch,)


def test_an_unknown_axis_is_answered_with_names_that_mean_something() -> None:
    program = Workload(model=load_model("gpt2"), batch_size=8).program
    with pytest.raises(StrategyError, match=r"batch, sequence, heads, ffn, vocabulary, hidden$"):
        mesh_axes(program, Strategy(dp=2, axes="dp=rows"))


# --- sizes that nobody means ----------------------------------------------------------------------


def test_a_batch_beyond_reason_is_refused_at_once() -> None:
    with pytest.raises(StrategyError, match=r"batch size is 9999.*at most 1,099,511"):
        workload(batch_size=9_999_999_999_999_999)
    with pytest.raises(StrategyError, match=r"microbatches is 1000003; expected at most 16,384"):
        Strategy(microbatches=1_000_003)


@pytest.mark.parametrize("batch_size", [1_000_003, 1 << 40])
def test_a_space_offers_no_more_microbatches_than_there_may_be(batch_size: int) -> None:
    space = distribution_space(workload(batch_size=batch_size), 2, "small")
    offered = {each.microbatches for each in space.enumerate()}
    assert 1 in offered
    assert max(offered) <= MOST_MICROBATCHES


def test_more_samples_than_can_be_executed_are_refused() -> None:
    with pytest.raises(TransformError, match=r"needs 32,768 samples .* too many to execute"):
        verify(workload(batch_size=1 << 14), Strategy(dp=2, microbatches=1 << 13))
