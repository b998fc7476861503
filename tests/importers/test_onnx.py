"""Importing ONNX files: what is folded, what is a parameter, what sizes are bound to."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir import Workload, load_model
from distir.errors import ImportModelError, TransformError, UnsupportedOpError
from distir.execute.sequential import evaluate
from distir.importers.load import LoadedModel
from distir.importers.onnx import import_onnx, read_onnx
from distir.importers.onnx_roles import Role
from distir.ir import Function
from distir.ir.verifier import verify
from distir.ops.channel_norm import BatchNormalization
from distir.ops.tensor import Transpose
from tests.conftest import shared_path
from tests.importers.models import (
    BOOL,
    FLOAT,
    INT64,
    attention,
    convnet,
    every_small_model,
    feeds,
    integers,
    mlp,
    model,
    node,
    stripped,
    weights,
)


def _ops(function: Function) -> list[str]:
    return [each.op.name for each in function.nodes]


def _parameter_names(function: Function) -> set[str]:
    return {value.name for value in function.parameters}


# --- real and small exports -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "inputs"),
    [
        ("gpt2", 124_439_808 - 82_944, (2, 128)),
        ("llama-8layer", 155_730_944, (2, 128)),
        ("mlp16", 16 * (1024 * 1024 + 1024), (64, 1024)),
    ],
)
def test_real_exports_import_without_their_weights(
    name: str, parameters: int, inputs: tuple[int, ...]
) -> None:
    function = import_onnx(shared_path(f"models/{name}.onnx"))
    verify(function)
    assert sum(value.type.num_elements for value in function.parameters) == parameters
    assert function.inputs[0].type.shape == inputs


@pytest.mark.parametrize("name", every_small_model())
def test_small_exports_import(name: str) -> None:
    verify(import_onnx(every_small_model()[name]))


@pytest.mark.parametrize("opset", [11, 13])
def test_shape_arithmetic_disappears(opset: int) -> None:
    function = import_onnx(attention(opset=opset))
    assert not {"Cast", "Concat", "Slice", "CumSum"} & set(_ops(function))
    assert len(function.nodes) == 21


@pytest.mark.parametrize("made", [mlp(), attention(), attention(opset=13), convnet()])
def test_imported_models_compute_what_the_reference_computes(made: Any) -> None:
    from onnx.reference import ReferenceEvaluator

    imported = read_onnx(made, load_weights=True)
    fed = feeds(imported.function, seed=0, most=20)
    (result,) = evaluate(imported.function, list(fed.values()), imported.weights)
    (expected,) = cast("Any", ReferenceEvaluator(made)).run(None, fed)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_order_of_nodes_in_the_file_does_not_matter() -> None:
    made = attention()
    nodes = list(made.graph.node)
    del made.graph.node[:]
    made.graph.node.extend(reversed(nodes))
    assert sorted(_ops(import_onnx(made))) == sorted(_ops(import_onnx(attention())))


# --- sizes ----------------------------------------------------------------------------------------


def test_symbolic_dims_get_sizes_that_occur_nowhere_else() -> None:
    imported = read_onnx(attention())
    assert set(imported.symbols) == {"batch", "sequence"}
    assert imported.symbols["batch"] not in (1, 2, 4, 8, 20, 24, 32)
    assert imported.symbols["sequence"] not in (1, 2, 4, 8, 20, 24, 32)
    assert imported.input_dims == {"ids": ("batch", "sequence")}


def test_sizes_can_be_chosen() -> None:
    sizes = {"batch": 6, "sequence": 10}
    assert import_onnx(attention(), sizes=sizes).inputs[0].type.shape == (6, 10)
    chosen = import_onnx(attention(), batch_size=5, sequence_length=12)
    assert chosen.inputs[0].type.shape == (5, 12)
    with pytest.raises(ImportModelError, match="no dim is called 'height'"):
        import_onnx(attention(), sizes={"height": 3})


def test_sizes_written_as_sums_follow_their_terms() -> None:
    made = model(
        {
            "a": (FLOAT, ["n", "past", 4]),
            "b": (FLOAT, ["n", "new", 4]),
            "m": (FLOAT, ["n", "past + new", 4]),
        },
        [node("Concat", "a b", "c", axis=1), node("Add", "c m", "y")],
        "y",
    )
    shapes = [value.type.shape for value in import_onnx(made).inputs]
    assert shapes[0][1] + shapes[1][1] == shapes[2][1]


@pytest.mark.parametrize("rows", ["2*b", "batch_size*2", "b + 1", "b*s"])
def test_a_batch_that_is_a_multiple_of_a_size_is_refused(rows: str) -> None:
    made = model({"x": (FLOAT, [rows, 6])}, [node("MatMul", "x w", "y")], "y", {"w": weights(6, 4)})
    workload = Workload(model=load_model(lambda: made), batch_size=8)
    with pytest.raises(ImportModelError, match="leaves open how many of its rows make one sample"):
        _ = workload.program


def test_an_input_with_several_rows_per_sample_is_refused() -> None:
    made = model(
        {"x": (FLOAT, ["b", 6]), "z": (FLOAT, ["2*b", 6])},
        [
            node("MatMul", "x w", "a"),
            node("MatMul", "z w", "c"),
            node("Concat", "a c", "y", axis=0),
        ],
        "y",
        {"w": weights(6, 4)},
    )
    workload = Workload(model=load_model(lambda: made), batch_size=8)
    with pytest.raises(ImportModelError, match=r"input 'z' of .* has the size '2\*b'"):
        _ = workload.program


def test_rows_that_a_reshape_makes_samples_of_are_as_many_per_sample() -> None:
    """As the keys of earlier tokens in exports of BLOOM."""
    made = model(
        {"x": (FLOAT, ["b", "s", 12]), "past": (FLOAT, ["b*h", "s", 4])},
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "b"),
            node("Unsqueeze", "b zero_1", "b_1"),
            node("Concat", "b_1 rest", "apart", axis=0),
            node("Reshape", "past apart", "heads"),
            node("Transpose", "heads", "moved", perm=[0, 2, 1, 3]),
            node("Reshape", "moved merged", "m"),
            node("Add", "x m", "xm"),
            node("MatMul", "xm w", "y"),
        ],
        "y",
        {
            "zero": np.asarray(0, np.int64),
            "zero_1": integers(0),
            "rest": integers(3, -1, 4),
            "merged": integers(0, 0, 12),
            "w": weights(12, 5),
        },
    )
    loaded = load_model(lambda: made, onnx_options={"sizes": {"h": 3}})
    workload = Workload(model=loaded, batch_size=8)
    axes = workload.program.axes
    past = workload.program.function.inputs[1]
    assert axes.type_at(past, workload.sizes(8)).shape[0] == 24


def test_two_names_for_one_size_are_tied() -> None:
    made = model(
        {"a": (FLOAT, ["n", "s", 4]), "b": (FLOAT, ["n", "t", 4])}, [node("Add", "a b", "y")], "y"
    )
    a, b = import_onnx(made).inputs
    assert a.type == b.type


def test_a_batch_of_one_is_widened() -> None:
    one = read_onnx(attention(1, 8), widen=False, load_weights=True)
    wide = read_onnx(attention(1, 8), load_weights=True)
    assert one.function.inputs[0].type.shape == (1, 8)
    batch, length = wide.function.inputs[0].type.shape
    assert batch > 1
    assert length == 8
    assert "widened" in wide.function.notes[-1]
    ids = np.random.default_rng(1).integers(0, 20, (batch, 8))
    (together,) = evaluate(wide.function, [ids], wide.weights)
    for sample, result in zip(ids, together, strict=True):
        (alone,) = evaluate(one.function, [sample[None]], one.weights)
        np.testing.assert_allclose(result, alone[0], atol=1e-12)


def test_a_batch_of_one_that_joins_a_class_token_is_widened() -> None:
    made = model(
        {"x": (FLOAT, [1, 4, 6])},
        [
            node("Concat", "token x", "c", axis=1),
            node("Add", "c places", "p"),
            node("Reshape", "p flat", "f"),
            node("Gemm", "f w", "g"),
            node("Reshape", "g shape", "y"),
        ],
        "y",
        {
            "token": weights(1, 1, 6),
            "places": weights(1, 5, 6),
            "flat": integers(5, 6),
            "w": weights(6, 3),
            "shape": integers(1, 5, 3),
        },
    )
    function = import_onnx(made, batch_size=7)
    assert function.inputs[0].type.shape == (7, 4, 6)
    assert function.outputs[0].type.shape == (7, 5, 3)


def test_a_batch_that_is_mixed_stays_one_with_a_note() -> None:
    made = model(
        {"x": (FLOAT, [1, 4])},
        [node("ReduceSum", "x zero", "s", keepdims=1), node("MatMul", "s w", "y")],
        "y",
        {"w": weights(4, 3), "zero": integers(0)},
    )
    function = import_onnx(made)
    assert function.inputs[0].type.shape == (1, 4)
    assert "combines the samples" in function.notes[-1]


# --- parameters and tables ------------------------------------------------------------------------


def test_a_vector_that_serves_several_ops_is_a_parameter_for_each() -> None:
    """Fresh biases are all zeros, which exporters store once."""
    made = model(
        {"x": (FLOAT, ["n", 6])},
        [
            node("Gemm", "x w zeros", "a"),
            node("Gemm", "a w zeros", "b"),
            node("LayerNormalization", "b ones zeros", "y"),
        ],
        "y",
        {"w": weights(6, 6), "zeros": np.zeros(6, np.float32), "ones": np.ones(6, np.float32)},
    )
    imported = read_onnx(made, load_weights=True)
    names = _parameter_names(imported.function)
    assert names == {"w", "zeros", "zeros#2", "zeros#3", "ones"}
    by_name = {value.name: array for value, array in imported.weights.items()}
    np.testing.assert_array_equal(by_name["zeros"], by_name["zeros#3"])


def _three_products(second: str, tensors: Mapping[str, Any], first: Sequence[Any] = ()) -> set[str]:
    """The parameters of products with w, then twice with `second`, by name."""
    products = [
        node("Gemm", "x w bias", "a"),
        node("Gemm", "a z bias", "b"),
        node("Gemm", f"b {second}", "y"),
    ]
    made = model({"x": (FLOAT, ["n", 6])}, [*first, *products], "y", tensors)
    return _parameter_names(import_onnx(made))


def test_a_matrix_of_zeros_that_serves_several_ops_is_a_parameter_for_each() -> None:
    """So are the last products of residual branches, and those of adapters, before training."""
    tensors = {"w": weights(6, 6), "bias": weights(6), "z": np.zeros((6, 6), np.float32)}
    assert _three_products("z bias", tensors) == {"w", "bias", "z", "z#2"}


def test_tensors_whose_values_differ_within_them_are_tied_where_they_are_read_twice() -> None:
    """As those of layers that share all that they train, and of steps one after another."""
    tensors = {"w": weights(6, 6), "bias": weights(6), "z": -weights(6, 6)}
    assert _three_products("z bias", tensors) == {"w", "bias", "z"}


def test_a_vector_that_the_exporter_says_again_is_another_one() -> None:
    tensors = {"w": weights(6, 6), "bias": weights(6), "z": -weights(6, 6)}
    again = [node("Identity", "bias", "again")]
    assert _three_products("z again", tensors, again) == {"w", "bias", "bias#2", "z"}


def test_matrices_are_tied_as_stored_where_zeros_stand_for_all_values() -> None:
    zeros = np.zeros((6, 6), np.float32)
    tensors = {"w": zeros, "bias": np.zeros(6, np.float32), "z": zeros}
    assert _three_products("z bias", tensors) == {"w", "bias", "bias#2", "bias#3", "z"}


def test_statistics_that_share_a_tensor_with_a_bias_are_not_trained() -> None:
    """A fresh model's means are its biases: zeros, which exporters store once."""
    made = convnet()
    norm = next(each for each in made.graph.node if each.op_type == "BatchNormalization")
    norm.input[3], norm.input[4] = "bias", "scale"
    function = import_onnx(made)
    found = next(n for n in function.nodes if isinstance(n.op, BatchNormalization))
    assert set(found.operands[1:3]) <= set(function.parameters)
    assert set(found.operands[3:]) <= set(function.constants)


