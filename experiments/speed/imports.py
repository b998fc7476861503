"""How long importing takes, and how it grows: `python -m experiments.speed.imports`.

CPU seconds from an ONNX model in memory to its program, for long models that do not repeat
themselves, and from a configuration to the program, for one with thousands of equal layers. The
last column is the time per node (per layer) of the longest model over that of the shortest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

from distir.files import write_text
from distir.importers.load import load_function
from distir.importers.onnx import read_onnx
from distir.ir import Function
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.program import build_program
from experiments.speed.long_graphs import GRAPHS

NODES = (1250, 5000, 20000)
LAYERS = (125, 500, 2000)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes JSON."""
    parser = argparse.ArgumentParser(prog="experiments.speed.imports", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args(argv)
    found: dict[str, list[tuple[int, float]]] = {}
    _seconds(lambda: load_function("gpt2"))  # imports of modules are not timed
    _seconds(lambda: read_onnx(GRAPHS[0](100)).function)
    for graph in GRAPHS:
        models = [graph(nodes) for nodes in options.nodes]
        _add(found, graph.__name__, [(len(m.graph.node), _onnx_seconds(m)) for m in models])
    seconds = [(layers, _seconds(lambda n=layers: _equal(n))) for layers in options.layers]
    _add(found, "equal layers (a configuration)", seconds)
    if options.json:
        write_text(options.json, json.dumps(found, indent=2) + "\n")
    return 0


def _onnx_seconds(model: Any) -> float:
    return _seconds(lambda: read_onnx(model).function)


def _equal(layers: int) -> Function:
    config = find_model("gpt3-1.3B")
    assert isinstance(config, TransformerConfig)
    return load_function(lambda: replace(config, layers=layers))


def _seconds(load: Callable[[], Function]) -> float:
    """CPU seconds to load a model and to find its program."""
    begun = process_time()
    build_program(load(), training=True)
    return process_time() - begun


def _add(found: dict[str, Any], name: str, cases: list[tuple[int, float]]) -> None:
    """Keeps the figures of one kind of model, and prints them."""
    found[name] = cases
    (few, quick), (many, slow) = cases[0], cases[-1]
    columns = "".join(f"{size:9,}:{seconds:6.2f} s" for size, seconds in cases)
    print(f"{name:32}{columns}{slow / many / (quick / few):8.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
