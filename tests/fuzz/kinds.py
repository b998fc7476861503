"""What is damaged: per kind of input the originals, how they are damaged, and who takes them.

A kind is a function that makes a *trial*: a function from a source of randomness to what is to be
called. The call may raise the errors of distir; whatever else it raises, and what it takes too
long or too much memory for, is a defect.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model, load_stack
from distir.cost import loader
from distir.errors import StrategyError
from distir.importers.load import load_source
from distir.importers.onnx import read_onnx
from distir.limits import LONGEST_SECONDS, MOST_BYTES
from distir.plan_text import load_plan, save_plan
from distir.schedules import find_schedule
from distir.simulation import SimulationResult
from distir.strategies import Strategies
from search_spaces import distribution_space
from tests.conftest import shared_path
from tests.fuzz.onnx_mutation import mutate
from tests.fuzz.text_mutation import NUMBERS, SMALL, WORDS, mutated_bytes, mutated_text
from tests.importers.models import every_small_model

Call = Callable[[], object]
Trial = Callable[[random.Random], Call]

KINDS: dict[str, Callable[[Path], Trial]] = {}
"""By name, a function from an empty folder to the trial."""


def _kind(make: Callable[[Path], Trial]) -> Callable[[Path], Trial]:
    KINDS[make.__name__.replace("_", "-")] = make
    return make


def _file_trial(file: Path, originals: Sequence[str], use: Callable[[Path], object]) -> Trial:
    """A trial that damages one of the originals, writes it to `file` and uses that."""

    def trial(rng: random.Random) -> Call:
        file.write_bytes(mutated_text(rng.choice(originals), rng))
        return lambda: use(file)

    return trial


def check_sound(result: SimulationResult) -> None:
    """Fails if a result has a number that no machine can have."""
    assert all(map(math.isfinite, result.metrics.values())), result.metrics
    assert result.metrics["iteration_seconds"] <= LONGEST_SECONDS
    assert result.metrics["peak_memory_bytes"] <= MOST_BYTES
    for stage in result.stages:
        assert all(map(math.isfinite, (*stage.seconds.values(), *stage.memory.values())))


# --- models ---------------------------------------------------------------------------------------


@cache
def _models() -> list[bytes]:
    originals = [model.SerializeToString() for model in every_small_model().values()]
    for name in ("gpt2", "llama-8layer", "mlp16"):
        with contextlib.suppress(pytest.skip.Exception):
            originals.append(shared_path(f"models/{name}.onnx").read_bytes())
    return originals


@_kind
def onnx_structure(_folder: Path) -> Trial:
    """Graphs of ONNX files."""

    def trial(rng: random.Random) -> Call:
        model = onnx.load_from_string(rng.choice(_models()))
        mutate(model, rng)
        return lambda: read_onnx(model)

    return trial


@_kind
def onnx_bytes(folder: Path) -> Trial:
    """Bytes of ONNX files."""
    file = folder / "model.onnx"

    def trial(rng: random.Random) -> Call:
        file.write_bytes(mutated_bytes(rng.choice(_models()), rng))
        return lambda: load_source(file)

    return trial


_LAYERS = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
_LLAMA = {
    **_LAYERS,
    "model_type": "llama",
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "head_dim": 16,
}
CONFIGS: tuple[Mapping[str, Any], ...] = (
    _LLAMA,
    {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "n_inner": 128,
        "vocab_size": 100,
        "n_positions": 64,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.0,
        "activation_function": "gelu_new",
    },
    {
        **_LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    {
        **_LLAMA,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    {
        **_LAYERS,
        "model_type": "gpt_neox",
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
    },
    {**_LAYERS, "model_type": "opt", "ffn_dim": 128, "max_position_embeddings": 64},
    {
        **_LAYERS,
        "model_type": "bert",
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
    },
)

PLANS = (
    Strategy(dp=2),
    Strategy(tp=2),
    Strategy(pp=2, microbatches=2),
    Strategy(dp=2, tp=2, zero=1, recompute="full"),
)


@_kind
def config(folder: Path) -> Trial:
    """Hugging Face's `config.json`, and a plan for the model that it describes."""
    originals = [json.dumps(each, indent=1) for each in CONFIGS]
    cluster = load_cluster("dgx-a100", 8)

    def use(file: Path, strategy: Strategy, mode: Any) -> None:
        workload = Workload(model=load_source(file), batch_size=16, mode=mode)
        check_sound(Simulator(workload, cluster).simulate(strategy))

    def trial(rng: random.Random) -> Call:
        file = folder / "config.json"
        file.write_bytes(mutated_text(rng.choice(originals), rng))
        strategy, mode = rng.choice(PLANS), rng.choice(("training", "inference"))
        return lambda: use(file, strategy, mode)

    return trial


