"""The ops of ONNX Runtime compute what its ContribOperators.md specifies, and keep their axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir import Strategy, Workload, load_model
from distir.errors import UnsupportedOpError
from distir.execute.sequential import evaluate
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.importers.onnx import read_onnx
from distir.program import build_program
from tests.importers.models import FLOAT, INT64, model, node, weights

Array = Any
BATCH, ROWS, HEADS, DEPTH = 2, 5, 4, 6
WIDTH = HEADS * DEPTH
RNG = np.random.default_rng(0)


def runtime(op_type: str, operands: str, results: str, **attributes: Any) -> Any:
    """A node of ONNX Runtime's domain."""
    return node(op_type, operands, results, domain="com.microsoft", **attributes)


def computed(
    nodes: list[Any], fed: dict[str, Array], stored: dict[str, Array], outputs: str
) -> list[Array]:
    """What the imported function makes of inputs and stored tensors."""
    of_numpy = onnx.helper.np_dtype_to_tensor_dtype
    inputs = {name: (of_numpy(array.dtype), array.shape) for name, array in fed.items()}
    imported = read_onnx(model(inputs, nodes, outputs, stored), load_weights=True, widen=False)
    by_name = [fed[value.name] for value in imported.function.inputs]
    return evaluate(imported.function, by_name, imported.weights)


# --- references, in NumPy -------------------------------------------------------------------------


