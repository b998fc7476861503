"""Files that quantize are read as the models of floats that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx
from distir.importers.onnx_file import read_model
from distir.importers.onnx_roles import Role
from distir.ir import DType
from distir.program import build_program, parameter_count
from tests.importers.models import FLOAT, INT64, model, node, weights

WIDTH, INNER, WORDS = 8, 12, 30
INT8 = 3


def floats() -> Any:
    """An embedding and two products with a bias."""
    nodes = [
        node("Gather", "table ids", "x"),
        node("MatMul", "x up", "h"),
        node("Add", "h bias", "hb"),
        node("Relu", "hb", "a"),
        node("MatMul", "a down", "y"),
    ]
    stored = {
        "table": weights(WORDS, WIDTH),
        "up": weights(WIDTH, INNER),
        "bias": weights(INNER),
        "down": weights(INNER, WIDTH),
    }
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "y", stored)


def _integers(*shape: int, dtype: Any = np.int8) -> Any:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)


SCALE = {"scale": np.asarray(0.1, np.float32), "zero": np.asarray(0, np.int8)}


def in_pairs() -> Any:
    """As static quantization writes it: every tensor is quantized and back again."""
    stored = {
        "table": _integers(WORDS, WIDTH),
        "up": _integers(WIDTH, INNER),
        "down": _integers(INNER, WIDTH),
        "bias": _integers(INNER, dtype=np.int32),
        "zero32": np.asarray(0, np.int32),
        **SCALE,
    }
    nodes = [
        *(node("DequantizeLinear", f"{n} scale zero", f"{n}f") for n in ("table", "up", "down")),
        node("DequantizeLinear", "bias scale zero32", "biasf"),
        node("Gather", "tablef ids", "x"),
        node("QuantizeLinear", "x scale zero", "xq"),
        node("DequantizeLinear", "xq scale zero", "xf"),
        node("MatMul", "xf upf", "h"),
        node("Add", "h biasf", "hb"),
        node("Relu", "hb", "a"),
        node("QuantizeLinear", "a scale zero", "aq"),
        node("DequantizeLinear", "aq scale zero", "af"),
        node("MatMul", "af downf", "y"),
    ]
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "y", stored)


def dynamically(*, per_channel: bool = False) -> Any:
    """As dynamic quantization writes it: activations are quantized as they are, and rows of the
    table are looked up as integers. Matrices have one scale, or one per column."""
    widths = {"up": INNER, "down": WIDTH} if per_channel else {}
    stored = {
        **{f"{matrix}_scale": abs(weights(width)) for matrix, width in widths.items()},
        "table": _integers(WORDS, WIDTH),
        "up": _integers(WIDTH, INNER),
        "down": _integers(INNER, WIDTH),
        "bias": weights(INNER),
        **SCALE,
    }

    def product(x: str, matrix: str) -> list[Any]:
        return [
            node("DynamicQuantizeLinear", x, f"{x}q {x}s {x}z"),
            node("Mul", f"{x}s {matrix}_scale" if per_channel else f"{x}s scale", f"{matrix}s"),
            node("MatMulInteger", f"{x}q {matrix} {x}z zero", f"{matrix}i"),
            node("Cast", f"{matrix}i", f"{matrix}c", to=1),
            node("Mul", f"{matrix}c {matrix}s", f"{matrix}o"),
        ]

    nodes = [
        node("Gather", "table ids", "rows"),
        node("DequantizeLinear", "rows scale zero", "x"),
        *product("x", "up"),
        node("Add", "upo bias", "hb"),
        node("Relu", "hb", "a"),
        *product("a", "down"),
        node("Identity", "downo", "y"),
    ]
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "y", stored)


def optimized() -> Any:
    """As ONNX Runtime saves what dynamic quantization wrote."""
    stored = {
        "table": _integers(WORDS, WIDTH),
        "up": _integers(WIDTH, INNER),
        "bias": weights(INNER),
        "down": _integers(INNER, WIDTH),
        "scales": abs(weights(INNER)),
        **SCALE,
    }
    runtime = {"domain": "com.microsoft"}
    nodes = [
        node("Gather", "table ids", "rows"),
        node("DequantizeLinear", "rows scale zero", "x"),
        node("DynamicQuantizeMatMul", "x up scales - bias", "h", **runtime),
        node("Relu", "h", "a"),
        node("DynamicQuantizeLinear", "a", "q s z"),
        node("MatMulIntegerToFloat", "q down s scale z zero", "y", **runtime),
    ]
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "y", stored)


def by_operators() -> Any:
    """As static quantization writes it with operators of quantized numbers."""
    stored = {
        "table": _integers(WORDS, WIDTH),
        "up": _integers(WIDTH, INNER),
        "bias": _integers(INNER),
        "down": _integers(INNER, WIDTH),
        **SCALE,
    }
    of = "scale zero"
    nodes = [
        node("Gather", "table ids", "rows"),
        node("DequantizeLinear", f"rows {of}", "x"),
        node("QuantizeLinear", f"x {of}", "xq"),
        node("QLinearMatMul", f"xq {of} up {of} {of}", "h"),
        node("QLinearAdd", f"h {of} bias {of} {of}", "hb", domain="com.microsoft"),
        node("Relu", "hb", "a"),
        node("QLinearMatMul", f"a {of} down {of} {of}", "yq"),
        node("DequantizeLinear", f"yq {of}", "y"),
    ]
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "y", stored)


@pytest.mark.parametrize(
    "made",
    [in_pairs(), dynamically(), dynamically(per_channel=True), optimized(), by_operators()],
    ids=["in pairs", "dynamically", "dynamically, per channel", "optimized", "by operators"],
)
def test_parameters_and_axes_are_those_of_the_floats(made: Any) -> None:
    ours, theirs = (read_onnx(each).function for each in (made, floats()))
    types = [{value.name: value.type for value in each.parameters} for each in (ours, theirs)]
    assert types[0] == types[1]
    assert any("quantizes is simulated as floats" in note for note in ours.notes)
    programs = [build_program(each, training=True, loss="mse") for each in (ours, theirs)]
    inner, expected = ([axis.size for axis in each.blocks.internal_axes] for each in programs)
    assert inner == expected == [INNER]


def test_convolutions_of_integers_are_those_of_floats() -> None:
    stored = {"w": _integers(4, 3, 2, 2), **SCALE}
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("ConvInteger", "q w z zero", "i", strides=[2, 2]),
        node("Cast", "i", "y", to=1),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 3, 8, 8])}, nodes, "y", stored)).function
    assert function.outputs[0].type.shape[1:] == (4, 4, 4)
    assert [value.type.shape for value in function.parameters] == [(4, 3, 2, 2)]


def test_networks_of_quantized_operators_have_the_parameters_of_floats() -> None:
    stored = {
        "w": _integers(4, 3, 2, 2),
        "b": _integers(4, dtype=np.int32),
        "dense": _integers(8, 5),
        "c": _integers(5, dtype=np.int32),
        **SCALE,
    }
    of, pooled = "scale zero", {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", f"x {of}", "q"),
        node("QLinearConv", f"q {of} w {of} {of} b", "conv", strides=[2, 2]),
        node("QLinearConcat", f"{of} conv {of} conv {of}", "two", axis=1, **pooled),
        node("QLinearGlobalAveragePool", f"two {of} {of}", "mean", channels_last=0, **pooled),
        node("Flatten", "mean", "flat"),
        node("QGemm", f"flat {of} dense {of} c {of}", "yq", **pooled),
        node("DequantizeLinear", f"yq {of}", "y"),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 3, 8, 8])}, nodes, "y", stored)).function
    assert function.outputs[0].type.shape[1:] == (5,)
    shapes = [value.type.shape for value in function.parameters]
    assert shapes == [(4, 3, 2, 2), (4,), (8, 5), (5,)]


def test_integers_that_are_also_read_as_such_are_no_weights() -> None:
    stored = {"ids": _integers(5, 3), **SCALE}
    nodes = [
        node("DequantizeLinear", "ids scale zero", "f"),
        node("Cast", "ids", "c", to=1),
        node("Add", "f c", "sum"),
        node("Add", "x sum", "y"),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 5, 3])}, nodes, "y", stored)).function
    assert not any(value.name == "ids" for value in function.parameters)


def test_numbers_and_factors_are_no_more_trained_than_as_floats() -> None:
    """As constants of activations and tables of rotary positions are, which are quantized too."""
    stored = {"half": np.asarray(5, np.int8), "table": _integers(6, WIDTH), **SCALE}
    scaled = [node("DequantizeLinear", f"{name} scale zero", f"{name}f") for name in stored]
    nodes = [*scaled[:2], node("Mul", "x halff", "h"), node("Mul", "h tablef", "y")]
    made = read_onnx(model({"x": (FLOAT, ["n", 6, WIDTH])}, nodes, "y", stored), load_weights=True)
    assert not made.function.parameters
    x = np.ones(made.function.inputs[0].type.shape)
    expected = x * 0.5 * (stored["table"] * 0.1)
    np.testing.assert_allclose(evaluate(made.function, [x])[0], expected, rtol=1e-6)


def test_numbers_of_quantized_products_are_not_trained_either() -> None:
    stored = {"half": np.asarray(5, np.int8), **SCALE}
    of, runtime = "scale zero", {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", f"x {of}", "q"),
        node("QLinearMul", f"q {of} half {of} {of}", "y", **runtime),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 6])}, nodes, "y", stored)).function
    assert not function.parameters
    assert function.outputs[0].type.dtype is DType.FLOAT32


@pytest.mark.parametrize("op", ["DequantizeLinear", "MatMulInteger", "QLinearMatMul"])
def test_inputs_of_quantized_numbers_are_floats_behind_them(op: str) -> None:
    of = "scale zero"
    nodes = {
        "DequantizeLinear": [node(op, f"x {of}", "xf"), node("Relu", "xf", "y")],
        "MatMulInteger": [node(op, "x w", "y")],
        "QLinearMatMul": [node(op, f"x {of} w {of} {of}", "y")],
    }[op]
    stored = {"w": _integers(6, 8), **SCALE}
    function = read_onnx(model({"x": (INT8, ["n", 6])}, nodes, "y", stored)).function
    assert function.inputs[0].type.dtype is DType.INT8
    assert function.outputs[0].type.dtype is DType.FLOAT32


def test_integers_are_scaled_along_the_dim_that_the_op_names() -> None:
    """Those that are no weights, here as they are also read as integers."""
    stored = {"t": _integers(4, 3, 5), "s": abs(weights(3)), "z": _integers(3)}
    nodes = [
        node("DequantizeLinear", "t s z", "f", axis=-2),
        node("Cast", "t", "c", to=1),
        node("Sub", "f c", "d"),
        node("Add", "x d", "y"),
    ]
    made = read_onnx(model({"x": (FLOAT, [4, 3, 5])}, nodes, "y", stored), load_weights=True)
    (found,) = evaluate(made.function, [np.zeros((4, 3, 5))])
    along = (slice(None), np.newaxis)
    expected = (stored["t"] - stored["z"][along].astype(float)) * stored["s"][along] - stored["t"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_pairs_of_the_runtime_are_those_of_onnx() -> None:
    """As it writes them where ONNX did not have the type: weights of 16 bits before opset 21."""
    stored = {"w": _integers(6, 8, dtype=np.int16), "zero16": np.asarray(0, np.int16), **SCALE}
    runtime = {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", "x scale zero16", "q", **runtime),
        node("DequantizeLinear", "q scale zero16", "xf", **runtime),
        node("DequantizeLinear", "w scale zero16", "wf", **runtime),
        node("MatMul", "xf wf", "y"),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 6])}, nodes, "y", stored)).function
    assert [value.name for value in function.parameters] == ["w"]
    assert [each.op.name for each in function.nodes] == ["MatMul"]


def test_a_quantized_softmax_is_that_of_the_opset_that_it_names() -> None:
    runtime = {"domain": "com.microsoft", "opset": 11, "axis": 1}
    made = model(
        {"x": (FLOAT, [2, 3, 4])},
        [node("QLinearSoftmax", "x scale zero scale zero", "y", **runtime)],
        "y",
        SCALE,
    )
    x = np.random.default_rng(3).normal(size=(2, 3, 4))
    (found,) = evaluate(read_onnx(made).function, [x])
    np.testing.assert_allclose(found.sum(axis=(1, 2)), 1)


@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("is_apart", [False, True])
def test_weights_of_four_bits_are_read(tmp_path: Path, is_signed: bool, is_apart: bool) -> None:
    """Two to a byte, in the file and beside it, with a scale per four rows."""
    low = -8 if is_signed else 0
    numbers = np.random.default_rng(0).integers(low, low + 16, (WIDTH, 5))
    scales = abs(weights(WIDTH // 4, 5))
    product = [
        node("DequantizeLinear", "w scales", "wf", axis=0, block_size=4),
        node("MatMul", "x wf", "y"),
    ]
    inputs = {"x": (FLOAT, ["batch", WIDTH])}
    made = model(inputs, product, "y", {"scales": scales}, opset=21)
    types = onnx.TensorProto
    code = types.INT4 if is_signed else types.UINT4
    stored = onnx.helper.make_tensor("w", code, numbers.shape, numbers.reshape(-1))
    raw = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(stored), "w")
    made.graph.initializer.append(raw if is_apart else stored)
    path = tmp_path / "weights.onnx"
    beside = {"save_as_external_data": True, "location": "data", "size_threshold": 0}
    cast("Any", onnx).save(made, path, **beside if is_apart else {})
    np.testing.assert_array_equal(read_model(path).graph.initializers["w"].load(), numbers)
    function = read_onnx(path).function
    assert parameter_count(function) == numbers.size
    assert [each.op.name for each in function.nodes] == ["MatMul"]


@pytest.mark.parametrize("groups", [(), (2,)])
def test_bytes_that_are_cast_and_scaled_are_weights(groups: tuple[int, ...]) -> None:
    """As PyTorch exports weights that are kept as bytes, with a scale and a zero point per row, or
    per row and group."""
    one = (1,) * len(groups)
    stored = {
        "w": _integers(*groups, 6, 8),
        "z": _integers(*groups, *one, 8),
        "s": abs(weights(*groups, *one, 8)),
        "shape": np.asarray([-1, 8]),
    }
    nodes = [
        node("Cast", "w", "f", to=1),
        node("Cast", "z", "zf", to=1),
        node("Sub", "f zf", "less"),
        node("Mul", "less s", "scaled"),
        node("Reshape", "scaled shape", "matrix"),
        node("MatMul", "x matrix", "y"),
    ]
    rows = 6 * int(np.prod(groups, dtype=np.int64))
    made = read_onnx(model({"x": (FLOAT, ["n", rows])}, nodes, "y", stored))
    assert [value.name for value in made.function.parameters] == ["w"]
    assert made.decisions["s"].role is Role.TABLE
