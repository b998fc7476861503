"""Launch files in the styles that people write them in: schedulers, shells in shells, option texts,
transformers' Trainer. What is read is what would be launched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import LaunchError
from autotune.launch.read import Reading, Stated, read_launch

MODEL = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2"
)

SLURM = f"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
TP=${{TP:-2}}          # for all
GPUS_PER_NODE=8
NNODES=${{SLURM_NNODES:-4}}
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
DISTRIBUTED=(
    --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES
    --rdzv_backend c10d --rdzv_endpoint $MASTER:29500
)
MODEL_ARGS=( {MODEL} )
PARALLEL=(--tensor-model-parallel-size $TP --use-distributed-optimizer)
if [ "$TP" -gt 1 ]; then
    PARALLEL+=(--sequence-parallel)   # only then
fi
PARALLEL+=(--pipeline-model-parallel-size ${{PP:-4}})
srun --label --container-image=image torchrun ${{DISTRIBUTED[@]}} pretrain_gpt.py \\
    ${{MODEL_ARGS[@]}} \\
    ${{PARALLEL[@]}} --bf16 2>&1 | tee logs/run_${{SLURM_JOB_ID}}.log
"""

SHELL_IN_SHELL = f"""
: ${{TP:=8}}
options=" \\
    --tensor-model-parallel-size $TP \\
    --sequence-parallel --recompute-activations \\
    {MODEL} --bf16 "
run_cmd="python -u ${{DIR}}/pretrain_gpt.py $options"
srun -l --output=logs/%x.log sh -c "${{run_cmd}}"
set +x
"""

CONTAINER = f"""docker run --gpus all -v $PWD:/w --rm image \\
  bash -c "cd /w && pip install -e . && torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --fp16"
"""

SUMS = f"""MBS=2 DP=16
GBS=$((MBS * DP * 4))
srun --nodes=16 --ntasks-per-node=8 python pretrain_gpt.py {MODEL} --global-batch-size ${{GBS}} \\
  --tensor-model-parallel-size 8 --bf16 > log.txt || {{ echo failed; exit 1; }}
"""

LAUNCH_MODULE = f"""export ARGS="{MODEL} --bf16"
echo "torchrun pretrain_gpt.py --tensor-model-parallel-size 4"
python -m torch.distributed.launch --use_env --nproc_per_node=8 pretrain_gpt.py $ARGS \\
  --tensor-model-parallel-size=${{1:-2}} &> log.txt &
wait
"""

FUNCTION = f"""main() {{
  torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} --bf16
}}
main "$@"
"""

LOGGED = f"""LOGGING=(--log-interval 100)
if [ -n "${{WANDB_KEY}}" ]; then LOGGING+=(--log-throughput); fi
torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} ${{LOGGING[@]}}
"""

FRAGMENT = f"""# to be sourced
MODEL_OPTIONS="{MODEL} --bf16"
"""

TITAN = """NGPU=${NGPU:-"8"}
torchrun --nproc_per_node=${NGPU} --local-ranks-filter ${LOG_RANK:-0} --role rank --tee 3 \\
  -m ${TRAIN_FILE:-"torchtitan.train"} --module llama3 --config llama3_8b \\
  --parallelism.tensor_parallel_degree=2 --training.local_batch_size 2 "$@"
"""

TRAINER = """cat <<EOT > notes.txt
it's generated
EOT
deepspeed --num_nodes=2 --num_gpus=8 train.py --deepspeed ds_config.json \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 4096 \\
  --bf16 True --gradient_checkpointing True --learning_rate 2e-5 > log.txt 2>&1
"""

AUTO = """{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true},
"gradient_accumulation_steps": "auto", "train_batch_size": "auto",
"train_micro_batch_size_per_gpu": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
"""

FSDP = """distributed_type: FSDP
fsdp_config: {fsdp_activation_checkpointing: true, fsdp_sharding_strategy: FULL_SHARD}
mixed_precision: bf16
num_processes: 16
"""

DEEPSPEED_BY_ACCELERATE = """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4, zero3_init_flag: true}
mixed_precision: bf16
num_processes: 8
"""

ACCELERATED = (
    "accelerate launch --config_file accelerate.yaml --num_processes 32 train.py "
    "--per_device_train_batch_size=4 --max_length 2048\n"
)

NANOTRON = """parallelism: {dp: 4, tp: 1, pp: 1}
model:
  dtype: bfloat16
  model_config:
    {hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, intermediate_size: 64,
    vocab_size: 64, num_key_value_heads: 4, max_position_embeddings: 64, attention_bias: false}
tokens: {micro_batch_size: 1, sequence_length: 64}
optimizer: {zero_stage: 0}
"""

MOE = "moe_config: {num_experts: 8}"

