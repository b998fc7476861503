"""Text and function are two forms of the same thing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.errors import DistirError, ImportModelError
from distir.importers.onnx import import_onnx
from distir.ir import Builder, DType, Function
from distir.ir.core import Part
from distir.ir.text import format_function, parse_function
from distir.ops.activations import Clip
from distir.ops.arithmetic import Add, Exp, Mul
from distir.ops.attention import FusedAttention
from distir.ops.elementwise import Cast, UnaryGradient
from distir.ops.linalg import MatMul
from distir.ops.tensor import Slice, Split
from tests.conftest import shared_path


def _same(first: Function, second: Function) -> None:
    """Both functions are equal but for the identity of their values."""
    assert format_function(first) == format_function(second)
    assert [node.op for node in first.nodes] == [node.op for node in second.nodes]
    assert [node.part for node in first.nodes] == [node.part for node in second.nodes]
    assert first.notes == second.notes
    for (a, x), (b, y) in zip(first.constants.items(), second.constants.items(), strict=True):
        assert (a.name, a.type) == (b.name, b.type)
        assert (x is None) == (y is None)
        if x is not None and y is not None:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def _two_layers() -> Function:
    builder = Builder("two layers")
    x = builder.input("x", (8, 4))
    w = builder.parameter("w", (4, 2))
    mask = builder.table("mask", (8, 2), DType.BOOL)
    builder.origin = "layer 1"
    h = builder.add(MatMul(), x, w, name="h")
    y = builder.add(Mul(), h, builder.scalar(0.5), name="y")
    builder.notes.append('a "note"')
    return builder.build([y, builder.add(Cast(DType.FLOAT16), mask, name="y")])


def test_the_text_is_readable() -> None:
    assert (
        format_function(_two_layers())
        == """\
function "two layers" {
  note "a \\"note\\""
  input %x: fp32[8,4]
  parameter %w: fp32[4,2]
  table %mask: bool[8,2]
  constant %0.5: fp32[] = float64 0.5
  %h: fp32[8,2] = MatMul(%x, %w) @ "layer 1"
  %y: fp32[8,2] = Mul(%h, %0.5) @ "layer 1"
  %y~1: fp16[8,2] "y" = Cast{to=!fp16}(%mask) @ "layer 1"
  return %y, %y~1
}"""
    )
    assert str(_two_layers()) == format_function(_two_layers())


def test_functions_read_back() -> None:
    function = _two_layers()
    _same(parse_function(format_function(function)), function)


@pytest.mark.not_quick
def test_reading_needs_no_import_but_that_of_the_reader() -> None:
    code = "import sys; from distir.ir.text import parse_function as p; print(p(sys.stdin.read()))"
    text = format_function(_two_layers())
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip("\n") == text


@pytest.mark.parametrize("name", ["gpt2", "llama-8layer", "mlp16"])
def test_real_models_read_back(name: str) -> None:
    function = import_onnx(shared_path(f"models/{name}.onnx"))
    _same(parse_function(str(function)), function)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6), st.text(max_size=9))
def test_any_label_and_origin_reads_back(labels: list[str], origin: str) -> None:
    builder = Builder(origin)
    value = builder.input(labels[0], (2,))
    builder.origin = origin
    for label in labels:
        value = builder.add(Exp(), value, name=label)
    function = builder.build([value])
    again = parse_function(format_function(function))
    assert [n.result.name for n in again.nodes] == [n.result.name for n in function.nodes]
    assert [n.origin for n in again.nodes] == [n.origin for n in function.nodes]
    assert (again.name, again.inputs[0].name) == (origin, labels[0])


@pytest.mark.parametrize(
    "array",
    [
        np.asarray([0.1, np.nan, np.inf, -np.inf, -0.0, 1e-308]),
        np.asarray([], np.int64).reshape(0, 3),
        np.asarray(True),
        np.asarray([[1, -(2**62)], [3, 4]]),
        np.random.default_rng(0).normal(size=(7, 30)).astype(np.float32),
        np.arange(200) % 3 == 0,
        np.broadcast_to(np.float16(0.1), (300, 5)),
        np.float32(0.1) * np.ones(3, np.float32),
    ],
)
def test_constants_read_back_bit_by_bit(array: np.ndarray) -> None:
    builder = Builder()
    dtype = {"f": DType.FLOAT32, "i": DType.INT64, "b": DType.BOOL}[array.dtype.kind]
    value = builder.constant(array, dtype, "c")
    function = builder.build([value])
    (again,) = parse_function(format_function(function)).constants.values()
    assert again is not None
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


def test_attributes_of_every_kind_read_back() -> None:
    builder = Builder()
    q = builder.input("q", (2, 4, 6, 8))
    x = builder.add(FusedAttention(8**-0.5, causal=True), q, q, q)
    x = builder.add(Slice((0, 1, 0, -1), (None, 3, None, -8), (1, 1, 1, -2)), x)
    a, b = builder.apply(Split(2, (2, 4)), x)
    a = builder.add(Add(), a, a)
    b = builder.add(UnaryGradient(Clip(None, float("inf"))), b, b)
    function = builder.build([a, b])
    function = replace(
        function, nodes=tuple(replace(node, part=Part.LOSS) for node in function.nodes)
    )
    _same(parse_function(format_function(function)), function)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("MatMul(%x, %w)", "MatMul(%x, %v)"),
        ("fp32[4,2]", "fp99[4,2]"),
        ("fp32[4,2]", "fp32[5,2]"),
        ("MatMul", "Mammut"),
        ("Cast{to=!fp16}", "Cast{of=!fp16}"),
        ("%h: fp32", "%x: fp32"),
        ("return", "give"),
        ("}", ""),
        ("float64 0.5", "float64 0.5, 0.6"),
        ("float64 0.5", "object 0.5"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(broken: str, expected: str) -> None:
    text = format_function(_two_layers())
    assert broken in text
    with pytest.raises(DistirError) as caught:
        parse_function(text.replace(broken, expected))
    if isinstance(caught.value, ImportModelError):
        assert "line " in str(caught.value)