def _head_with(extra: list[Any], inputs: dict[str, Any], initializers: dict[str, Any]) -> Any:
    """Scores by products, then `extra` ops that end in y."""
    return model(
        {"x": (FLOAT, ["n", "s", 4]), **inputs},
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "scores"), *extra],
        "y",
        initializers,
    )


def test_masks_rotary_factors_and_statistics_are_tables() -> None:
    def role(made: Any, name: str) -> Role:
        return read_onnx(made).decisions[name].role

    mask = np.where(np.tril(np.ones((24, 24))) > 0, 0, -1e9).astype(np.float32)
    masked = [node("Add", "scores mask", "m"), node("Softmax", "m", "y")]
    fixed: dict[str, Any] = {"sizes": {"s": 24}}
    imported = read_onnx(_head_with(masked, {}, {"mask": mask}), **fixed)
    assert imported.decisions["mask"].role is Role.TABLE
    bias = read_onnx(_head_with(masked, {}, {"mask": weights(24, 24)}), **fixed)
    assert bias.decisions["mask"].role is Role.PARAMETER
    rotated = model(
        {"x": (FLOAT, ["n", 5, 4])},
        [node("Mul", "x cosine", "r"), node("Mul", "r scale", "p"), node("MatMul", "p w", "y")],
        "y",
        {"cosine": weights(5, 4), "scale": weights(4), "w": weights(4, 3)},
    )
    assert role(rotated, "cosine") is Role.TABLE
    assert role(rotated, "scale") is Role.PARAMETER
    assert role(convnet(), "mean") is Role.TABLE
    assert role(convnet(), "scale") is Role.PARAMETER
    overridden = read_onnx(rotated, parameters=["cosine"], tables=["scale"])
    assert overridden.decisions["cosine"].role is Role.PARAMETER
    assert overridden.decisions["scale"].role is Role.TABLE