CASES: dict[str, tuple[Mapping[str, str], Stated, Mapping[str, Any]]] = {
    "a batch job with arrays and a test": (
        {"launch.sh": SLURM},
        Stated(),
        {"devices": 32, "dp": 4, "tp": 2, "pp": 4, "zero": 1, "sequence_parallel": True},
    ),
    "a text handed to a shell": (
        {"launch.sh": SHELL_IN_SHELL},
        Stated(devices=16),
        {"dp": 2, "tp": 8, "recompute": "selective", "sequence_parallel": True},
    ),
    "a container": (
        {"launch.sh": CONTAINER},
        Stated(),
        {"devices": 8, "dp": 8, "precision": "fp16"},
    ),
    "sums, and no torchrun": (
        {"launch.sh": SUMS},
        Stated(devices=128),
        {"dp": 16, "tp": 8, "batch_size": 128, "microbatches": 4},
    ),
    "the old launcher and a positional argument": (
        {"launch.sh": LAUNCH_MODULE},
        Stated(),
        {"devices": 8, "dp": 4, "tp": 2},
    ),
    "a function": ({"launch.sh": FUNCTION}, Stated(), {"devices": 8, "dp": 8}),
    "a test of what is stated": (
        {"launch.sh": LOGGED},
        Stated(settings={"WANDB_KEY": ""}),
        {"devices": 8, "dp": 8},
    ),
    "options in one text": ({"launch.sh": FRAGMENT}, Stated(devices=4), {"dp": 4}),
    "torchtitan's own script": (
        {"launch.sh": TITAN},
        Stated(),
        {"devices": 8, "dp": 4, "tp": 2, "zero": 3, "batch_size": 8},
    ),
    "the Trainer with DeepSpeed": (
        {"launch.sh": TRAINER, "ds_config.json": AUTO},
        Stated(model="llama3-8b"),
        {
            "devices": 16, "zero": 3, "microbatches": 8, "batch_size": 256, "precision": "bf16",
            "recompute": "full", "sequence_length": 4096,
        },
    ),
    "accelerate with options before its file": (
        {"launch.sh": ACCELERATED, "accelerate.yaml": FSDP},
        Stated(model="llama3-8b"),
        {"devices": 32, "zero": 3, "batch_size": 128, "recompute": "full"},
    ),
    "accelerate without a file": (
        {
            "launch.sh": "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 "
            "--mixed_precision bf16 --parallelism_config_tp_size 2 train.py "
            "--per_device_train_batch_size 2 --gradient_checkpointing"
        },
        Stated(model="llama3-8b"),
        {"devices": 8, "dp": 4, "tp": 2, "zero": 3, "precision": "bf16", "recompute": "full"},
    ),
    "FSDP 1 that keeps parameters": (
        {"accelerate.yaml": FSDP.replace("FULL_SHARD", "SHARD_GRAD_OP")},
        Stated(model="llama3-8b", batch_size=16, sequence_length=2048),
        {"zero": 3, "keep_gathered": "parameters"},
    ),
    "DeepSpeed run by accelerate": (
        {"launch.sh": ACCELERATED, "accelerate.yaml": DEEPSPEED_BY_ACCELERATE},
        Stated(model="llama3-8b"),
        {"devices": 32, "zero": 3, "microbatches": 4, "batch_size": 512, "precision": "bf16"},
    ),
}  # fmt: skip


def read_in(folder: Path, files: Mapping[str, str], stated: Stated) -> Reading:
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_launch(folder, stated)


@pytest.mark.parametrize("style", CASES)
def test_what_is_read_is_what_would_be_launched(style: str, tmp_path: Path) -> None:
    files, stated, expected = CASES[style]
    facts = read_in(tmp_path, files, stated).facts
    assert {name: facts[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"launch.sh": SHELL_IN_SHELL}, "--devices"),
        ({"launch.sh": SUMS}, "--devices"),
        ({"launch.sh": f"srun $S torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL}"},
         "--devices"),
        ({"launch.sh": SLURM.replace("TP=${TP:-2}", "")}, "--set PARALLEL="),
        ({"ds_config.json": AUTO}, "--set train_micro_batch_size_per_gpu=VALUE"),
        (
            {"ds_config.json": AUTO.replace('{"bf16"', '{"bf16"', 1)},
            "which leaves the value to the program",
        ),
        (
            {
                "launch.sh": f"if [ $X = 1 ]; then torchrun pretrain_gpt.py {MODEL}\n"
                f"else torchrun pretrain_gpt.py {MODEL} --bf16\nfi"
            },
            "which of 2 commands is run",
        ),
        ({"launch.sh": LOGGED}, "--set WANDB_KEY=VALUE, or its words with --set LOGGING="),
        ({"launch.sh": f"python pretrain_bert.py {MODEL}"}, "pretrain_bert.py trains another kind"),
        (
            {"config.yaml": NANOTRON.replace("attention_bias: false", MOE)},
            "num_experts is 8; nanotron's models with experts cannot be read",
        ),
        ({"config.yaml": ""}, "empty; expected options"),
        ({"launch.sh": "deepspeed --hostfile h train.py --deepspeed ds_config.json",
          "ds_config.json": AUTO}, "--devices"),
    ],
)  # fmt: skip
def test_what_depends_on_what_runs_is_asked_for(
    files: Mapping[str, str], named: str, tmp_path: Path
) -> None:
    devices = 8 if named.startswith(("--set train", "which leaves")) else None
    with pytest.raises(LaunchError, match=named):
        read_in(tmp_path, files, Stated(devices=devices, model="llama3-8b"))


