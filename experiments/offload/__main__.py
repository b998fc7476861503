"""Published figures of offloading to hosts, beside what is simulated.

    python -m experiments.offload

Sources: J. Ren et al., ZeRO-Offload (USENIX ATC 2021, arXiv 2101.06840), abstract, for the figures;
DeepSpeed's tutorial on ZeRO-Offload (docs/_tutorials/zero-offload.md) for the sizes of the model of
10 billion parameters: 50 layers, width 4,096, 32 heads, 10 samples of 1,024 tokens on one V100 with
32 GB, with checkpoints. poolside, "C2C activation offloading on Grace Blackwell" (2026,
poolside.ai/blog/tools-of-the-trade-c2c-activation-offloading-on-grace-blackwell), summary, for
activations.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack
from distir.simulation.result import SimulationResult

CLUSTER, STACK, TOKENS, HEAD = "dgx2-v100", "deepspeed", 1024, 128
CHECKPOINTED = Strategy(recompute="full")
MOST_LAYERS = 1024


@cache
def workload(layers: int, width: int, batch_size: int) -> Workload:
    """A GPT-2 of this size, in fp16."""
    sizes = {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": width,
        "n_head": width // HEAD,
        "n_positions": TOKENS,
        "vocab_size": 50257,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(sizes), encoding="utf-8")
        model = load_model(str(path))
    return Workload(model=model, batch_size=batch_size, sequence_length=TOKENS, precision="fp16")


def simulated(layers: int, width: int, batch_size: int, strategy: Strategy) -> SimulationResult:
    """The model on DGX-2."""
    cluster = load_cluster(CLUSTER, strategy.devices)
    own = workload(layers, width, batch_size)
    return Simulator(own, cluster, load_stack(STACK)).simulate(strategy)


def billions(layers: int, width: int) -> float:
    """Parameters of layers of this width and of a table of 50,257 words."""
    return (12 * layers * width**2 + 50257 * width) / 1e9


def deepest(width: int, strategy: Strategy) -> int:
    """The most layers of this width with which a batch of one sample per replica fits, found by
    bisection; 0 if one layer does not."""
    fits, does_not = 0, MOST_LAYERS
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        feasible = simulated(middle, width, strategy.dp, strategy).feasible
        fits, does_not = (middle, does_not) if feasible else (fits, middle)
    return fits


def rows() -> Iterator[tuple[str, str, str]]:
    """What is asked, what was published, and what is simulated."""
    for offload, published in (("", "does not fit"), ("optimizer", "40 TFLOP/s")):
        result = simulated(50, 4096, 10, replace(CHECKPOINTED, offload=offload))
        rate = result.metrics["model_tflops_per_device"]
        found = f"{rate:.1f} TFLOP/s" if result.feasible else "does not fit"
        name = f"10 billion on one V100, offload {offload or 'none'}"
        yield name, published, found
    for name, width, strategy, published in (
        ("most on one V100, nothing offloaded", 2048, CHECKPOINTED, "1.4 billion"),
        (
            "most on one V100, optimizer offloaded",
            4096,
            replace(CHECKPOINTED, offload="optimizer"),
            "13 billion",
        ),
        (
            "most on one DGX-2, model parallel, optimizer offloaded",
            8192,
            replace(CHECKPOINTED, tp=16, offload="optimizer"),
            "70 billion",
        ),
        (
            "most on one V100, optimizer and parameters offloaded",
            8192,
            replace(CHECKPOINTED, offload="optimizer,parameters"),
            "not found",
        ),
    ):
        layers = deepest(width, strategy)
        yield name, published, f"{billions(layers, width):.1f} billion ({layers} × {width:,})"


def gains() -> Iterator[tuple[str, str, str]]:
    """What offloading activations gains over computing them again (recompute full), of
    Qwen3-30B-A3B on GB200."""
    for tokens in (4096, 8192):
        own = Workload(model=load_model("qwen3-30b-a3b"), batch_size=32, sequence_length=tokens)
        simulator = Simulator(own, load_cluster("gb200-nvl72", 8))
        plan = Strategy(dp=8, ep=8, zero=1, microbatches=4)
        again = simulator.simulate(replace(plan, recompute="full")).metrics
        for recompute in ("none", "selective"):
            chosen = replace(plan, recompute=recompute, offload="activations")
            found = simulator.simulate(chosen).metrics
            gain = again["iteration_seconds"] / found["iteration_seconds"] - 1
            more = found["peak_memory_bytes"] / again["peak_memory_bytes"] - 1
            yield (
                f"activations offloaded, recompute {recompute}, sequences of {tokens:,}",
                "+6 to 13 % throughput, +0.5 % memory",
                f"{100 * gain:+.0f} % throughput, {100 * more:+.1f} % memory",
            )


def main() -> None:
    """Prints the table."""
    print("| what | published | simulated |\n| --- | --- | --- |")
    for row in (*rows(), *gains()):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
