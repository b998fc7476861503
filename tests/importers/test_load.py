"""One door for all descriptions of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distir.errors import DistirError, ImportModelError, UnknownNameError
from distir.importers.load import load_function, load_source
from distir.importers.probe import build_at_probe_sizes, probe_sizes
from distir.ir import Builder, Function
from distir.ops.activations import Relu
from distir.ops.linalg import MatMul
from distir.strategy import Strategy
from distir.workload import Workload
from tests.conftest import shared_path

MODEL_FILE = """
from dataclasses import dataclass

from distir.ir import Builder
from distir.models import TransformerConfig, MlpConfig
from distir.ops.activations import Relu
from helper_beside_the_model import WIDTH


def build(batch_size, sequence_length=64):
    builder = Builder("mine")
    x = builder.input("x", (batch_size, sequence_length, WIDTH))
    return builder.build([builder.add(Relu(), x)])


def fixed():
    return build(4, 8)


def config():
    return MlpConfig(name="small", layers=2, width=8)


CONFIG = config()
MODEL = build(4, 8)


def number():
    return 3


def broken(batch_size=1):
    raise ValueError("first line\\nsecond line")


def greedy(batch_size, hidden):
    return None


def leaves():
    raise SystemExit(3)


class Models:
    @staticmethod
    def build(batch_size):
        return build(batch_size, 5)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    (tmp_path / "helper_beside_the_model.py").write_text("WIDTH = 6\n")
    path = tmp_path / "model.py"
    path.write_text(MODEL_FILE)
    return path


def test_a_zoo_name_is_built_at_probe_sizes() -> None:
    loaded = load_source("GPT2")
    assert (loaded.name, loaded.sequence_length, loaded.longest) == ("gpt2", 1024, 1024)
    assert loaded.function.inputs[0].type.shape == probe_sizes()


def test_attention_can_be_spelled_out() -> None:
    names = {node.op.name for node in load_function("gpt2", attention="eager").nodes}
    assert "Softmax" in names
    assert "FusedAttention" not in names


def test_a_name_wins_over_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_source("gpt2").name == "gpt2"
    with pytest.raises(ImportModelError, match=r"gpt2/config\.json: there is no such file"):
        load_source("./gpt2")


def test_a_config_file_or_its_directory_is_a_model(tmp_path: Path) -> None:
    content = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2}
    content |= {"vocab_size": 31, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps(content))
    for source in (tmp_path, str(tmp_path), str(tmp_path / "config.json")):
        loaded = load_source(source)
        assert loaded.longest == 16
        assert loaded.function.inputs[0].type.shape[1] <= 16


def test_an_onnx_file_is_a_model_of_its_name() -> None:
    loaded = load_source(shared_path("models/mlp16.onnx"))
    assert loaded.name == "mlp16"
    assert sum(p.type.num_elements for p in loaded.function.parameters) == 16 * (1024**2 + 1024)


@pytest.mark.parametrize(
    ("attribute", "shape"),
    [
        ("build", (11, 23, 6)),
        ("fixed", (4, 8, 6)),
        ("MODEL", (4, 8, 6)),
        ("config", (11, 8)),
        ("CONFIG", (11, 8)),
        ("Models.build", (11, 5, 6)),
    ],
)
def test_python_gives_a_function_or_a_configuration(
    model_file: Path, attribute: str, shape: tuple[int, ...]
) -> None:
    loaded = load_source(f"{model_file}:{attribute}")
    assert loaded.function.inputs[0].type.shape == shape


def test_a_default_sequence_length_is_the_usual_one(model_file: Path) -> None:
    assert load_source(f"{model_file}:build").sequence_length == 64