GPT = f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL}"
BRIDGE_WORDS = (
    "train.micro_batch_size=1", "train.global_batch_size=8", "model.seq_length=8192",
    "model.tensor_model_parallel_size=1", "model.pipeline_model_parallel_size=1",
    "model.context_parallel_size=1", "model.recompute_granularity=null",
)  # fmt: skip
USUAL_WORDS = (
    "ddp.use_distributed_optimizer=true", "ddp.overlap_grad_reduce=true",
    "ddp.overlap_param_gather=true", "ddp.grad_reduce_in_fp32=true", "mixed_precision=bf16_mixed",
)  # fmt: skip
RECIPE = "torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_pretrain_config"
BRIDGE = " ".join([RECIPE, *BRIDGE_WORDS, *USUAL_WORDS])
CHUNKS = "--num-virtual-stages-per-pipeline-rank 2"
LAYOUT = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*12|t*12L'"
LAYOUT_OF_BRIDGE = """model.pipeline_model_parallel_size=2 \\
  model.pipeline_model_parallel_layout='Et*16|t*16L'"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            f"{GPT} --bf16 --fp16",
            "--bf16 and --fp16 contradict each other, and Megatron-LM refuses",
        ),
        (f"{GPT} {LAYOUT} {CHUNKS}", "layout and --num-virtual-stages-per-pipeline-rank contra"),
        (
            f"{GPT} {CHUNKS} --num-layers-per-virtual-pipeline-stage 3",
            "rank and --num-layers-per-virtual-pipeline-stage contradict each other",
        ),
        (
            f"{BRIDGE} {LAYOUT_OF_BRIDGE} model.virtual_pipeline_model_parallel_size=2",
            "layout and model.virtual_pipeline_model_parallel_size contradict each other",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    script: str, told: str, tmp_path: Path
) -> None:
    """As the framework itself does, which asserts that they are not there together."""
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, {"launch.sh": script}, Stated())
    assert told in str(raised.value)


@pytest.mark.parametrize("left_out", BRIDGE_WORDS)
def test_what_a_recipe_decides_is_asked_for(left_out: str, tmp_path: Path) -> None:
    """Its own degrees are no ones of Megatron-Core, and they differ between releases."""
    words = [word for word in BRIDGE_WORDS if word != left_out]
    files = {"launch.sh": " ".join([RECIPE, *words])}
    name, _, value = left_out.partition("=")
    with pytest.raises(LaunchError, match=re.escape(f"--set {name}=VALUE")):
        read_in(tmp_path, files, Stated())
    stated = read_in(tmp_path, files, Stated(settings={name: value})).strategy
    assert stated == read_in(tmp_path, {"launch.sh": BRIDGE}, Stated()).strategy


def test_all_that_a_recipe_decides_is_asked_for_at_once(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, {"launch.sh": RECIPE}, Stated())
    named = dict(re.findall(r"--set ([^ =]+)=(VALUE)", str(raised.value)))
    assert set(named) >= {word.partition("=")[0] for word in BRIDGE_WORDS}
    values = {word.partition("=")[0]: word.partition("=")[2] for word in BRIDGE_WORDS}
    settings = {name: values.get(name, "null") for name in named}
    assert read_in(tmp_path, {"launch.sh": RECIPE}, Stated(settings=settings)).strategy.dp == 8


def test_what_most_recipes_state_is_taken_and_told(tmp_path: Path) -> None:
    reading = read_in(tmp_path, {"launch.sh": " ".join([RECIPE, *BRIDGE_WORDS])}, Stated())
    assert reading.strategy == read_in(tmp_path, {"launch.sh": BRIDGE}, Stated()).strategy
    told = {note.what for note in reading.not_modelled}
    assert told == {word.partition("=")[0] for word in USUAL_WORDS}


@pytest.mark.parametrize("method", ["uniform", "block"])
def test_full_recomputation_says_of_how_many_layers(method: str, tmp_path: Path) -> None:
    """Megatron-Core refuses it without; programs of old, in which one layer was usual, do not."""
    said = f"--recompute-granularity full --recompute-method {method}"
    with pytest.raises(LaunchError, match="--set recompute-num-layers=VALUE"):
        read_in(tmp_path, {"launch.sh": f"{GPT} {said}"}, Stated())
    stated = Stated(settings={"recompute-num-layers": "1"})
    assert read_in(tmp_path, {"launch.sh": f"{GPT} {said}"}, stated).strategy.recompute == "full"
    of_bridge = f"model.recompute_granularity=full model.recompute_method={method}"
    with pytest.raises(LaunchError, match=r"--set model\.recompute_num_layers=VALUE"):
        read_in(tmp_path, {"launch.sh": f"{BRIDGE} {of_bridge}"}, Stated())


FULL = "--recompute-granularity full --recompute-method block"
FULL_OF_BRIDGE = "model.recompute_granularity=full model.recompute_method=block"


@pytest.mark.parametrize(
    ("script", "most", "option"),
    [
        (f"{GPT} {FULL} --recompute-num-layers ", 24, "--recompute-num-layers"),
        (
            f"{BRIDGE} {FULL_OF_BRIDGE} model.recompute_num_layers=",
            32,
            "model.recompute_num_layers",
        ),
    ],
)
def test_more_recomputed_layers_than_there_are_is_all_of_them_and_told(
    script: str, most: int, option: str, tmp_path: Path
) -> None:
    reading = read_in(tmp_path, {"launch.sh": f"{script}{most + 1}"}, Stated())
    assert reading.strategy.recompute == "full"
    assert option in {note.what for note in reading.not_modelled}
    exactly = read_in(tmp_path, {"launch.sh": f"{script}{most}"}, Stated())
    assert option not in {note.what for note in exactly.not_modelled}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_stages_that_nanotron_does_not_have_are_read_as_what_they_do(
    stage: int, tmp_path: Path
) -> None:
    files = {"config.yaml": NANOTRON.replace("zero_stage: 0", f"zero_stage: {stage}")}
    reading = read_in(tmp_path, files, Stated())
    assert reading.strategy.zero == min(stage, 1)
    told = [(note.what, note.value) for note in reading.not_modelled]
    assert told == ([("optimizer.zero_stage", stage)] if stage > 1 else [])


def test_replicas_alone_share_the_optimizer_of_nanotron(tmp_path: Path) -> None:
    shared = NANOTRON.replace("pp: 1", "pp: 1, context_parallel_size: 2")
    files = {"config.yaml": shared.replace("zero_stage: 0", "zero_stage: 1")}
    (note,) = read_in(tmp_path, files, Stated()).not_modelled
    assert "nanotron shards over dp = 4 alone" in note.reason


DEEPSPEED = """{"zero_optimization": {"stage": 2, "overlap_comm": true},
"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}
"""


@pytest.mark.parametrize(
    ("file", "text", "put", "wrong", "meant"),
    [
        (
            "accelerate.yaml", FSDP, ("fsdp_sharding_strategy", "fsdp_sharding_stategy"),
            "fsdp_config.fsdp_sharding_stategy", "fsdp_config.fsdp_sharding_strategy",
        ),
        (
            "accelerate.yaml", f"{FSDP}parallelism_config: {{parallelism_config_tp_sise: 2}}\n",
            ("", ""),
            "parallelism_config.parallelism_config_tp_sise",
            "parallelism_config.parallelism_config_tp_size",
        ),
        ("ds_config.json", DEEPSPEED, ("stage", "stge"), "zero_optimization.stge",
         "zero_optimization.stage"),
        ("ds_config.json", DEEPSPEED, ("enabled", "enable"), "bf16.enable", "bf16.enabled"),
        ("ds_config.json", DEEPSPEED, ("train_micro", "train_mirco"),
         "train_mirco_batch_size_per_gpu", "train_micro_batch_size_per_gpu"),
        ("accelerate.yaml", DEEPSPEED_BY_ACCELERATE, ("zero_stage", "zero_stge"),
         "deepspeed_config.zero_stge", None),
        ("accelerate.yaml", DEEPSPEED_BY_ACCELERATE, ("mixed_precision", "mixed_precison"),
         "mixed_precison", None),
        ("config.yaml", NANOTRON, ("zero_stage", "zero_stag"), "optimizer.zero_stag",
         "optimizer.zero_stage"),
        ("config.yaml", NANOTRON, ("pp: 1", "pp: 1, recompute_layers: true"),
         "parallelism.recompute_layers", "parallelism.recompute_layer"),
    ],
)  # fmt: skip
def test_a_misspelt_key_of_a_section_is_told(
    file: str, text: str, put: tuple[str, str], wrong: str, meant: str | None, tmp_path: Path
) -> None:
    """Also one that says nothing, as far as `read` knows: it may be the one that counts."""
    stated = Stated(model="llama3-8b", devices=8, batch_size=16, sequence_length=2048)
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, {file: text.replace(*put)}, stated)
    assert f"{wrong} is not an option of" in str(raised.value)
    assert meant is None or f"did you mean {meant}?" in str(raised.value)


SCRIPTS = {
    "deepspeed": {"launch.sh": TRAINER.replace(" > log.txt 2>&1\n", ""), "ds_config.json": AUTO},
    "accelerate": {"launch.sh": ACCELERATED.rstrip(), "accelerate.yaml": FSDP},
    "accelerate with DeepSpeed": {
        "launch.sh": ACCELERATED.rstrip(),
        "accelerate.yaml": DEEPSPEED_BY_ACCELERATE,
    },
}


def told_of(script: str, more: str, folder: Path) -> set[str]:
    """The options of a script that are told, beside those that are told without them."""
    files = SCRIPTS[script]
    stated = Stated(model="llama3-8b")
    without = {note.what for note in read_in(folder, files, stated).not_modelled}
    changed = {**files, "launch.sh": f"{files['launch.sh']} {more}"}
    return {note.what for note in read_in(folder, changed, stated).not_modelled} - without


NOTHING: set[str] = set()


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--lora_enable True --lora_r 128 --lora_alpha 256", {"--lora_enable"}),
        ("--use_peft --load_in_4bit", {"--use_peft", "--load_in_4bit"}),
        ("--finetuning_type lora", {"--finetuning_type"}),
        ("--tune_mm_mlp_adapter True", {"--tune_mm_mlp_adapter"}),
        ("--freeze-backbone true --bits 4", {"--freeze-backbone", "--bits"}),
        ("--torch_compile True --use_liger_kernel", {"--torch_compile", "--use_liger_kernel"}),
        ("--lora_enable False --lora_r 128 --bits 16 --freeze_backbone False", NOTHING),
        ("--optim adamw_torch_fused --torch_compile no --output_dir ./lora", NOTHING),
        ("--pretrain_mm_mlp_adapter ./checkpoints/projector.bin", NOTHING),
        ("--learning_rate 2e-5 --save_strategy steps --adam_beta1 0.9", NOTHING),
    ],
)
def test_options_of_a_script_that_bear_on_memory_are_told(
    script: str, more: str, told: set[str], tmp_path: Path
) -> None:
    assert told_of(script, more, tmp_path) == told


def test_an_optimizer_of_a_script_is_told_where_no_file_has_another(tmp_path: Path) -> None:
    """DeepSpeed makes the optimizer that its file states, whatever the Trainer is told."""
    for optimizer in ("paged_adamw_8bit", "adafactor"):
        more = f"--optim {optimizer}"
        assert told_of("accelerate", more, tmp_path) == {"--optim"}
        assert told_of("deepspeed", more, tmp_path) == set()


def test_all_that_is_not_understood_is_told_at_once(tmp_path: Path) -> None:
    """With what is near to each, and words that leave all of it out."""
    more = ("--greet-the-operator", "--tensor-model-paralel-size", "--wave-to-the-crowd")
    files = {"launch.sh": f"{GPT} {' '.join(more)}"}
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, files, Stated())
    line = str(raised.value)
    assert f"{', '.join(more)} are not options of megatron" in line
    assert "did you mean --tensor-model-parallel-size for --tensor-model-paralel-size?" in line
    ignored = tuple(re.findall("--ignore=([a-z-]+)", line))
    assert {
        note.what for note in read_in(tmp_path, files, Stated(ignored=ignored)).not_modelled
    } >= {*more}


def test_of_very_much_that_is_not_understood_some_is_told(tmp_path: Path) -> None:
    more = " ".join(f"--greeting-{number}" for number in range(100))
    with pytest.raises(LaunchError, match=r"--greeting-19 and 80 more are not options"):
        read_in(tmp_path, {"launch.sh": f"{GPT} {more}"}, Stated())


@pytest.mark.parametrize(
    ("script", "removed", "name", "value"),
    [
        (GPT, "--model-parallel-size 8", "tensor-model-parallel-size", "8"),
        (GPT, "--checkpoint-activations", "recompute-granularity", "selective"),
        (GPT, "--batch-size 4", "micro-batch-size", "4"),
        (TITAN.replace('"$@"', ""), "--job.config_file llama3_8b.toml", "config", "llama3_8b"),
    ],
)
def test_what_a_framework_has_no_more_is_refused_with_what_to_state(
    script: str, removed: str, name: str, value: str, tmp_path: Path
) -> None:
    """It stops at it; a note beside the option's default would be about another run."""
    files = {"launch.sh": f"{script.rstrip()} {removed}"}
    option = removed.split(maxsplit=1)[0]
    with pytest.raises(LaunchError, match=f"refuses {option}.*--{name}.*--ignore={option}"):
        read_in(tmp_path, files, Stated())
    reading = read_in(tmp_path, files, Stated(settings={name: value}, ignored=(option,)))
    assert reading.options[f"--{name}"] == value


def test_a_misspelt_word_of_a_recipe_is_told(tmp_path: Path) -> None:
    script = f"{BRIDGE} model.tensor_model_paralel_size=2"
    with pytest.raises(LaunchError, match=r"did you mean model\.tensor_model_parallel_size\?"):
        read_in(tmp_path, {"launch.sh": script}, Stated())
    known = f"{BRIDGE} model.moe_aux_loss_coeff=0.1 model.fp8_margin=1 scheduler.anything=2"
    reading = read_in(tmp_path, {"launch.sh": known}, Stated())
    assert {note.what for note in reading.not_modelled} == {"model.fp8_margin"}


def test_keys_that_do_not_matter_are_no_noise(tmp_path: Path) -> None:
    """Whatever a section of numbers of the optimizer, or of monitors, has; and empty sections."""
    more = """"scheduler": {"type": "WarmupLR", "params": {"any": 1}}, "fp16": {}, "amp": null,
    "optimizer": {"type": "AdamW", "params": {"anything": 1}}, "tensorboard": {"what": "ever"},"""
    files = {"ds_config.json": DEEPSPEED.replace("{", "{" + more, 1)}
    reading = read_in(tmp_path, files, Stated(model="llama3-8b", devices=8, sequence_length=2048))
    assert not reading.not_modelled


@pytest.mark.parametrize(
    ("section", "script", "count"),
    [(None, 8, 8), (None, None, 1), ("auto", 8, 8), (4, None, 4)],
)
def test_accelerate_has_the_script_say_what_its_deepspeed_leaves_open(
    section: int | str | None, script: int | None, count: int, tmp_path: Path
) -> None:
    file = f"gradient_accumulation_steps: {section}, " if section else ""
    option = f" --gradient_accumulation_steps {script}" if script else ""
    files = {
        "launch.sh": ACCELERATED.replace("\n", option),
        "accelerate.yaml": DEEPSPEED_BY_ACCELERATE.replace(
            "gradient_accumulation_steps: 4, ", file
        ),
    }
    assert read_in(tmp_path, files, Stated(model="llama3-8b")).strategy.microbatches == count


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--zero_stage 2", {"zero": 2, "microbatches": 4}),
        ("--gradient_accumulation_steps 8", {"zero": 3, "microbatches": 8}),
        ("--offload-optimizer-device cpu", {"zero": 3, "offload": "optimizer"}),
        ("--mixed_precision no", {"precision": "fp32"}),
        ("--use_deepspeed --num-machines 4", {"devices": 32, "zero": 3}),
    ],
)
def test_options_of_accelerate_go_before_its_file(
    option: str, expected: Mapping[str, Any], tmp_path: Path
) -> None:
    start = "accelerate launch --config_file"
    files = {
        "launch.sh": ACCELERATED.replace(start, f"accelerate launch {option} --config_file"),
        "accelerate.yaml": DEEPSPEED_BY_ACCELERATE,
    }
    facts = read_in(tmp_path, files, Stated(model="llama3-8b")).facts
    assert {name: facts[name] for name in expected} == expected