def test_weights_made_by_ops_are_parameters_and_never_materialised() -> None:
    made = model(
        {"x": (FLOAT, ["n", 1 << 20])},
        [node("ConstantOfShape", "shape", "w"), node("MatMul", "x w", "y")],
        "y",
        {"shape": integers(1 << 20, 1 << 21)},
    )
    function = import_onnx(made)
    assert [value.type.shape for value in function.parameters] == [(1 << 20, 1 << 21)]


def test_masks_made_from_the_input_shape_are_constants() -> None:
    made = model(
        {"ids": (INT64, ["n", "s"])},
        [
            node("Shape", "ids", "shape"),
            node("ConstantOfShape", "shape", "zeros"),
            node("Gather", "table ids", "e"),
            node("Unsqueeze", "zeros two", "z"),
            node("Add", "e z", "y"),
        ],
        "y",
        {"table": weights(9, 4), "two": integers(2)},
    )
    function = import_onnx(made)
    assert _parameter_names(function) == {"table"}


def test_tables_without_values_are_accepted_until_a_shape_needs_them() -> None:
    inputs = {"x": (FLOAT, ["n", 12])}
    nodes = [node("Gather", "table ids", "e"), node("Add", "x e", "y")]
    made = stripped(
        model(inputs, nodes, "y", {"table": weights(9, 12), "ids": np.arange(8)[:1]}), smallest=1
    )
    function = import_onnx(made)
    assert [value.name for value, array in function.constants.items() if array is None] == ["ids"]
    nodes = [node("Reshape", "x shape", "y")]
    made = stripped(model(inputs, nodes, "y", {"shape": integers(-1, 3)}), smallest=1)
    with pytest.raises(ImportModelError, match="follows from the values of 'shape'"):
        import_onnx(made)