def test_python_may_give_an_onnx_model(model_file: Path) -> None:
    with model_file.open("a") as file:
        file.write(
            "\n\ndef exported(batch_size):\n"
            "    from onnx import TensorProto, helper\n"
            "    x, y = (\n"
            "        helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch_size, 8])\n"
            "        for n in 'xy'\n"
            "    )\n"
            "    node = helper.make_node('Relu', ['x'], ['y'])\n"
            "    return helper.make_model(helper.make_graph([node], 'g', [x], [y]))\n"
        )
    function = load_function(f"{model_file}:exported")
    assert [node.op.name for node in function.nodes] == ["Relu"]
    assert function.inputs[0].type.shape[1] == 8


def test_a_module_is_found_in_the_working_directory(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_file.parent)
    model_file.rename(model_file.with_name("a_model_of_mine.py"))
    assert load_function("a_model_of_mine:fixed").name == "mine"


def test_the_function_itself_can_be_given() -> None:
    def square(batch_size: int) -> Function:
        builder = Builder("square")
        x = builder.input("x", (batch_size, 11))
        weight = builder.parameter("weight", (11, 11))
        return builder.build([builder.add(Relu(), builder.add(MatMul(), x, weight))])

    loaded = load_source(square)
    assert loaded.name == "square"
    assert loaded.function.inputs[0].type.shape[0] not in (11, 23)  # 11 is a size of the model


def test_probe_sizes_are_unlike_all_others() -> None:
    batch, sequence = probe_sizes({11, 23, 29}, longest=32)
    assert batch != sequence
    assert {batch, sequence}.isdisjoint({11, 23, 29})
    assert sequence <= 32
    assert build_at_probe_sizes(lambda b, s: load_function("mlp-2x23")).name == "mlp-2x23"


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        (3, 'try "gpt2"'),
        (None, 'try "gpt2"'),
        (["gpt2"], 'try "gpt2"'),
        (Strategy(dp=2), 'try "gpt2"'),
        (load_source("mlp-xs"), "loaded already"),
        (Workload(model=load_source("mlp-xs"), batch_size=4), "it has a model, which would do"),
    ],
)
def test_an_object_that_is_no_model_is_said_in_one_line(source: Any, advice: str) -> None:
    with pytest.raises(ImportModelError, match=f"expected a zoo name.*{advice}") as caught:
        load_source(source)
    said = str(caught.value)
    assert said.startswith(f"the model is {type(source).__name__}(") or repr(source) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gpt3-13", r"unknown model 'gpt3-13'; did you mean.*gpt3-13B"),
        ("no/such/model", "no/such/model: there is no such file or directory; expected a zoo name"),
        ("missing.onnx", r"missing\.onnx: there is no such file"),
        ("missing.json", r"missing\.json: there is no such file"),
        ("missing.py:build", r"missing\.py:build: there is no file missing\.py"),
        ("no_such_module:build", "no_such_module.*ModuleNotFoundError: No module named"),
        ("json:nothing", "attribute.*'nothing'"),
        ("{file}", r"model\.py: the function in the file is not named; expected .*model\.py:build"),
        ("{file}:bild", "unknown attribute.*'bild'; did you mean: .*build"),
        ("{file}:number", r"number returns builtins\.int; expected a distir Function"),
        (
            "{file}:broken",
            r"broken\(batch_size=\d+\): ValueError: first line \(at .*model\.py:\d+\)$",
        ),
        ("{file}:greedy", "needs an argument 'hidden'"),
        ("{file}:leaves", r"leaves: SystemExit: 3 \(at .*model\.py:\d+\)$"),
        ("{folder}/bad.py:f", r"bad\.py:f: SyntaxError: .* \(at .*bad\.py:1\)$"),
        ("{folder}/note.txt", r"note\.txt is not a known kind of file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model_file: Path, source: str, message: str) -> None:
    (model_file.parent / "bad.py").write_text("def f(:\n")
    (model_file.parent / "note.txt").write_text("hello")
    spec = source.format(file=model_file, folder=model_file.parent)
    with pytest.raises(DistirError, match=message) as caught:
        load_source(spec)
    assert "\n" not in str(caught.value)
    expected = UnknownNameError if "unknown" in message or "attribute" in message else None
    assert isinstance(caught.value, expected or ImportModelError)