def test_deepspeed_is_run_by_accelerate_without_a_file(tmp_path: Path) -> None:
    options = "--use_deepspeed --num_processes 8 --mixed_precision bf16 --zero_stage 1"
    script = f"srun --nodes 1 accelerate launch {options} train.py --per_device_train_batch_size 2"
    facts = read_in(tmp_path, {"launch.sh": script}, Stated(model="llama3-8b")).facts
    found = {name: facts[name] for name in ("devices", "zero", "precision", "batch_size")}
    assert found == {"devices": 8, "zero": 1, "precision": "bf16", "batch_size": 16}


def test_options_of_accelerate_fill_what_the_file_of_deepspeed_leaves_to_the_program(
    tmp_path: Path,
) -> None:
    """As accelerate puts them in; what the file states stays."""
    started = "--use_deepspeed --num_processes 8 --deepspeed_config_file ds.json --zero_stage 1"
    options = f"{started} --gradient_accumulation_steps 4"
    files = {
        "launch.sh": f"accelerate launch {options} train.py --per_device_train_batch_size 2",
        "ds.json": AUTO,
    }
    strategy = read_in(tmp_path, files, Stated(model="llama3-8b")).strategy
    assert (strategy.zero, strategy.microbatches) == (3, 4)


@pytest.mark.parametrize("file", [FSDP, DEEPSPEED_BY_ACCELERATE])
@pytest.mark.parametrize(("backend", "told"), [("inductor", 1), ("no", 0), ("NO", 0)])
def test_compilation_by_accelerate_is_told(
    file: str, backend: str, told: int, tmp_path: Path
) -> None:
    for where in ("command", "file"):
        said = f"--dynamo_backend {backend} " if where == "command" else ""
        more = f"dynamo_config: {{dynamo_backend: {backend}}}\n" if where == "file" else ""
        files = {
            "launch.sh": ACCELERATED.replace("launch --config", f"launch {said}--config"),
            "accelerate.yaml": file + more,
        }
        notes = read_in(tmp_path, files, Stated(model="llama3-8b")).not_modelled
        assert [note.what for note in notes].count("dynamo_config.dynamo_backend") == told


