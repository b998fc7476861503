"""What ONNX specifies of operators where `onnx.reference` does something else, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distir.errors import UnsupportedOpError
from distir.execute.sequential import evaluate
from distir.importers.onnx import import_onnx
from tests.importers.models import FLOAT, model, node, weights


@pytest.mark.parametrize(("size", "scale"), [(5, 1.4), (10, 0.7), (20, 0.9), (10, 1.3)])
def test_resized_sizes_are_products_in_single_precision(size: int, scale: float) -> None:
    """As PyTorch computes and states them: 7 for 1.4 times 5, though 1.4 is stored as less."""
    scales = np.asarray([1, 1, scale, 2], np.float32)
    made = model(
        {"x": (FLOAT, [2, 3, size, 4])}, [node("Resize", "x - s", "y")], "y", {"s": scales}
    )
    assert import_onnx(made).outputs[0].type.shape == (2, 3, round(size * scale), 8)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolutions_of_same_size_are_as_many_times_larger_as_their_stride(
    mode: str,
) -> None:
    """Also where windows are smaller than the stride, so that elements between them are none's."""
    nodes = [node("ConvTranspose", "x w", "y", strides=[2, 3], auto_pad=mode)]
    made = model({"x": (FLOAT, [2, 4, 5, 6])}, nodes, "y", {"w": np.ones((4, 3, 3, 2), np.float32)})
    assert import_onnx(made).outputs[0].type.shape == (2, 3, 10, 18)


@pytest.mark.parametrize(("old", "new"), [("bilinear", "linear"), ("bicubic", "cubic")])
def test_modes_of_sampling_had_other_names_before_opset_20(old: str, new: str) -> None:
    shapes = {"x": (FLOAT, [2, 3, 4, 5]), "grid": (FLOAT, [2, 6, 7, 2])}
    functions = [
        import_onnx(model(shapes, [node("GridSample", "x grid", "y", mode=mode)], "y", opset=opset))
        for mode, opset in ((old, 16), (new, 20))
    ]
    first, second = ([each.op for each in function.nodes] for function in functions)
    assert first == second


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_what_blocks_become_depth_is_undone_by_the_op_of_the_same_mode(mode: str) -> None:
    x = np.arange(2 * 3 * 4 * 6, dtype=np.float32).reshape(2, 3, 4, 6)
    form: dict[str, Any] = {"blocksize": 2, "mode": mode}
    nodes = [node("SpaceToDepth", "x", "d", **form), node("DepthToSpace", "d", "y", **form)]
    made = model({"x": (FLOAT, [*x.shape])}, nodes, "d y")
    deeper, same = evaluate(import_onnx(made), [x])
    assert (same == x).all()
    # The channels of a place of the block are together, or the places of a channel.
    second = x[:, 1, ::2, ::2] if mode == "DCR" else x[:, 0, ::2, 1::2]
    assert (deeper[:, 1] == second).all()


def test_attributes_that_nothing_asks_for_are_told() -> None:
    """A later version of ONNX may have some that change what an op means."""
    given: dict[str, Any] = {"blocksize": 2, "overlap": 1, "reserved": 0}
    made = model({"x": (FLOAT, [2, 3, 4, 6])}, [node("SpaceToDepth", "x", "y", **given)], "y")
    assert import_onnx(made).notes == ("SpaceToDepth: its overlap of 1 is not applied",)


def test_results_that_are_not_supported_may_be_named_if_nothing_reads_them() -> None:
    """As exporters write the positions of maxima."""
    pool = node("MaxPool", "x", "p places", kernel_shape=[2])
    made = model({"x": (FLOAT, [2, 3, 4])}, [pool, node("Relu", "p", "y")], "y")
    assert import_onnx(made).outputs[0].type.shape == (2, 3, 3)
    for nodes, results in (([pool], "p places"), ([pool, node("Neg", "places", "y")], "p y")):
        with pytest.raises(UnsupportedOpError, match="MaxPool 'p': its result 'places'"):
            import_onnx(model({"x": (FLOAT, [2, 3, 4])}, nodes, results))


def test_products_of_several_operands_are_made_two_at_a_time() -> None:
    """So that the work of a chain of matrices is that of its products, `(x · a) · b`."""
    tables = {"a": weights(6, 7), "b": weights(7, 8)}
    nodes = [node("Einsum", "x a b", "y", equation="ij,jk,kl->il")]
    function = import_onnx(model({"x": (FLOAT, [5, 6])}, nodes, "y", tables))
    works = [each.op.work(each.operand_types, each.result_types) for each in function.nodes]
    assert sum(work.flops for work in works) == 2 * 5 * 6 * 7 + 2 * 5 * 7 * 8


def _attended(operands: str, tables: dict[str, Any], **attributes: int) -> Any:
    """Attention of 2 samples with 4 heads, of 3 rows to 5 columns."""
    shapes = {"q": (2, 4, 3, 8), "k": (2, 4, 5, 8), "v": (2, 4, 5, 8)}
    nodes = [node("Attention", f"q k v {operands}", "y", **attributes)]
    made = model({n: (FLOAT, shape) for n, shape in shapes.items()}, nodes, "y", tables, opset=24)
    rng = np.random.default_rng(0)
    return evaluate(import_onnx(made), [rng.normal(size=shape) for shape in shapes.values()])[0]


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_does_not_look_behind_the_lengths_of_keys(is_causal: int) -> None:
    """The last of the rows of a causal mask is the one of the last key that is none of padding."""
    lengths, rows, columns = np.asarray([3, 5]), np.arange(3)[:, None], np.arange(5)
    last = lengths[:, None, None] - 1 - (2 - rows if is_causal else 0)
    seen = (columns <= last)[:, None]
    found = _attended("- - - lengths", {"lengths": lengths}, is_causal=is_causal)
    np.testing.assert_allclose(found, _attended("seen", {"seen": seen}), rtol=1e-6)


def test_attention_does_not_look_behind_a_mask_with_fewer_columns() -> None:
    short = np.asarray([[1, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 1]], np.bool_)
    whole = np.concatenate([short, np.zeros((3, 1), np.bool_)], 1)
    found, expected = (_attended("mask", {"mask": mask}) for mask in (short, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_what_exporters_write_of_other_modes_is_not_told(mode: str) -> None:
    form: dict[str, Any] = {"mode": mode, "cubic_coeff_a": -0.75, "nearest_mode": "floor"}
    form |= {"coordinate_transformation_mode": "half_pixel"}
    scales = {"s": np.asarray([1, 1, 2, 2], np.float32)}
    made = model({"x": (FLOAT, [2, 3, 4, 5])}, [node("Resize", "x - s", "y", **form)], "y", scales)
    assert not any("not applied" in note for note in import_onnx(made).notes)
