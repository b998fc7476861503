"""Published figures of offloading to hosts, beside what is simulated.

    python -m experiments.offload

Sources: J. Ren et al., ZeRO-Offload (USENIX ATC 2021, arXiv 2101.06840), abstract, for the figures;
DeepSpeed's tutorial on ZeRO-Offload (docs/_tutorials/zero-offload.md) for the sizes of the model of
10 billion parameters: 50 layers, width 4,096, 32 heads, 10 samples of 1,024 tokens on one V100 with
32 GB, with checkpoints. DeepSpeed, "DeepSpeed ZeRO-3 Offload" (8 March 2021,
deepspeed.ai/news/2021/03/07/zero3-offload.html; docs/_posts/2021-03-08-zero3-offload.md), for what
parameters on the host add: V100 with 32 GB, hosts of 1.5 TB. It does not state layers, widths or
batches, so that several are tried. poolside, "C2C activation offloading on Grace Blackwell" (2026,
poolside.ai/blog/tools-of-the-trade-c2c-activation-offloading-on-grace-blackwell), summary, for
activations.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack
from distir.simulation.result import SimulationResult

CLUSTER, STACK, TOKENS, HEAD = "dgx2-v100", "deepspeed", 1024, 128
CHECKPOINTED = Strategy(recompute="full")
STATES = "optimizer,parameters"
"""What ZeRO-3 Offload keeps on hosts."""
WITH_CHECKPOINTS = f"{STATES},activations"
"""The same and, as all else is computed again, checkpoints."""
MOST_LAYERS, MOST_SAMPLES = 1024, 128
"""Layers, and samples per replica, that are not tried any more."""


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


def largest(fits: Callable[[int], bool], too_many: int) -> int:
    """The largest number below `too_many` that fits, found by bisection; 0 if 1 does not."""
    found, does_not = 0, too_many
    while does_not - found > 1:
        middle = (found + does_not) // 2
        found, does_not = (middle, does_not) if fits(middle) else (found, middle)
    return found


def deepest(width: int, strategy: Strategy) -> int:
    """The most layers of this width with which a batch of one sample per replica fits."""

    def fits(layers: int) -> bool:
        return simulated(layers, width, strategy.dp, strategy).feasible

    return largest(fits, MOST_LAYERS)


def rates(layers: int, width: int, strategy: Strategy) -> str:
    """What each device computes in TFLOP/s, recomputation not counted, with one sample per replica
    and with as many as fit."""

    def tried(samples: int) -> SimulationResult:
        return simulated(layers, width, samples * strategy.dp, strategy)

    most = largest(lambda samples: tried(samples).feasible, MOST_SAMPLES)
    if not most:
        return "does not fit"
    found = {each: tried(each).metrics["model_tflops_per_device"] for each in (1, most)}
    return "; ".join(f"{rate:.1f} TFLOP/s with {each} per replica" for each, rate in found.items())


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
            replace(CHECKPOINTED, offload=STATES),
            "40 billion",
        ),
    ):
        layers = deepest(width, strategy)
        yield name, published, f"{billions(layers, width):.1f} billion ({layers} × {width:,})"


def sharded(devices: int, offload: str, tp: int = 1) -> Strategy:
    """ZeRO 3 over all devices, with checkpoints."""
    return replace(CHECKPOINTED, dp=devices // tp, tp=tp, zero=3, offload=offload)


def of_zero_3() -> Iterator[tuple[str, str, str]]:
    """What DeepSpeed's announcement of ZeRO-3 Offload states."""
    for offload in ("optimizer", STATES):
        name = f"13 billion (64 × 4,096) on one V100, {offload} offloaded"
        published = "2.3 times as fast" if offload == STATES else "compared with"
        yield name, published, rates(64, 4096, replace(CHECKPOINTED, offload=offload))
    for devices, published in ((256, "1,000 billion"), (512, "2,000 billion")):
        for offload in (STATES, WITH_CHECKPOINTS):
            layers = deepest(16384, sharded(devices, offload))
            found = f"{billions(layers, 16384):,.1f} billion ({layers} × 16,384)"
            yield f"most on {devices} V100, ZeRO 3, {offload} offloaded", published, found
    for layers, width, tp, offload in (
        (128, 25600, 1, WITH_CHECKPOINTS),
        (128, 25600, 2, WITH_CHECKPOINTS),
        (311, 16384, 1, STATES),
        (311, 16384, 1, WITH_CHECKPOINTS),
        (552, 12288, 1, STATES),
    ):
        shape = f"1 trillion ({layers} × {width:,}) on 512 V100"
        name = f"{shape}, ZeRO 3, tp {tp}, {offload} offloaded"
        yield name, "49 TFLOP/s", rates(layers, width, sharded(512, offload, tp))


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
    for row in (*rows(), *of_zero_3(), *gains()):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