def test_the_batch_says_what_a_file_leaves_to_the_program(tmp_path: Path) -> None:
    files = {"accelerate.yaml": DEEPSPEED_BY_ACCELERATE}
    stated = Stated(model="llama3-8b", batch_size=64, sequence_length=2048)
    facts = read_in(tmp_path, files, stated).facts
    assert (facts["micro_batch"], facts["microbatches"]) == (2, 4)


@pytest.mark.parametrize(
    "word", ["$(cat args.txt)", "$(cat some/args.txt)", "$MORE", "${MORE[@]}", "${@:2}"]
)
@pytest.mark.parametrize("before", ["--micro-batch-size 1", "--bf16 True", "--tee 3"])
def test_words_that_may_be_options_are_no_further_value(
    before: str, word: str, tmp_path: Path
) -> None:
    """A value that were stated for the option before would have them disappear."""
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, {"launch.sh": f"{GPT} {before} {word}"}, Stated())
    line = str(raised.value)
    advised = re.findall("--set ([A-Za-z-]+)", line)
    assert advised == (["MORE"] if "MORE" in word else [])
    if advised:
        more = Stated(settings={"MORE": "--tensor-model-parallel-size 2"})
        files = {"launch.sh": f"{GPT} {before} {word.replace('[@]', '')}"}
        assert read_in(tmp_path, files, more).strategy.tp == 2


