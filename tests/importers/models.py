"""Small ONNX models made by hand: what exporters write, in miniature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from distir.ir import Function

Array = Any
FLOAT, INT64, BOOL = 1, 7, 9

Dims = Sequence[Any]


def node(op_type: str, operands: str, results: str, **attributes: Any) -> Any:
    """A node whose operands and results are written `a b c`; `-` is an absent operand."""
    names = ["" if name == "-" else name for name in operands.split()]
    return onnx.helper.make_node(op_type, names, results.split(), **attributes)


def weights(*shape: int) -> Array:
    """Some numbers."""
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


def integers(*numbers: int) -> Array:
    """A vector of integers."""
    return np.asarray(numbers, np.int64)


def feeds(function: Function, seed: int, most: int) -> dict[str, Array]:
    """A random array for every input, by name: normal numbers, or indices below `most`."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.normal(size=value.type.shape).astype(np.float32)
        if value.type.dtype.is_float
        else rng.integers(0, most, value.type.shape)
        for value in function.inputs
    }


def model(
    inputs: Mapping[str, tuple[int, Dims]],
    nodes: Sequence[Any],
    outputs: str,
    initializers: Mapping[str, Array] | None = None,
    opset: int = 18,
    functions: Sequence[Any] = (),
) -> Any:
    """A model; inputs are `name: (element type, dims)`."""
    helper = onnx.helper
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [
            onnx.numpy_helper.from_array(np.asarray(array), name)
            for name, array in (initializers or {}).items()
        ],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(f.domain, 1) for f in functions]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def stripped(made: Any, smallest: int = 8) -> Any:
    """The model with larger tensors declared as external data that is absent."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    for tensor in copy.graph.initializer:
        if np.prod(tensor.dims) >= smallest:
            for field in ("raw_data", "float_data", "int64_data", "int32_data"):
                tensor.ClearField(field)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entry = tensor.external_data.add()
            entry.key, entry.value = "location", "weights.bin"
    return copy


def mlp(batch: Any = "batch") -> Any:
    """Two layers and a norm."""
    return model(
        {"x": (FLOAT, [batch, 6])},
        [
            node("Gemm", "x w1 b1", "h", transB=1),
            node("Relu", "h", "r"),
            node("LayerNormalization", "r scale bias", "n", axis=-1),
            node("MatMul", "n w2", "y"),
        ],
        "y",
        {
            "w1": weights(8, 6),
            "b1": weights(8),
            "scale": weights(8),
            "bias": weights(8),
            "w2": weights(8, 4),
        },
    )


def attention(batch: Any = "batch", sequence: Any = "sequence", opset: int = 11) -> Any:
    """One head-split attention layer in the style of old exporters: every shape is computed from
    the input's by Shape, Gather, Unsqueeze and Concat; the causal mask is cut from a buffer."""
    heads, depth, longest = 4, 2, 32
    width = heads * depth
    in_attribute = opset < 13

    def unsqueezed(name: str) -> Any:
        if in_attribute:
            return node("Unsqueeze", name, f"{name}_1", axes=[0])
        return node("Unsqueeze", f"{name} zero_1", f"{name}_1")

    nodes = [
        node("Gather", "table ids", "embedded"),
        node("Shape", "ids", "shape"),
        node("Gather", "shape zero", "batch_size"),
        node("Gather", "shape one", "length"),
        unsqueezed("batch_size"),
        unsqueezed("length"),
        node("Cast", "length", "limit", to=7),
        node("Range", "zero limit one", "positions"),
        node("Gather", "position_table positions", "placed"),
        node("Add", "embedded placed", "x"),
        node("MatMul", "x w_qkv", "qkv_raw"),
        node("Add", "qkv_raw b_qkv", "qkv"),
        node("Split", "qkv", "q k v", axis=2)
        if in_attribute
        else node("Split", "qkv thirds", "q k v", axis=2),
        node("Concat", "batch_size_1 length_1 heads depth", "split_shape", axis=0),
        node("Concat", "batch_size_1 length_1 width", "merged_shape", axis=0),
    ]
    for name in "qkv":
        nodes.append(node("Reshape", f"{name} split_shape", f"{name}_apart"))
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", f"{name}_apart", f"{name}_heads", perm=order))
    nodes += [
        node("MatMul", "q_heads k_heads", "raw"),
        node("Div", "raw root", "scaled"),
        node("Slice", "buffer start length_1 row_axis", "rows"),
        node("Slice", "rows start length_1 column_axis", "mask"),
        node("Where", "mask scaled lowest", "scores"),
        node("Softmax", "scores", "weights", axis=3),
        node("MatMul", "weights v_heads", "mixed"),
        node("Transpose", "mixed", "moved", perm=[0, 2, 1, 3]),
        node("Reshape", "moved merged_shape", "merged"),
        node("MatMul", "merged w_out", "out"),
        node("Add", "out x", "y"),
    ]
    initializers = {
        "table": weights(20, width),
        "position_table": weights(longest, width),
        "w_qkv": weights(width, 3 * width),
        "b_qkv": weights(3 * width),
        "w_out": weights(width, width),
        "zero": np.asarray(0, np.int64),
        "one": np.asarray(1, np.int64),
        "zero_1": integers(0),
        "thirds": integers(width, width, width),
        "heads": integers(heads),
        "depth": integers(depth),
        "width": integers(width),
        "root": np.asarray(depth**0.5, np.float32),
        "lowest": np.asarray(-1e4, np.float32),
        "start": integers(0),
        "row_axis": integers(2),
        "column_axis": integers(3),
        "buffer": np.tril(np.ones((1, 1, longest, longest), bool)),
    }
    if in_attribute:
        del initializers["thirds"], initializers["zero_1"]
    return model({"ids": (INT64, [batch, sequence])}, nodes, "y", initializers, opset)


