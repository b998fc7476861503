"""A table of measured products is used where it holds, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import MeasuredProduct, MeasuredProducts, load_products, load_stack, products_text
from distir.cost.amounts import many
from distir.cost.products import ProductShape
from distir.errors import ClusterError
from distir.ir import DType, TensorType
from distir.ir.core import Op
from distir.ops.linalg import Einsum, Gemm, MatMul, product_shape
from distir.simulation.bounds import Bounds
from distir.simulation.pricing.instructions import Pricing
from tests.laws.test_engines_agree import check

HERE = "A100-SXM4-80GB"
PLANS = [
    Strategy(dp=2, tp=2, pp=2, microbatches=4),
    Strategy(tp=4, pp=2, microbatches=8),
    Strategy(dp=8, zero=3, microbatches=2, recompute="full"),
]


def table(*points: tuple[int, int, int, float], device: str = HERE) -> MeasuredProducts:
    """Points of rows, columns, inner size and seconds."""
    listed = (MeasuredProduct("bf16", m, n, k, 1, seconds) for m, n, k, seconds in points)
    return MeasuredProducts(device, "here and now", tuple(listed))


@cache
def plain() -> Simulator:
    """A small model on a node, whose products nobody has measured."""
    workload = Workload(model=load_model("mlp-4x2048"), batch_size=8192)
    return Simulator(workload, load_cluster("dgx-a100", 8))


def simulator(products: MeasuredProducts) -> Simulator:
    """The same where these products were measured."""
    return plain().repriced(replace(load_stack(), products=products), plain().cluster)


def scaled(plans: list[Strategy], factor: float) -> MeasuredProducts:
    """All products of some plans, each as long as the cost model says, times a factor."""
    found: dict[tuple[int, int, int, int], float] = {}
    for strategy in plans:
        plan = plain().plan(strategy)
        pricing = Pricing.of(plain().cost, plan)
        for program in (program for stage in plan.stages for program in stage.programs):
            for node in (*program.forward, *program.backward):
                for shape, seconds, _ in pricing.products(node):
                    rows, columns = int(shape.rows), int(shape.columns)
                    sizes = (rows, columns, int(shape.inner), int(shape.batch))
                    found[sizes] = float(seconds) * factor
    points = (MeasuredProduct("bf16", *sizes, seconds) for sizes, seconds in found.items())
    return MeasuredProducts(HERE, "", tuple(points))


def seconds(of: Simulator, strategy: Strategy) -> float:
    return of.simulate(strategy).metrics["iteration_seconds"]


# --- where a table holds --------------------------------------------------------------------------


def test_a_point_is_what_was_measured_and_between_two_lies_what_is_between_theirs() -> None:
    found = table((128, 64, 32, 1.0), (512, 64, 32, 4.0))
    for rows, expected in ((128, 1.0), (256, 2.0), (512, 4.0)):
        assert found.seconds(ProductShape("bf16", rows, 64, 32), 9.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    "shape",
    [
        ProductShape("bf16", 127, 64, 32),
        ProductShape("bf16", 513, 64, 32),
        ProductShape("bf16", 128, 65, 32),
        ProductShape("bf16", 128, 64, 33),
        ProductShape("bf16", 128, 64, 32, batch=2),
        ProductShape("fp16", 128, 64, 32),
    ],
)
def test_beyond_its_points_a_table_says_nothing(shape: ProductShape) -> None:
    assert table((128, 64, 32, 1.0), (512, 64, 32, 4.0)).seconds(shape, 9.0) == 9.0


def test_a_gradient_of_weights_is_read_along_its_tokens_in_either_order() -> None:
    found = table((64, 32, 128, 1.0), (32, 64, 512, 4.0))
    for rows, columns in ((64, 32), (32, 64)):
        shape = ProductShape("bf16", rows, columns, 256)
        assert found.seconds(shape, 9.0) == pytest.approx(2.0)


def test_many_sizes_are_read_as_one_by_one() -> None:
    found = table((128, 64, 32, 1.0), (512, 64, 32, 4.0))
    rows = [64, 128, 200, 512, 513]
    together = found.seconds(ProductShape("bf16", many(rows), 64, 32), many([9.0] * 5))
    alone = [found.seconds(ProductShape("bf16", each, 64, 32), 9.0) for each in rows]
    assert [float(each) for each in np.asarray(together)] == alone


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (MatMul(), [(4, 8, 16), (16, 32)], (32, 32, 16, 1)),
        (MatMul(), [(4, 8, 16), (4, 16, 32)], (8, 32, 16, 4)),
        (Gemm(trans_b=True), [(8, 16), (32, 16)], (8, 32, 16, 1)),
        (Einsum("dac,bc->dab"), [(4, 8, 32), (16, 32)], (32, 16, 32, 1)),
        (Einsum("dab,dac->bc"), [(4, 8, 16), (4, 8, 32)], (16, 32, 32, 1)),
        (Einsum("dab,dbc->dac"), [(4, 8, 16), (4, 16, 2)], (8, 2, 16, 4)),
    ],
)
def test_a_product_counts_rows_columns_what_is_summed_and_what_is_side_by_side(
    op: Op, operands: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    found = product_shape(op, [TensorType(each, DType.BFLOAT16) for each in operands], "bf16")
    assert found is not None
    assert (found.rows, found.columns, found.inner, found.batch) == expected


# --- plans ----------------------------------------------------------------------------------------


def test_a_table_of_what_the_model_says_changes_nothing() -> None:
    with_table = simulator(scaled(PLANS, 1.0))
    for strategy in PLANS:
        expected = seconds(plain(), strategy)
        assert seconds(with_table, strategy) == pytest.approx(expected, rel=1e-9)


def test_longer_products_make_longer_iterations_and_another_device_has_none_of_it() -> None:
    slower = scaled(PLANS, 3.0)
    elsewhere = replace(slower, device="another")
    for strategy in PLANS:
        expected = seconds(plain(), strategy)
        assert seconds(simulator(slower), strategy) > 1.05 * expected
        assert seconds(simulator(elsewhere), strategy) == expected


def test_with_a_table_both_engines_and_many_plans_at_once_agree() -> None:
    with_table = simulator(scaled(PLANS[:2], 2.0))
    together = with_table.simulate_many(PLANS).metrics["iteration_seconds"]
    for strategy, found in zip(PLANS, together, strict=True):
        fast, _ = check(with_table, with_table.plan(strategy))
        assert float(found) == pytest.approx(fast.metrics["iteration_seconds"], rel=1e-9)


def test_no_plan_is_below_its_bound_however_fast_its_products_are() -> None:
    fastest = scaled(PLANS, 0.1)
    hosts = tuple(replace(point, launch_seconds=0.0) for point in fastest.points)
    with_table = simulator(replace(fastest, points=hosts))
    bounds = Bounds(with_table.stages)
    for strategy in PLANS:
        numbers = np.array([strategy.pp]), np.array([strategy.microbatches])
        bound = bounds.begun(strategy.devices, *numbers)
        assert bound.seconds[0] <= seconds(with_table, strategy)


def test_no_plan_is_below_its_bound_where_products_run_in_a_narrower_type() -> None:
    workload = Workload(model=load_model("mlp-4x8192"), batch_size=16384, precision="fp8")
    found = Simulator(workload, load_cluster("hgx-h100", 1), load_stack("ideal"))
    bound = Bounds(found.stages).begun(1, np.ones(1, np.int64), np.ones(1, np.int64))
    assert bound.seconds[0] <= seconds(found, Strategy())


# --- files ----------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    first, *others = scaled(PLANS, 1.0).points
    given = MeasuredProducts(HERE, 'PyTorch "2"', (replace(first, launch_seconds=9e-6), *others))
    path = tmp_path / "products.toml"
    path.write_text(products_text(given, "here"))
    read = load_products(path)
    assert (read.device, read.versions) == (given.device, given.versions)
    for ours, theirs in zip(given.points, read.points, strict=True):
        assert theirs == replace(
            ours,
            seconds=pytest.approx(ours.seconds, rel=1e-4),
            launch_seconds=ours.launch_seconds and pytest.approx(ours.launch_seconds),
        )


def test_a_stack_names_its_table_by_a_path_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(products_text(table((128, 64, 32, 1e-5)), "here"))
    stack = tmp_path / "stack.toml"
    stack.write_text('name = "lab"\nproducts = "own.toml"\n')
    assert load_stack(stack).products == table((128, 64, 32, 1e-5))
    assert load_stack("megatron").products is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('versions = ""\nproducts = []', "device is missing"),
        ('device = "A"\nversions = "B"', "products is missing"),
        ('device = "A"\nversions = "B"\nproducts = [{ dtype = "int4" }]', "expected one of fp64"),
        ('device = "A"\nversions = "B"\nproducts = [POINT, POINT]', "is listed twice"),
        ('device = "A"\nversions = "B"\nproducts = [POINT]\nrows = 3', "rows is not a known key"),
        ('device = "A"\nversions = "B"\nproducts = [ZERO]', "expected more than 0"),
    ],
)
def test_a_slip_in_a_file_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    point = '{ dtype = "bf16", rows = 8, columns = 8, inner = 8, seconds = "TIME" }'
    for word, time in (("POINT", "1 us"), ("ZERO", "0 us")):
        text = text.replace(word, point.replace("TIME", time))
    path = tmp_path / "products.toml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=said) as error:
        load_products(path)
    assert str(path) in str(error.value)