def test_of_what_a_command_prints_a_value_is_told_to_be_all(tmp_path: Path) -> None:
    files = {"launch.sh": f"{GPT} --bf16 $(cat args.txt)"}
    (note,) = [
        note
        for note in read_in(tmp_path, files, Stated(settings={"bf16": "true"})).not_modelled
        if note.what == "--bf16"
    ]
    assert note.value == "$(cat args.txt)"


def test_values_of_neutral_options_may_be_anything(tmp_path: Path) -> None:
    """Weights and paths of data, which a script gets from elsewhere."""
    files = {"launch.sh": f"{GPT} --data-path 0.5 $ONE 0.5 $(cat two.txt) --bf16"}
    assert read_in(tmp_path, files, Stated()).facts["precision"] == "bf16"


def test_a_file_that_a_script_reads_in_counts_or_is_told(tmp_path: Path) -> None:
    script = f"TP=2\nsource ./sizes.sh\n{GPT} --tensor-model-parallel-size $TP"
    reading = read_in(tmp_path, {"launch.sh": script}, Stated())
    assert [note.value for note in reading.not_modelled if note.what == "source"] == ["./sizes.sh"]
    (tmp_path / "sizes.sh").write_text("TP=8\n")
    reading = read_in(tmp_path, {"launch.sh": script}, Stated())
    assert reading.strategy.tp == 8
    assert "source" not in {note.what for note in reading.not_modelled}
    stated = Stated(settings={"TP": "4"})
    assert read_in(tmp_path, {"launch.sh": script}, stated).strategy.tp == 4


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.yaml", '{"pipe-parallel-size": 1, "zero_optimization": {"stage": 1}}', "GPT-NeoX"),
        ("config.yaml", "base_model: a\nfsdp_config: {fsdp_version: 2}", "axolotl"),
        ("launch.sh", "deepspeed main.py --deepspeed --zero_stage 3", "--deepspeed names no file"),
        ("launch.sh", "deepspeed main.py --deepspeed a.json", "a.json, DeepSpeed's file, is not"),
    ],
)
def test_what_is_not_read_of_others_is_told_for_what_it_is(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match=told):
        read_in(tmp_path, {name: text}, Stated(devices=8, model="llama3-8b"))


