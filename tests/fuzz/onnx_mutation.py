"""Damaged models: real ones with a few random changes to their structure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Model = Any
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 127, 1 << 20, 1 << 31, (1 << 40) + 1, (1 << 62), -(1 << 62), -5)


def mutate(model: Model, rng: random.Random) -> None:
    """A few changes to the model in place."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_CHANGES)(model.graph, rng)


def _node(graph: Any, rng: random.Random) -> Any:
    return graph.node[rng.randrange(len(graph.node))] if len(graph.node) else None


def _name(graph: Any, rng: random.Random) -> str:
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    return rng.choice([*names, "", "nowhere"])


def _rewire(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is not None and len(node.input):
        node.input[rng.randrange(len(node.input))] = _name(graph, rng)


def _reroute_result(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is not None and len(node.output):
        node.output[rng.randrange(len(node.output))] = _name(graph, rng)


def _drop_operand(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is not None and len(node.input):
        del node.input[rng.randrange(len(node.input))]


def _add_operand(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is not None:
        node.input.append(_name(graph, rng))


def _rename_op(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is not None:
        other = _node(graph, rng).op_type
        more = ("If", "Loop", "Resize", "ConstantOfShape", "Range", "Tile", "Expand", "OneHot")
        node.op_type = rng.choice((other, *more, "Pad", "Conv", "TopK", "NonZero", "Bogus", ""))


def _change_attribute(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is None or not len(node.attribute):
        return
    attribute = node.attribute[rng.randrange(len(node.attribute))]
    kind = rng.random()
    if kind < 0.4:
        attribute.i = rng.choice(NUMBERS)
    elif kind < 0.6:
        del attribute.ints[:]
        attribute.ints.extend(rng.choice(NUMBERS) for _ in range(rng.randrange(5)))
    elif kind < 0.7:
        attribute.type = rng.randrange(0, 14)
    elif kind < 0.8:
        attribute.f = rng.choice((0.0, float("nan"), float("inf"), -1e30))
    elif kind < 0.9:
        attribute.name = rng.choice(("axis", "perm", "to", "value", "group", "axes"))
    else:
        node.attribute.remove(attribute)


def _change_tensor(graph: Any, rng: random.Random) -> None:
    if not len(graph.initializer):
        return
    tensor = graph.initializer[rng.randrange(len(graph.initializer))]
    kind = rng.random()
    if kind < 0.4 and len(tensor.dims):
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    elif kind < 0.6:
        tensor.dims.append(rng.choice(NUMBERS))
    elif kind < 0.75:
        tensor.data_type = rng.randrange(0, 26)
    elif kind < 0.85:
        tensor.raw_data = bytes(rng.randrange(256) for _ in range(rng.choice((0, 3, 8, 64))))
    elif kind < 0.95:
        tensor.data_location = 1
        entry = tensor.external_data.add()
        entry.key = "location"
        entry.value = rng.choice(("../up", "/etc/passwd", "", "a/../../b", "weights.bin", "\0"))
    else:
        tensor.name = _name(graph, rng)


def _change_numbers(graph: Any, rng: random.Random) -> None:
    """Values of a small integer tensor: shapes, axes, bounds."""
    small = [t for t in graph.initializer if t.data_type == 7 and len(t.raw_data) in range(8, 129)]
    if small:
        tensor = rng.choice(small)
        place = 8 * rng.randrange(len(tensor.raw_data) // 8)
        number = rng.choice(NUMBERS).to_bytes(8, "little", signed=True)
        tensor.raw_data = tensor.raw_data[:place] + number + tensor.raw_data[place + 8 :]


def _change_input(graph: Any, rng: random.Random) -> None:
    if not len(graph.input):
        return
    value = graph.input[rng.randrange(len(graph.input))]
    kind = rng.random()
    dims = value.type.tensor_type.shape.dim
    if kind < 0.5 and len(dims):
        dims[rng.randrange(len(dims))].dim_value = rng.choice(NUMBERS)
    elif kind < 0.7 and len(dims):
        texts = ("batch", "a+b", "a*(", "9**9**9", "b//0", "", "x" * 300)
        dims[rng.randrange(len(dims))].dim_param = rng.choice(texts)
    elif kind < 0.8:
        value.type.tensor_type.elem_type = rng.randrange(0, 26)
    elif kind < 0.9:
        value.type.tensor_type.ClearField("shape")
    else:
        dims.add().dim_value = rng.choice(NUMBERS)


def _drop_or_double_node(graph: Any, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node is None:
        return
    if rng.random() < 0.5:
        graph.node.remove(node)
    else:
        graph.node.add().CopyFrom(node)


def _shuffle(graph: Any, rng: random.Random) -> None:
    nodes = list(graph.node)
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _change_output(graph: Any, rng: random.Random) -> None:
    if rng.random() < 0.3:
        del graph.output[:]
    else:
        graph.output.add().name = _name(graph, rng)


_CHANGES: tuple[Callable[[Any, random.Random], None], ...] = (
    _rewire,
    _reroute_result,
    _drop_operand,
    _add_operand,
    _rename_op,
    _change_attribute,
    _change_attribute,
    _change_tensor,
    _change_tensor,
    _change_numbers,
    _change_numbers,
    _change_input,
    _drop_or_double_node,
    _shuffle,
    _change_output,
)