# --- hardware and software ------------------------------------------------------------------------


@cache
def _workload() -> Workload:
    return Workload(model=load_model("mlp-4x64"), batch_size=16)


def _both_engines(simulator: Simulator) -> None:
    """Simulates two plans, one by one and at once."""
    plans = PLANS[2:]
    table = simulator.simulate_many(Strategies.of(plans))
    for at, strategy in enumerate(plans):
        with contextlib.suppress(StrategyError):
            result = simulator.simulate(strategy)
            assert at not in table.invalid, table.invalid
            check_sound(result)
            assert result.feasible == table.feasible[at]
            continue
        assert at in table.invalid, strategy


HERE = Path(loader.__file__).parent


def _shipped(folder: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((HERE / folder).glob("*.toml"))]


WHOLE_CLUSTER = """
name = "lab"
devices = 8
devices_per_node = 4

[device]
name = "A100"
memory = "80 GiB"
memory_bandwidth = "2039 GB/s"
peak = { fp32 = "19.5 TFLOP/s", bf16 = "312 TFLOP/s" }
sustained_fraction = 0.9
rate_spread = 0.15
platform = "cuda"

[[levels]]
name = "NVLink"
size = 4
bandwidth = ["300 GB/s", "250 GB/s"]
pair_bandwidth = "50 GB/s"
latency = "3.4 us"

[[levels]]
name = "Ethernet"
bandwidth = "25 Gbit/s"
latency = "14 us"
medium = "network"
"""


@_kind
def cluster(folder: Path) -> Trial:
    """Clusters with their devices."""
    originals = [WHOLE_CLUSTER] * 8 + _shipped("clusters")

    def use(file: Path) -> None:
        _both_engines(Simulator(_workload(), load_cluster(file, 8)))
        load_cluster(file)

    return _file_trial(folder / "cluster.toml", originals, use)


@_kind
def device(folder: Path) -> Trial:
    """Devices by themselves."""

    def use(file: Path) -> None:
        _both_engines(Simulator(_workload(), load_cluster("dgx-a100", 8, file)))

    return _file_trial(folder / "device.toml", _shipped("devices"), use)


@_kind
def stack(folder: Path) -> Trial:
    """Software stacks."""
    constants = (HERE / "constants.toml").read_text(encoding="utf-8").partition("[sources]")[0]
    whole = (
        f'name = "lab"\ndispatch = "eager"\noverlaps_messages = "always"\n[constants]\n{constants}'
    )
    originals = [whole] * 6 + _shipped("stacks")
    cluster = load_cluster("dgx-a100", 8)

    def use(file: Path) -> None:
        _both_engines(Simulator(_workload(), cluster, load_stack(file)))

    return _file_trial(folder / "stack.toml", originals, use)


# --- what is searched, and what is planned --------------------------------------------------------

SPACES = (
    "extends: standard\ntp: [1, 2, 4]\nzero: [0, 1]\nschedule: [1f1b, interleaved]\nchunks: all\n",
    'extends: small\ndp: 2\nmicrobatches: [1, 2, 4]\nrecompute: none\naxes: ["", "tp=ffn"]\n',
    "extends: full\npp: [1, 2]\ncp_exchange: [gather, ring]\nkeep_gathered: all\n",
    "schedule: 1f1b\nplacement: [tp-cp-ep-dp-pp, dp-tp-cp-ep-pp]\nsequence_parallel: true\n",
)


@_kind
def space(folder: Path) -> Trial:
    """Search spaces in YAML, counted and sampled."""
    workload = Workload(model=load_model("mlp-4x64"), batch_size=16)

    def use(file: Path) -> None:
        space = distribution_space(workload, 8, file)
        if space.count():
            space.samples(random.Random(0), 3)

    return _file_trial(folder / "space.yaml", SPACES, use)


SCHEDULES = (
    "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n",
    "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1\n",
    "0F0 0F1 0B0 0W0 0B1 0W1\n1F0 1B0 1W0 1F1 1B1 1W1\n",
)


@_kind
def schedule(folder: Path) -> Trial:
    """Pipeline schedules in a file, used by a plan."""
    simulator = Simulator(_workload(), load_cluster("dgx-a100", 8))

    def use(file: Path) -> None:
        family = find_schedule(str(file))
        for chunks in (1, 2):
            strategy = Strategy(pp=2, microbatches=2, schedule=family.name, chunks=chunks)
            with contextlib.suppress(ValueError):
                check_sound(simulator.simulate(strategy))

    return _file_trial(folder / "schedule.txt", SCHEDULES, use)