@pytest.mark.parametrize(("file", "batch"), [("ds_config.json", 64), ("accelerate.yaml", 128)])
def test_another_batch_says_which_accumulation_goes_with_it(
    file: str, batch: int, tmp_path: Path
) -> None:
    texts = {"ds_config.json": DEEPSPEED.replace("{", '{"gradient_accumulation_steps": 1,', 1)}
    files = {file: texts.get(file, DEEPSPEED_BY_ACCELERATE)}
    stated = Stated(model="llama3-8b", devices=8, batch_size=batch, sequence_length=2048)
    micro = {"train_micro_batch_size_per_gpu": "1"}
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, files, replace(stated, settings=micro))
    advised = dict(re.findall("--set ([a-z_]+)=([0-9]+)", str(raised.value)))
    facts = read_in(tmp_path, files, replace(stated, settings={**micro, **advised})).facts
    assert facts["batch_size"] == batch


def test_a_command_that_a_loop_makes_is_read_with_what_is_stated(tmp_path: Path) -> None:
    script = f"""for C in 2,1 4,2; do
      IFS=, read -r TP PP <<< "$C"
      CMD="{GPT} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
      srun bash -c "$CMD"
    done"""
    with pytest.raises(LaunchError, match=r"\$TP is known only at run time.*--set TP="):
        read_in(tmp_path, {"launch.sh": script}, Stated())
    stated = Stated(settings={"TP": "4", "PP": "2"})
    strategy = read_in(tmp_path, {"launch.sh": script}, stated).strategy
    assert (strategy.tp, strategy.pp) == (4, 2)


def test_a_variable_that_may_be_a_launch_is_asked_for(tmp_path: Path) -> None:
    script = f"if [ $X = 1 ]; then CMD='{GPT}'; fi\nsrun bash -c \"$CMD\""
    with pytest.raises(LaunchError, match=r"'\$CMD' may be the launch.*--set CMD=") as raised:
        read_in(tmp_path, {"launch.sh": script}, Stated())
    assert "it has no options of" not in str(raised.value)
    assert read_in(tmp_path, {"launch.sh": script}, Stated(settings={"CMD": GPT})).strategy.dp == 8