def test_weights_given_as_inputs_beside_a_symbolic_batch_are_parameters() -> None:
    made = model(
        {"x": (FLOAT, ["n", 6]), "w": (FLOAT, [6, 4]), "v": (FLOAT, [4, 2]), "b": (FLOAT, [4])},
        [node("Gemm", "x w b", "h"), node("MatMul", "h v", "y")],
        "y",
    )
    function = import_onnx(made)
    assert _parameter_names(function) == {"w", "v", "b"}
    assert len(function.inputs) == 1


# --- patterns -------------------------------------------------------------------------------------


def test_slices_that_tile_a_dim_become_a_split() -> None:
    def halves(second: int) -> Function:
        made = model(
            {"x": (FLOAT, ["n", 8])},
            [
                node("Slice", "x zero middle axis", "a"),
                node("Slice", "x second end axis", "b"),
                node("Concat", "b a", "y", axis=1),
            ],
            "y",
            {
                "zero": integers(0),
                "middle": integers(4),
                "second": integers(second),
                "end": integers(8),
                "axis": integers(1),
            },
        )
        return import_onnx(made)

    assert "Split" in _ops(halves(4))
    assert "Split" not in _ops(halves(3))


def test_gathers_of_all_rows_become_a_split() -> None:
    made = model(
        {"x": (FLOAT, ["n", 3, 4])},
        [node("Gather", f"x {i}", f"p{i}", axis=1) for i in range(3)]
        + [node("Sum", "p0 p1 p2", "y")],
        "y",
        {str(i): np.asarray(i, np.int64) for i in range(3)},
    )
    assert "Gather" not in _ops(import_onnx(made))


def test_branches_with_a_known_condition_are_taken() -> None:
    def branch(name: str, op: str) -> Any:
        return onnx.helper.make_graph(
            [node(op, "x", name)], name, [], [onnx.helper.make_empty_tensor_value_info(name)]
        )

    nodes = [
        node("Shape", "x", "s"),
        node("Size", "s", "rank"),
        node("Equal", "rank two", "is_matrix"),
        node(
            "If", "is_matrix", "y", then_branch=branch("a", "Relu"), else_branch=branch("b", "Exp")
        ),
    ]
    made = model({"x": (FLOAT, ["n", 4])}, nodes, "y", {"two": np.asarray(2, np.int64)})
    assert _ops(import_onnx(made)) == ["Relu"]


def test_dims_of_a_transpose_may_count_from_the_end() -> None:
    """As TorchScript writes `x.permute(0, -2, -1, 1)`."""
    made = model(
        {"x": (FLOAT, [2, 3, 4, 5])}, [node("Transpose", "x", "y", perm=[0, -2, -1, 1])], "y"
    )
    (transposed,) = import_onnx(made).nodes
    assert transposed.op == Transpose((0, 2, 3, 1))


def test_a_squeeze_leaves_dims_that_the_file_says_it_leaves() -> None:
    """As PyTorch writes `x.squeeze(1)` of a dim that is not 1, which it leaves."""
    made = model(
        {"x": (FLOAT, [2, 1, 3, 4])},
        [node("Squeeze", "x axes", "s"), node("Relu", "s", "y")],
        "y",
        {"axes": integers(1, 2)},
    )
    with pytest.raises(ImportModelError, match=r"dims \[2\] of fp32\[2,1,3,4\] are squeezed"):
        import_onnx(made)
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("s", FLOAT, [2, 3, 4]))
    assert import_onnx(made).outputs[0].type.shape == (2, 3, 4)


def test_an_input_that_is_a_condition_is_false() -> None:
    """As whether a cache is used, in decoders that exporters merge; tensors have the roles that
    they have in branches."""

    def branch(name: str, op: str) -> Any:
        nodes = [node(op, "x", f"{name}f"), node("MatMul", f"{name}f w", f"{name}m")]
        nodes.append(node("Mul", f"{name}m table", name))
        result = onnx.helper.make_empty_tensor_value_info(name)
        return onnx.helper.make_graph(nodes, name, [], [result])

    bodies = {"then_branch": branch("a", "Relu"), "else_branch": branch("b", "Exp")}
    made = model(
        {"x": (FLOAT, ["batch", 3, 4]), "cached": (BOOL, [1])},
        [node("If", "cached", "y", **bodies)],
        "y",
        {"w": weights(4, 4), "table": weights(3, 4)},
    )
    function = import_onnx(made)
    assert _ops(function) == ["Exp", "MatMul", "Mul"]
    assert [value.name for value in function.inputs] == ["x"]
    assert [value.name for value in function.parameters] == ["w"]
    assert any("cached is false" in note for note in function.notes)
    assert not any("widened" in note for note in function.notes)


def test_functions_of_the_model_are_called() -> None:
    helper = onnx.helper
    scaled = helper.make_function(
        "local", "Scaled", ["a"], ["b"],
        [node("LeakyRelu", "a", "c"), node("Add", "c c", "b")],
        [helper.make_opsetid("", 18)], ["slope"],
    )  # fmt: skip
    reference = scaled.node[0].attribute.add()
    reference.name, reference.ref_attr_name = "alpha", "slope"
    reference.type = onnx.AttributeProto.FLOAT
    call = helper.make_node("Scaled", ["x"], ["y"], domain="local", slope=0.25)
    function = import_onnx(model({"x": (FLOAT, ["n", 4])}, [call], "y", functions=[scaled]))
    assert _ops(function) == ["LeakyRelu", "Add"]
    (result,) = evaluate(function, [np.full(function.inputs[0].type.shape, -1.0)])
    assert result.flat[0] == -0.5


