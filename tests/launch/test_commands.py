"""`launch`, `read`, `targets` and `run --launch`: what they print, write and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import tune
from autotune.cli import main
from autotune.launch import better
from distir.errors import DistirError
from distir.factoring import ExpertFactors
from distir.schedules import find_schedule
from distir.schedules.core.schedule import format_schedule
from distir.strategy import Strategy
from tests.command_line import json_of, refused

MODEL = ["--model", "gpt2", "--cluster", "hgx-h100", "--batch-size", "32"]
PLAN = ["--dp", "2", "--tp", "2", "--pp", "2", "--microbatches", "4", "--zero", "1"]
LAUNCH = ["launch", *MODEL, *PLAN, "--target", "megatron"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_launch_says_what_states_what(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plain = json_of(capsys, *LAUNCH, "--to", "out")
    assert (plain["target"], plain["version"]) == ("megatron", "0.19")
    assert plain["command"].startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 1")
    assert plain["stated"]["tp"] == "--tensor-model-parallel-size 2"
    assert {note["what"] for note in plain["missing"]} >= {"data", "tokenizer"}
    assert plain["strategy"]["zero"] == 1
    written = {file.name: file.read_text() for file in (folder / "out").iterdir()}
    assert written == plain["files"]


@pytest.mark.not_quick
def test_a_launch_is_simulated_as_simulate_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert json_of(capsys, *LAUNCH)["simulated"] == json_of(capsys, "simulate", *MODEL, *PLAN)


def test_a_launch_is_the_same_to_the_byte(capsys: pytest.CaptureFixture[str]) -> None:
    assert json_of(capsys, *LAUNCH) == json_of(capsys, *LAUNCH)


def test_what_is_read_is_simulated_with_the_same_bits(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    launched = json_of(capsys, *LAUNCH, "--to", "out")
    plain = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["model"] == "gpt2"
    assert plain["devices"] == 8
    assert plain["strategy"] == launched["strategy"]
    assert plain["simulated"]["metrics"] == launched["simulated"]["metrics"]
    assert plain["simulated"]["stages"] == launched["simulated"]["stages"]
    assert plain["workload"] == {
        "batch_size": 32,
        "sequence_length": 1024,
        "precision": "bf16",
        "gradient_precision": "compute",
        "optimizer": "adam",
        "mode": "training",
        "vocabulary_multiple": 1,
    }


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
@pytest.mark.parametrize("model", ["gpt2", "qwen3-0.6b"])
def test_the_files_of_a_framework_without_models_have_the_model_beside_them(
    capsys: pytest.CaptureFixture[str], target: str, model: str
) -> None:
    plan = ["--model", model, "--cluster", "hgx-h100", "--batch-size", "32", "--dp", "8"]
    plan += ["--sequence-length", "512", "--zero", "3"]
    launched = json_of(capsys, "launch", *plan, "--target", target, "--to", "out")
    assert "config.json" in launched["files"]
    plain = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["strategy"] == launched["strategy"]
    assert plain["simulated"]["metrics"] == launched["simulated"]["metrics"]


@pytest.mark.not_quick
def test_a_padded_vocabulary_is_stated_and_read_or_refused(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """128 is Megatron-LM's default; torchtitan pads nothing."""
    padded = (*LAUNCH, "--vocabulary-multiple", "128")
    launched = json_of(capsys, *padded, "--to", "out")
    assert launched["simulated"]["padding"] == {"vocabulary": [50257, 50432]}
    plain = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["workload"]["vocabulary_multiple"] == 128
    assert plain["simulated"]["metrics"] == launched["simulated"]["metrics"]
    plan = [
        "--dp",
        "8",
        "--zero",
        "3",
        "--gradient-precision",
        "fp32",
        "--vocabulary-multiple",
        "128",
    ]
    model = ["--model", "llama3-8b", "--cluster", "hgx-h100", "--batch-size", "8"]
    line = refused(capsys, "launch", *model, *plan, "--target", "torchtitan", "--to", "titan")
    assert (
        "vocabulary_multiple = 128 cannot be stated: torchtitan does not pad the vocabulary" in line
    )