def random(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def apart(x: Array, heads: int = HEADS) -> Array:
    """`[batch, heads, rows, depth]`."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def together(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attended(
    query: Array, key: Array, value: Array, mask: Array | float = 0.0, scale: float = 0.0
) -> Array:
    """Attention on `[batch, heads, rows, depth]`; heads of keys and values are repeated."""
    times = query.shape[1] // key.shape[1]
    key, value = (np.repeat(each, times, axis=1) for each in (key, value))
    scores = query @ key.swapaxes(2, 3) * (scale or query.shape[3] ** -0.5) + mask
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return together(shares / shares.sum(-1, keepdims=True) @ value)


def causal(rows: int, past: int = 0) -> Array:
    seen = np.arange(rows)[:, None] + past >= np.arange(rows + past)
    return np.where(seen, 0.0, -np.inf)


def turned(x: Array, cosine: Array, sine: Array, interleaved: bool = False) -> Array:
    """`[batch, heads, rows, depth]` with the first of the depth rotated; tables are
    `[rows, angles]`."""
    angles = cosine.shape[1]
    moving, rest = x[..., : 2 * angles], x[..., 2 * angles :]
    halves = (moving[..., :angles], moving[..., angles:])
    a, b = (moving[..., ::2], moving[..., 1::2]) if interleaved else halves
    first, second = a * cosine - b * sine, a * sine + b * cosine
    pairs = np.stack([first, second], -1).reshape(moving.shape)
    return np.concatenate([pairs if interleaved else np.concatenate([first, second], -1), rest], -1)


# --- attention ------------------------------------------------------------------------------------

MASKS = {
    "": (None, 0.0),
    "lengths": (np.array([3, 5], np.int32), [[1, 1, 1, 0, 0], [1] * 5]),
    "columns": (np.array([[1, 0, 1, 0, 1], [1] * 5], np.int32), [[1, 0, 1, 0, 1], [1] * 5]),
    "rows": (np.tri(5, dtype=np.int32)[None].repeat(2, 0), np.tri(5)[None].repeat(2, 0)),
}


def padding(allowed: Any) -> Array | float:
    """The term of scores for columns, or for columns by row, that are allowed or not."""
    table = np.asarray(allowed)
    if not table.ndim:
        return 0.0
    return np.where(table == 1, 0.0, -1e4).reshape(BATCH, 1, -1, ROWS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_projects_and_attends(mask: str, unidirectional: int) -> None:
    given, allowed = MASKS[mask]
    x, w, b = random(BATCH, ROWS, 7), random(7, 3 * WIDTH), random(3 * WIDTH)
    fed = {"x": x} if given is None else {"x": x, "m": given}
    ran = runtime(
        "Attention",
        f"x w b {'-' if given is None else 'm'}",
        "y",
        num_heads=HEADS,
        unidirectional=unidirectional,
    )
    (found,) = computed([ran], fed, {"w": w, "b": b}, "y")
    term = padding(allowed) + (causal(ROWS) if unidirectional else 0.0)
    query, key, value = map(apart, np.split(x @ w + b, 3, axis=2))
    np.testing.assert_allclose(found, attended(query, key, value, term), atol=1e-5)


def test_attention_joins_the_past_and_has_values_of_another_width() -> None:
    x, w, past = random(BATCH, ROWS, 7), random(7, 4 * WIDTH), random(2, BATCH, HEADS, 3, DEPTH)
    ran = runtime(
        "Attention", "x w - - p", "y z", num_heads=HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, WIDTH]
    )
    y, z = computed([ran], {"x": x, "p": past}, {"w": w[:, : 3 * WIDTH]}, "y z")
    query, key, value = map(apart, np.split(x @ w[:, : 3 * WIDTH], 3, axis=2))
    key, value = (np.concatenate(both, 2) for both in zip(past, (key, value), strict=True))
    np.testing.assert_allclose(y, attended(query, key, value), atol=1e-5)
    np.testing.assert_allclose(z, np.stack([key, value]), atol=1e-5)
    sizes = [WIDTH, WIDTH, 2 * WIDTH]
    ran = runtime("Attention", "x w", "y", num_heads=HEADS, qkv_hidden_sizes=sizes)
    (wide,) = computed([ran], {"x": x}, {"w": w}, "y")
    parts = map(apart, np.split(x @ w, np.cumsum(sizes)[:2], axis=2))
    np.testing.assert_allclose(wide, attended(*parts), atol=1e-5)


@pytest.mark.parametrize("form", ["flat", "heads", "packed keys", "packed"])
def test_multi_head_attention_takes_all_forms_of_operands(form: str) -> None:
    query, key, value = (random(BATCH, ROWS, WIDTH) for _ in range(3))
    fed = {"q": query, "k": key, "v": value}
    by_head = [x.reshape(BATCH, ROWS, HEADS, DEPTH) for x in (query, key, value)]
    if form == "heads":
        fed |= {"k": apart(key), "v": apart(value)}
    elif form == "packed keys":
        fed = {"q": query, "k": np.stack(by_head[1:], 3)}
    elif form == "packed":
        fed = {"q": np.stack(by_head, 3)}
    ran = runtime("MultiHeadAttention", " ".join(fed), "y", num_heads=HEADS)
    (found,) = computed([ran], fed, {}, "y")
    np.testing.assert_allclose(found, attended(*map(apart, (query, key, value))), atol=1e-5)


def test_multi_head_attention_adds_biases_masks_and_the_past() -> None:
    made = [random(BATCH, ROWS, WIDTH) for _ in range(3)]
    past = [random(BATCH, HEADS, 3, DEPTH) for _ in range(2)]
    bias, term = random(3 * WIDTH), random(1, HEADS, ROWS, ROWS + 3)
    fed = dict(zip(["q", "k", "v", "pk", "pv"], [*made, *past], strict=True)) | {"t": term}
    ran = runtime("MultiHeadAttention", "q k v b - t pk pv", "y kk vv", num_heads=HEADS, scale=0.3)
    y, kk, vv = computed([ran], fed, {"b": bias}, "y kk vv")
    query, *own = (apart(x + b) for x, b in zip(made, np.split(bias, 3), strict=True))
    key, value = (np.concatenate(both, 2) for both in zip(past, own, strict=True))
    np.testing.assert_allclose(kk, key, atol=1e-5)
    np.testing.assert_allclose(vv, value, atol=1e-5)
    np.testing.assert_allclose(y, attended(query, key, value, term, 0.3), atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize(("rotary", "interleaved"), [(0, 0), (2, 0), (3, 0), (3, 1)])
@pytest.mark.parametrize("window", [-1, 2])
def test_group_query_attention(
    packed: bool, past: int, rotary: int, interleaved: int, window: int
) -> None:
    groups = 2
    query, key, value = (random(BATCH, ROWS, n * DEPTH) for n in (HEADS, groups, groups))
    before = [random(BATCH, groups, past, DEPTH) for _ in range(2)]
    cosine, sine = random(16, rotary or 1), random(16, rotary or 1)
    fed = {"q": np.concatenate([query, key, value], 2)} if packed else {"q": query}
    fed |= {} if packed else {"k": key, "v": value}
    fed |= dict(zip(["pk", "pv"], before, strict=True)) if past else {}
    fed["s"] = np.full(BATCH, ROWS + past - 1, np.int32)
    names = ["q", *(["-", "-"] if packed else ["k", "v"]), *(["pk", "pv"] if past else ["-", "-"])]
    ran = runtime(
        "GroupQueryAttention",
        " ".join([*names, "s", "n", "c", "d"]),
        "y kk vv",
        num_heads=HEADS,
        kv_num_heads=groups,
        do_rotary=int(rotary > 0),
        rotary_interleaved=interleaved,
        local_window_size=window,
    )
    stored = {"n": np.asarray(ROWS + past, np.int32), "c": cosine, "d": sine}
    y, kk, vv = computed([ran], fed, stored, "y kk vv")
    queries, keys, values = apart(query), apart(key, groups), apart(value, groups)
    if rotary:
        where = slice(past, past + ROWS)
        queries, keys = (
            turned(x, cosine[where], sine[where], bool(interleaved)) for x in (queries, keys)
        )
    keys, values = (np.concatenate(b, 2) for b in zip(before, (keys, values), strict=True))
    np.testing.assert_allclose(kk, keys, atol=1e-5)
    np.testing.assert_allclose(vv, values, atol=1e-5)
    mask = causal(ROWS, past)
    if window > 0:
        mask = np.where(np.tri(ROWS, ROWS + past, past - window), -np.inf, mask)
    np.testing.assert_allclose(y, attended(queries, keys, values, mask), atol=1e-5)


@pytest.mark.parametrize("operands", ["q k v - - s n - - - - sink", "q k v - - s n"])
def test_a_sink_is_told(operands: str) -> None:
    of_numpy = onnx.helper.np_dtype_to_tensor_dtype
    fed = {name: random(BATCH, ROWS, WIDTH) for name in "qkv"} | {"s": np.full(BATCH, 4, np.int32)}
    inputs = {name: (of_numpy(array.dtype), array.shape) for name, array in fed.items()}
    stored = {"n": np.asarray(ROWS, np.int32), "sink": random(HEADS)}
    ran = runtime("GroupQueryAttention", operands, "y", num_heads=HEADS, kv_num_heads=HEADS)
    notes = read_onnx(model(inputs, [ran], "y", stored)).function.notes
    assert any("sink" in note for note in notes) == ("sink" in operands)


@pytest.mark.parametrize("where", [np.arange(ROWS)[None].repeat(BATCH, 0), np.array([3])])
def test_rotary_embedding_takes_positions_or_the_first_of_them(where: Array) -> None:
    x, cosine, sine = random(BATCH, ROWS, WIDTH), random(16, 3), random(16, 3)
    ran = runtime("RotaryEmbedding", "x p c d", "y", num_heads=HEADS)
    (found,) = computed([ran], {"x": x, "p": where}, {"c": cosine, "d": sine}, "y")
    rows = slice(int(where.flat[0]), int(where.flat[0]) + ROWS)
    expected = together(turned(apart(x), cosine[rows], sine[rows]))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_matrix_of_few_bits_that_two_products_read_is_one_parameter() -> None:
    stored = {"m": np.zeros((8, 1, 16), np.uint8), "scales": weights(8)}
    sizes = {"K": 8, "N": 8, "bits": 4, "block_size": 32}
    nodes = [
        runtime("MatMulNBits", "x m scales", "h", **sizes),
        node("Relu", "h", "a"),
        runtime("MatMulNBits", "a m scales", "y", **sizes),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 8])}, nodes, "y", stored)).function
    assert [value.name for value in function.parameters] == ["m"]


def test_a_mask_of_another_form_is_refused_in_one_line() -> None:
    x, w = random(BATCH, ROWS, 7), random(7, 3 * WIDTH)
    ran = runtime("Attention", "x w - m", "y", num_heads=HEADS)
    fed = {"x": x, "m": np.zeros(3 * BATCH + 2, np.int32)}
    with pytest.raises(Exception, match=r"mask of i32\[8\]; expected \[2\], \[2, 5\] or"):
        computed([ran], fed, {"w": w}, "y")


def test_embeddings_are_summed_and_normed() -> None:
    ids, segments = RNG.integers(0, 9, (2, BATCH, ROWS)).astype(np.int32)
    segments %= 2
    tables = {"w": random(9, 8), "p": random(12, 8), "s": random(2, 8), "g": random(8)}
    tables["b"] = random(8)
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    ran = runtime("EmbedLayerNormalization", "i j w p s g b m", "y n z", epsilon=1e-12)
    y, n, z = computed([ran], {"i": ids, "j": segments, "m": mask}, tables, "y n z")
    total = tables["w"][ids] + tables["p"][:ROWS] + tables["s"][segments]
    centred = total - total.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(z, total, atol=1e-5)
    np.testing.assert_allclose(y, normal * tables["g"] + tables["b"], atol=1e-5)
    assert n.tolist() == [3, 5]


# --- whole models ---------------------------------------------------------------------------------

HIDDEN, GROUPS, VOCABULARY, LONGEST = 24, 2, 40, 64


def decoder(layers: int, bits: int = 0) -> Any:
    """A decoder as ONNX Runtime's model builder writes it: packed queries, keys and values, rotary
    embedding within attention, a cache, fused norms, and weights of few bits if so many are
    given."""
    stored: dict[str, Array] = {
        "table": weights(VOCABULARY, HIDDEN),
        "cos": np.cos(np.outer(np.arange(LONGEST), [1.0, 0.1, 0.01])).astype(np.float32),
        "sin": np.sin(np.outer(np.arange(LONGEST), [1.0, 0.1, 0.01])).astype(np.float32),
        "one": np.asarray([1], np.int64),
    }
    nodes = [
        node("ReduceSum", "mask one", "counted", keepdims=0),
        node("Sub", "counted one", "lengths64"),
        node("Cast", "lengths64", "lengths", to=6),
        node("Shape", "mask", "shape"),
        node("Gather", "shape one", "total64", axis=0),
        node("Cast", "total64", "total", to=6),
    ]
    if bits:
        stored["table"] = np.zeros((VOCABULARY, HIDDEN * bits // 8), np.uint8)
        stored["table.scales"] = weights(VOCABULARY, 1)
        nodes.append(runtime("GatherBlockQuantized", "table ids table.scales", "x0", bits=bits))
    else:
        nodes.append(node("Gather", "table ids", "x0"))
    inputs: dict[str, tuple[int, Any]] = {
        "ids": (INT64, ["batch", "sequence"]),
        "mask": (INT64, ["batch", "total"]),
    }
    outputs = ["logits"]
    width = (HEADS + 2 * GROUPS) * DEPTH

    def product(x: str, name: str, rows: int, columns: int) -> str:
        if bits:
            stored[name] = np.zeros((columns, 1, 16), np.uint8)
            stored[f"{name}.scales"] = weights(columns)
            operands = f"{x} {name} {name}.scales"
            sizes = {"K": rows, "N": columns, "bits": bits, "block_size": 32}
            nodes.append(runtime("MatMulNBits", operands, f"{name}.y", **sizes))
        else:
            stored[name] = weights(rows, columns) / len(nodes)  # equal matrices would be one
            nodes.append(node("MatMul", f"{x} {name}", f"{name}.y"))
        return f"{name}.y"

    stored["scale"] = weights(HIDDEN)
    nodes.append(node("SimplifiedLayerNormalization", "x0 scale", "n0", axis=-1))
    x, normed = "x0", "n0"
    for number in range(layers):
        made = product(normed, f"qkv{number}", HIDDEN, width)
        cache = f"k{number} v{number}"
        for name in cache.split():
            inputs[name] = (FLOAT, ["batch", GROUPS, "past", DEPTH])
        nodes.append(
            runtime(
                "GroupQueryAttention",
                f"{made} - - {cache} lengths total cos sin",
                f"a{number} kk{number} vv{number}",
                num_heads=HEADS,
                kv_num_heads=GROUPS,
                do_rotary=1,
            )
        )
        outputs += [f"kk{number}", f"vv{number}"]
        mixed = product(f"a{number}", f"o{number}", HEADS * DEPTH, HIDDEN)
        for part, value in (("a", mixed), ("m", "")):
            if part == "m":
                up = product(normed, f"up{number}", HIDDEN, 2 * HIDDEN)
                nodes.append(node("Sigmoid", up, f"s{number}"))
                value = product(f"s{number}", f"down{number}", 2 * HIDDEN, HIDDEN)
            key = f"{part}{number}"
            stored[f"scale.{key}"] = weights(HIDDEN)
            nodes.append(
                runtime(
                    "SkipSimplifiedLayerNormalization",
                    f"{x} {value} scale.{key}",
                    f"n.{key} mean.{key} deviation.{key} x.{key}",
                )
            )
            x, normed = f"x.{key}", f"n.{key}"
    nodes.append(node("Identity", product(normed, "head", HIDDEN, VOCABULARY), "logits"))
    return model(inputs, nodes, " ".join(outputs), stored)


@pytest.mark.parametrize("bits", [0, 4])
def test_a_decoder_of_the_model_builder_has_layers_and_heads(bits: int) -> None:
    function = read_onnx(decoder(4, bits)).function
    program = build_program(function, training=False)
    assert {axis.size for axis in program.blocks.head_axes} == {GROUPS}
    assert {axis.size for axis in program.blocks.inner_axes.values()} == {HEADS // GROUPS}
    assert 2 * HIDDEN in {axis.size for axis in program.blocks.internal_axes}
    assert program.longest_sequence == LONGEST
    matrices = HIDDEN * ((2 * HEADS + 2 * GROUPS) * DEPTH + 4 * HIDDEN)
    expected = 4 * (matrices + 2 * HIDDEN) + HIDDEN + 2 * HIDDEN * VOCABULARY
    assert sum(value.type.num_elements for value in program.function.parameters) == expected
    assert any("in 4 bits" in note for note in function.notes) == bool(bits)


def test_plans_of_such_a_decoder_compute_what_one_device_does(tmp_path: Any) -> None:
    path = tmp_path / "decoder.onnx"
    cast("Any", onnx).save(decoder(4), path)
    loaded: LoadedModel = load_model(path)
    workload = Workload(model=loaded, batch_size=8, mode="inference")
    result = Verifier(workload).verify(Strategy(dp=2, tp=2, pp=2, microbatches=2))
    assert result.passed, result.first_difference


# --- products with what follows them --------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[tuple[float, ...], Callable[[Array], Array]]] = {
    "": ((), lambda x: x),
    "Relu": ((), lambda x: np.maximum(x, 0)),
    "LeakyRelu": ((0.2,), lambda x: np.maximum(x, 0.2 * x)),
    "Clip": ((-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    "HardSigmoid": ((0.3, 0.4), lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("adds", [False, True])
def test_fused_convolutions(name: str, adds: bool) -> None:
    parameters, function = ACTIVATIONS[name]
    x, other = random(2, 3, 5, 6), random(2, 4, 5, 6)
    stored = {"w": random(4, 3, 1, 1), "b": random(4)}
    given: dict[str, Any] = {"activation": name} if name else {}
    if parameters:
        given["activation_params"] = list(parameters)
    node = runtime("FusedConv", "x w b z" if adds else "x w b", "y", **given)
    (found,) = computed([node], {"x": x, "z": other} if adds else {"x": x}, stored, "y")
    expected = np.einsum("nchw,oc->nohw", x, stored["w"][..., 0, 0]) + stored["b"][:, None, None]
    np.testing.assert_allclose(found, function(expected + other * adds), atol=1e-5)


FUSED_WITH_GEMM: dict[str, tuple[dict[str, float], Callable[[Array], Array]]] = {
    "Relu": ({}, lambda x: np.maximum(x, 0)),
    "LeakyRelu": ({"alpha": 0.2}, lambda x: np.maximum(x, 0.2 * x)),
    "HardSigmoid": ({"alpha": 0.3, "beta": 0.4}, lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
    "Elu": ({"alpha": 0.7}, lambda x: np.maximum(x, 0) + 0.7 * np.minimum(np.expm1(x), 0)),
    "Selu": (
        {"alpha": 1.5, "gamma": 1.1},
        lambda x: 1.1 * (np.maximum(x, 0) + 1.5 * np.minimum(np.expm1(x), 0)),
    ),
    "Softplus": ({}, lambda x: np.log1p(np.exp(x))),
    "Softsign": ({}, lambda x: x / (1 + abs(x))),
    "ThresholdedRelu": ({"alpha": 0.5}, lambda x: x * (x > 0.5)),
}
"""What the runtime fuses with Gemm, whose attributes it writes by their names."""


@pytest.mark.parametrize("name", FUSED_WITH_GEMM)
def test_fused_products(name: str) -> None:
    attributes, function = FUSED_WITH_GEMM[name]
    x, stored = random(5, 6), {"w": random(7, 6), "b": random(7)}
    given = {f"activation_{key}": number for key, number in attributes.items()}
    node = runtime("FusedGemm", "x w b", "y", activation=name, transB=1, **given)
    (found,) = computed([node], {"x": x}, stored, "y")
    np.testing.assert_allclose(found, function(x @ stored["w"].T + stored["b"]), atol=1e-5)


def test_an_unknown_activation_of_a_fused_op_is_named() -> None:
    node = runtime("FusedGemm", "x w", "y", activation="Mystery")
    with pytest.raises(UnsupportedOpError, match=r"Mystery.*expected one of Clip"):
        computed([node], {"x": random(5, 6)}, {"w": random(6, 7)}, "y")


def test_layouts_for_one_processor_are_refused_with_what_to_do() -> None:
    made = node("Conv", "x w", "y", domain="com.microsoft.nchwc")
    with pytest.raises(UnsupportedOpError, match="ORT_ENABLE_EXTENDED"):
        computed([made], {"x": random(1, 8, 5, 5)}, {"w": random(8, 8, 3, 3)}, "y")
