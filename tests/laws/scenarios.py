"""Random small models, clusters, stacks, strategies and schedules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from distir.cost import Cluster, ClusterLevel, Device, Host, SoftwareStack, load_stack
from distir.errors import ScheduleError
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function, Value
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.layers import linear, normalize
from distir.models.transformer import TransformerConfig, llama_config
from distir.ops.activations import Gelu, Relu
from distir.ops.arithmetic import Add, Mul
from distir.ops.comparisons import Greater, Where
from distir.ops.linalg import MatMul
from distir.ops.tensor import Concat, Expand, Reshape, Slice, Split, Transpose
from distir.plan import Plan, Planner
from distir.schedules import (
    SCHEDULES,
    Action,
    ActionKind,
    Schedule,
    compile_schedule,
    dependencies,
    validate,
)
from distir.simulation.simulator import Simulator
from distir.strategy import (
    AUTO,
    KEEP_GATHERED,
    OFFLOADS,
    OUTER_OPTIMIZERS,
    PLACEMENT,
    Strategy,
)
from distir.workload import Workload

WIDTH = 24
"""Of the chains; divides by all degrees that are drawn."""

# --- models --------------------------------------------------------------------------------------


class Chain:
    """A stack of layers that may look back: what they share crosses many cuts."""

    def __init__(self) -> None:
        self.builder = Builder("chain")
        self.x = self.builder.input("x", (4, WIDTH))
        self.shared = self.builder.parameter("shared", (WIDTH, WIDTH))
        self.memory: Value | None = None
        self.threshold: Value | None = None
        self.layer: tuple[Value, Value] | None = None
        self.count = 0

    def dense(self, x: Value, features: int = WIDTH, *, bias: bool = True) -> Value:
        self.count += 1
        return linear(self.builder, x, f"layer{self.count}", features, bias=bias)

    def add(self, a: Value, b: Value) -> Value:
        return self.builder.add(Add(), a, b)


def _plain(c: Chain, x: Value) -> Value:
    return c.builder.add(Relu(), c.dense(x))


def _last_is_linear(c: Chain, x: Value) -> Value:
    return c.dense(c.builder.add(Relu(), x), bias=False)


def residual(c: Chain, x: Value) -> Value:
    return c.add(x, c.dense(_inner(c, x)))


def _norm(c: Chain, x: Value) -> Value:
    c.count += 1
    y = normalize(c.builder, x, f"norm{c.count}", "layer" if c.count % 2 else "rms", 1e-5)
    return c.add(x, c.dense(y))


def _with_shared_weight(c: Chain, x: Value) -> Value:
    return c.builder.add(Relu(), c.builder.add(MatMul(), x, c.shared))


def _with_shared_weight_turned(c: Chain, x: Value) -> Value:
    turned = c.builder.add(Transpose((1, 0)), c.shared)
    return c.add(x, c.builder.add(MatMul(), x, turned))


def _inner(c: Chain, x: Value) -> Value:
    """Something with an axis of its own, which makes a block."""
    return c.builder.add(Gelu(), c.dense(x, 2 * WIDTH))


def shared_layer(c: Chain, x: Value) -> Value:
    """Layers of which all have the same parameters, and none beside."""
    if c.layer is None:
        make = c.builder.parameter
        c.layer = make("shared.up", (WIDTH, 2 * WIDTH)), make("shared.down", (2 * WIDTH, WIDTH))
    up, down = c.layer
    inner = c.builder.add(Gelu(), c.builder.add(MatMul(), x, up))
    return c.add(x, c.builder.add(MatMul(), inner, down))


def shared_layer_and_own(c: Chain, x: Value) -> Value:
    y = shared_layer(c, x)
    return c.add(y, c.dense(y))


def _ends_in_a_view(c: Chain, x: Value) -> Value:
    batch = x.type.shape[0]
    y = c.builder.add(Reshape((batch, 2, WIDTH // 2)), c.dense(_inner(c, x)))
    return c.builder.add(Reshape((batch, WIDTH)), y)


def _ends_in_a_part(c: Chain, x: Value) -> Value:
    return c.builder.apply(Split(1, (WIDTH, WIDTH)), c.dense(_inner(c, x), 2 * WIDTH))[1]


def _gated(c: Chain, x: Value) -> Value:
    both = c.builder.apply(Split(1, (WIDTH, WIDTH)), c.dense(x, 2 * WIDTH))
    return c.builder.add(Mul(), *both)


def _joined(c: Chain, x: Value) -> Value:
    return c.dense(c.builder.add(Concat(1), x, c.dense(x)))


def _begins_with_a_join(c: Chain, x: Value) -> Value:
    """The gradient of `x` is a part of a larger one."""
    c.count += 1
    row = c.builder.parameter(f"row{c.count}", (1, WIDTH))
    rows = c.builder.add(Expand((x.type.shape[0], WIDTH)), row)
    return c.dense(_inner(c, c.builder.add(Concat(1), x, rows)))


def _cut_out(c: Chain, x: Value) -> Value:
    half = c.builder.add(Slice((0, 0), (None, WIDTH // 2), (1, 1)), c.dense(x))
    return c.add(x, c.dense(half))


def _remember(c: Chain, x: Value) -> Value:
    c.memory = x = c.builder.add(Relu(), c.dense(x))
    return x


def _recall(c: Chain, x: Value) -> Value:
    return c.add(x, c.dense(_inner(c, c.memory if c.memory is not None else x)))


def _above_a_threshold(c: Chain, x: Value) -> Value:
    """A parameter without a gradient stands before one that has one."""
    c.count += 1
    threshold = c.builder.parameter(f"threshold{c.count}", (WIDTH,))
    return _rectified(c, x, threshold)


def above_a_shared_threshold(c: Chain, x: Value) -> Value:
    """The parameter has no gradient here."""
    return _rectified(c, x, _shared_threshold(c))


def scaled_by_the_threshold(c: Chain, x: Value) -> Value:
    """It has one here."""
    return c.dense(_inner(c, c.builder.add(Mul(), x, _shared_threshold(c))))


def _shared_threshold(c: Chain) -> Value:
    c.threshold = c.threshold or c.builder.parameter("threshold", (WIDTH,))
    return c.threshold


def _rectified(c: Chain, x: Value, threshold: Value) -> Value:
    above = c.builder.add(Greater(), x, threshold)
    return c.dense(_inner(c, c.builder.add(Where(), above, c.builder.add(Relu(), x), x)))


LAYERS: tuple[Callable[[Chain, Value], Value], ...] = (
    _plain, _last_is_linear, residual, _norm, _with_shared_weight, _with_shared_weight_turned,
    _ends_in_a_view, _ends_in_a_part, _gated, _joined, _begins_with_a_join,
    _cut_out, _remember, _recall, _above_a_threshold, above_a_shared_threshold,
    scaled_by_the_threshold, shared_layer, shared_layer_and_own,
)  # fmt: skip


@st.composite
def chains(draw: st.DrawFn, longest: int = 4) -> Function:
    """Layers of a few kinds, in runs: equal blocks stand beside different ones."""
    chain = Chain()
    x = chain.x
    for layer, count in draw(
        st.lists(
            st.tuples(st.sampled_from(LAYERS), st.integers(1, longest)), min_size=1, max_size=4
        )
    ):
        for _ in range(count):
            x = layer(chain, x)
    return chain.builder.build([chain.dense(x)])


@st.composite
def recalling_chains(draw: st.DrawFn) -> Function:
    """What a layer made is read by several later ones, as in an encoder-decoder."""
    chain = Chain()
    x = residual(chain, _remember(chain, chain.x))
    for _ in range(draw(st.integers(3, 5))):
        for layer in draw(st.lists(st.sampled_from([_plain, residual, _norm]), max_size=2)):
            x = layer(chain, x)
        x = _recall(chain, x)
    return chain.builder.build([x])


@st.composite
def transformers(draw: st.DrawFn) -> Function:
    """All that the zoo's one configuration can say, small."""
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    fused_qkv = draw(st.booleans()) and kv_heads == 4
    learned, parallel = draw(st.booleans()), draw(st.booleans())
    qk_norm = draw(st.sampled_from(["none", "heads", "joint"]))
    config = TransformerConfig(
        name="small",
        layers=draw(st.integers(1, 5)),
        hidden=32,
        heads=4,
        kv_heads=kv_heads,
        ffn=draw(st.sampled_from([24, 64])),
        vocabulary=draw(st.sampled_from([29, 60])),
        sequence_length=16,
        norm=draw(st.sampled_from(["layer", "rms"])),
        norm_bias=draw(st.booleans()),
        norm_first=draw(st.booleans()),
        part_norms=draw(st.booleans()) and not parallel,
        qk_norm=qk_norm == "heads",
        qk_norm_joint=qk_norm == "joint",
        parallel=parallel,
        shared_norm=draw(st.booleans()) and parallel,
        embedding_scale=draw(st.sampled_from([1.0, 5.5])),
        learned_positions=learned,
        rotary_fraction=draw(st.sampled_from([0.0, 0.5, 1.0])),
        activation=draw(st.sampled_from(["gelu", "relu", "silu"])),
        gated=draw(st.booleans()),
        fused_qkv=fused_qkv,
        dropout=draw(st.sampled_from([0.0, 0.1])),
        attention_dropout=draw(st.sampled_from([None, 0.2])),
        inner_dropout=draw(st.sampled_from([0.0, 0.3])),
        causal=draw(st.booleans()),
        windows=draw(st.sampled_from([(), (), (5,), (4, 0), (3, 3, 0)])),
        tied_embeddings=draw(st.booleans()),
        head_transform=draw(st.booleans()),
        head_bias=draw(st.booleans()),
    )
    return config.build(2, 12, draw(st.sampled_from(["fused", "eager"])))


