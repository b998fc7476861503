"""Python functions say what their sequence is by taking `sequence_length`; ops need not tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from distir.cost import load_cluster
from distir.errors import ImportModelError, TransformError
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.load import load_source
from distir.ir import Builder, Function, Value
from distir.ir.types import DType
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.attention import FusedAttention
from distir.ops.linalg import Einsum, MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import Softmax
from distir.ops.tensor import Concat, Reshape, Transpose
from distir.plan_text import format_plan, parse_plan
from distir.simulation import Simulator
from distir.strategy import Strategy
from distir.workload import Workload

WIDTH, HEADS, WORDS, LAYERS = 32, 4, 40, 4


def product(builder: Builder, x: Value, name: str, width: int) -> Value:
    return builder.add(MatMul(), x, builder.parameter(name, (x.type.shape[-1], width)))


def heads_of(builder: Builder, x: Value, *pieces: int) -> Value:
    """`[batch, sequence, width] -> [batch, heads, *pieces, depth]`."""
    shape = (x.type.shape[0], *pieces, HEADS, x.type.shape[-1] // HEADS)
    order = (0, len(pieces) + 1, *range(1, len(pieces) + 1), len(pieces) + 2)
    return builder.add(Transpose(order), builder.add(Reshape(shape), x))


def decoder(
    batch: int, length: int, mix: Callable[[Builder, Value, Value, Value], Value], *pieces: int
) -> Function:
    """Layers that mix the tokens of a sequence, cut into pieces, in one way or other."""
    builder = Builder("decoder")
    ids = builder.input("ids", (batch, length), DType.INT64)
    x = builder.add(Gather(), builder.parameter("table", (WORDS, WIDTH)), ids)
    for layer in range(LAYERS):
        q, k, v = (
            heads_of(builder, product(builder, x, f"{layer}.{name}", WIDTH), *(pieces or (length,)))
            for name in "qkv"
        )
        mixed = mix(builder, q, k, v)
        back = (0, *range(2, mixed.type.rank - 1), 1, mixed.type.rank - 1)
        flat = builder.add(Reshape((batch, length, WIDTH)), builder.add(Transpose(back), mixed))
        x = builder.add(Add(), x, product(builder, flat, f"{layer}.o", WIDTH))
    return builder.build([product(builder, x, "head", WORDS)])


def attended(builder: Builder, q: Value, k: Value, v: Value) -> Value:
    return builder.add(FusedAttention(0.3, causal=True), q, k, v)


def remembered(builder: Builder, q: Value, k: Value, v: Value) -> Value:
    """Linear attention: no op needs the sequence whole."""
    state = builder.add(Einsum("bhsd,bhse->bhde"), builder.add(Softmax(), k), v)
    return builder.add(Einsum("bhsd,bhde->bhse"), q, state)


def in_pieces(builder: Builder, q: Value, k: Value, v: Value) -> Value:
    """Attention within pieces of the sequence."""
    scores = builder.add(Softmax(), builder.add(Einsum("bhnsd,bhntd->bhnst"), q, k))
    return builder.add(Einsum("bhnst,bhntd->bhnsd"), scores, v)


def with_attention(batch_size: int, sequence_length: int = 512) -> Function:
    return decoder(batch_size, sequence_length, attended)


def with_open_length(batch_size: int, sequence_length: int) -> Function:
    return decoder(batch_size, sequence_length, attended)


def with_linear_attention(batch_size: int, sequence_length: int = 512) -> Function:
    return decoder(batch_size, sequence_length, remembered)


def with_pieces(batch_size: int, sequence_length: int = 512) -> Function:
    return decoder(batch_size, sequence_length, in_pieces, sequence_length // 16, 16)


def token_by_token(batch_size: int, sequence_length: int = 512) -> Function:
    builder = Builder("perceptrons")
    x = builder.input("x", (batch_size, sequence_length, WIDTH))
    for layer in range(LAYERS):
        up = builder.add(Relu(), product(builder, x, f"{layer}.up", 4 * WIDTH))
        x = product(builder, up, f"{layer}.down", WIDTH)
    return builder.build([x])


def with_memory(batch_size: int, sequence_length: int = 512) -> Function:
    """Queries from a sequence, keys and values from 50 places that are no part of it."""
    builder = Builder("reader")
    x = builder.input("x", (batch_size, sequence_length, WIDTH))
    memory = builder.input("memory", (batch_size, 50, WIDTH))
    q = heads_of(builder, product(builder, x, "q", WIDTH), sequence_length)
    k, v = (heads_of(builder, product(builder, memory, name, WIDTH), 50) for name in "kv")
    mixed = builder.add(Transpose((0, 2, 1, 3)), attended(builder, q, k, v))
    flat = builder.add(Reshape((batch_size, sequence_length, WIDTH)), mixed)
    return builder.build([product(builder, flat, "o", WIDTH)])


MODELS = (with_attention, with_linear_attention, with_pieces, token_by_token, with_memory)


def workload_of(build: Callable[..., Function], **options: object) -> Workload:
    return Workload(model=load_source(build), batch_size=8, **options)  # pyright: ignore[reportArgumentType]


def flops_as_built(build: Callable[..., Function], length: int) -> float:
    """FLOPs of one sample in the products of the function itself, built at its sizes."""
    function = build(2, length)
    types = (
        (node.op, [v.type for v in node.operands], [v.type for v in node.results])
        for node in function.nodes
    )
    return sum(op.model_flops(operands, results) for op, operands, results in types) / 2


@pytest.mark.parametrize("build", MODELS)
def test_a_function_has_the_work_that_it_has_at_its_own_length(
    build: Callable[..., Function],
) -> None:
    workload = workload_of(build)
    assert workload.length == 512
    assert workload.forward_flops_per_sample == flops_as_built(build, 512)
    other = workload_of(build, sequence_length=64)
    assert other.forward_flops_per_sample == flops_as_built(build, 64)


def test_an_open_length_is_taken_as_everywhere_and_not_as_long_as_it_was_probed() -> None:
    workload = workload_of(with_open_length)
    assert workload.length_is_open
    assert workload.forward_flops_per_sample == flops_as_built(with_open_length, 1024)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize(
    "strategy", [Strategy(dp=2, cp=2), Strategy(tp=2, microbatches=2, sequence_parallel=True)]
)
def test_the_stated_sequence_is_split_and_the_numbers_stay(
    build: Callable[..., Function], strategy: Strategy
) -> None:
    assert verify(workload_of(build), strategy).max_relative_error < RELATIVE_TOLERANCE


def test_places_that_a_function_fixes_are_counted() -> None:
    """Positions beside the samples, which nothing leaves open."""

    def fixed(batch_size: int = 2) -> Function:
        return token_by_token(batch_size, 50)

    for source in (fixed, lambda: fixed(3)):
        workload = workload_of(source)
        assert workload.forward_flops_per_sample == flops_as_built(token_by_token, 50)
        assert verify(workload, Strategy(dp=2, tp=2)).max_relative_error < RELATIVE_TOLERANCE


def test_a_length_that_becomes_another_one_is_told() -> None:
    def with_a_token_before(batch_size: int, sequence_length: int = 512) -> Function:
        builder = Builder("before")
        first = builder.input("first", (batch_size, 1, WIDTH))
        x = builder.input("x", (batch_size, sequence_length, WIDTH))
        joined = builder.add(Concat(1), first, x)
        return builder.build([product(builder, joined, "head", WORDS)])

    with pytest.raises(TransformError, match=r"length 512: Concat fixes a size.*takes no sequence"):
        workload_of(with_a_token_before).sizes(1)


def test_an_error_of_a_function_says_with_which_sizes_it_was_called() -> None:
    def wrong(batch_size: int = 4, sequence_length: int = 512) -> Function:
        builder = Builder("wrong")
        x = builder.input("x", (batch_size, sequence_length, WIDTH))
        return builder.build([builder.add(MatMul(), x, builder.parameter("w", (31, 8)))])

    with pytest.raises(
        ImportModelError, match=r"wrong\(batch_size=4, sequence_length=512\): Shape"
    ):
        load_source(wrong)


def test_a_plan_keeps_what_its_function_stated() -> None:
    simulator = Simulator(workload_of(with_linear_attention), load_cluster("dgx-a100", 2))
    plan = simulator.plan(Strategy(cp=2))
    read = parse_plan(format_plan(plan))
    assert read.workload.length == 512
    assert simulator.simulate_plan(read).metrics == simulator.simulate_plan(plan).metrics