def test_sequences_of_known_length_are_resolved() -> None:
    made = model(
        {"x": (FLOAT, ["n", 8])},
        [
            node("SplitToSequence", "x four", "parts", axis=1),
            node("SequenceAt", "parts one", "second"),
            node("ConcatFromSequence", "parts", "all", axis=1),
            node("Concat", "all second", "y", axis=1),
        ],
        "y",
        {"four": np.asarray(4, np.int64), "one": np.asarray(1, np.int64)},
    )
    assert import_onnx(made).outputs[0].type.shape[1] == 12


def test_softmax_of_old_opsets_runs_over_all_later_dims() -> None:
    made = model({"x": (FLOAT, [2, 3, 4])}, [node("Softmax", "x", "y", axis=1)], "y", opset=11)
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    (result,) = evaluate(import_onnx(made), [x])
    np.testing.assert_allclose(result.reshape(2, -1).sum(1), 1)


def test_a_table_that_is_stretched_is_trained() -> None:
    """Positions of patches, at another size than those that the model was trained at."""
    made = model(
        {"x": (FLOAT, ["n", 6, 8, 8])},
        [node("Resize", "table - - sizes", "p", mode="linear"), node("Add", "x p", "y")],
        "y",
        {"table": weights(1, 6, 4, 4), "sizes": integers(1, 6, 8, 8)},
    )
    assert _parameter_names(import_onnx(made)) == {"table"}


def test_what_changes_nothing_is_not_told() -> None:
    made = model(
        {"x": (FLOAT, ["n", 6, 8, 8])},
        [
            node("Pad", "x none", "p", mode="reflect"),
            node("Resize", "p - - sizes", "r", mode="cubic"),
            node("MatMul", "r w", "y"),
        ],
        "y",
        {"none": integers(*[0] * 8), "w": weights(8, 8), "sizes": integers(3, 6, 8, 8)},
    )
    function = import_onnx(made, batch_size=3)
    assert _ops(function) == ["MatMul"]
    assert not function.notes


def test_dropout_is_off() -> None:
    made = model(
        {"x": (FLOAT, ["n", 4])},
        [node("Dropout", "x ratio on", "d mask"), node("Relu", "d", "y")],
        "y",
        {"ratio": np.asarray(0.5, np.float32), "on": np.asarray(True)},
    )
    assert _ops(import_onnx(made)) == ["Relu"]


# --- what is refused ------------------------------------------------------------------------------


def _one(op: str, **attributes: Any) -> Any:
    return model({"x": (FLOAT, ["n", 4]), "c": (BOOL, [])}, [node(op, "x", "y", **attributes)], "y")


@pytest.mark.parametrize("op", ["Loop", "NonZero", "QLinearWhatever", "Bogus", "Scan"])
def test_unsupported_ops_are_named(op: str) -> None:
    with pytest.raises(UnsupportedOpError, match=f"{op} 'y', fed by x: fp32"):
        import_onnx(_one(op))


def test_a_loop_whose_body_has_inputs_without_types_is_named() -> None:
    """As exporters write what sums rows of tables, over a list of tensors."""
    body = onnx.helper.make_graph(
        [node("Identity", "go", "on")],
        "body",
        [onnx.helper.make_empty_tensor_value_info(name) for name in ("step", "go", "list")],
        [onnx.helper.make_empty_tensor_value_info(name) for name in ("on", "list")],
    )
    with pytest.raises(UnsupportedOpError, match="Loop is not supported"):
        import_onnx(_one("Loop", body=body))


def test_branches_on_data_are_refused() -> None:
    empty = onnx.helper.make_graph([], "empty", [], [onnx.helper.make_empty_tensor_value_info("x")])
    made = _one("If", then_branch=empty, else_branch=empty)
    made.graph.node[0].input[0] = "d"
    made.graph.node.insert(0, node("Not", "c", "d"))
    with pytest.raises(UnsupportedOpError, match="condition depends on data"):
        import_onnx(made)


def test_shapes_that_depend_on_data_are_refused() -> None:
    made = model(
        {"x": (FLOAT, ["n", 4]), "shape": (INT64, [2])}, [node("Reshape", "x shape", "y")], "y"
    )
    with pytest.raises(ImportModelError, match="depends on data"):
        import_onnx(made)


def test_cycles_missing_names_and_double_names_are_refused() -> None:
    inputs = {"x": (FLOAT, ["n", 4])}
    cycle = model(inputs, [node("Add", "x b", "a"), node("Relu", "a", "b")], "b")
    with pytest.raises(ImportModelError, match="depends on its own result"):
        import_onnx(cycle)
    missing = model(inputs, [node("Add", "x nowhere", "y")], "y")
    with pytest.raises(ImportModelError, match="'nowhere' is read, but"):
        import_onnx(missing)
    double = model(inputs, [node("Relu", "x", "y"), node("Exp", "x", "y")], "y")
    with pytest.raises(ImportModelError, match="exists already"):
        import_onnx(double)