@st.composite
def mixtures(draw: st.DrawFn) -> Function:
    """Small transformers with experts, and with keys and values from a latent."""
    heads = draw(st.sampled_from([2, 4]))
    count, top_k = draw(st.sampled_from([4, 6])), draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2]))
    experts = Experts(
        count=count,
        top_k=top_k,
        ffn=draw(st.sampled_from([8, 12])),
        scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
        normalized=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        corrected=draw(st.booleans()),
        biases=draw(st.booleans()),
        shared_ffn=draw(st.sampled_from([0, 12])),
        shared_gate=draw(st.booleans()),
        dense_layers=draw(st.integers(0, 2)),
        every=draw(st.sampled_from([1, 1, 2])),
        groups=groups,
        chosen_groups=draw(st.integers(1 if top_k <= count // groups else groups, groups)),
        group_best=draw(st.integers(1, 2)),
        imbalance=draw(st.sampled_from([1.0, 1.5, 8.0])),
    )
    latent = Latent(
        query_rank=draw(st.sampled_from([0, 6])),
        key_rank=6,
        plain_dim=4,
        rotary_dim=2,
        value_dim=3,
    )
    config = llama_config(
        "mixture",
        layers=draw(st.integers(1, 4)),
        hidden=16,
        heads=heads,
        kv_heads=2,
        ffn=24,
        vocabulary=draw(st.sampled_from([29, 60])),
        sequence_length=24,
    )
    config = replace(
        config,
        experts=experts,
        latent=draw(st.sampled_from([None, latent])),
        windows=draw(st.sampled_from([(), (), (7, 0)])),
    )
    return config.build(2, 24, draw(st.sampled_from(["fused", "eager"])))


models = st.one_of(chains(), recalling_chains(), transformers(), mixtures())
long_chains = st.one_of(chains(longest=8), recalling_chains())

# --- hardware and software -----------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn, num_devices: int) -> Cluster:
    """One to three levels of odd sizes; the last units are partly used."""
    levels: list[ClusterLevel] = []
    for index in range(draw(st.integers(1, 3))):
        levels.append(
            ClusterLevel(
                name=f"level {index}",
                size=draw(st.integers(2, 5)),
                bandwidth_bytes_per_second=draw(st.floats(1e8, 1e12)),
                latency_seconds=draw(st.floats(0, 1e-4)),
                medium=draw(st.sampled_from(["board", "network"])),
            )
        )
    levels[-1] = replace(levels[-1], size=None)
    flops = draw(st.floats(1e10, 1e15))
    device = Device(
        name="device",
        memory_bytes=16e9,
        memory_bandwidth_bytes_per_second=draw(st.floats(1e9, 1e13)),
        peak_flops_per_second={"fp32": flops, "bf16": flops * draw(st.floats(1, 16))},
    )
    host = Host(
        devices=draw(st.integers(1, 4)),
        memory_bytes=draw(st.sampled_from([1e4, 1e12])),
        memory_bandwidth_bytes_per_second=draw(st.floats(1e8, 1e12)),
        link_bytes_per_second=draw(st.floats(1e7, 1e12)),
        all_links_bytes_per_second=draw(st.sampled_from([1e8, math.inf])),
        latency_seconds=draw(st.sampled_from([0.0, 1e-5])),
    )
    return Cluster(
        name="cluster", device=device, levels=tuple(levels), num_devices=num_devices, host=host
    )


def _stack(name: str, view: float, sorts: bool, pads: bool, narrow: bool) -> SoftwareStack:
    return replace(
        load_stack(name),
        eager_view_seconds=view,
        sorts_tokens=sorts,
        pads_experts=pads,
        sends_narrow_tokens=narrow,
    )


stacks = st.builds(
    _stack,
    st.sampled_from(["fsdp-compiled", "fsdp-eager", "megatron", "deepspeed", "ideal"]),
    st.sampled_from([0.0, 30e-6]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@st.composite
def simulators(draw: st.DrawFn, samples_per_device: Sequence[int]) -> Simulator:
    """Any model on any cluster of few devices, all of which a strategy may use."""
    devices = draw(st.sampled_from([1, 2, 4, 6, 8, 12]))
    workload = Workload(
        model=LoadedModel("model", draw(models)),
        mode=draw(st.sampled_from(["training", "training", "inference"])),
        batch_size=draw(st.sampled_from(samples_per_device)) * devices,
        precision=draw(st.sampled_from(["bf16", "fp32"])),
        optimizer=draw(st.sampled_from(["adam", "sgd"])),
    )
    return Simulator(workload, draw(clusters(devices)), draw(stacks))


# --- plans ---------------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn, stages: int, microbatches: int, training: bool) -> Schedule:
    """Any order in which it can run, the stages dealt to ranks in any way."""
    ranks = draw(st.integers(1, stages))
    homes = [stage % ranks for stage in range(stages)]
    if draw(st.booleans()):
        homes = sorted(homes)
    chance = draw(st.randoms(use_true_random=False))
    return random_schedule(chance, homes, microbatches, training)


def random_schedule(
    chance: random.Random, homes: list[int], microbatches: int, training: bool
) -> Schedule:
    stages = len(homes)
    split: tuple[ActionKind, ...] = ("W",) if chance.random() < 0.5 else ()
    kinds: tuple[ActionKind, ...] = ("F", "B", *split) if training else ("F",)
    waiting = {
        Action(stage, kind, m)
        for stage in range(stages)
        for kind in kinds
        for m in range(microbatches)
    }
    done: set[Action] = set()
    ranks: list[list[Action]] = [[] for _ in range(max(homes) + 1)]
    if "W" in kinds and chance.random() < 0.3:
        # Some microbatches have their backward pass in one piece.
        for stage in range(stages):
            for m in range(microbatches):
                if chance.random() < 0.3:
                    waiting -= {Action(stage, "B", m), Action(stage, "W", m)}
                    waiting.add(Action(stage, "BW", m))
    while waiting:
        able = sorted(a for a in waiting if done.issuperset(dependencies(a, stages)))
        action = chance.choice(able)
        ranks[homes[action.stage]].append(action)
        waiting.remove(action)
        done.add(action._replace(kind="B") if action.kind == "BW" else action)
    schedule = Schedule(tuple(map(tuple, ranks)), stages, microbatches)
    return _overlapped(chance, schedule) if training and chance.random() < 0.5 else schedule


def _overlapped(chance: random.Random, schedule: Schedule) -> Schedule:
    """The schedule with some overlapped pairs, as many as do not make ranks wait for each other."""
    pairs: list[tuple[int, ...]] = [() for _ in schedule.ranks]
    found = schedule
    for rank, actions in enumerate(schedule.ranks):
        for position, (first, _) in enumerate(pairwise(actions)):
            beside = pairs[rank] and pairs[rank][-1] == position - 1
            if first.kind != "F" or beside or chance.random() < 0.3:
                continue
            pairs[rank] = (*pairs[rank], position)
            tried = replace(schedule, overlapped=tuple(pairs))
            try:
                validate(tried)
            except ScheduleError:
                pairs[rank] = pairs[rank][:-1]
            else:
                found = tried
    return found


class Scenario:
    """A simulator and a plan of its workload. No dataclass: hypothesis would print all of it."""

    def __init__(self, simulator: Simulator, plan: Plan) -> None:
        self.simulator = simulator
        self.plan = plan

    def __repr__(self) -> str:
        plan, workload = self.plan, self.plan.workload
        cuts = [len(stage.blocks) for stage in plan.stages]
        return (
            f"{workload.mode} of {workload.batch_size} as {plan.strategy.label}, stages of {cuts} "
            f"blocks\n{plan.schedule.schedule}\n{self.simulator.cluster}\n"
            f"{workload.model.function}"[:20000]
        )


@st.composite
def scenarios(
    draw: st.DrawFn,
    functions: st.SearchStrategy[Function] = models,
    sync_every: Sequence[int] = (1,),
) -> Scenario:
    """Any plan of any model on any cluster, in which replicas synchronise as often as
    one of `sync_every` says."""
    strategy = Strategy(
        dp=draw(st.integers(1, 4)),
        tp=draw(st.sampled_from([1, 1, 2, 3, 4])),
        microbatches=draw(st.integers(1, 4)),
    )
    workload = Workload(
        model=LoadedModel("model", draw(functions)),
        mode=draw(st.sampled_from(["training", "training", "inference"])),
        batch_size=strategy.dp * strategy.microbatches * draw(st.integers(1, 3)),
        precision=draw(st.sampled_from(["bf16", "fp32", "tf32", "fp8", "pure-bf16"])),
        gradient_precision=draw(st.sampled_from(["compute", "compute", "fp32", "both"])),
        optimizer=draw(st.sampled_from(["adam", "sgd", "momentum"])),
        vocabulary_multiple=draw(st.sampled_from([1, 1, 4])),
    )
    blocks = workload.num_blocks
    techniques = {
        "pp": draw(st.integers(1, min(4, blocks))),
        "cp": draw(st.sampled_from([1, 1, 2])),
        "ep": draw(st.sampled_from([1, 2, 3, 4])),
        "expert_order": draw(st.sampled_from(["replicas", "nearest"])),
        "etp": draw(st.sampled_from([0, 0, 1, 2])),
        "zero": draw(st.sampled_from([0, 0, 1, 2, 3])),
        "recompute": draw(st.sampled_from(["none", "none", "selective", "needed", "full", "auto"])),
        "recompute_every": draw(st.sampled_from([1, 1, 2])),
        "recompute_layers": draw(st.sampled_from([0, 0, 1, 2])),
        "sequence_parallel": draw(st.booleans()),
        "keep_gathered": draw(st.sampled_from(["none", *KEEP_GATHERED])),
        "zero_degree": draw(st.sampled_from([0, 2])),
        "cp_exchange": draw(st.sampled_from(["gather", "ring", "all-to-all"])),
        "offload": ",".join(draw(st.lists(st.sampled_from(OFFLOADS), max_size=3))),
        "sync_every": draw(st.sampled_from(sync_every)),
        "outer_optimizer": draw(st.sampled_from(OUTER_OPTIMIZERS)),
        "placement": "-".join(draw(st.permutations(PLACEMENT.split("-")))),
    }
    planner = Planner(workload)
    if planner.explain(strategy) is not None:
        strategy = replace(strategy, tp=1)
    for name, value in techniques.items():
        changed = replace(strategy, **{name: value})
        strategy = changed if planner.explain(changed) is None else strategy
    family = SCHEDULES.get(draw(st.sampled_from(SCHEDULES.names())))
    changed = replace(strategy, schedule=family.name, chunks=family.default_chunks)
    strategy = changed if planner.explain(changed) is None else strategy
    # A schedule of one's own may have a rank for every stage.
    needed = strategy.devices // strategy.pp * max(strategy.pp, strategy.stages)
    cluster = draw(clusters(needed + draw(st.integers(0, 3))))
    simulator = Simulator(workload, cluster, draw(stacks))
    if not draw(st.booleans()):
        return Scenario(simulator, simulator.plan(strategy))
    places = st.integers(1, blocks - 1)
    count = strategy.stages - 1
    cuts = st.lists(places, min_size=count, max_size=count, unique=True)
    policies = st.sampled_from(["none", "selective", "needed", "full"])
    chosen = st.lists(policies, min_size=blocks, max_size=blocks)
    recomputed = draw(chosen) if strategy.recompute == AUTO else ()
    plan = simulator.planner.plan(strategy, sorted(draw(cuts)) if count else (), recomputed)
    if draw(st.booleans()):
        own = draw(schedules(strategy.stages, strategy.microbatches, workload.training))
        plan = replace(plan, schedule=compile_schedule(own))
    return Scenario(simulator, plan)
