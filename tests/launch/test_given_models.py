"""Files of a model that options cannot state are read with the model that a user gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.launch import TARGETS
from autotune.launch.facts import TEXT, read_by
from distir.ir import DType, TensorType, Value
from tests.command_line import json_of, refused

CLUSTER = ("--cluster", "hgx-h100")
OWN = """
from dataclasses import replace

from distir.models.zoo import find_model


def decoder(batch_size=2, sequence_length=64):
    gpt = replace(find_model("gpt2"), layers=4, hidden=64, heads=4, vocabulary=128)
    return gpt.build(batch_size, sequence_length)
"""
"""A model whose layers nobody knows, as that of an ONNX file."""

PLANS = (
    ("--dp", "8", "--microbatches", "2"),
    ("--dp", "4", "--pp", "2", "--microbatches", "2"),
    ("--dp", "4", "--pp", "2", "--microbatches", "2", "--schedule", "interleaved", "--chunks", "2"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def plans_of(target: str) -> tuple[tuple[str, ...], ...]:
    return PLANS[: {"accelerate": 1, "deepspeed": 2, "nanotron": 2}.get(target, 3)]


@pytest.mark.parametrize(
    ("target", "plan"), [(each.name, plan) for each in TARGETS for plan in plans_of(each.name)]
)
def test_a_model_that_is_given_need_not_be_stated(
    target: str, plan: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", "own.py:decoder", *CLUSTER)
    done = json_of(
        capsys, "launch", *model, "--batch-size", "64", *plan, "--target", target, "--to", "out"
    )
    read = json_of(capsys, "read", "out", *model, "--trials", "3" if plan == PLANS[0] else "0")
    assert read["strategy"] == done["strategy"]
    assert read["devices"] == 8
    if target != "torchtitan":  # which reduces gradients in fp32
        assert read["simulated"]["metrics"] == done["simulated"]["metrics"]


SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 1024 --micro-batch-size 1 --bf16 "
    "--pipeline-model-parallel-size 2 "
)
SIZES = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --max-position-embeddings 1024 "
    "--vocab-size 50257 "
)


def test_stages_are_those_of_the_model_that_is_given(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(SCRIPT + SIZES)
    read = json_of(capsys, "read", "launch.sh", *CLUSTER, "--model", "gpt3-350m", "--trials", "0")
    told = {each["option"]: each for each in read["not_modelled"]}
    assert told["--num-layers"]["value"] == 12
    assert "--model has 24" in told["--num-layers"]["reason"]
    assert len(read["simulated"]["stages"]) == 2
    read = json_of(capsys, "read", "launch.sh", *CLUSTER, "--model", "gpt2", "--trials", "0")
    assert "--num-layers" not in {each["option"] for each in read["not_modelled"]}


@pytest.mark.parametrize(
    "option",
    ["--num-layers-per-virtual-pipeline-stage 1", "--pipeline-model-parallel-layout 'Ett|ttL'"],
)
def test_stages_by_layers_need_layers(
    option: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(SCRIPT + option)
    line = refused(capsys, "read", "launch.sh", *CLUSTER, "--model", "own.py:decoder")
    assert option.split(maxsplit=1)[0] in line
    assert "--num-virtual-stages-per-pipeline-rank" in line


OTHERS = {
    "vit-b": "the model reads pixels and no tokens",
    "t5-small": "the model reads ids by an encoder and decoder_ids by a decoder",
}
TEXT_ALONE = ("megatron", "bridge", "torchtitan", "nanotron")


@pytest.mark.parametrize("target", [each.name for each in TARGETS])
@pytest.mark.parametrize("model", OTHERS)
def test_models_of_something_else_than_one_text_are_for_frameworks_that_take_any(
    model: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ("launch", "--model", model, *CLUSTER, "--batch-size", "64", "--dp", "8")
    if target in TEXT_ALONE:
        line = refused(capsys, *launch, "--target", target)
        assert f"{OTHERS[model]}: " in line
        assert "trains models of one text; deepspeed and accelerate launch" in line
    else:
        assert json_of(capsys, *launch, "--target", target)["files"]


def test_a_search_for_a_framework_that_has_no_such_model_does_not_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = ("run", "--model", "t5-small", *CLUSTER, "--devices", "8", "--batch-size", "64")
    line = refused(capsys, *search, "--no-tracking", "--launch", "megatron:out")
    assert OTHERS["t5-small"] in line


def value(name: str, dtype: DType) -> Value:
    return Value(TensorType((2, 8), dtype), name)


def test_what_a_model_reads_is_told_by_its_inputs() -> None:
    ids, mask = value("input_ids", DType.INT64), value("attention_mask", DType.BOOL)
    heard = value("input_features", DType.FLOAT32)
    decoder = value("decoder_input_ids", DType.INT32)
    assert read_by([ids]) == read_by([ids, mask]) == read_by([decoder]) == TEXT
    assert read_by([heard, mask]) == "input_features, attention_mask and no tokens"
    assert (
        read_by([heard, decoder])
        == "input_features by an encoder and decoder_input_ids by a decoder"
    )
    assert read_by([ids, mask, decoder]) != TEXT


@pytest.mark.parametrize("target", ["megatron", "nanotron"])
def test_a_model_of_unknown_sizes_is_to_be_stated_by_hand(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ("launch", *CLUSTER, "--batch-size", "64", "--dp", "8", "--target", target)
    told = [
        {note["what"] for note in json_of(capsys, *launch, "--model", model)["approximated"]}
        for model in ("own.py:decoder", "llama3.2-1b")
    ]
    assert ["model" in each for each in told] == [True, False]


def test_without_a_model_its_options_are_asked_for(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(SCRIPT)
    assert "--num-layers is not stated" in refused(capsys, "read", "launch.sh", *CLUSTER)