def _declaring(*outputs: tuple[str, Any], batch: Any = "n") -> Any:
    """A product that makes y, `[batch, 4]`, with outputs that are declared as (name, dims)."""
    made = model(
        {"x": (FLOAT, [batch, 6])}, [node("MatMul", "x w", "y")], "y", {"w": weights(6, 4)}
    )
    del made.graph.output[:]
    for name, dims in outputs:
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, FLOAT, dims))
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_declaring(("y", ["n", 4]), ("z", ["n"])), "output 'z' is declared, but no op makes it"),
        (_declaring(("y", ["n", 5])), r"'y' is declared with the shape \[n, 5\], .* make \[2, 4\]"),
        (_declaring(("y", ["n", 4, 1])), r"with the shape \[n, 4, 1\], but its ops make \[2, 4\]"),
        (_declaring(("y", [2, None]), batch=8), r"shape \[2, \?\], but its ops make \[8, 4\]"),
    ],
    ids=["no op", "size", "rank", "fixed"],
)
def test_outputs_that_are_not_as_declared_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message) as caught:
        import_onnx(made)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dims", [["m", 4], [1, 4], [None, None], [0, 4]])
def test_a_size_that_the_file_leaves_open_may_be_declared_as_it_was_at_the_export(
    dims: list[Any],
) -> None:
    assert import_onnx(_declaring(("y", dims))).outputs[0].type.shape == (2, 4)


@pytest.mark.parametrize("opset", [0, 99])
def test_opsets_that_are_not_known_are_refused(opset: int) -> None:
    made = _declaring(("y", ["n", 4]))
    made.opset_import[0].version = opset
    with pytest.raises(ImportModelError, match=f"has opset {opset}; expected 1 to [0-9]+, which"):
        import_onnx(made)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("as_raw_data", [False, True])
def test_tensors_with_too_few_or_too_many_values_are_refused(
    as_raw_data: bool, constant: bool
) -> None:
    for numbers in (23, 25):
        made = _declaring(("y", ["n", 4]))
        (tensor,) = made.graph.initializer
        tensor.ClearField("raw_data")
        if as_raw_data:
            tensor.raw_data = np.ones(numbers, np.float32).tobytes()
        else:
            tensor.float_data.extend([1.0] * numbers)
        if constant:
            made.graph.node.insert(0, node("Constant", "", "w", value=tensor))
            del made.graph.initializer[:]
        found = rf"{4 * numbers} bytes .* 96" if as_raw_data else f"{numbers} numbers .* 24"
        with pytest.raises(ImportModelError, match=rf"tensor 'w' of shape \[6, 4\] has {found}"):
            import_onnx(made)


def test_tensors_without_values_are_shapes_alone() -> None:
    made = _declaring(("y", ["n", 4]))
    made.graph.initializer[0].ClearField("raw_data")
    imported = read_onnx(made, load_weights=True)
    assert [value.type.shape for value in imported.function.parameters] == [(6, 4)]
    assert not imported.weights


def test_nodes_without_results_do_nothing() -> None:
    made = attention()
    made.graph.node.append(onnx.helper.make_node("Gather", ["table", "ids"], []))
    assert _ops(import_onnx(made)) == _ops(import_onnx(attention()))


def test_wrong_ranks_and_shapes_say_where() -> None:
    made = mlp()
    made.graph.node[3].input[:] = ["w2", "n"]
    with pytest.raises(ImportModelError, match=r"MatMul 'y', fed by w2: fp32\[8,4\], n: fp32"):
        import_onnx(made)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../b", ""])
def test_external_data_outside_of_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    made = stripped(mlp())
    made.graph.initializer[0].external_data[0].value = location
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(ImportModelError, match="inside the model's folder"):
        import_onnx(path)


def test_external_data_is_read_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    cast("Any", onnx).save(
        mlp(), str(path), save_as_external_data=True, location="w.bin", size_threshold=16
    )
    imported = read_onnx(path, load_weights=True)
    assert len(imported.weights) == len(imported.function.parameters)
    expected = onnx.numpy_helper.to_array(mlp().graph.initializer[0])
    found = next(array for value, array in imported.weights.items() if value.name == "w1")
    np.testing.assert_array_equal(found, expected)
    (tmp_path / "w.bin").unlink()
    assert read_onnx(path, load_weights=True).weights == {}


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (-3, 4), (2,) * 40])
def test_hostile_sizes_are_refused(shape: tuple[int, ...]) -> None:
    made = stripped(mlp())
    del made.graph.initializer[0].dims[:]
    made.graph.initializer[0].dims.extend(shape)
    with pytest.raises(ImportModelError, match="tensor 'w1' has shape"):
        import_onnx(made)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", "sizes", "z"), node("ReduceSum", "z", "r", keepdims=0)],
        [node("Expand", "one", "-"), node("Expand", "one sizes", "z"), node("Exp", "z", "r")],
        [node("Tile", "row sizes_1", "z"), node("ReduceMax", "z", "r", keepdims=0)],
        [node("ConstantOfShape", "sizes", "z"), node("NonZero", "z", "r")],
        [node("Range", "zero limit step", "r")],
        [node("OneHot", "zero limit pair", "r")],
    ],
)  # fmt: skip
def test_constants_of_hostile_size_are_never_made(nodes: list[Any]) -> None:
    made = model(
        {"x": (FLOAT, ["n", 4])},
        [n for n in nodes if n.output != ["-"]] + [node("Add", "x r", "y")],
        "y",
        {
            "sizes": integers(1 << 19, 1 << 19),
            "sizes_1": integers(1 << 40),
            "one": weights(1, 1),
            "row": weights(4),
            "zero": np.asarray(0, np.int64),
            "limit": np.asarray(1 << 40, np.int64),
            "step": np.asarray(1, np.int64),
            "pair": weights(2),
        },
    )
    with contextlib.suppress(ImportModelError):
        import_onnx(made)


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="there is no file"):
        import_onnx(tmp_path / "absent.onnx")
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"\x00\xffnot a model" * 9)
    with pytest.raises(ImportModelError, match="not an ONNX model"):
        import_onnx(path)
    path.write_bytes(b"")
    with pytest.raises(ImportModelError):
        import_onnx(path)


