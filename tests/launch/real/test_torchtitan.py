"""torchtitan's own parser reads what is written, and torch's checker runs the schedules."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autotune.launch import TARGETS
from autotune.launch.facts import Facts, Launch
from autotune.launch.scripts import option_lines
from autotune.launch.targets.torchtitan import RECOMPUTE
from autotune.launch.torch_schedule import schedule_of
from tests.launch.real.examples import COUNT
from tests.launch.strategies import random_launches, written

pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = ("llama3-8b", "llama3-70b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v2-lite")


@pytest.fixture(scope="module")
def manager() -> Any:
    return pytest.importorskip("torchtitan.config.manager", reason="needs torchtitan")


def words(options: Any) -> list[str]:
    rest = {name: given for name, given in options.items() if name != RECOMPUTE}
    said = [word for line in option_lines(rest) for word in line]
    return [*said, f"{RECOMPUTE}:{options[RECOMPUTE]}"]


def expected(facts: Facts) -> dict[str, Any]:
    """The parser's values, by its names, for what a launch states."""
    shard = facts["zero_degree"] or facts["dp"] if facts["zero"] else 1
    local = facts["micro_batch"] * (facts["microbatches"] if facts["pp"] > 1 else 1)
    return {
        "parallelism.tensor_parallel_degree": facts["tp"],
        "parallelism.pipeline_parallel_degree": facts["pp"],
        "parallelism.context_parallel_degree": facts["cp"],
        "parallelism.expert_parallel_degree": facts["ep"],
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.data_parallel_replicate_degree": facts["dp"] // shard,
        "training.local_batch_size": local,
        "training.global_batch_size": facts["batch_size"],
        "training.seq_len": facts["sequence_length"],
        "training.mixed_precision_param": "bfloat16",
    }


def value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def test_torchtitan_parses_the_strategy(manager: Any) -> None:
    schedules: Any = import_module("torch.distributed.pipelining.schedules")
    distributed: Any = import_module("torchtitan.distributed")
    target = TARGETS.get("torchtitan")
    for launch in random_launches(target, MODELS, COUNT):
        facts, label = launch.facts, launch.strategy.label
        config = manager.ConfigManager().parse_args(words(target.table.write(facts)))
        values = {name: value(config, name) for name in expected(facts)}
        assert values == expected(facts), label
        dims = distributed.ParallelDims.from_config(config.parallelism, launch.strategy.devices)
        assert (dims.dp_replicate * dims.dp_shard, dims.tp) == (facts["dp"], facts["tp"])
        policy = type(config.activation_checkpoint).__qualname__
        policies = {"full": "FullAC.Config", "alternate": "SelectiveAC.Config"}
        if facts["recompute"] == "none":
            assert policy not in policies.values(), label
        else:
            assert policy == policies[facts["recompute"]], label
        if facts["tp"] > 1:
            assert config.parallelism.enable_sequence_parallel == facts["sequence_parallel"]
        if facts["zero"]:
            kept = {"parameters": "never", "none": "always"}[facts["keep_gathered"]]
            assert config.parallelism.fsdp_reshard_after_forward == kept
        if facts["pp"] > 1:
            assert schedules.get_schedule_class(config.parallelism.pipeline_parallel_schedule)
            parts = config.parallelism.module_fqns_per_model_part
            layers = [sum(name.startswith("layers.") for name in part) for part in parts]
            assert tuple(layers) == facts["cuts"].layers


def test_torch_runs_every_schedule_that_is_handed_over(tmp_path: Path) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="needs torch")
    target = TARGETS.get("torchtitan")
    handed = 0
    for launch in random_launches(target, ("llama3-8b",), COUNT):
        if launch.strategy.pp == 1:
            continue
        written(target, launch, tmp_path)
        for file in tmp_path.glob("*.csv"):
            rows = file.read_text().splitlines()
            file.unlink()
            check_by_torch(schedules, rows, launch)
            handed += 1
    assert handed


def check_by_torch(schedules: Any, rows: list[str], launch: Launch) -> None:
    """Torch's own checks, which add what is sent and received and run it."""
    made = schedule_of(launch.strategy)
    actions = {
        rank: [schedules._Action.from_str(token) for token in row.split(",")]
        for rank, row in enumerate(rows)
    }
    rank_of = {s: rank for rank, stages in enumerate(made.stages_of_ranks) for s in stages}
    schedules._validate_schedule(actions, len(rows), made.stages, launch.strategy.microbatches)
    sent = schedules._add_send_recv(actions, rank_of.__getitem__, made.stages)
    # Torch's dry run knows no overlapped pairs, whose passes its runtime takes one after the other.
    sent = {
        rank: [each for action in row for each in action.sub_actions or (action,)]
        for rank, row in sent.items()
    }
    schedules._simulate_comms_compute(sent, rank_of.__getitem__, made.stages)