@_kind
def plan(folder: Path) -> Trial:
    """Saved plans. What is read is planned again and must be equal, so that hardly any change is
    an answer: some are read as they are."""
    simulator = Simulator(_workload(), load_cluster("dgx-a100", 8))
    originals: list[str] = []
    for number, strategy in enumerate(PLANS[:3]):
        save_plan(simulator.plan(strategy), folder / f"{number}.plan")
        originals.append((folder / f"{number}.plan").read_text(encoding="utf-8"))
    damaged = _file_trial(folder / "damaged.plan", originals, load_plan)

    def trial(rng: random.Random) -> Call:
        whole = folder / f"{rng.randrange(len(originals))}.plan"
        return damaged(rng) if rng.random() < 0.9 else lambda: load_plan(whole)

    return trial


_RUNS = """\
id,source_group,hardware,gpus_per_node,num_gpus,model,num_layers,hidden,heads,kv_heads,ffn_hidden,\
vocab,num_experts,moe_topk,gated_mlp,seq_len,global_batch,micro_batch,dp,tp,pp,vpp,cp,ep,\
sequence_parallel,zero_stage,recompute,schedule,precision,optimizer,iteration_time_s,peak_memory_gb
1,a,A100,8,8,tiny,2,64,4,4,128,1000,,,yes,64,16,2,8,1,1,,1,1,,,,,BF16,adam,0.1,3
2,a,A100,8,8,tiny,2,64,4,4,128,1000,,,yes,64,16,2,2,2,2,,1,1,no,1,full,1f1b,BF16,adam,0.2,
3,b,H100,8,16,mix,2,64,4,2,128,1000,4,2,yes,64,32,2,16,1,1,,1,4,,,,,BF16,,0.2,
"""


@_kind
def csv(folder: Path) -> Trial:
    """Tables of measured runs, predicted."""
    from autotune.validation import Case, make_case, make_report, predict, read_rows

    def use(file: Path) -> None:
        made = [make_case(row) for row in read_rows(file)]
        outcomes, refused = predict([each for each in made if isinstance(each, Case)])
        make_report(outcomes, refused).to_dict()

    return _file_trial(folder / "runs.csv", [_RUNS], use)


# --- launch files ---------------------------------------------------------------------------------

_LAUNCHED = (
    Strategy(dp=2, tp=2, pp=2, microbatches=4, zero=1, sequence_parallel=True),
    Strategy(dp=4, pp=2, microbatches=4, schedule="interleaved", chunks=2, recompute="full"),
    Strategy(dp=8, zero=3, recompute="full", microbatches=2),
    Strategy(dp=4, tp=2, microbatches=2),
)
_CORPUS = """\
MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 64
  --num-attention-heads: 4
  --seq-length: 64
  --max-position-embeddings: 64
  --vocab-size: 100
  --micro-batch-size: 2
  --global-batch-size: 16
  --recompute-granularity: full
  --recompute-method: block
  --recompute-num-layers: 1
  --bf16: true
"""
_OLD_TORCHTITAN = """\
[training]
seq_len = 64
[parallelism]
tensor_parallel_degree = 2
"""


@cache
def _launches(file: Path) -> list[Mapping[str, str]]:
    """Files of launches, by their names: of every framework, for a model that takes little time,
    whose description is written to `file`."""
    from autotune.launch import TARGETS
    from autotune.launch.facts import launch_of
    from autotune.launch.targets.torchtitan import TORCHTITAN
    from autotune.problem import load_problem
    from distir.rules import explain

    beside = {"config.json": json.dumps({**_LLAMA, "num_hidden_layers": 4})}
    file.write_text(beside["config.json"])
    found: list[Mapping[str, str]] = [
        {"model_config.yaml": _CORPUS},
        {"launch.sh": _OLD_TORCHTITAN},
    ]
    for entry in TARGETS:
        target = entry.value
        model = "qwen3-0.6b" if target is TORCHTITAN else str(file)
        problem = load_problem(model, devices=8, batch_size=32, sequence_length=64, **target.usual)
        for strategy in _LAUNCHED:
            if explain((*problem.space.rules, *target.rules(problem.workload)), strategy) is None:
                simulator: Any = problem.simulator
                launch = launch_of(problem, strategy, simulator.plan(strategy))
                files = target.write(launch, target.table.write(launch.facts)).files
                found.append(files if target.states_model else {**files, **beside})
    return found


@_kind
def launch_files(folder: Path) -> Trial:
    """Scripts and files of options, one of which is damaged; read and simulated."""
    from autotune.cli import main

    launches = _launches(folder / "config.json")

    def trial(rng: random.Random) -> Call:
        files, inside = rng.choice(launches), folder / "launch"
        inside.mkdir(exist_ok=True)
        for old in inside.iterdir():
            old.unlink()
        for name, text in files.items():
            (inside / name).write_text(text, encoding="utf-8")
        name = rng.choice(sorted(set(files) - {"README.md"}))
        (inside / name).write_bytes(mutated_text(files[name], rng))
        argv = ["read", str(inside), "--trials", "0", "--json", "-"]
        devices = ["--devices", "8"] if rng.random() < 0.9 else []
        return lambda: _ended(main, [*argv, *devices])

    return trial