def test_a_model_without_parameters_is_said_to_be_one() -> None:
    made = model({"x": (FLOAT, ["batch", 4])}, [node("Softmax", "x", "y")], "y", {})
    workload = Workload(model=LoadedModel("softmax", import_onnx(made)), batch_size=4)
    with pytest.raises(TransformError, match="no parameter meets an input"):
        _ = workload.program


def test_tokens_of_an_expert_are_refused_with_what_works() -> None:
    made = model(
        {"x": (FLOAT, ["batch", 4])},
        [node("Cast", "x", "chosen", to=BOOL), node("NonZero", "chosen", "y")],
        "y",
        {},
    )
    with pytest.raises(UnsupportedOpError, match="a mixture of experts can be given by its config"):
        import_onnx(made)


def test_names_of_functions_are_their_own() -> None:
    """Two functions may have weights of one name, and one that is called twice has its own once."""
    helper = onnx.helper

    def scaled(name: str, size: int) -> Any:
        stored = helper.make_node(
            "Constant", [], ["weight"], value=onnx.numpy_helper.from_array(weights(4, size))
        )
        return helper.make_function(
            "local", name, ["a"], ["b"], [stored, node("MatMul", "a weight", "b")],
            [helper.make_opsetid("", 18)],
        )  # fmt: skip

    calls = [
        helper.make_node("First", ["x"], ["h"], domain="local"),
        helper.make_node("First", ["h"], ["g"], domain="local"),
        helper.make_node("Second", ["g"], ["y"], domain="local"),
    ]
    functions = [scaled("First", 4), scaled("Second", 8)]
    function = import_onnx(model({"x": (FLOAT, ["n", 4])}, calls, "y", functions=functions))
    assert sorted(value.type.shape for value in function.parameters) == [(4, 4), (4, 8)]


@pytest.mark.parametrize("masked", [-100.0, -1000.0, -1e9])
def test_masks_are_told_by_their_values(masked: float) -> None:
    """Whether they are added as they are stored, or moved first."""
    mask = np.triu(np.full((8, 8), masked, np.float32), 1)
    for moved in (False, True):
        nodes = [
            node("Unsqueeze", "mask axes", "wide"),
            node("Add", "wide s" if moved else "mask s", "t"),
            node("Softmax", "t", "p"),
            node("MatMul", "p w", "y"),
        ]
        stored = {"mask": mask, "axes": integers(0), "w": weights(8, 5)}
        made = read_onnx(
            model({"s": (FLOAT, ["n", 3, 8, 8])}, nodes if moved else nodes[1:], "y", stored)
        )
        assert made.decisions["mask"].role is Role.TABLE


def test_a_bias_of_zeros_that_is_moved_is_a_parameter() -> None:
    """As it is before training: zeros do not tell that it is a mask."""
    nodes = [
        node("Unsqueeze", "bias axes", "wide"),
        node("Add", "wide s", "t"),
        node("Softmax", "t", "p"),
        node("MatMul", "p w", "y"),
    ]
    stored = {"bias": np.zeros((3, 8, 8), np.float32), "axes": integers(0), "w": weights(8, 5)}
    made = read_onnx(model({"s": (FLOAT, ["n", 3, 8, 8])}, nodes, "y", stored))
    assert made.decisions["bias"].role is Role.PARAMETER


def test_weights_of_which_the_sign_counts_are_parameters() -> None:
    nodes = [
        node("Greater", "w zero", "positive"),
        node("Where", "positive one minus", "sign"),
        node("Mul", "w sign", "size"),
        node("MatMul", "x size", "y"),
    ]
    stored = {
        "w": weights(4, 4),
        "zero": np.zeros((), np.float32),
        "one": np.ones((), np.float32),
        "minus": -np.ones((), np.float32),
    }
    made = read_onnx(model({"x": (FLOAT, ["n", 4])}, nodes, "y", stored))
    assert made.decisions["w"].role is Role.PARAMETER


def test_a_number_behind_a_minus_is_arithmetic() -> None:
    made = model(
        {"a": (FLOAT, ["b", "s", 4]), "c": (FLOAT, ["b", "s-1", 4])},
        [node("Slice", "a none end one", "rest"), node("Add", "rest c", "y")],
        "y",
        {"none": integers(1), "end": integers(10**6), "one": integers(1)},
    )
    a, c = import_onnx(made).inputs
    assert c.type.shape[1] == a.type.shape[1] - 1


