"""Which lengths a file fixes and which it leaves open, and what that comes to."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest

from autotune import load_problem
from distir import Strategy, Workload, load_model, simulate
from distir.errors import ImportModelError, TransformError
from distir.importers.load import LoadedModel
from distir.importers.onnx import read_onnx
from distir.program import build_program
from tests.importers.models import FLOAT, INT64, integers, model, node, weights

WIDTH = 6


def loaded(made: Any, folder: Any, **options: Any) -> LoadedModel:
    path = folder / "model.onnx"
    cast("Any", onnx).save(made, path)
    return load_model(path, onnx_options=options) if options else load_model(path)


def attention(x: str, name: str, stored: dict[str, Any], transposed: list[int]) -> list[Any]:
    """Attention over the last dim but one, with weights of its own; its result is `y.NAME`."""
    stored |= {f"{part}.{name}": weights(WIDTH, WIDTH) for part in "qkv"}
    return [
        *(node("MatMul", f"{x} {part}.{name}", f"{part}m.{name}") for part in "qkv"),
        node("Transpose", f"km.{name}", f"kt.{name}", perm=transposed),
        node("MatMul", f"qm.{name} kt.{name}", f"s.{name}"),
        node("Softmax", f"s.{name}", f"p.{name}"),
        node("MatMul", f"p.{name} vm.{name}", f"c.{name}"),
        node("Add", f"{x} c.{name}", f"y.{name}"),
    ]


def in_pieces(x: str, stored: dict[str, Any]) -> list[Any]:
    """Attention over 3 pieces of 4, then over all 12; its result is `y.all`."""
    stored |= {"pieces": integers(0, 3, 4, WIDTH), "whole": integers(0, 12, WIDTH)}
    return [
        node("Reshape", f"{x} pieces", "cut"),
        *attention("cut", "inside", stored, [0, 1, 3, 2]),
        node("Transpose", "y.inside", "across", perm=[0, 2, 1, 3]),
        *attention("across", "between", stored, [0, 1, 3, 2]),
        node("Transpose", "y.between", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back whole", "joined"),
        *attention("joined", "all", stored, [0, 2, 1]),
    ]


def test_a_length_that_is_cut_into_pieces_is_that_of_the_file(tmp_path: Any) -> None:
    stored: dict[str, Any] = {}
    nodes = in_pieces("x", stored)
    made = model({"x": (FLOAT, ["batch", 12, WIDTH])}, nodes, "y.all", stored)
    found = loaded(made, tmp_path)
    workload = Workload(model=found, batch_size=4, loss="mse")
    assert workload.program.file_length == workload.tokens_per_sample == 12
    projections, scores = 2 * 9 * 12 * WIDTH**2, 2 * 2 * WIDTH * 12 * (4 + 3 + 12)
    assert workload.forward_flops_per_sample == projections + scores
    same = Workload(model=found, batch_size=4, loss="mse", sequence_length=12)
    assert same.forward_flops_per_sample == workload.forward_flops_per_sample
    with pytest.raises(TransformError, match="fixed at 12 by ops that cut it into"):
        workload.program.sizes(4, 24)


def test_texts_do_not_resize_the_pieces_of_images(tmp_path: Any) -> None:
    stored: dict[str, Any] = {"table": weights(20, WIDTH), "ends": weights(WIDTH, 5)}
    nodes = [
        *in_pieces("image", stored),
        node("Gather", "table ids", "text"),
        *attention("text", "text", stored, [0, 2, 1]),
        *(node("ReduceMean", f"y.{each}", f"m.{each}", axes=[1]) for each in ("all", "text")),
        node("Add", "m.all m.text", "both"),
        node("MatMul", "both ends", "y"),
    ]
    inputs = {"ids": (INT64, ["batch", "length"]), "image": (FLOAT, ["batch", 12, WIDTH])}
    found = loaded(model(inputs, nodes, "y", stored, opset=13), tmp_path)
    short, long = (
        Workload(model=found, batch_size=4, loss="mse", sequence_length=length)
        for length in (50, 100)
    )
    more = 2 * 3 * 50 * WIDTH**2 + 2 * 2 * WIDTH * (100**2 - 50**2)
    assert long.forward_flops_per_sample - short.forward_flops_per_sample == more


@pytest.mark.parametrize(
    ("dims", "rows"), [(["n", 10, 8], 10), ([2, 10, 8], 10), (["n", "s", 8], 1)]
)
def test_a_size_beside_the_batch_stays_where_the_file_fixes_it(
    dims: Any, rows: int, tmp_path: Any
) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "a"), node("MatMul", "a v", "y")]
    made = model({"x": (FLOAT, dims)}, nodes, "y", {"w": weights(8, 9), "v": weights(9, 8)})
    workload = Workload(model=loaded(made, tmp_path), batch_size=4, loss="mse")
    assert workload.forward_flops_per_sample == 2 * 2 * 8 * 9 * rows


def test_a_stated_size_is_the_length(tmp_path: Any) -> None:
    stored: dict[str, Any] = {"table": weights(20, WIDTH)}
    nodes = [node("Gather", "table ids", "x"), *attention("x", "a", stored, [0, 2, 1])]
    made = model({"ids": (INT64, ["batch", "length"])}, nodes, "y.a", stored)
    stated = Workload(model=loaded(made, tmp_path, sizes={"length": 48}), batch_size=4, loss="mse")
    assert stated.length == 48
    assert not stated.length_is_open
    assert Workload(model=loaded(made, tmp_path), batch_size=4, loss="mse").length_is_open


def test_a_traced_length_that_is_also_a_width_is_found(tmp_path: Any) -> None:
    stored: dict[str, Any] = {"table": weights(20, WIDTH), "w": weights(16, WIDTH)}
    stored["traced"] = integers(0, 16, WIDTH)
    nodes = [
        node("Gather", "table ids", "x"),
        node("Reshape", "x traced", "r"),
        *attention("r", "a", stored, [0, 2, 1]),
        node("Transpose", "y.a", "t", perm=[0, 2, 1]),
        node("MatMul", "t w", "y"),
    ]
    made = model({"ids": (INT64, ["batch", "length"])}, nodes, "y", stored)
    found = loaded(made, tmp_path)
    assert any("works only at length = 16" in note for note in found.function.notes)
    workload = Workload(model=found, batch_size=4, loss="mse")
    assert not workload.length_is_open


def test_positions_that_are_repeated_per_sample_set_the_longest_sequence() -> None:
    stored: dict[str, Any] = {"table": weights(20, WIDTH), "places": weights(64, WIDTH)}
    stored |= {"zero": np.asarray(0), "one": np.asarray(1), "row": integers(0)}
    nodes = [
        node("Shape", "ids", "shape"),
        node("Gather", "shape one", "rows"),
        node("Range", "zero rows one", "numbers"),
        node("Unsqueeze", "numbers row", "once"),
        node("Expand", "once shape", "where"),
        node("Gather", "table ids", "word"),
        node("Gather", "places where", "place"),
        node("Add", "word place", "x"),
        *attention("x", "a", stored, [0, 2, 1]),
    ]
    made = model({"ids": (INT64, ["batch", "length"])}, nodes, "y.a", stored)
    program = build_program(read_onnx(made).function, training=True, loss="mse")
    assert program.longest_sequence == 64


def test_a_table_of_positions_among_the_ops_limits_the_sequence() -> None:
    stored: dict[str, Any] = {"table": weights(20, WIDTH), "w": weights(WIDTH, WIDTH)}
    stored |= {"zero": np.asarray(0), "one": np.asarray(1)}
    rows = onnx.numpy_helper.from_array(weights(64, WIDTH))
    nodes = [
        node("Constant", "", "places", value=rows),
        node("Shape", "ids", "shape"),
        node("Gather", "shape one", "length"),
        node("Range", "zero length one", "where"),
        node("Gather", "places where", "place"),
        node("Gather", "table ids", "word"),
        node("Add", "word place", "x"),
        *attention("x", "a", stored, [0, 2, 1]),
    ]
    made = model({"ids": (INT64, ["batch", "length"])}, nodes, "y.a", stored)
    program = build_program(read_onnx(made).function, training=True, loss="mse")
    assert program.longest_sequence == 64


@pytest.mark.parametrize("stored_apart", [True, False])
def test_literals_are_trained_only_where_all_weights_are(stored_apart: bool) -> None:
    """Exporters that store weights write masks, tables and the ones of norms as Constants; others
    write everything so."""
    arrays = {"w": weights(8, 9), "scale": weights(9), "v": weights(9, 8)}
    stored = {name: arrays[name] for name in ("w", "v")} if stored_apart else {}
    literals = [
        node("Constant", "", name, value=onnx.numpy_helper.from_array(array))
        for name, array in arrays.items()
        if name not in stored
    ]
    nodes = [
        *literals,
        node("MatMul", "x w", "h"),
        node("Mul", "h scale", "a"),
        node("MatMul", "a v", "y"),
    ]
    function = read_onnx(model({"x": (FLOAT, ["n", 8])}, nodes, "y", stored)).function
    trained = {value.name for value in function.parameters}
    assert trained == {"w", "v"} | (set() if stored_apart else {"scale"})


def distances(path: Any, attends: bool, rows: int | None = None) -> None:
    """A model that attends to as many distances as twice its sequence is long, which it computes
    from that of its input, as XLNet does, or has in a table of so many rows; behind attention to
    the sequence itself, or alone."""
    stored: dict[str, Any] = {
        "zero": np.asarray(0, np.int64),
        "one": np.asarray(1, np.int64),
        "two": np.asarray(2, np.int64),
        "dim": integers(1),
        "width": integers(1, WIDTH),
        "w": weights(WIDTH, WIDTH),
        "table": weights(rows or 1, WIDTH),
    }
    nodes = [
        *(attention("x", "own", stored, [0, 2, 1]) if attends else [node("Relu", "x", "y.own")]),
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "length", axis=0),
        node("Mul", "length two", "twice"),
        node("Range", "zero twice one", "far"),
        node("Cast", "far", "farther", to=1),
        node("Unsqueeze", "farther dim", "rows"),
        node("Expand", "rows width", "made"),
        node("Identity", "made", "keys") if rows is None else node("Gather", "table far", "keys"),
        node("Transpose", "keys", "turned", perm=[1, 0]),
        node("MatMul", "y.own w", "h"),
        node("MatMul", "h turned", "scores"),
        node("Softmax", "scores", "p"),
        node("MatMul", "p keys", "c"),
        node("Add", "x c", "y"),
    ]
    cast("Any", onnx).save(model({"x": (FLOAT, ["b", "s", WIDTH])}, nodes, "y", stored), path)


@pytest.mark.parametrize("attends", [True, False])
@pytest.mark.parametrize("length", [8, 24, 40])
def test_a_file_that_computes_lengths_is_read_at_the_length_asked_for(
    tmp_path: Any, length: int, attends: bool
) -> None:
    """Whoever asks: a problem, the front door of distir, or the user by the size of the input."""
    path = tmp_path / "model.onnx"
    distances(path, attends)
    asked = load_problem(model=str(path), devices=1, batch_size=4, sequence_length=length)
    workload = cast("Workload", asked.workload)
    stated = load_model(path, onnx_options={"sizes": {"s": length}})
    expected = Workload(model=stated, batch_size=4).forward_flops_per_sample
    own = attends * (2 * length * WIDTH * 3 * WIDTH + 2 * (2 * length * length * WIDTH))
    far = 2 * length * WIDTH * WIDTH + 2 * (2 * length * (2 * length) * WIDTH)
    assert workload.forward_flops_per_sample == expected == own + far
    there = cast("Any", asked.simulator).simulate(Strategy())
    direct = simulate(
        path, Strategy(), "dgx-a100", batch_size=4, sequence_length=length, stack="fsdp-compiled"
    )
    assert direct.metrics == there.metrics


def test_lengths_that_do_not_follow_are_not_simulated_at_others(tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    distances(path, True)
    asked = Workload(model=load_model(path), batch_size=4, sequence_length=40)
    with pytest.raises(TransformError, match=r"at_its_length\(\) reads it"):
        asked.check_model()
    at_length = asked.at_its_length()
    at_length.check_model()
    with pytest.raises(TransformError, match="was read at 40"):
        at_length.resized(sequence_length=41).check_model()


def test_a_usual_length_that_a_file_cannot_have_is_to_be_stated(tmp_path: Any) -> None:
    """A table of distances, of which it slices twice as many as the sequence has positions."""
    path = tmp_path / "model.onnx"
    distances(path, True, rows=300)
    with pytest.raises(ImportModelError, match="cannot have 1,024 tokens, the usual length; state"):
        load_problem(model=str(path), devices=1)
    load_problem(model=str(path), devices=1, sequence_length=100)


def test_the_input_of_a_sequence_of_another_length_is_to_be_stated(tmp_path: Any) -> None:
    stored: dict[str, Any] = {"first": weights(1, 1, WIDTH), "ones": integers(1, 1, 1)}
    nodes = [
        node("Shape", "x", "shape"),
        node("Slice", "shape none one", "batch"),
        node("Concat", "batch rest", "whole", axis=0),
        node("Expand", "first whole", "class"),
        node("Concat", "class x", "z", axis=1),
        *attention("z", "own", stored, [0, 2, 1]),
    ]
    stored |= {"none": integers(0), "one": integers(1), "rest": integers(1, WIDTH)}
    path = tmp_path / "model.onnx"
    made = model({"x": (FLOAT, ["b", "s", WIDTH])}, nodes, "y.own", stored)
    cast("Any", onnx).save(made, path)
    with pytest.raises(TransformError, match="makes a sequence of 41; state the size of the input"):
        load_problem(model=str(path), devices=1, sequence_length=40)
    load_problem(model=str(path), devices=1, sizes={"s": 40})


def test_a_file_that_works_at_one_length_says_so(tmp_path: Any) -> None:
    """As a loop over positions is traced."""
    stored = {"w": weights(WIDTH, WIDTH), **{f"at{n}": integers(n) for n in range(24)}}
    nodes = [
        *(node("Gather", f"x at{n}", f"x{n}", axis=1) for n in range(24)),
        node("Concat", " ".join(f"x{n}" for n in range(24)), "again", axis=1),
        node("Add", "x again", "h"),
        node("MatMul", "h w", "y"),
    ]
    found = loaded(model({"x": (FLOAT, ["b", "s", WIDTH])}, nodes, "y", stored), tmp_path)
    assert found.lengths == ()
    assert any("works only at s = 24" in note for note in found.function.notes)