@pytest.mark.slow(seconds=5)
def test_what_is_better_is_said_by_option(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    json_of(capsys, *LAUNCH, "--to", "out")
    found = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--space", "small")
    seconds = found["as_run"]["metrics"]["iteration_seconds"]
    assert found["better"]
    for each in found["better"]:
        assert each["metrics"]["iteration_seconds"] < seconds
        assert each["changes"]
        assert all(change["from"] != change["to"] for change in each["changes"].values())


@pytest.mark.slow(seconds=20)
def test_what_is_better_fits_as_the_framework_runs_it(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Few microbatches fit with compiled layers, which accelerate does not have of itself."""
    plan = ("--dp", "8", "--zero", "3", "--microbatches", "16", "--batch-size", "128")
    asked = ("--model", "llama3.2-1b", "--cluster", "hgx-h100")
    json_of(capsys, "launch", *asked, *plan, "--target", "accelerate", "--to", "out")
    found = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--space", "small")
    now = found["as_run"]["metrics"]["iteration_seconds"]
    assert found["better"]
    for each in found["better"]:
        chosen = {n: v for n, v in each["strategy"].items() if n in ("dp", "zero", "microbatches")}
        options = [text for n, v in chosen.items() for text in (f"--{n}", str(v))]
        again = json_of(
            capsys, "launch", *asked, *options, "--batch-size", "128", "--target", "accelerate"
        )
        run = again["as_run"]["metrics"]
        assert run["iteration_seconds"] == pytest.approx(each["metrics"]["iteration_seconds"])
        assert run["iteration_seconds"] < now
        assert run["peak_memory_bytes"] < 80 * 2**30


@pytest.mark.slow(seconds=5)
def test_what_is_stated_otherwise_than_simulated_is_to_be_changed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    json_of(capsys, *LAUNCH, "--to", "out")
    script = folder / "out" / "launch.sh"
    script.write_text(script.read_text().replace("--overlap-grad-reduce", ""))
    found = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--space", "small")
    replicas = [each for each in found["better"] if each["strategy"]["dp"] > 1]
    assert replicas
    for each in replicas:
        assert each["changes"]["--overlap-grad-reduce"] == {"from": False, "to": True}


@pytest.mark.slow(seconds=5)
def test_what_is_better_changes_no_workload(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}'
    (folder / "ds_config.json").write_text(text)
    stated = ("--model", "llama3.2-1b", "--devices", "8", "--space", "small")
    found = json_of(capsys, "read", "ds_config.json", "--cluster", "hgx-h100", *stated)
    assert found["better"]
    assert all("--max_length" not in each["changes"] for each in found["better"])


TRAINED = (
    "read", "ds_config.json", "--devices", "32", "--model", "llama3-8b", "--cluster", "hgx-h100",
    "--sequence-length", "1024", "--batch-size", "128", "--space", "small",
)  # fmt: skip


def deepspeed_with(stage: int, folder: Path) -> None:
    stated = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    (folder / "ds_config.json").write_text(
        json.dumps({**stated, "zero_optimization": {"stage": stage}})
    )


@pytest.mark.slow(seconds=13)
def test_what_a_better_plan_needs_beside_its_options_is_told(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """DeepSpeed has a pipeline only where the script makes one."""
    deepspeed_with(0, folder)
    found = json_of(capsys, *TRAINED)["better"]
    assert any(each["strategy"]["pp"] > 1 for each in found)
    for each in found:
        needed = [note["reason"] for note in each["needed"] if note["what"] == "pipeline"]
        pp = each["strategy"]["pp"]
        assert len(needed) == (pp > 1)
        assert all(f"num_stages={pp}" in reason for reason in needed)
    assert main([*TRAINED]) == 0
    assert "needs pipeline: the script must build a PipelineModule" in capsys.readouterr().out


@pytest.mark.slow(seconds=10)
def test_what_saves_next_to_nothing_is_not_better(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepspeed_with(3, folder)
    all_found = json_of(capsys, *TRAINED)
    now = all_found["as_run"]["metrics"]["iteration_seconds"]
    saved = [1 - each["metrics"]["iteration_seconds"] / now for each in all_found["better"]]
    assert saved[0] > saved[-1] >= better.LEAST_GAIN
    monkeypatch.setattr(better, "LEAST_GAIN", (saved[0] + saved[-1]) / 2)
    fewer = json_of(capsys, *TRAINED)["better"]
    assert 0 < len(fewer) < len(saved)


@pytest.mark.slow(seconds=5)
def test_what_is_better_names_the_options_of_the_file(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    json_of(capsys, *LAUNCH, "--to", "out")
    script = folder / "out" / "launch.sh"
    text = script.read_text().replace("pretrain_gpt.py", "pretrain_gpt.py --recompute-activations")
    script.write_text(text)
    found = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--space", "small")
    assert found["strategy"]["recompute"] == "selective"
    changed = [each for each in found["better"] if each["strategy"]["recompute"] == "none"]
    assert changed
    for each in changed:
        assert each["changes"]["--recompute-activations"] == {"from": True, "to": None}
        assert "--recompute-granularity" not in each["changes"]


@pytest.mark.slow(seconds=5)
def test_a_report_names_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAUNCH, "--to", "out"]) == 0
    assert main(["read", "out", "--cluster", "hgx-h100", "--space", "small"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "As megatron runs it" in out
    assert "--tensor-model-parallel-size 1 instead of 2" in out


@pytest.mark.parametrize(
    ("compiled", "stack"), [("--compile.enable", "fsdp-compiled"), ("", "fsdp-eager")]
)
def test_a_report_names_the_software_that_is_simulated(
    capsys: pytest.CaptureFixture[str], folder: Path, compiled: str, stack: str
) -> None:
    text = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b"
    (folder / "launch.sh").write_text(f"{text} {compiled}")
    assert main(["read", "launch.sh", "--cluster", "hgx-h100", "--trials", "0"]) == 0
    assert f"(stack {stack})" in capsys.readouterr().out


def test_a_folder_with_files_is_left_alone(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").write_text("mine")
    assert "--overwrite" in refused(capsys, *LAUNCH, "--to", "out")
    assert [file.name for file in (folder / "out").iterdir()] == ["mine.txt"]
    assert main([*LAUNCH, "--to", "out", "--overwrite"]) == 0
    assert (folder / "out" / "mine.txt").read_text() == "mine"
    assert (folder / "out" / "launch.sh").exists()


def test_what_cannot_be_stated_is_refused_with_the_nearest_and_its_price(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    plan = ["--dp", "8", "--zero", "1", "--target", "torchtitan", "--to", "out"]
    said = refused(capsys, "launch", *MODEL, *plan)
    assert "zero = 1 cannot be stated; nearest: zero 3, keep_gathered parameters (" in said
    assert "% time" in said
    assert not (folder / "out").exists()


def test_queries_keys_and_values_are_made_as_the_framework_does(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """A model of Llama 2 has three products for them, and as many key heads as heads; Megatron-LM
    has one product. What is launched is read as what was launched."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    wide = {"intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 512}
    (folder / "llama.json").write_text(json.dumps({"model_type": "llama", **sizes, **wide}))
    plan = ["--model", "llama.json", "--dp", "2", "--tp", "2", "--batch-size", "8"]
    done = json_of(capsys, "launch", *plan, "--target", "megatron", "--to", "out")
    read = json_of(capsys, "read", "out", "--trials", "0")
    assert read["as_run"]["metrics"] == done["as_run"]["metrics"]
    with_stack = json_of(capsys, "simulate", *plan, "--stack", "megatron")
    held = [
        each["peak_memory_bytes"] for each in (with_stack["metrics"], done["as_run"]["metrics"])
    ]
    assert held[0] != held[1]  # else nothing would be told apart here


@pytest.mark.parametrize("target", ["megatron", "bridge", "deepspeed", "nanotron"])
def test_gradients_are_added_up_as_the_framework_does(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    plan = ["--model", "llama3.2-1b", "--cluster", "hgx-h100", "--dp", "4", "--zero", "1"]
    arguments = [*plan, "--batch-size", "16", "--target", target]
    both, in_fp32 = (
        json_of(capsys, "launch", *arguments, "--gradient-precision", each)
        for each in ("both", "fp32")
    )
    assert both["as_run"]["metrics"] == in_fp32["as_run"]["metrics"]
    assert "gradient_precision" in {note["what"] for note in both["approximated"]}


@pytest.mark.slow(seconds=3)
def test_overlapped_pairs_are_simulated_again_one_after_the_other(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    plan = ["--dp", "2", "--pp", "4", "--microbatches", "8", "--schedule", "dualpipev"]
    model = ["--model", "qwen3-30b-a3b", "--cluster", "hgx-h100", "--batch-size", "32"]
    arguments = [*model, *plan, "--zero", "3", "--target", "torchtitan"]
    plain = json_of(capsys, "launch", *arguments, "--to", "out")
    assert "OVERLAP_F_B" in "".join(plain["files"].values())
    reasons = " ".join(note["reason"] for note in plain["approximated"])
    assert "one after the other" in reasons
    alone = replace(find_schedule("dualpipev")(4, 2, 8), overlapped=())
    (folder / "in_turn.txt").write_text(format_schedule(alone))
    plan[plan.index("dualpipev")] = "in_turn.txt"
    settings = ["--stack", "fsdp-eager", "--gradient-precision", "fp32", "--zero", "3"]
    in_turn = json_of(capsys, "simulate", *model, *plan, *settings)
    seconds, fresh = (
        each["iteration_seconds"] for each in (plain["as_run"]["metrics"], in_turn["metrics"])
    )
    assert seconds == pytest.approx(fresh, rel=0.02)  # its stages may be cut otherwise
    read = json_of(capsys, "read", "out", *model[:4], "--trials", "0")
    assert read["as_run"]["metrics"] == plain["as_run"]["metrics"]


@pytest.mark.slow(seconds=6)
def test_a_search_launches_only_what_can_be_stated(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    search = ["run", *MODEL, "--devices", "8", "--no-tracking", "--trials", "20"]
    plain = json_of(capsys, *search, "--space", "standard", "--launch", "torchtitan:out")
    assert all(each["strategy"]["zero"] in (0, 3) for each in plain["trials"])
    assert plain["launch"]["strategy"] == plain["best"]["strategy"]
    assert (folder / "out" / "launch.sh").exists()
    assert plain["settings"]["gradient_precision"] == "fp32"


def test_targets_say_what_they_can_state(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {each["name"]: each for each in json_of(capsys, "targets")}
    assert list(listed)[:3] == ["megatron", "bridge", "torchtitan"]
    assert set(listed) >= {"deepspeed", "accelerate", "nanotron"}
    assert "sequence_parallel" in listed["megatron"]["states"]
    assert "sequence_parallel" not in listed["accelerate"]["states"]


SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 \\\n"
REST = (
    "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 "
    "--bf16 "
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("torchrun pretrain_gpt.py --num-layers 'half", "not closed"),
        (f"{SCRIPT}{REST}--micro-batch-size 1 --no-such-option 4", "--no-such-option"),
        (f"{SCRIPT}{REST}--micro-batch-size $MBS", "--set MBS=VALUE"),
        (f"{SCRIPT}{REST}--micro-batch-size $(rm -rf /)", "--set micro-batch-size=VALUE"),
        (f"{SCRIPT}{REST}--micro-batch-size 1 --tensor-model-parallel-size 0", "at least 1"),
        (f"{SCRIPT}{REST}--micro-batch-size 1 --global-batch-size 8000000000", "at most"),
        (f"{SCRIPT}{REST}--micro-batch-size {'9' * 5000}", "--micro-batch-size"),
        (f"{SCRIPT}{REST}--micro-batch-size 1 --rampup-batch-size 1 1 9", "--batch-size"),
        (f"{SCRIPT}{REST}".replace("--nproc-per-node 8", ""), "--devices"),
        (f"{SCRIPT}{REST}", "--micro-batch-size"),
        ("#!/bin/bash\nls -l\n", "it has no options of"),
        ("", "it has no options of"),
        ("-" * 5_000_000, "characters"),
        ("\0", "it contains null bytes"),
    ],
)
def test_a_bad_script_is_one_line(
    text: str, named: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(text)
    assert named in refused(capsys, "read", "launch.sh")
    assert [file.name for file in folder.iterdir()] == ["launch.sh"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.yaml", "- a\n- b\n"),
        ("model.yaml", "a: [b"),
        ("model.yaml", "MODEL_ARGS: {--num-layers: {a: 1}, --tensor-model-parallel-size: x}"),
        ("model.yaml", "!!python/object/apply:os.system ['touch ran']"),
        ("model.yaml", f"MODEL_ARGS: {{--num-layers: 2, --recompute-granularity: {'9' * 6000}}}"),
        ("ds.json", "[1, 2]"),
        ("ds.json", '{"zero_optimization": {"stage": "x"}, "train_batch_size": 8}'),
        ("ds.json", '{"zero_optimization": 3'),
        ("ds.json", "[" * 100_000),
        ("config.yaml", "parallelism: 3\ntokens: 4\n"),
        ("config.yaml", "parallelism: &a [*a]\ntokens: 4\n"),
        ("config.yaml", f"parallelism: {{dp: {'9' * 6000}}}\ntokens: {{micro_batch_size: 1}}\n"),
        ("acc.yaml", "distributed_type: FSDP\nnum_processes: many\nno_such_key: 1\n"),
    ],
)
def test_a_bad_file_is_one_line(
    name: str, text: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / name).write_text(text)
    refused(capsys, "read", name, "--devices", "8")
    assert [file.name for file in folder.iterdir()] == [name]


def test_nothing_in_a_script_is_executed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    lines = ["touch ran", "X=$(touch ran)", "`touch ran`", f"{SCRIPT}{REST}--micro-batch-size 4"]
    (folder / "launch.sh").write_text("\n".join(lines))
    plain = json_of(capsys, "read", "launch.sh", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["strategy"]["dp"] == 8
    assert not (folder / "ran").exists()


def test_what_is_left_open_can_be_stated(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    text = f"{SCRIPT}{REST}--micro-batch-size $MBS --global-batch-size $GBS"
    (folder / "launch.sh").write_text(text.replace("--vocab-size 50257", ""))
    stated = ["--set", "MBS=2", "--set", "GBS=64", "--set", "vocab-size=50257"]
    plain = json_of(capsys, "read", "launch.sh", "--cluster", "hgx-h100", *stated, "--trials", "0")
    assert plain["strategy"]["microbatches"] == 4
    assert plain["strategy"]["micro_batch"] == 2


def test_a_variable_in_a_file_of_options_can_be_stated(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    words = f"{SCRIPT}{REST}".replace("\\\n", "").split()[4:-1]
    arguments: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    arguments |= {"--bf16": True, "--micro-batch-size": "${MBS}"}
    (folder / "model_config.yaml").write_text(json.dumps({"MODEL_ARGS": arguments}))
    command = ["read", "model_config.yaml", "--devices", "8", "--trials", "0"]
    assert "--set MBS=VALUE" in refused(capsys, *command)
    assert json_of(capsys, *command, "--set", "MBS=2")["strategy"]["micro_batch"] == 2


def test_what_is_stated_of_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(f"{SCRIPT}{REST}--micro-batch-size 2")
    line = refused(capsys, "read", "launch.sh", "--set", "MBS=4")
    assert "launch.sh has no such variable, and megatron 0.19 has no such option" in line


@pytest.mark.parametrize(
    ("method", "layers"), [("block 1", 1), ("block 5", 5), ("block 12", 12), ("uniform 1", 0)]
)
def test_layers_that_are_recomputed_are_read(
    method: str, layers: int, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    name, count = method.split()
    text = f"{SCRIPT}{REST}--micro-batch-size 2 --recompute-granularity full"
    text += f" --recompute-method {name} --recompute-num-layers {count}"
    (folder / "launch.sh").write_text(text)
    strategy = json_of(capsys, "read", "launch.sh", "--trials", "0")["strategy"]
    assert (strategy["recompute"], strategy["recompute_layers"]) == ("full", layers)


@pytest.mark.not_quick
def test_experts_that_are_read_lie_as_megatron_lays_them(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    model = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --swiglu"
    plan = "--micro-batch-size 1 --tensor-model-parallel-size 2 --sequence-parallel"
    text = f"{SCRIPT.replace('8', '16', 1)}{REST}{model} {plan} --context-parallel-size 2"
    options = "--expert-model-parallel-size 4 --expert-tensor-parallel-size"
    for etp, shared in ((2, ExpertFactors(2, 2, 1)), (1, ExpertFactors(1, 2, 2))):
        (folder / "launch.sh").write_text(f"{text} {options} {etp}")
        plain = json_of(capsys, "read", "launch.sh", "--trials", "0", "--cluster", "hgx-h100")
        found = Strategy.from_dict(plain["strategy"])
        assert (found.ep, found.expert_factors) == (4, shared)
    (folder / "launch.sh").write_text(f"{text} {options} 3")
    assert "--expert-tensor-parallel-size is 3" in refused(capsys, "read", "launch.sh")


def test_options_that_bear_on_time_and_are_not_simulated_are_listed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    text = f"{SCRIPT}{REST}--micro-batch-size 2 --optimizer-cpu-offload --mtp-num-layers 1"
    (folder / "launch.sh").write_text(text)
    plain = json_of(capsys, "read", "launch.sh", "--cluster", "hgx-h100", "--trials", "0")
    listed = {each["option"]: each for each in plain["not_modelled"]}
    assert set(listed) >= {"--optimizer-cpu-offload", "--mtp-num-layers"}
    assert all(each["reason"] for each in listed.values())


def test_words_that_depend_on_a_branch_are_asked_for(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    branch = 'if [[ "$DTYPE" == "fp8" ]]; then\n  MORE+=(--fp8-format hybrid)\nfi\n'
    text = f"MORE=()\n{branch}{SCRIPT}{REST}--micro-batch-size 2 --overlap-grad-reduce ${{MORE[@]}}"
    (folder / "launch.sh").write_text(text)
    assert "--set MORE=" in refused(capsys, "read", "launch.sh")
    stated = ["--set", "MORE=--fp8-format hybrid", "--cluster", "hgx-h100", "--trials", "0"]
    plain = json_of(capsys, "read", "launch.sh", *stated)
    assert plain["workload"]["precision"] == "fp8"


def test_sequence_parallelism_without_devices_is_off(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "launch.sh").write_text(f"{SCRIPT}{REST}--micro-batch-size 2 --sequence-parallel")
    plain = json_of(capsys, "read", "launch.sh", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["strategy"]["sequence_parallel"] is False


@pytest.mark.not_quick
def test_an_option_that_is_not_understood_is_ignored_when_asked(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    json_of(capsys, *LAUNCH, "--to", "out")
    script = folder / "mine.sh"
    command = json_of(capsys, *LAUNCH)["command"]
    script.write_text(f"{command.strip()} --greet-the-operator twice\n")
    read = ["read", str(script), "--cluster", "hgx-h100", "--trials", "0"]
    assert "add --ignore=--greet-the-operator" in refused(capsys, *read)
    plain = json_of(capsys, *read, "--ignore=--greet-the-operator")
    ignored = [each for each in plain["not_modelled"] if each["option"] == "--greet-the-operator"]
    assert [(each["value"], each["reason"]) for each in ignored] == [
        ("twice", "ignored, as requested")
    ]
    assert "is not in" in refused(capsys, *read, "--ignore=--greet")
    known = refused(capsys, *read, "--ignore=--greet-the-operator", "--ignore=--bf16")
    assert "the option is understood" in known


@pytest.mark.parametrize(("devices", "nodes"), [(12, 2), (9, 3), (20, 4), (16, 2), (6, 1)])
def test_all_nodes_start_equally_many_processes(
    capsys: pytest.CaptureFixture[str], folder: Path, devices: int, nodes: int
) -> None:
    plan = ["--dp", str(devices), "--batch-size", str(2 * devices), "--zero", "1"]
    model = ["--model", "llama3.2-1b", "--cluster", "hgx-h100"]
    plain = json_of(capsys, "launch", *model, *plan, "--target", "megatron", "--to", "out")
    each = devices // nodes
    assert f"--nnodes {nodes} --nproc-per-node {each}" in plain["files"]["launch.sh"]
    read = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--trials", "0")
    assert read["strategy"]["dp"] == devices


@pytest.mark.parametrize(("devices", "nodes"), [(72, 18), (8, 2), (6, 2), (4, 1)])
def test_processes_are_those_of_a_machine_where_a_level_joins_several(
    capsys: pytest.CaptureFixture[str], devices: int, nodes: int
) -> None:
    plan = ["--dp", str(devices), "--batch-size", str(2 * devices), "--zero", "1"]
    model = ["--model", "llama3.2-1b", "--cluster", "gb200-nvl72"]
    plain = json_of(capsys, "launch", *model, *plan, "--target", "megatron")
    assert f"--nnodes {nodes} --nproc-per-node {devices // nodes}" in plain["files"]["launch.sh"]


@pytest.mark.parametrize("target", ["megatron", "accelerate"])
def test_nothing_is_written_for_devices_that_a_framework_does_not_run_on(
    capsys: pytest.CaptureFixture[str], folder: Path, target: str
) -> None:
    model = ["--model", "llama3.2-1b", "--cluster", "tpu-v5p", "--batch-size", "16"]
    told = "cannot write a launch for TPU-v5p-95GB, whose platform is xla"
    launch = ["launch", *model, "--dp", "8", "--target", target, "--to", "out"]
    assert told in refused(capsys, *launch)
    search = ["run", *model, "--devices", "8", "--no-tracking", "--launch", f"{target}:out"]
    assert told in refused(capsys, *search)
    assert not (folder / "out").exists()


def test_what_no_option_says_of_a_workload_is_told_before_the_search(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    asked = ["run", "--model", "gpt2", "--devices", "4", "--no-tracking"]
    assert main([*asked, "--launch", "nanotron:out"]) == 2
    told = capsys.readouterr()
    assert "nanotron's models have norm = rms, not layer" in told.err
    assert told.out == ""
    launch = ["launch", "--model", "llama3-8b", "--precision", "fp8", "--dp", "4"]
    assert main([*launch, "--target", "nanotron"]) == 2
    assert "precision = fp8 cannot be stated by model.dtype" in capsys.readouterr().err


def test_attention_that_no_file_states_is_told_and_not_counted(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    plan = ["--model", "gpt2", "--batch-size", "64", "--dp", "2", "--target", "megatron"]
    usual = json_of(capsys, "launch", *plan)
    eager = json_of(capsys, "launch", *plan, "--attention", "eager")
    assert eager["as_run"]["metrics"] == usual["as_run"]["metrics"]
    assert eager["simulated"]["metrics"] != usual["simulated"]["metrics"]
    assert [
        note["what"] for note in eager["approximated"] if note not in usual["approximated"]
    ] == ["attention"]


@pytest.mark.parametrize(
    ("more", "fraction"), [((), "0.1"), (("--no-dropout",), "0.0")], ids=["dropout", "none"]
)
def test_dropout_is_stated_for_recipes_and_read_back(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], fraction: str
) -> None:
    plan = ["--model", "gpt3-175B", "--batch-size", "64", "--tp", "8", "--pp", "8", *more]
    plan += ["--microbatches", "64", "--cluster", "hgx-h100"]
    launched = json_of(capsys, "launch", *plan, "--target", "bridge", "--to", "out")
    for part in ("hidden", "attention"):
        assert f" model.{part}_dropout={fraction} " in f"{launched['command']} "
    plain = json_of(capsys, "read", "out", "--cluster", "hgx-h100", "--trials", "0")
    assert plain["simulated"]["metrics"] == launched["simulated"]["metrics"]


@pytest.mark.parametrize(
    ("more", "told"),
    [((), "dropout = 0.1 and attention_dropout = 0.1"), (("--no-dropout",), "none")],
)
def test_dropout_of_a_registry_function_of_ones_own_is_told(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], told: str
) -> None:
    plan = ["--dp", "8", "--zero", "3", "--gradient-precision", "fp32", *more]
    launched = json_of(capsys, "launch", *MODEL, *plan, "--target", "torchtitan")
    reasons = {note["what"]: note["reason"] for note in launched["missing"]}
    assert reasons["dropout"].endswith(f"must have {told}")
    others = ["--model", "llama3-8b", *MODEL[2:], *plan, "--target", "torchtitan"]
    missing = json_of(capsys, "launch", *others)["missing"]
    assert "dropout" not in {note["what"] for note in missing}


LENGTHS = {
    "megatron": "--seq-length",
    "bridge": "model.seq_length",
    "torchtitan": "--training.seq_len",
    "nanotron": "tokens.sequence_length",
}


@pytest.mark.parametrize("target", [*LENGTHS, "deepspeed", "accelerate"])
def test_models_without_a_sequence_are_for_frameworks_that_take_any_model(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    plan = ["--model", "mlp-2x8", "--cluster", "hgx-h100", "--batch-size", "64", "--dp", "8"]
    plan += ["--gradient-precision", "fp32" if target == "torchtitan" else "compute"]
    launch = ["launch", *plan, "--target", target]
    if target in LENGTHS:
        line = refused(capsys, *launch)
        assert f"the model has no sequence, so {LENGTHS[target]} cannot be stated" in line
    else:
        written = json_of(capsys, *launch)["files"].values()
        assert not any("None" in text or "null" in text for text in written)


STUDY = ["--storage", "sqlite:///a.db", "--study", "a"]


def begun_for(capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    """A study whose best plan is launched with torchtitan, as it was begun."""
    asked = ["run", "--model", "llama3.2-1b", "--cluster", "hgx-h100", "--devices", "2"]
    asked += ["--batch-size", "8", "--trials", "2", "--no-compare-grid", "--no-tracking", *STUDY]
    asked += ["--sampler", "random"]
    return json_of(capsys, *asked, "--launch", "torchtitan:out", *more)


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("more", [(), ("--search-all",)])
def test_a_study_for_a_framework_is_resumed_and_joined_by_its_name_alone(
    capsys: pytest.CaptureFixture[str], folder: Path, more: tuple[str, ...]
) -> None:
    """It knows what was searched, whether `--launch` is stated again or not."""
    begun = begun_for(capsys, *more)
    resumed = json_of(capsys, "run", *STUDY, "--resume", "--trials", "3", "--no-tracking")
    assert resumed["space_size"] == begun["space_size"]
    assert resumed["settings"] == begun["settings"]
    assert "launch" not in resumed
    again = ["--launch", "torchtitan:out", "--overwrite", *more, "--trials", "4"]
    launched = json_of(capsys, "run", *STUDY, "--resume", "--no-tracking", *again)
    assert launched["launch"]["target"] == "torchtitan"
    joined = json_of(capsys, "work", *STUDY)
    assert joined["space_size"] == begun["space_size"]
    assert len(joined["trials"]) == 4


@pytest.mark.slow(seconds=5)
def test_a_study_is_not_resumed_for_another_framework(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    begun_for(capsys)
    resume = ["run", *STUDY, "--resume", "--no-tracking", "--launch"]
    assert (
        "it was started with --launch torchtitan:…, here it is --launch megatron:…; leave out "
        "--launch"
    ) in refused(capsys, *resume, "megatron:other")
    assert "here it is --launch torchtitan:… --search-all" in refused(
        capsys, *resume, "torchtitan:other", "--search-all"
    )


@pytest.mark.slow(seconds=3)
def test_a_study_for_a_framework_is_none_of_everything(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    begun_for(capsys)
    kept: Any = {"storage": "sqlite:///a.db", "study": "a", "resume": True}
    problem: Any = {"devices": 2, "batch_size": 8, "gradient_precision": "fp32"}
    with pytest.raises(
        DistirError, match="framework = torchtitan, here with framework = not stated"
    ):
        tune("llama3.2-1b", "hgx-h100", **problem, **kept)


@pytest.mark.slow(seconds=15)
def test_workers_search_what_a_framework_can_state(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    found = begun_for(capsys, "--workers", "2")
    assert len(found["trials"]) == 2
    assert found["launch"]["target"] == "torchtitan"