def test_a_size_that_may_be_another_is_said() -> None:
    made = model(
        {"x": (FLOAT, ["n", 8])}, [node("Add", "x table", "y")], "y", {"table": weights(16, 8)}
    )
    with pytest.raises(ImportModelError, match="tried with n = 2; if the file needs other sizes"):
        import_onnx(made)
    assert import_onnx(made, sizes={"n": 16}).inputs[0].type.shape == (16, 8)


def test_what_is_compared_is_no_parameter() -> None:
    nodes = [
        node("Equal", "regions zero", "same"),
        node("Where", "same zero regions", "mask"),
        node("Add", "mask s", "t"),
        node("Softmax", "t", "p"),
        node("MatMul", "p w", "y"),
    ]
    stored = {"regions": weights(3, 8, 8), "zero": np.zeros((), np.float32), "w": weights(8, 5)}
    made = read_onnx(model({"s": (FLOAT, ["n", 3, 8, 8])}, nodes, "y", stored))
    assert made.decisions["regions"].role is Role.TABLE


@pytest.mark.parametrize("batch", ["batch-size", "batch/size", "None", "1", "n % 8", "True"])
def test_names_of_sizes_may_look_like_arithmetic(batch: str) -> None:
    made = model(
        {"a": (FLOAT, [batch, 4])}, [node("MatMul", "a w", "y")], "y", {"w": weights(4, 4)}
    )
    workload = Workload(model=load_model(made), batch_size=8)
    assert len(workload.program.batches) == 1
    assert read_onnx(made, sizes={batch: 6}).function.inputs[0].type.shape == (6, 4)


def test_two_names_of_the_batch_are_tied() -> None:
    """As PyTorch names the first dims of two inputs if the user names none."""
    made = model(
        {"a": (FLOAT, ["a_dynamic_axes_1", 4]), "b": (FLOAT, ["b_dynamic_axes_1", 4])},
        [node("Add", "a b", "y")],
        "y",
    )
    a, b = import_onnx(made).inputs
    assert a.type == b.type


def test_products_of_parameters_alone_are_of_no_sample() -> None:
    """As a low-rank change of a weight is computed in the forward pass."""
    nodes = [
        node("MatMul", "a b", "change"),
        node("Add", "w change", "changed"),
        node("MatMul", "x changed", "y"),
    ]
    stored = {"w": weights(32, 32), "a": weights(32, 4), "b": weights(4, 32)}
    made = load_model(model({"x": (FLOAT, ["n", 32])}, nodes, "y", stored))
    for batch_size in (1, 8):
        workload = Workload(model=made, batch_size=batch_size)
        assert workload.forward_flops_per_sample == 2 * 32 * 32


def test_what_is_wrong_at_all_sizes_is_said_without_sizes() -> None:
    made = model({"x": (FLOAT, ["n", "s", 4])}, [node("Add", "x y", "y")], "y")
    with pytest.raises(ImportModelError) as raised:
        import_onnx(made)
    assert "tried with" not in str(raised.value)


@pytest.mark.parametrize("layers", [1, 3])
def test_matrices_among_the_ops_are_weights_where_most_of_them_are(layers: int) -> None:
    """A tensor that PyTorch traces as a constant is none of its parameters; where hardly a matrix
    is stored apart, the constants are the parameters."""
    names = [f"w{n}" for n in range(layers)]
    nodes: list[Any] = []
    last = "x"
    for n, name in enumerate(names):
        value = onnx.numpy_helper.from_array(weights(4, 4) + n)
        nodes += [onnx.helper.make_node("Constant", [], [name], value=value)]
        nodes += [node("MatMul", f"{last} {name}", f"h{n}")]
        last = f"h{n}"
    nodes += [node("MatMul", f"{last} stored", "y")]
    made = read_onnx(model({"x": (FLOAT, ["n", 4])}, nodes, "y", {"stored": weights(4, 8)}))
    role = Role.TABLE if layers == 1 else Role.PARAMETER
    assert {made.decisions[name].role for name in names} == {role}


def test_tensors_are_followed_into_functions() -> None:
    """A mask and rotary factors that a function is given, twice, and a weight."""
    helper = onnx.helper
    body = [
        node("Mul", "a factor", "turned"),
        node("Add", "turned mask", "masked"),
        node("Softmax", "masked", "p"),
        node("MatMul", "p weight", "b"),
    ]
    attends = helper.make_function(
        "local", "Attends", ["a", "factor", "mask", "weight"], ["b"], body,
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    calls = [
        helper.make_node("Attends", ["x", "factor", "mask", "first"], ["h"], domain="local"),
        helper.make_node("Attends", ["h", "factor", "mask", "second"], ["y"], domain="local"),
    ]
    stored = {
        "factor": weights(8, 8),
        "mask": np.triu(np.full((8, 8), -1e9, np.float32), 1),
        "first": weights(8, 8),
        "second": weights(8, 8) + 1,
    }
    made = read_onnx(model({"x": (FLOAT, ["n", 8, 8])}, calls, "y", stored, functions=[attends]))
    roles = {name: decision.role for name, decision in made.decisions.items()}
    assert roles["factor"] is roles["mask"] is Role.TABLE
    assert roles["first"] is roles["second"] is Role.PARAMETER
