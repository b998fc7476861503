"""The work of importing a model grows with its nodes, not faster."""

from __future__ import annotations

from typing import Any

import pytest

from distir.importers.onnx import read_onnx
from distir.program import build_program
from experiments.speed.long_graphs import GRAPHS, Graph
from tests.counting import calls_of

NODES = 120
FACTOR = 4


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
def test_calls_grow_with_the_number_of_nodes(graph: Graph) -> None:
    def calls(model: Any) -> int:
        return calls_of(lambda: build_program(read_onnx(model).function, training=True))

    short, long = graph(NODES), graph(FACTOR * NODES)
    calls(short)  # what is done once per process is not counted
    ratio = len(long.graph.node) / len(short.graph.node)
    assert calls(long) <= 1.15 * ratio * calls(short)