def convnet(batch: Any = "batch") -> Any:
    """Convolution, batch norm, pooling, a linear head."""
    return model(
        {"x": (FLOAT, [batch, 3, 8, 8])},
        [
            node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c scale bias mean variance", "n"),
            node("Relu", "n", "r"),
            node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "p", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f head head_bias", "y"),
        ],
        "y",
        {
            "w": weights(4, 3, 3, 3),
            "b": weights(4),
            "scale": weights(4),
            "bias": weights(4),
            "mean": weights(4),
            "variance": np.abs(weights(4)) + 1,
            "head": weights(4, 5),
            "head_bias": weights(5),
        },
    )


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""The gates of recurrent layers."""


def recurrent(kind: str, words: int = 9, size: int = 6, layers: int = 2) -> Any:
    """A language model: an embedding, recurrent layers with steps in front of samples, a head."""
    width = GATES[kind] * size
    stored = {"table": weights(words, size), "head": weights(size, words), "one": integers(1)}
    nodes = [node("Gather", "table ids", "e"), node("Transpose", "e", "x0", perm=[1, 0, 2])]
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    for layer in range(layers):
        names = [f"{name}{layer}" for name in ("w", "r", "b")]
        shapes = [(1, width, size), (1, width, size), (1, 2 * width)]
        apart = layer + 1  # equal matrices would be one
        stored |= {n: weights(*shape) / apart for n, shape in zip(names, shapes, strict=True)}
        operands = " ".join((f"x{layer}", *names))
        nodes += [
            node(kind, operands, f"every{layer}", hidden_size=size, **attributes),
            node("Squeeze", f"every{layer} one", f"x{layer + 1}"),
        ]
    nodes += [node("Transpose", f"x{layers}", "y", perm=[1, 0, 2]), node("MatMul", "y head", "out")]
    return model({"ids": (INT64, ["batch", "sequence"])}, nodes, "out", stored)


def every_small_model() -> dict[str, Any]:
    """The models of this file, by name."""
    return {
        "mlp": mlp(),
        "attention": attention(),
        "attention of opset 13": attention(opset=13),
        "attention of batch 1": attention(1, 8),
        "convnet": convnet(),
        "recurrent": recurrent("LSTM"),
        "stripped attention": stripped(attention()),
        "stripped convnet": stripped(convnet(1)),
    }
