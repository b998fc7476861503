"""Draws one-node ONNX models with operands: op type, attributes, arrays, which are constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.defs
from hypothesis import strategies as st

from tests.importers.one_node import OneNode

Array = Any
Draw = Callable[[Any], Any]


_small = st.integers(1, 4)


def _rng(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 1000)))


def _shape(draw: Draw, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(_small, min_size=low, max_size=high)))


def _real(draw: Draw, shape: tuple[int, ...]) -> Array:
    return _rng(draw).normal(size=shape)


def _positive(draw: Draw, shape: tuple[int, ...]) -> Array:
    return _rng(draw).uniform(0.3, 2.0, size=shape)


def _broadcast_with(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    cut = shape[draw(st.integers(0, len(shape))) :]
    return tuple(draw(st.sampled_from((1, n))) for n in cut)


def _axis(draw: Draw, rank: int) -> int:
    return int(draw(st.integers(-rank, rank - 1)))


def _ints(*numbers: int) -> Array:
    return np.asarray(numbers, np.int64)


CASES: dict[str, Callable[[Draw, str], OneNode]] = {}


def case(*names: str) -> Callable[[Callable[[Draw, str], OneNode]], Any]:
    """Registers a drawer for these op types."""

    def register(drawer: Callable[[Draw, str], OneNode]) -> Any:
        for name in names:
            CASES[name] = drawer
        return drawer

    return register


_ALPHA: dict[str, dict[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (0.0, 1.0)},
    "Elu": {"alpha": (0.1, 2.0)},
    "Celu": {"alpha": (0.5, 2.0)},
    "Selu": {"alpha": (0.5, 2.0), "gamma": (0.5, 2.0)},
    "ThresholdedRelu": {"alpha": (0.0, 1.0)},
    "HardSigmoid": {"alpha": (0.1, 1.0), "beta": (0.0, 1.0)},
}


@case(
    "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Abs", "Sign", "Floor", "Ceil", "Round", "Sin",
    "Cos", "Tan", "Softplus", "Softsign", "Mish", "HardSwish", "Identity", "IsNaN", *_ALPHA,
)  # fmt: skip
def unary(draw: Draw, name: str) -> OneNode:
    attributes = {k: draw(st.floats(*bounds)) for k, bounds in _ALPHA.get(name, {}).items()}
    return OneNode(name, [2 * _real(draw, _shape(draw))], attributes)


@case("Log", "Sqrt", "Reciprocal")
def positive_unary(draw: Draw, name: str) -> OneNode:
    return OneNode(name, [_positive(draw, _shape(draw))])


@case("Gelu")
def gelu(draw: Draw, name: str) -> OneNode:
    kind = draw(st.sampled_from(("none", "tanh")))
    return OneNode(name, [_real(draw, _shape(draw))], {"approximate": kind})


@case("Swish")
def swish(draw: Draw, name: str) -> OneNode:
    alpha = draw(st.sampled_from((1.0, 0.5, 1.702)))
    return OneNode(name, [_real(draw, _shape(draw))], {"alpha": alpha}, opset=24)


@case("IsInf")
def is_inf(draw: Draw, name: str) -> OneNode:
    x = _rng(draw).choice([1.0, np.inf, -np.inf, np.nan], _shape(draw))
    flags = {f"detect_{way}": draw(st.integers(0, 1)) for way in ("positive", "negative")}
    return OneNode(name, [x], flags)


@case("Not")
def negation(draw: Draw, name: str) -> OneNode:
    return OneNode(name, [_real(draw, _shape(draw)) > 0])


@case("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum")
def binary(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    # The reference adds the operands of Mean in place, which does not broadcast.
    other = shape if name == "Mean" else _broadcast_with(draw, shape)
    a, b = _positive(draw, shape), _positive(draw, other)
    pair = [b, a] if draw(st.booleans()) else [a, b]
    if name in ("Max", "Min", "Mean", "Sum") and draw(st.booleans()):
        pair.append(_real(draw, shape))
    return OneNode(name, pair)


@case("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def comparison(draw: Draw, name: str) -> OneNode:
    shape, rng = _shape(draw), _rng(draw)
    operands = [rng.integers(0, 3, s) for s in (shape, _broadcast_with(draw, shape))]
    return OneNode(name, operands)


@case("And", "Or", "Xor")
def logic(draw: Draw, name: str) -> OneNode:
    shape, rng = _shape(draw), _rng(draw)
    return OneNode(name, [rng.integers(0, 2, s) > 0 for s in (shape, _broadcast_with(draw, shape))])


@case("Mod")
def mod(draw: Draw, name: str) -> OneNode:
    shape, rng = _shape(draw), _rng(draw)
    if draw(st.booleans()):
        return OneNode(name, [rng.normal(size=shape) * 3, _positive(draw, shape)], {"fmod": 1})
    return OneNode(name, [rng.integers(-9, 9, shape), rng.integers(1, 5, shape)])


@case("Where")
def where(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    others = [_real(draw, _broadcast_with(draw, shape)) for _ in range(2)]
    return OneNode(name, [_real(draw, shape) > 0, *others])


@case("Clip")
def clip(draw: Draw, name: str) -> OneNode:
    bounds = [draw(st.sampled_from((None, -0.5))), draw(st.sampled_from((None, 0.7)))]
    arrays = [None if b is None else np.asarray(b) for b in bounds]
    given = {i + 1 for i, b in enumerate(bounds) if b is not None and draw(st.booleans())}
    return OneNode(name, [_real(draw, _shape(draw)), *arrays], constants=given)


@case("Cast")
def cast(draw: Draw, name: str) -> OneNode:
    return OneNode(name, [3 * _real(draw, _shape(draw))], {"to": draw(st.sampled_from((11, 7, 9)))})


@case("PRelu")
def prelu(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw, 2, 4)
    return OneNode(name, [_real(draw, shape), _real(draw, (shape[1],) + (1,) * (len(shape) - 2))])


@case("MatMul")
def matmul(draw: Draw, name: str) -> OneNode:
    m, k, n = (draw(_small) for _ in range(3))
    batch = _shape(draw, 0, 2)
    a, b = (*batch, m, k), (*_broadcast_with(draw, batch), k, n)
    shapes = draw(st.sampled_from(((a, b), ((k,), (k, n)), ((m, k), (k,)), ((*b[:-2], m, k), b))))
    return OneNode(name, [_real(draw, s) for s in shapes])


@case("Gemm")
def gemm(draw: Draw, name: str) -> OneNode:
    m, k, n = (draw(_small) for _ in range(3))
    left, right = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    operands = [_real(draw, (k, m) if left else (m, k)), _real(draw, (n, k) if right else (k, n))]
    bias = draw(st.sampled_from((None, (n,), (m, 1), (m, n), (1, n))))
    if bias is not None:
        operands.append(_real(draw, bias))
    attributes = {"transA": left, "transB": right, "alpha": draw(st.sampled_from((1.0, 0.5)))}
    return OneNode(name, operands, {**attributes, "beta": draw(st.sampled_from((1.0, 2.0)))})


@case("Einsum")
def einsum(draw: Draw, name: str) -> OneNode:
    equation, shapes = draw(
        st.sampled_from((
            ("ij,jk->ik", ((2, 3), (3, 4))),
            ("...ij,...jk->...ik", ((5, 2, 3), (5, 3, 4))),
            ("bij,bkj", ((2, 3, 4), (2, 5, 4))),
            ("ij->ji", ((2, 3),)),
            ("ijk,kl->il", ((2, 3, 4), (4, 5))),
            ("b...d,hd->bh...", ((2, 3, 4), (5, 4))),
            ("...ij,...jk->...ik", ((1, 2, 3), (5, 3, 4))),
            ("...i,...ij->...j", ((6, 1, 3), (5, 3, 4))),
            ("...i,...j->...ij", ((1, 2), (1, 3))),
            ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
            ("bi,bj,bk,ijk->bk", ((2, 3), (2, 4), (2, 5), (3, 4, 5))),
        ))
    )  # fmt: skip
    return OneNode(name, [_real(draw, s) for s in shapes], {"equation": equation})


@case("Reshape")
def reshape(draw: Draw, name: str) -> OneNode:
    a, b, c = (draw(_small) for _ in range(3))
    target = draw(st.sampled_from(((a * b, c), (-1, c), (0, -1), (a, 0, c), (c, b, a), (-1,))))
    return OneNode(name, [_real(draw, (a, b, c)), _ints(*target)], constants={1})


@case("Flatten")
def flatten(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    return OneNode(name, [_real(draw, shape)], {"axis": draw(st.integers(0, len(shape)))})


@case("Squeeze")
def squeeze(draw: Draw, name: str) -> OneNode:
    x = _real(draw, (1, draw(_small), 1, 3))
    axes = draw(st.sampled_from(((0,), (2,), (-2, 0))))
    return OneNode(name, [x, _ints(*axes)], constants={1})


@case("Unsqueeze")
def unsqueeze(draw: Draw, name: str) -> OneNode:
    axes = draw(st.sampled_from(((0,), (-1,), (1, 3), (-1, 0))))
    return OneNode(name, [_real(draw, (draw(_small), 3)), _ints(*axes)], constants={1})


@case("Transpose")
def transpose(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    order = draw(st.permutations(range(len(shape))))
    return OneNode(name, [_real(draw, shape)], draw(st.sampled_from(({}, {"perm": list(order)}))))


@case("Expand")
def expand(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    return OneNode(name, [_real(draw, _broadcast_with(draw, shape)), _ints(*shape)], constants={1})


@case("Tile")
def tile(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    repeats = [draw(st.integers(1, 3)) for _ in shape]
    return OneNode(name, [_real(draw, shape), _ints(*repeats)], constants={1})


@case("Concat")
def concat(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis = _axis(draw, len(shape))
    parts = [list(shape) for _ in range(draw(st.integers(1, 3)))]
    for part in parts:
        part[axis] = draw(_small)
    return OneNode(name, [_real(draw, tuple(part)) for part in parts], {"axis": axis})


@case("Split")
def split(draw: Draw, name: str) -> OneNode:
    shape = list(_shape(draw))
    axis = _axis(draw, len(shape))
    sizes = draw(st.lists(_small, min_size=1, max_size=3))
    shape[axis] = sum(sizes)
    x = _real(draw, tuple(shape))
    return OneNode(name, [x, _ints(*sizes)], {"axis": axis}, {1}, results=len(sizes))


@case("Slice")
def slices(draw: Draw, name: str) -> OneNode:
    shape = tuple(n + 2 for n in _shape(draw, 1, 3))
    axis = _axis(draw, len(shape))
    size = shape[axis]
    start, step = draw(st.integers(-size, size - 1)), draw(st.sampled_from((1, 2, -1, -2)))
    first = start % size
    stop = (
        draw(st.integers(first + 1, size + 9))
        if step > 0
        else draw(st.sampled_from((-size - 5, -(2**62))))
    )
    bounds = [_ints(start), _ints(stop), _ints(axis), _ints(step)]
    return OneNode(name, [_real(draw, shape), *bounds], constants={1, 2, 3, 4})


@case("Gather")
def gather(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis = _axis(draw, len(shape))
    size = shape[axis]
    is_known = draw(st.booleans())
    indices = _rng(draw).integers(-size if is_known else 0, size, _shape(draw, 0, 2))
    return OneNode(
        name, [_real(draw, shape), np.asarray(indices)], {"axis": axis}, {1} if is_known else set()
    )


@case("GatherElements")
def gather_elements(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis: int = draw(st.integers(0, len(shape) - 1))
    counts = list(shape)  # the reference wants the other dims to be equal
    counts[axis] = draw(_small)
    return OneNode(
        name,
        [_real(draw, shape), _rng(draw).integers(0, shape[axis], counts)],
        {"axis": axis},
    )


@case("GatherND")
def gather_nd(draw: Draw, name: str) -> OneNode:
    a, b, c = (draw(_small) for _ in range(3))
    batch = draw(st.integers(0, 1))
    rng = _rng(draw)
    index = rng.integers(0, min(a, b, c), (a, 2, 2) if batch else (3, draw(st.integers(1, 3))))
    return OneNode(name, [_real(draw, (a, b, c)), index], {"batch_dims": batch})


@case("ScatterND")
def scatter_nd(draw: Draw, name: str) -> OneNode:
    a, b = draw(st.integers(2, 4)), draw(_small)
    index = _rng(draw).permutation(a)[: draw(st.integers(1, a))].reshape(-1, 1)
    reduction = draw(st.sampled_from(("none", "add")))
    operands = [_real(draw, (a, b)), index, _real(draw, (len(index), b))]
    return OneNode(name, operands, {"reduction": reduction})


@case("ScatterElements")
def scatter_elements(draw: Draw, name: str) -> OneNode:
    a, b = draw(st.integers(2, 4)), draw(_small)
    rng = _rng(draw)
    index = np.stack([rng.permutation(a)[:2] for _ in range(b)], 1)
    reduction = draw(st.sampled_from(("none", "add")))
    operands = [_real(draw, (a, b)), index, _real(draw, (2, b))]
    return OneNode(name, operands, {"reduction": reduction, "axis": 0})


@case("Trilu")
def trilu(draw: Draw, name: str) -> OneNode:
    operands: list[Array | None] = [_real(draw, _shape(draw, 2, 3))]
    if draw(st.booleans()):
        operands.append(np.asarray(draw(st.integers(-2, 2)), np.int64))
    return OneNode(name, operands, {"upper": draw(st.integers(0, 1))}, {1})


@case("CumSum", *(["CumProd"] if onnx.defs.has("CumProd") else []))
def running(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis = np.asarray(_axis(draw, len(shape)), np.int64)
    flags = {key: draw(st.integers(0, 1)) for key in ("exclusive", "reverse")}
    return OneNode(
        name, [_real(draw, shape), axis], flags, {1}, opset=14 if name == "CumSum" else 26
    )


@case("ArgMax", "ArgMin")
def arg_max(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    flags = {key: draw(st.integers(0, 1)) for key in ("keepdims", "select_last_index")}
    x = _rng(draw).integers(0, 3, shape).astype(np.float64)
    return OneNode(name, [x], {"axis": _axis(draw, len(shape)), **flags})


@case("TopK")
def top_k(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis = _axis(draw, len(shape))
    k = draw(st.integers(1, shape[axis]))
    attributes = {"axis": axis, "largest": draw(st.integers(0, 1))}
    return OneNode(name, [_real(draw, shape), _ints(k)], attributes, {1}, results=2)


@case("OneHot")
def one_hot(draw: Draw, name: str) -> OneNode:
    shape, depth = _shape(draw, 1, 2), draw(st.integers(2, 5))
    values = draw(st.sampled_from(((0.0, 1.0), (-1.0, 2.5))))
    operands = [_rng(draw).integers(0, depth, shape), np.asarray(depth), np.asarray(values)]
    return OneNode(name, operands, {"axis": _axis(draw, len(shape) + 1)}, {1, 2})


@case("Pad")
def pad(draw: Draw, name: str) -> OneNode:
    shape = tuple(n + 2 for n in _shape(draw, 1, 3))
    mode = draw(st.sampled_from(("constant", "reflect", "edge", "wrap")))
    pads = [draw(st.integers(0, 2)) for _ in range(2 * len(shape))]
    operands = [_real(draw, shape), _ints(*pads)]
    if mode == "constant" and draw(st.booleans()):
        operands.append(np.asarray(0.5))
    return OneNode(name, operands, {"mode": mode}, {1, 2})


@case("DFT")
def dft(draw: Draw, name: str) -> OneNode:
    """Real and complex signals, at their length, cut, and padded with zeros."""
    shape = (*_shape(draw, 2, 3), draw(st.integers(1, 2)))
    axis = draw(st.integers(0, len(shape) - 2))
    way = draw(st.sampled_from(({}, {"inverse": 1}, {"onesided": 1})))
    length = np.asarray(draw(st.integers(2, 6)), np.int64) if draw(st.booleans()) else None
    x = _real(draw, shape if way != {"inverse": 1} else (*shape[:-1], 2))
    if draw(st.booleans()):
        return OneNode(name, [x, length, np.asarray(axis, np.int64)], way, {1, 2}, opset=20)
    return OneNode(name, [x, length], {**way, "axis": axis}, {1}, opset=19)


@case("DepthToSpace")
def depth_to_space(draw: Draw, name: str) -> OneNode:
    block = draw(st.integers(1, 3))
    shape = (2, draw(st.integers(1, 2)) * block**2, draw(_small), draw(_small))
    mode = draw(st.sampled_from(("DCR", "CRD")))
    return OneNode(name, [_real(draw, shape)], {"blocksize": block, "mode": mode})


@case("Col2Im")
def col2im(draw: Draw, name: str) -> OneNode:
    block = [draw(st.integers(1, 3)) for _ in range(2)]
    counts = [draw(st.integers(1, 3)) for _ in range(2)]
    if draw(st.booleans()):  # side by side
        attributes: dict[str, Any] = {"strides": block}
        image = [b * n for b, n in zip(block, counts, strict=True)]
    else:
        strides, dilations = ([draw(st.integers(1, 2)) for _ in range(2)] for _ in range(2))
        pads = [draw(st.integers(0, 1)) for _ in range(4)]
        attributes = {"strides": strides, "dilations": dilations, "pads": pads}
        spans = [d * (b - 1) + 1 for d, b in zip(dilations, block, strict=True)]
        image = [
            max(1, s * (n - 1) + span - before - behind)
            for s, n, span, before, behind in zip(
                strides, counts, spans, pads[:2], pads[2:], strict=True
            )
        ]
        counts = [
            (size + before + behind - span) // s + 1
            for size, before, behind, span, s in zip(
                image, pads[:2], pads[2:], spans, strides, strict=True
            )
        ]
    columns = _real(draw, (2, 2 * block[0] * block[1], counts[0] * counts[1]))
    return OneNode(name, [columns, _ints(*image), _ints(*block)], attributes, {1, 2})


@case("SpaceToDepth")
def space_to_depth(draw: Draw, name: str) -> OneNode:
    block = draw(st.integers(1, 3))
    shape = (2, draw(_small), block * draw(_small), block * draw(_small))
    return OneNode(name, [_real(draw, shape)], {"blocksize": block})


@case(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
def reduction(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    attributes: dict[str, Any] = {"keepdims": draw(st.integers(0, 1))}
    operands: list[Array | None] = [_positive(draw, shape)]
    if name in ("ReduceMax", "ReduceMin") and draw(st.booleans()):
        operands = [_real(draw, shape) > 0]
    if draw(st.booleans()):
        axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
        operands.append(_ints(*sorted(axes)))
    elif draw(st.booleans()) and name != "ReduceL1":
        attributes["noop_with_empty_axes"] = draw(st.integers(0, 0))
    return OneNode(name, operands, attributes, {1})


@case("Softmax", "LogSoftmax", "Hardmax")
def softmax(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    return OneNode(name, [_real(draw, shape)], {"axis": axis})


@case("LayerNormalization", "RMSNormalization")
def layer_norm(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw, 2, 4)
    axis = draw(st.integers(1, len(shape) - 1))
    factors = [_positive(draw, shape[axis:])]
    if name == "LayerNormalization" and draw(st.booleans()):
        factors.append(_real(draw, shape[axis:]))
    attributes = {"axis": axis, "epsilon": 1e-2}
    results = draw(st.integers(1, 3)) if name == "LayerNormalization" else 1
    return OneNode(name, [_real(draw, shape), *factors], attributes, results=results, opset=23)


@case("LpNormalization")
def lp_norm(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw)
    attributes = {"axis": _axis(draw, len(shape)), "p": draw(st.integers(1, 2))}
    x = _positive(draw, shape) * draw(st.integers(0, 1))
    return OneNode(name, [x], attributes, opset=22)


@case("BatchNormalization")
def batch_norm(draw: Draw, name: str) -> OneNode:
    shape = _shape(draw, 2, 4)
    factors = [_positive(draw, shape[1:2]) for _ in range(4)]
    if draw(st.booleans()):
        attributes = {"training_mode": 1, "momentum": 0.7}
        return OneNode(name, [_real(draw, shape), *factors], attributes, results=3)
    return OneNode(name, [_real(draw, shape), *factors], {"epsilon": 1e-3})


@case("InstanceNormalization")
def instance_norm(draw: Draw, name: str) -> OneNode:
    shape = (*_shape(draw, 2, 2), 3, draw(_small))
    factors = [_positive(draw, shape[1:2]) for _ in range(2)]
    return OneNode(name, [_real(draw, shape), *factors], {"epsilon": 1e-2})


@case("GroupNormalization")
def group_norm(draw: Draw, name: str) -> OneNode:
    groups = draw(st.integers(1, 3))
    shape = (draw(_small), groups * draw(_small), 3, 2)
    factors = [_positive(draw, shape[1:2]) for _ in range(2)]
    return OneNode(name, [_real(draw, shape), *factors], {"num_groups": groups, "epsilon": 1e-2})


@case("LRN")
def lrn(draw: Draw, name: str) -> OneNode:
    attributes = {"size": draw(st.integers(1, 5)), "alpha": 0.5, "beta": 0.6, "bias": 1.3}
    size = draw(st.integers(1, 6))  # the reference takes the batch for the number of channels
    return OneNode(name, [_real(draw, (size, size, 3, 2))], attributes)


def _window(draw: Draw, rank: int) -> tuple[list[int], dict[str, Any]]:
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
    }
    pads = [draw(st.integers(0, k - 1)) for k in kernel + kernel]
    mode = draw(st.sampled_from(("NOTSET", "NOTSET", "SAME_UPPER", "VALID")))
    attributes |= {"pads": pads} if mode == "NOTSET" else {"auto_pad": mode}
    return kernel, attributes


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@case(*_GATES)
def recurrent(draw: Draw, name: str) -> OneNode:
    """Zero states before the first step are those that are not there."""
    direction = draw(st.sampled_from(("forward", "reverse", "bidirectional")))
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = (draw(_small) for _ in range(4))
    layout, width = draw(st.integers(0, 1)), _GATES[name] * hidden
    attributes: dict[str, Any] = {
        "direction": direction, "hidden_size": hidden, "layout": layout
    }  # fmt: skip
    if name == "GRU":
        attributes["linear_before_reset"] = 1
    if name == "LSTM" and draw(st.booleans()):
        attributes["activations"] = ["Sigmoid", "Tanh", "Tanh"] * directions
    order = (1, 0, 2) if layout else (0, 1, 2)
    x = _real(draw, (steps, batch, size)).transpose(order)
    weights = [_real(draw, (directions, width, n)) for n in (size, hidden)]
    bias = _real(draw, (directions, 2 * width)) if draw(st.booleans()) else None
    operands = [x, *weights, bias]
    kind = draw(st.sampled_from(("absent", "zero", "given")))
    if kind != "absent":
        count = 2 if name == "LSTM" else 1
        states = [_real(draw, (directions, batch, hidden)).transpose(order) for _ in range(count)]
        operands += [None, *([0 * state for state in states] if kind == "zero" else states)]
    return OneNode(name, operands, attributes, results=3 if name == "LSTM" else 2)


@case("Conv")
def conv(draw: Draw, name: str) -> OneNode:
    rank = draw(st.integers(1, 2))
    kernel, attributes = _window(draw, rank)
    if "auto_pad" in attributes:  # the reference pads dilated kernels for their undilated size
        attributes["dilations"] = [1] * rank
    group, channels, out = (draw(st.integers(1, 3)) for _ in range(3))
    space = [draw(st.integers(5, 7)) for _ in range(rank)]
    operands = [
        _real(draw, (2, group * channels, *space)),
        _real(draw, (group * out, channels, *kernel)),
    ]
    if draw(st.booleans()):
        operands.append(_real(draw, (group * out,)))
    return OneNode(name, operands, {**attributes, "group": group})


@case("ConvTranspose")
def conv_transpose(draw: Draw, name: str) -> OneNode:
    strides = [draw(st.integers(1, 3)) for _ in range(2)]
    kernel = [draw(st.integers(2, 3)) for _ in range(2)]
    group = 1  # the reference mixes up the groups
    attributes: dict[str, Any] = {
        "strides": strides,
        "pads": [draw(st.integers(0, 1)) for _ in range(4)],
        "output_padding": [draw(st.integers(0, s - 1)) for s in strides],
        "group": group,
    }
    operands = [_real(draw, (2, group * 2, 3, 4)), _real(draw, (group * 2, 3, *kernel))]
    if draw(st.booleans()):
        operands.append(_real(draw, (group * 3,)))
    return OneNode(name, operands, attributes)


@case("MaxPool", "AveragePool")
def pool(draw: Draw, name: str) -> OneNode:
    rank = draw(st.integers(1, 2))
    kernel, window = _window(draw, rank)
    attributes: dict[str, Any] = {**window}
    attributes["dilations"] = [1] * rank
    attributes["kernel_shape"] = kernel
    if name == "MaxPool":  # the reference knows symmetric padding only
        rank, kernel = 2, [draw(st.integers(1, 3))] * 2
        attributes = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 2))] * 2}
        if draw(st.booleans()):
            attributes["pads"] = [draw(st.integers(0, kernel[0] - 1))] * 4
            return OneNode(name, [_real(draw, (2, 2, 5, 7))], attributes)
    if name == "AveragePool":
        if "auto_pad" in attributes:  # the reference pads by negative amounts
            attributes = {"strides": attributes["strides"], "kernel_shape": kernel}
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    if (name == "MaxPool" or "pads" in attributes) and draw(st.booleans()):
        attributes["ceil_mode"] = 1
    space = [draw(st.integers(5, 7)) for _ in range(rank)]
    return OneNode(name, [_real(draw, (2, 2, *space))], attributes, opset=22)


@case("GlobalAveragePool", "GlobalMaxPool")
def global_pool(draw: Draw, name: str) -> OneNode:
    return OneNode(name, [_real(draw, _shape(draw, 4, 4))])  # the reference knows images only


@case("GridSample")
def grid_sample(draw: Draw, name: str) -> OneNode:
    rank = draw(st.integers(1, 3))
    modes = ("nearest", "linear", "cubic")
    attributes = {
        "mode": draw(st.sampled_from(modes if rank < 3 else modes[:2])),
        "padding_mode": draw(st.sampled_from(("zeros", "border", "reflection"))),
        "align_corners": draw(st.integers(0, 1)),
    }
    turns = attributes["padding_mode"] == "reflection" and attributes["align_corners"]
    least = 2 if turns else 1  # the reference cannot reflect within a single element
    space = [draw(st.integers(least, 4)) for _ in range(rank)]
    places = [draw(st.integers(1, 3)) for _ in range(rank)]
    grid = _real(draw, (2, *places, rank))
    return OneNode(name, [_real(draw, (2, 2, *space)), grid], attributes, opset=22)


@case("Resize")
def resize(draw: Draw, name: str) -> OneNode:
    mode = draw(st.sampled_from(("nearest", "linear", "cubic")))
    places = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(places)),
    }
    if mode == "nearest":
        rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = draw(st.sampled_from(rounding))
    x = _real(draw, (1, 2, draw(st.integers(3, 4)), draw(st.integers(3, 4))))
    if draw(st.booleans()):
        sizes = _ints(1, 2, draw(st.integers(2, 7)), draw(st.integers(2, 7)))
        return OneNode(name, [x, None, None, sizes], attributes, {3})
    known = (1, 2, 3) if "corners" in str(attributes) else (0.7, 1, 2, 3)  # sizes as whole numbers
    scales = np.asarray([1, 1, *(draw(st.sampled_from(known)) for _ in range(2))], np.float32)
    return OneNode(name, [x, None, scales], attributes, {2})


@case("Attention")
def attention(draw: Draw, name: str) -> OneNode:
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    rows, depth = draw(st.integers(2, 4)), draw(_small)
    columns = draw(st.sampled_from((rows, rows + 1)))
    heads = groups * per_group
    attributes: dict[str, Any] = {"is_causal": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        attributes["scale"] = 0.3
    if draw(st.booleans()):
        attributes["softcap"] = 2.0
    if draw(st.booleans()):
        shapes = [(2, heads, rows, depth), *((2, groups, columns, depth),) * 2]
    else:
        shapes = [(2, rows, heads * depth), *((2, columns, groups * depth),) * 2]
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    operands: list[Array | None] = [_real(draw, s) for s in shapes]
    mask = draw(st.sampled_from((None, (rows, columns), (2, 1, rows, columns))))
    if mask is not None and not attributes["is_causal"]:
        operands.append(_real(draw, mask))
    if "left_window_size" not in onnx.defs.get_schema(name).attributes:
        return OneNode(name, operands, attributes, opset=23)  # of an older package
    left = draw(st.integers(-1, 3))
    right = draw(st.sampled_from((0, left)))  # others are told, and not applied
    if not attributes["is_causal"]:
        attributes["right_window_size"] = right
    return OneNode(name, operands, {**attributes, "left_window_size": left}, opset=25)


@case("RotaryEmbedding")
def rotary(draw: Draw, name: str) -> OneNode:
    heads, rows, half = draw(_small), draw(_small), draw(st.integers(1, 2))
    attributes: dict[str, Any] = {"interleaved": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        x = _real(draw, (2, heads, rows, 2 * half))
    else:
        x = _real(draw, (2, rows, heads * 2 * half))
        attributes["num_heads"] = heads
    if draw(st.booleans()):
        tables = [_real(draw, (7, half)) for _ in range(2)]
        return OneNode(
            name, [x, *tables, _rng(draw).integers(0, 7, (2, rows))], attributes, opset=23
        )
    return OneNode(
        name, [x, *(_real(draw, (2, rows, half)) for _ in range(2))], attributes, opset=23
    )