# --- the command line -----------------------------------------------------------------------------

COMMANDS = (
    "simulate --model mlp-4x64 --dp 2 --tp 2 --pp 2 --microbatches 2 --schedule 1f1b --json -",
    "simulate --model model --cluster cluster.toml --dp 2 --zero 3 --recompute full",
    "simulate --model mlp-4x64 --batch-size 16 --precision bf16 --optimizer adam --trace t.json",
    "simulate --model model --mode inference --sequence-length 32 --device a100-sxm4-80gb --cp 2",
    "simulate --model mlp-4x64 --tp 2 --axes tp=ffn --placement tp-cp-ep-dp-pp --loss mse",
    "grid --model mlp-4x64 --devices 4 --space space.yaml --top 3 --table t.csv --json -",
    "grid --model mlp-4x64 --devices 4 --objective memory --direction minimize --certified",
    "run --model mlp-4x64 --devices 2 --trials 3 --sampler random --seed 1 --space small",
    "verify --model mlp-2x8 --dp 2 --tp 2 --microbatches 2 --seed 3",
    "validate runs.csv --stack megatron --worst 3 --source a --json -",
    "models --json -",
    "schedules",
)
_MODEL = (
    "--model --cluster --device --stack --attention --imbalance --devices --batch-size --mode"
    " --sequence-length --precision --gradient-precision --optimizer --loss --output"
)
_PLAN = (
    " --dp --tp --pp --cp --ep --microbatches --schedule --chunks --zero --recompute"
    " --recompute-every --recompute-layers --keep-gathered --zero-degree --cp-exchange --axes"
    " --placement --expert-order --etp"
)
_SEARCH = " --objective --metric --direction --space"
OPTIONS: Mapping[str, Sequence[str]] = {
    "simulate": (_MODEL + _PLAN + " --trace").split(),
    "verify": (_MODEL + _PLAN + " --seed").split(),
    "grid": (_MODEL + _SEARCH + " --top --table").split(),
    "run": (_MODEL + _SEARCH + " --sampler --seed").split(),
    "validate": ["--source", "--stack", "--worst", "--plot"],
    "models": ["--json"],
    "schedules": ["--json"],
}
"""What may be added to a command."""


@_kind
def command_line(folder: Path) -> Trial:
    """Arguments of commands; no command of these works for long if it is as it was meant."""
    from autotune.cli import main

    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIGS[0]))
    (folder / "cluster.toml").write_text(WHOLE_CLUSTER)
    (folder / "space.yaml").write_text(SPACES[1])
    (folder / "runs.csv").write_text(_RUNS)

    def trial(rng: random.Random) -> Call:
        argv = _mutated_arguments(rng.choice(COMMANDS).split(), rng)
        return lambda: _ended(main, argv)

    return trial


def _mutated_arguments(argv: Sequence[str], rng: random.Random) -> list[str]:
    """The arguments with one or two of them changed. What says how much to do stays."""
    argv = list(argv)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(1, len(argv) + 1)
        others = WORDS if argv[0] == "verify" else (*NUMBERS, *WORDS)  # it executes what it is told
        value = rng.choice(SMALL[:4] if rng.random() < 0.5 else others)
        values = [at for at in range(2, len(argv)) if argv[at - 1].startswith("--")]
        values = [at for at in values if argv[at - 1] not in ("--trials", "--json")]
        kind = rng.random()
        if kind < 0.6 and values:
            at = rng.choice(values)
            argv[at] = value if rng.random() < 0.8 else rng.choice(argv)
        elif kind < 0.7 and place < len(argv):
            del argv[place]
        elif kind < 0.85:
            argv.append(f"{rng.choice(OPTIONS[argv[0]])}={value}")
        else:
            argv += [rng.choice(OPTIONS[argv[0]]), value]
    if argv[0] == "run":
        argv.append("--no-tracking")
    return argv


class RefusedError(ValueError):
    """A command line has ended with an error: its message."""


def _ended(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> None:
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            status = main(argv)
        except SystemExit as ended:
            status = ended.code
    assert status in (0, 1, 2), (argv, status)
    if status == 0 and argv[0] == "simulate" and "-" in argv and out.getvalue():
        _check_numbers(json.loads(out.getvalue()))
    if status == 2:
        raise RefusedError(said.getvalue())


def _check_numbers(result: Mapping[str, Any]) -> None:
    assert None not in result["metrics"].values(), result["metrics"]
