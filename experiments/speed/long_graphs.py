"""Long ONNX models of many kinds, none of which repeats itself so that it could be folded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

Array = Any
Graph = Callable[[int], Any]
"""A function that makes a model with about a given number of nodes."""

WIDTH = 8
"""Features between layers."""


class _Writer:
    """Writes a model node by node; values are named by numbers."""

    def __init__(self) -> None:
        self.chance = random.Random(0)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._initializers: list[Any] = []
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def op(self, op_type: str, *operands: str, **attributes: Any) -> str:
        self._nodes.append(
            onnx.helper.make_node(op_type, operands, [name := self._name()], **attributes)
        )
        return name

    def weight(self, *shape: int) -> str:
        return self.tensor(np.zeros(shape, np.float32))

    def integers(self, *numbers: int) -> str:
        return self.tensor(np.asarray(numbers, np.int64))

    def tensor(self, array: Array) -> str:
        self._initializers.append(onnx.numpy_helper.from_array(array, name := self._name()))
        return name

    def input(self, *shape: int | str, dtype: int = onnx.TensorProto.FLOAT) -> str:
        name = self._name()
        self._inputs.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
        return name

    def model(self, outputs: Sequence[str]) -> Any:
        graph = onnx.helper.make_graph(
            self._nodes,
            "long",
            self._inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self._initializers,
        )
        opset = onnx.helper.make_opsetid("", 17)
        return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def activation(self, x: str) -> str:
        return self.op(self.chance.choice(("Relu", "Sigmoid", "Tanh", "Softplus")), x)

    def mlp(self, x: str, features: int = WIDTH) -> str:
        """Three nodes; the inner width is another one every time."""
        ffn = self.chance.randrange(2, 99)
        inner = self.activation(self.op("MatMul", x, self.weight(features, ffn)))
        return self.op("MatMul", inner, self.weight(ffn, features))

    def sum(self, values: list[str]) -> str:
        """A tree of additions."""
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            rest = values[-1:] if len(values) % 2 else []
            values = [*(self.op("Add", a, b) for a, b in pairs), *rest]
        return values[0]

    def head(self, x: str, features: int = WIDTH) -> Any:
        return self.model([self.op("MatMul", x, self.weight(features, 5))])

    def attention(self, x: str, keys_from: str) -> str:
        def heads(source: str, order: Sequence[int]) -> str:
            made = self.op("MatMul", source, self.weight(WIDTH, WIDTH))
            return self.op(
                "Transpose", self.op("Reshape", made, self.integers(0, 0, 2, -1)), perm=order
            )

        scores = self.op("MatMul", heads(x, (0, 2, 1, 3)), heads(keys_from, (0, 2, 3, 1)))
        mixed = self.op(
            "MatMul", self.op("Softmax", scores, axis=-1), heads(keys_from, (0, 2, 1, 3))
        )
        joined = self.op("Transpose", mixed, perm=(0, 2, 1, 3))
        joined = self.op("Reshape", joined, self.integers(0, 0, WIDTH))
        return self.op("Add", x, self.op("MatMul", joined, self.weight(WIDTH, WIDTH)))


def layers_of_other_widths(nodes: int) -> Any:
    """Residual layers, each with an inner width of its own."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    for _ in range(nodes // 4):
        x = w.op("Add", x, w.mlp(x))
    return w.head(x)


def nothing_to_split(nodes: int) -> Any:
    """Elementwise ops alone before a head."""
    w = _Writer()
    x = w.op("Add", w.input("batch", WIDTH), w.weight(WIDTH))
    for _ in range(nodes):
        x = w.activation(x)
    return w.head(x)


