"""Whoever has an op of their own writes one file; everything else finds it.

The op is one that ONNX has and distir does not. Nothing but its class is written: no converter, no
case for the contract tests.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from onnx import TensorProto, helper

from distir.ops import OPS
from tests.newcomers.packages import ROOT, Package, autotune, python

pytestmark = pytest.mark.slow(seconds=1)  # each starts processes

ASINH = '''
"""Inverse hyperbolic sine, which grows as a logarithm does on both sides."""

from dataclasses import dataclass

import numpy as np

from distir import ops


@ops.register_op("Asinh")
@dataclass(frozen=True, slots=True)
class Asinh(ops.Unary):
    """`ln(x + sqrt(x^2 + 1))`."""

    def apply(self, x):
        return np.arcsinh(x)

    def slope(self, x_or_y):
        return 1 / np.sqrt(x_or_y**2 + 1)
'''

BUILD = '''

def build(batch_size=4):
    """Two products with the op between them."""
    from distir.ir import Builder
    from distir.ops.linalg import MatMul

    builder = Builder("own")
    x = builder.input("x", (batch_size, 16))
    wide = builder.add(MatMul(), x, builder.parameter("up", (16, 64)))
    narrow = builder.add(MatMul(), builder.add(Asinh(), wide), builder.parameter("down", (64, 16)))
    return builder.build([narrow])
'''

LAYERS, WIDTH = 4, 64

PLAN = ["--dp", "2", "--tp", "2", "--pp", "2", "--microbatches", "4", "--batch-size", "64"]


def write_network(path: Path) -> None:
    """An ONNX file of a few layers with the op in each."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    x = "x"
    for layer in range(LAYERS):
        for name, sizes in (("up", [WIDTH, 4 * WIDTH]), ("down", [4 * WIDTH, WIDTH])):
            values = [0.01 * ((7 * i) % 23 - 11) for i in range(4 * WIDTH**2)]
            weight = f"{name}{layer}"
            weights.append(helper.make_tensor(weight, TensorProto.FLOAT, sizes, values))
            nodes.append(helper.make_node("MatMul", [x, weight], [f"{weight}.y"]))
            x = f"{weight}.y"
            if name == "up":
                nodes.append(helper.make_node("Asinh", [x], [f"a{layer}"]))
                x = f"a{layer}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
        for name in ("x", x)
    ]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    cast("Any", onnx).save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = Package("their_op", ASINH, {"distir.ops": {"Asinh": "their_op"}})
    folder = package.write(tmp_path_factory.mktemp("op"))
    write_network(folder / "network.onnx")
    return folder


def test_distir_itself_does_not_have_the_op(folder: Path, tmp_path: Path) -> None:
    assert "Asinh" not in OPS
    shutil.copy(folder / "network.onnx", tmp_path)
    done = python(tmp_path, "-m", "autotune", "simulate", "--model", "network.onnx")
    assert done.returncode == 2
    assert "Asinh is not supported" in done.stderr


def test_a_file_with_the_op_is_simulated(folder: Path) -> None:
    asked = ["simulate", "--model", "network.onnx", *PLAN, "--json", "-"]
    result = json.loads(autotune(folder, *asked))
    assert result["feasible"]
    assert result["metrics"]["iteration_seconds"] > 0


def test_a_plan_with_the_op_computes_what_one_device_computes(folder: Path) -> None:
    assert "The same numbers" in autotune(folder, "verify", "--model", "network.onnx", *PLAN)


def test_the_op_is_in_the_trace_by_its_name(folder: Path) -> None:
    stack = ["--stack", "fsdp-eager"]  # which has a kernel for every op
    asked = ["simulate", "--model", "network.onnx", *PLAN, *stack, "--trace", "trace.json"]
    autotune(folder, *asked)
    assert "Asinh" in (folder / "trace.json").read_text()


def test_a_text_with_the_op_is_read(folder: Path) -> None:
    text = 'function "f" {\n  input %x: fp32[2]\n  %y: fp32[2] = Asinh(%x)\n  return %y\n}'
    code = f"from distir.ir.text import parse_function\nprint(parse_function({text!r}))"
    assert python(folder, "-c", code).stdout == f"{text}\n"


def test_the_contract_tests_find_the_op_and_its_oracle(folder: Path) -> None:
    contract = str(ROOT / "tests/ops/test_contract.py")
    where = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    done = python(
        folder, "-m", "pytest", "-v", "-p", "no:cacheprovider", *where, contract, "-k", "Asinh"
    )
    assert done.returncode == 0, done.stdout
    for law in (
        "shards_make_the_whole",
        "derivative_is_the_limit_of_differences",
        "ops_read_back_from_their_text",
        "ops_named_as_onnxs_compute_what_onnx_computes",
    ):
        assert f"test_{law}[Asinh()(4x6)] PASSED" in done.stdout


def test_the_file_of_a_model_may_have_the_op(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ASINH + BUILD)
    model = ["--model", "own.py:build"]
    assert "The same numbers" in autotune(tmp_path, "verify", *model, "--tp", "4")
    # A file is executed every time it is loaded, as in a notebook; the op is still one.
    load = "import distir\nfor _ in range(2):\n    print(distir.load_model('own.py:build').name)"
    assert python(tmp_path, "-c", load).stdout == "build\nbuild\n"
