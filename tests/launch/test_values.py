"""What options say is taken as the framework takes it, or refused in one line that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.launch import TARGETS, LaunchError
from autotune.launch.facts import model_facts
from autotune.launch.read import Reading, Stated, read_launch
from autotune.launch.sources import Source
from autotune.launch.targets.megatron_model import unstated
from autotune.problem import load_problem
from distir.models.experts import Experts
from distir.models.transformer import llama_config
from distir.strategy import Strategy
from tests.launch.strategies import launch_with, read_back

GOLDEN = Path(__file__).parent / "golden"

Read = Callable[..., Reading]


@pytest.fixture
def changed(tmp_path: Path) -> Read:
    """Reads a golden launch with one line of a file changed."""

    def read(launch: str, name: str, before: str, after: str, **stated: Any) -> Reading:
        for file in (GOLDEN / launch).iterdir():
            text = file.read_text("utf-8")
            if file.name == name:
                assert before in text
                text = text.replace(before, after, 1)
            (tmp_path / file.name).write_text(text, "utf-8")
        return read_launch(tmp_path, Stated(**stated))

    return read


MEGATRON, TITAN = "gpt-oss-120b-64/megatron", "llama3-405b-512/torchtitan"
NANOTRON, DEEPSPEED = "llama3.2-1b-4/nanotron", "llama3-8b-zero3-8/deepspeed"
COUNTS = [
    (MEGATRON, "launch.sh", "--expert-model-parallel-size 8", "0"),
    (MEGATRON, "launch.sh", "--micro-batch-size 1", "-1"),
    (MEGATRON, "launch.sh", "--global-batch-size 1280", "0"),
    (MEGATRON, "launch.sh", "--num-query-groups 8", "0"),
    (MEGATRON, "launch.sh", "--kv-channels 64", "0"),
    (MEGATRON, "launch.sh", "--ffn-hidden-size 2880", "0"),
    (TITAN, "launch.sh", "--parallelism.pipeline_parallel_microbatch_size 1", "0"),
    (TITAN, "launch.sh", "--training.seq_len 8192", "-1"),
    (NANOTRON, "config.yaml", "num_key_value_heads: 8", "0"),
    (DEEPSPEED, "ds_config.json", '"gradient_accumulation_steps": 4', "0"),
]


@pytest.mark.parametrize(
    ("launch", "name", "line", "number"), COUNTS, ids=lambda each: str(each).split("/")[-1]
)
def test_what_is_counted_is_at_least_one(
    changed: Read, launch: str, name: str, line: str, number: str
) -> None:
    option = re.split(r"[ :]", line.strip('"'))[0].strip('"')
    after = re.sub(r"\d+$", number, line)
    with pytest.raises(LaunchError, match=rf"{option} is {number}; expected a number of at least"):
        changed(launch, name, line, after)


def test_copies_of_the_distributed_optimizer_are_counted(changed: Read) -> None:
    more = "--use-distributed-optimizer --num-distributed-optimizer-instances 0"
    with pytest.raises(LaunchError, match="instances is 0; expected a number of at least 1"):
        changed(MEGATRON, "launch.sh", "--use-distributed-optimizer", more)


def test_heads_whose_width_is_not_stated_divide_the_width_of_the_model(changed: Read) -> None:
    with pytest.raises(LaunchError, match=r"hidden_size \(2048\) is not divisible by .* \(1000\)"):
        changed(NANOTRON, "config.yaml", "heads: 32", "heads: 1000")


# --- exchanges of tokens --------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["allgather", "flex", None])
def test_another_exchange_of_tokens_is_told(changed: Read, word: str | None) -> None:
    """Megatron-Core gathers all tokens if nobody says."""
    line = "--moe-token-dispatcher-type alltoall"
    found = changed(MEGATRON, "launch.sh", line, line.replace("alltoall", word) if word else "")
    (note,) = [n for n in found.not_modelled if n.what == "--moe-token-dispatcher-type"]
    assert (note.value, note.reason) == (word or "allgather", "alltoall is simulated instead")


def test_an_unknown_exchange_of_tokens_is_refused(changed: Read) -> None:
    line = "--moe-token-dispatcher-type alltoall"
    with pytest.raises(
        LaunchError, match="is 'nonsense'; expected one of allgather, alltoall, flex"
    ):
        changed(MEGATRON, "launch.sh", line, line.replace("alltoall", "nonsense"))


# --- types of gradients ---------------------------------------------------------------------------


def read_deepspeed(folder: Path, **sections: Any) -> Reading:
    config: Mapping[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 16,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        **sections,
    }
    (folder / "ds_config.json").write_text(json.dumps(config))
    return read_launch(folder / "ds_config.json", Stated(devices=8, model="gpt2"))


@pytest.mark.parametrize(
    ("word", "found"),
    [(None, "compute"), ("bf16", "compute"), ("bfloat16", "compute"), ("fp32", "fp32")],
)
def test_gradients_have_the_type_that_deepspeed_gives_them(
    tmp_path: Path, word: str | None, found: str
) -> None:
    """That of the model if nobody says (deepspeed 0.19, runtime/engine.py, get_data_types)."""
    said = {} if word is None else {"data_types": {"grad_accum_dtype": word}}
    assert read_deepspeed(tmp_path, **said).facts["gradient_precision"] == found


def test_gradients_that_are_sent_in_another_type_are_told(tmp_path: Path) -> None:
    reading = read_deepspeed(tmp_path, communication_data_type="fp32")
    assert "communication_data_type" in {note.what for note in reading.not_modelled}
    assert reading.facts["gradient_precision"] == "compute"


@pytest.mark.parametrize("word", ["int8", "fp16", "abc"])
def test_other_types_of_gradients_are_refused(tmp_path: Path, word: str) -> None:
    expected = (
        f"grad_accum_dtype is '{word}'; for a model in bf16, only fp32 and bf16 can be simulated"
    )
    with pytest.raises(LaunchError, match=expected):
        read_deepspeed(tmp_path, data_types={"grad_accum_dtype": word})


def test_without_zero_gradients_are_added_up_as_they_are_computed(tmp_path: Path) -> None:
    """DeepSpeed refuses other types (_do_optimizer_sanity_check), so that none is written."""
    problem = load_problem("gpt2-xs", "dgx-a100", devices=2, gradient_precision="fp32")
    target, launch = TARGETS.get("deepspeed"), launch_with(problem, Strategy(dp=2))
    reading = read_back(target, launch, tmp_path, model="gpt2-xs")
    assert reading.facts["gradient_precision"] == "compute"
    assert target.as_run(launch.facts) == {"gradient_precision": "compute"}
    assert "gradient_precision" in {note.what for note in target.approximated(launch.facts)}
    with pytest.raises(LaunchError, match="without ZeRO, which DeepSpeed refuses"):
        read_deepspeed(
            tmp_path, zero_optimization={"stage": 0}, data_types={"grad_accum_dtype": "fp32"}
        )


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "tf32") for name in ("deepspeed", "accelerate", "torchtitan", "bridge")),
        *((name, "pure-bf16") for name in ("deepspeed", "accelerate", "megatron", "bridge")),
        ("nanotron", "tf32"),
        ("nanotron", "pure-bf16"),
    ],
)
def test_frameworks_without_an_option_for_a_precision_refuse_it_in_one_line(
    tmp_path: Path, name: str, precision: str
) -> None:
    problem = load_problem("llama3.2-1b", "dgx-a100", devices=2, precision=precision)
    with pytest.raises(
        LaunchError, match=f"precision = {precision} (is not an? |cannot be)"
    ) as refused:
        read_back(TARGETS.get(name), launch_with(problem, Strategy(dp=2)), tmp_path)
    assert "\n" not in str(refused.value)


def test_torchtitan_may_keep_nothing_in_fp32(tmp_path: Path) -> None:
    problem = load_problem(
        "llama3-8b", "hgx-h100", devices=2, precision="pure-bf16", gradient_precision="fp32"
    )
    target, launch = TARGETS.get("torchtitan"), launch_with(problem, Strategy(dp=2))
    assert read_back(target, launch, tmp_path).facts["precision"] == "pure-bf16"
    assert "precision" in {note.what for note in target.approximated(launch.facts)}


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_megatron_multiplies_fp32_in_tf32(tmp_path: Path, precision: str) -> None:
    """So do the layers of Transformer Engine, which are its default (cublaslt_gemm.cu)."""
    problem = load_problem("llama3.2-1b", "dgx-a100", devices=2, precision=precision)
    target, launch = TARGETS.get("megatron"), launch_with(problem, Strategy(dp=2))
    reading = read_back(target, launch, tmp_path)
    assert reading.facts["precision"] == "tf32"
    told = precision == "fp32"
    assert target.as_run(launch.facts) == ({"precision": "tf32"} if told else {})
    assert ("precision" in {note.what for note in target.approximated(launch.facts)}) == told


def test_megatron_s_own_layers_multiply_as_pytorch_does(changed: Read) -> None:
    before, after = "--bf16", "--transformer-impl local"
    facts = changed(MEGATRON, "launch.sh", before, after).facts
    assert facts["precision"] == "fp32"
    assert TARGETS.get("megatron").as_run(facts) == {}


TOKENS, PADDING = "--vocab-size 201088", "--make-vocab-size-divisible-by 1"


@pytest.mark.parametrize(
    ("before", "said", "vocabulary", "multiple"),
    [
        (TOKENS, "--padded-vocab-size 201216", 201216, 1),
        (PADDING, "--padded-vocab-size 201216", 201216, 1),
        (PADDING, "--disable-pad-vocab-size", 201088, 1),
        (PADDING, "--make-vocab-size-divisible-by 64", 201088, 64),
        (PADDING, "--bf16", 201088, 128),
    ],
)
def test_the_rows_that_a_model_has_for_tokens_are_read(
    changed: Read, before: str, said: str, vocabulary: int, multiple: int
) -> None:
    """What is padded already is not padded again, and no note says that a size is assumed."""
    reading = changed(MEGATRON, "launch.sh", before, f"{said} --tokenizer-type NullTokenizer")
    assert reading.facts["model.vocabulary"] == vocabulary
    assert reading.facts["vocabulary_multiple"] == multiple
    assert "--tokenizer-type" not in {note.what for note in reading.not_modelled}


@pytest.mark.parametrize(
    ("said", "compiled"),
    [("", True), ("--compile.enable", True), ("--compile.no-enable", False)],
)
def test_a_registry_function_of_torchtitan_says_what_it_computes_in(
    changed: Read, said: str, compiled: bool
) -> None:
    """That of Llama 3 405B has products in fp8, compiles, and hides what tp sends."""
    reading = changed(TITAN, "launch.sh", "--compile.enable", said)
    assert reading.facts["precision"] == "fp8"
    assert reading.facts["compiled"] is compiled
    assert {note.what for note in reading.not_modelled} == {
        "--compile.enable_async_tensor_parallel"
    }
    run = TARGETS.get("torchtitan").as_run(reading.facts)
    assert run["stack"] == ("fsdp-compiled" if compiled else "fsdp-eager")
    written = TARGETS.get("torchtitan").table.write(reading.facts)
    assert TARGETS.get("torchtitan").table.read(written, {"devices": 512}) == reading.facts


def test_other_registry_functions_compute_in_bf16_and_compile_when_asked(changed: Read) -> None:
    facts = changed("llama3-8b-fsdp-8/torchtitan", "launch.sh", "--compile.enable", "").facts
    assert (facts["precision"], facts["compiled"]) == ("bf16", False)


def test_a_registry_function_of_another_precision_is_none_of_the_model(changed: Read) -> None:
    facts = {**changed(TITAN, "launch.sh", "", "").facts, "precision": "bf16", "dropout": True}
    target = TARGETS.get("torchtitan")
    assert target.table.write(facts)["--config"] == "CONFIG"
    reasons = " ".join(note.reason for note in target.missing(facts))
    assert "in bf16, as llama3_405b is in fp8" in reasons


@pytest.mark.parametrize("value", ["${TP#tp}", "${TP:0:1}", "${#GPUS[@]}", "$(nproc)"])
def test_a_value_that_is_not_worked_out_is_asked_for_by_its_option(
    changed: Read, value: str
) -> None:
    line = "--pipeline-model-parallel-size"
    with pytest.raises(LaunchError, match="--set pipeline-model-parallel-size=VALUE"):
        changed(MEGATRON, "launch.sh", f"{line} 4", f'{line} "{value}"')


# --- files ----------------------------------------------------------------------------------------


def test_a_name_that_json_states_twice_is_refused(changed: Read) -> None:
    before = '"zero_optimization": {'
    with pytest.raises(
        LaunchError, match="'zero_optimization' is stated 2 times; leave out all but one"
    ):
        changed(DEEPSPEED, "ds_config.json", before, '"zero_optimization": {},\n' + before)


@pytest.mark.parametrize(
    "comment", ["# as usual", "// as usual", "/* as\n usual */", '// "a": {', "# http://a/*"]
)
def test_comments_in_a_file_of_deepspeed_say_nothing(tmp_path: Path, comment: str) -> None:
    (tmp_path / "ds_config.json").write_text(
        f'{{{comment}\n"train_batch_size": 16, "wandb": {{"project": "a#b // c /* d", }},'
        f'{comment}\n"train_micro_batch_size_per_gpu": 2,}}'
    )
    facts = read_launch(tmp_path, Stated(model="llama3-8b", devices=8)).facts
    assert (facts["batch_size"], facts["micro_batch"]) == (16, 2)


def test_errors_in_a_file_with_comments_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text('{"a": 1, /* one\n two */\n "b" 3}')
    with pytest.raises(LaunchError, match="line 3"):
        read_launch(tmp_path, Stated(model="llama3-8b", devices=8))


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_what_is_json_is_read_as_json(content: dict[str, str | int]) -> None:
    source = Source(Path("a.json"), json.dumps(content, ensure_ascii=False))
    known = {name: value for name, value in content.items() if "$" not in f"{value}"}
    assert {name: value for name, value in (source.table or {}).items() if name in known} == known


def test_degrees_of_nanotron_may_be_variables(changed: Read) -> None:
    stated = {"settings": {"TP": "2"}}
    assert changed(NANOTRON, "config.yaml", "tp: 2", "tp: ${TP}", **stated).strategy.tp == 2


def test_nanotron_starts_as_many_processes_as_its_degrees_make(changed: Read) -> None:
    with pytest.raises(LaunchError, match=r"starts 8 processes, .* config.yaml need 4"):
        changed(NANOTRON, "launch.sh", "--nproc-per-node 4", "--nproc-per-node 8")


def test_options_that_nanotron_does_not_take_are_told(changed: Read) -> None:
    with pytest.raises(
        LaunchError, match=r"--parallelism\.tp is not an option of .* that is understood"
    ):
        changed(
            NANOTRON,
            "launch.sh",
            "--config-file config.yaml",
            "--config-file config.yaml --parallelism.tp 4",
        )


def test_versions_of_fsdp_are_one_and_two(changed: Read) -> None:
    with pytest.raises(LaunchError, match="fsdp_version is 7; expected 1 or 2"):
        changed("llama3-8b-zero3-8/accelerate", "accelerate.yaml", "version: 2", "version: 7")


@pytest.mark.parametrize(
    ("said", "dense", "every"),
    [
        ("1", 0, 1),
        ("2", 0, 2),
        ("'([0,1]*18)'", 1, 2),
        ("'([0]*3+[1]*33)'", 3, 1),
        ("'([0]*6+([1]+[0]*4)*6)'", 6, 5),
        ("'([0]*36)'", 36, 1),
    ],
)
def test_layers_with_experts_are_read(changed: Read, said: str, dense: int, every: int) -> None:
    option = f"--moe-layer-freq {said} --moe-router-topk 4"
    found = changed(MEGATRON, "launch.sh", "--moe-router-topk 4", option)
    stated = found.facts["model.experts.dense_layers"], found.facts["model.experts.every"]
    assert stated == (dense, every)


@pytest.mark.parametrize("said", ["0", "often", "'([0]*36+[1])'", "'([1]*2+[0]*34)'"])
def test_layers_at_other_distances_are_refused(changed: Read, said: str) -> None:
    option = f"--moe-layer-freq {said} --moe-router-topk 4"
    with pytest.raises(
        LaunchError,
        match=r"--moe-layer-freq is .*; expected (a number above 0, or a list|layers with experts)",
    ):
        changed(MEGATRON, "launch.sh", "--moe-router-topk 4", option)


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ("--window-size 127,0", (128,)),
        ("--window-size '(127, 0)'", (128,)),
        ("--window-size 127 0 --window-attn-skip-freq 2", (128, 0)),
        ("--window-size 127,0 --window-attn-skip-freq 6", (*[128] * 5, 0)),
        ("--window-size 127,0 --window-attn-skip-freq '([0,1]*18)'", (0, 128)),
        ("--window-size 127,0 --window-attn-skip-freq '([0]*36)'", ()),
        ("--window-size=-1,0", ()),
        ("--window-size 127,0 --window-attn-skip-freq 37", (128,)),
        ("--window-size 127,0 --window-attn-skip-freq 1", ()),
        ("--window-attn-skip-freq 2", ()),
    ],
)
def test_windows_of_attention_are_read(changed: Read, said: str, windows: tuple[int, ...]) -> None:
    option = f"{said} --moe-router-topk 4"
    found = changed(MEGATRON, "launch.sh", "--moe-router-topk 4", option)
    assert found.facts["model.windows"] == windows


@pytest.mark.parametrize(
    "said",
    [
        "--window-size 127",
        "--window-size wide",
        "--window-size 127,0 --window-attn-skip-freq '([0,1]*17)'",
    ],
)
def test_windows_that_no_one_has_are_refused(changed: Read, said: str) -> None:
    with pytest.raises(LaunchError, match=r"--window-[a-z-]* is .*(expected|understood)"):
        changed(MEGATRON, "launch.sh", "--moe-router-topk 4", f"{said} --moe-router-topk 4")


@pytest.mark.parametrize("windows", [(64,), (64, 64, 0), (0, 64), (64, 0, 0, 64)])
def test_layers_with_windows_are_launched_and_read_back(
    tmp_path: Path, windows: tuple[int, ...]
) -> None:
    (tmp_path / "model.py").write_text(
        "from dataclasses import replace\n"
        "from distir.models import find_model\n"
        f"def model():\n    return replace(find_model('llama3-8b'), windows={windows})\n"
    )
    problem = load_problem(
        f"{tmp_path}/model.py:model", "hgx-h100", devices=8, batch_size=8, sequence_length=1024
    )
    launch = launch_with(problem, Strategy(dp=8))
    reading = read_back(TARGETS.get("megatron"), launch, tmp_path)
    assert reading.facts["model.windows"] == launch.facts["model.windows"] == windows
    two = {**launch.facts, "model.windows": (64, 32)}
    assert unstated(two) == ["windows of several sizes"]


def test_a_mixture_with_experts_in_every_other_layer_is_launched_and_read_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.py").write_text(
        "from dataclasses import replace\n"
        "from distir.models import find_model\n"
        "base = find_model('mixtral-8x7b')\n"
        "def model():\n"
        "    experts = replace(base.experts, dense_layers=1, every=2)\n"
        "    return replace(base, layers=7, experts=experts)\n"
    )
    problem = load_problem(
        f"{tmp_path}/model.py:model", "hgx-h100", devices=8, batch_size=16, sequence_length=1024
    )
    target = TARGETS.get("megatron")
    launch = launch_with(problem, Strategy(dp=4, ep=2, pp=2, microbatches=4))
    reading = read_back(target, launch, tmp_path)
    assert "[0,1,0,1,0,1,0]" in (tmp_path / "launch.sh").read_text("utf-8")
    read = {name: each for name, each in reading.facts.items() if "experts" in name}
    assert read == {name: launch.facts[name] for name in read}
    assert read["model.experts.every"] == 2


def test_all_that_megatron_cannot_say_of_a_model_is_told() -> None:
    gemma = replace(
        llama_config(
            "gemma", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocabulary=64,
            sequence_length=16,
        ),
        activation="gelu_tanh",
        part_norms=True,
        embedding_scale=5.5,
    )  # fmt: skip
    assert unstated(model_facts(gemma)) == [
        "part_norms = True",
        "embedding_scale = 5.5",
        "activation = gelu_tanh that is gated",
    ]
    experts = Experts(count=8, top_k=2, ffn=64, corrected=True)
    softmax = replace(gemma, activation="silu", part_norms=False, embedding_scale=1.0)
    softmax = replace(softmax, experts=experts)
    assert unstated(model_facts(softmax)) == ["corrections of scores that are not sigmoids"]
    sigmoid = replace(softmax, experts=replace(experts, scoring="sigmoid", normalized=False))
    (said,) = unstated(model_facts(sigmoid))
    assert "do not add up to 1" in said
    usual = replace(gemma, activation="silu", part_norms=False, embedding_scale=1.0)
    assert unstated(model_facts(usual)) == []