def factors(nodes: int) -> Any:
    """A chain of multiplications with vectors, whose roles depend on what follows."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    for _ in range(nodes):
        x = w.op("Mul", x, w.weight(WIDTH))
    return w.head(x)


def any_earlier_layer_is_read(nodes: int) -> Any:
    """Every layer reads some earlier one too, so that nowhere a single activation is live."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    made: list[str] = []
    for _ in range(nodes // 4):
        made.append(x)
        x = w.op("Add", w.mlp(x), w.chance.choice(made))
    return w.head(x)


def features_that_grow(nodes: int) -> Any:
    """Every layer appends features, as in a DenseNet."""
    w = _Writer()
    x, features = w.input("batch", WIDTH), WIDTH
    for _ in range(nodes // 3):
        new = w.activation(w.op("MatMul", x, w.weight(features, 2)))
        x, features = w.op("Concat", x, new, axis=1), features + 2
    return w.head(x, features)


def skips_from_end_to_end(nodes: int) -> Any:
    """The last layer reads the first, the one before the second, as in a U-Net."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    open_skips: list[str] = []
    for _ in range(nodes // 7):
        x = w.mlp(x)
        open_skips.append(x)
    while open_skips:
        x = w.op("Add", w.mlp(x), open_skips.pop())
    return w.head(x)


def unrolled_recurrence(nodes: int) -> Any:
    """A recurrent network, step after step, with shared parameters."""
    w = _Writer()
    steps = nodes // 5
    x, state = w.input("batch", steps, WIDTH), w.tensor(np.zeros((1, 6), np.float32))
    by_input, by_state = w.weight(WIDTH, 6), w.weight(6, 6)
    for step in range(steps):
        now = w.op("Gather", x, w.tensor(np.asarray(step)), axis=1)
        given = w.op("Add", w.op("MatMul", now, by_input), w.op("MatMul", state, by_state))
        state = w.op("Tanh", given)
    return w.head(state, 6)


def towers(nodes: int) -> Any:
    """Layers side by side."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    return w.head(w.sum([w.mlp(x) for _ in range(nodes // 4)]))


def tables(nodes: int) -> Any:
    """Embeddings of many features, side by side."""
    w = _Writer()
    count = nodes // 2
    x = w.input("batch", count, dtype=onnx.TensorProto.INT64)
    rows = [
        w.op("Gather", w.weight(9 + i, 2), w.op("Gather", x, w.tensor(np.asarray(i)), axis=1))
        for i in range(count)
    ]
    return w.head(w.op("Concat", *rows, axis=1), 2 * count)


def many_results(nodes: int) -> Any:
    """Every layer has an output of its own."""
    w = _Writer()
    x = w.input("batch", WIDTH)
    results: list[str] = []
    for _ in range(nodes // 4):
        x = w.mlp(x)
        results.append(w.activation(x))
    return w.model([x, *results])


def convolutions(nodes: int) -> Any:
    """Convolutions with changing numbers of channels."""
    w = _Writer()
    x, channels = w.input("batch", 3, 8, 8), 3
    for _ in range(nodes // 2):
        new = w.chance.randrange(3, 30)
        x = w.op("Conv", x, w.weight(new, channels, 3, 3), pads=(1, 1, 1, 1))
        x, channels = w.activation(x), new
    return w.head(w.op("Flatten", w.op("GlobalAveragePool", x)), channels)


def decoder_layers(nodes: int) -> Any:
    """Attention and an MLP with an inner width of its own, in turn."""
    w = _Writer()
    x = w.input("batch", "sequence", WIDTH)
    for _ in range(nodes // 19):
        x = w.attention(x, x)
        x = w.op("Add", x, w.mlp(x))
    return w.head(x)


def encoder_and_decoder(nodes: int) -> Any:
    """All decoder layers read the output of the encoder."""
    w = _Writer()
    x = w.input("batch", "source", WIDTH)
    for _ in range(nodes // 8):
        x = w.op("Add", x, w.mlp(x))
    y = w.input("batch", "target", WIDTH)
    for _ in range(nodes // 38):
        y = w.attention(y, x)
        y = w.op("Add", y, w.mlp(y))
    return w.head(y)


GRAPHS: tuple[Graph, ...] = (
    layers_of_other_widths,
    nothing_to_split,
    factors,
    any_earlier_layer_is_read,
    features_that_grow,
    skips_from_end_to_end,
    unrolled_recurrence,
    towers,
    tables,
    many_results,
    convolutions,
    decoder_layers,
    encoder_and_decoder,
)