@pytest.mark.parametrize(
    ("script", "option"),
    [
        (f"{GPT} --recompute-granularity selective", "--recompute-modules"),
        (f"{BRIDGE} model.recompute_granularity=selective", "model.recompute_modules"),
    ],
)
@pytest.mark.parametrize(
    ("modules", "more"),
    [(["layernorm"], None), (["core_attn"], ""), (["layernorm", "mlp"], "mlp"), (["mlp"], "mlp")],
)
def test_recomputation_of_more_than_is_simulated_needs_less_memory(
    script: str, option: str, modules: list[str], more: str | None, tmp_path: Path
) -> None:
    """Attention is one kernel, which keeps nothing that could be computed again."""
    plain = f"{option} {' '.join(modules)}"
    said = plain if option.startswith("-") else f"{option}=[{','.join(modules)}]"
    reading = read_in(tmp_path, {"launch.sh": f"{script} {said}"}, Stated())
    reasons = [note.reason for note in reading.not_modelled if note.what == option]
    assert len(reasons) == (more is not None)
    for reason in reasons:
        assert (f"but not {more}, so less memory" in reason) == bool(more)


TP = "--tensor-model-parallel-size"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            f"{GPT} {TP} 2\n{GPT} {TP} 4",
            f"2 commands could be read: 'pretrain_gpt.py {TP} 2', 'pretrain_gpt.py {TP} 4'; ",
        ),
        (
            f"{GPT}\n{GPT} --bf16",
            "'pretrain_gpt.py', 'pretrain_gpt.py --bf16'; expected a single one",
        ),
        (f'sh -c "{GPT} --bf16"\nsh -c "{GPT} --fp16"', "'pretrain_gpt.py --fp16'"),
        (f"{TITAN}\n{TITAN.replace('3_8b', '3_70b')}", "'torchtitan.train --config llama3_8b'"),
        ("\n".join(f"{GPT} {TP} {tp}" for tp in (1, 2, 4, 8)), f"'pretrain_gpt.py {TP} 4', 1 more"),
    ],
)
def test_several_launches_in_a_script_are_named(script: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, {"launch.sh": script}, Stated())
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "script",
    [
        f"{GPT} --bf16\n{GPT} --bf16",
        f"{GPT} --bf16 --train-iters 10 --save a\n{GPT} --bf16 --train-iters 20 --load a",
        f"python convert.py --tensor-model-parallel-size 8\n{GPT} --bf16",
        f"{GPT} --bf16\npython convert.py --tensor-model-parallel-size 8",
    ],
)
def test_a_launch_that_comes_again_or_beside_other_programs_is_one(
    script: str, tmp_path: Path
) -> None:
    facts = read_in(tmp_path, {"launch.sh": script}, Stated()).facts
    assert (facts["dp"], facts["precision"]) == (8, "bf16")


@pytest.mark.parametrize("names", [("megatron", "deepspeed"), ("torchtitan", "megatron")])
def test_launches_of_two_frameworks_are_told_and_one_is_stated(
    names: tuple[str, str], tmp_path: Path
) -> None:
    commands = {"megatron": GPT, "deepspeed": TRAINER, "torchtitan": TITAN}
    script = "\n".join(commands[name] for name in names)
    files = {"launch.sh": script, "ds_config.json": AUTO}
    with pytest.raises(LaunchError) as raised:
        read_in(tmp_path, files, Stated())
    assert "it launches several frameworks" in str(raised.value)
    assert all(name in str(raised.value) for name in names)
    for name in names:
        stated = Stated(target=name, model=None if name == "megatron" else "llama3-8b")
        assert read_in(tmp_path, files, stated).target.name == name


def test_a_command_that_two_frameworks_know_is_one_launch(tmp_path: Path) -> None:
    """DeepSpeed's launcher starts Megatron-LM, with a file that is not beside it, too."""
    script = f"{GPT} --bf16 --deepspeed --deepspeed_config elsewhere.json"
    stated = Stated(ignored=("--deepspeed", "--deepspeed_config"))
    assert read_in(tmp_path, {"launch.sh": script}, stated).target.name == "megatron"


@pytest.mark.parametrize(
    ("between", "told"),
    [
        ("", "after the end of pretrain_gpt.py"),
        (" \\\n  # --fp16 \\", "after the end of pretrain_gpt.py"),
        (" \\ ", "a blank follows the \\ at the end of the line"),
    ],
)
@pytest.mark.parametrize("option", ["--bf16", "--tensor-model-parallel-size 2"])
def test_options_behind_the_end_of_a_command_are_told(
    between: str, told: str, option: str, tmp_path: Path
) -> None:
    """The shell ends the command at a line without a backslash, blanks behind it, and a comment."""
    with pytest.raises(LaunchError, match=re.escape(told)):
        read_in(tmp_path, {"launch.sh": f"{GPT}{between}\n  {option}\n"}, Stated())
    whole = read_in(tmp_path, {"launch.sh": f"{GPT} \\\n  {option}\n"}, Stated())
    assert whole.target.name == "megatron"
