"""What this machine takes for ops, steps and messages, so that the simulator can predict it.

Ops are timed one by one, over sizes, as plans compute them; tiny steps say what a launch takes in
the executor, and two processes what messages take. The constants are those with which the cost
model itself comes nearest to all of these times (`fitting.py`). Of steps and messages the least of
many times counts: whatever else a machine does only adds to it. Of ops the median counts, since a
step has all of them; on a host they are timed on all cores at once, since its devices share memory.
What waits for nobody is timed by the processor's time.
"""

# pyright: basic
from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import distir
from autotune.distributed.backend import load_torch
from autotune.distributed.clock import busy_clock_of, clock_of
from autotune.distributed.computing import Where, carriers_on, check_devices, computing_on
from autotune.distributed.local import Member, run_together
from autotune.distributed.measuring import host_bytes, measure_locally
from autotune.distributed.messenger import Messenger
from autotune.distributed.tensors import tensor_of
from autotune.distributed.wire import ProcessWire
from distir.cost import OpClass, Work, load_cluster, load_stack
from distir.cost.products import ProductShape
from distir.execute.devices import WirePart
from distir.ir.core import Op, Value
from distir.ir.types import DType, TensorType
from distir.ops.activations import Gelu, Relu
from distir.ops.arithmetic import Add
from distir.ops.attention import FusedAttention, FusedAttentionGradient
from distir.ops.collective import AllGather, AllReduce, AllToAll, Collective, Cut, ReduceScatter
from distir.ops.elementwise import UnaryGradient
from distir.ops.linalg import Einsum, MatMul, product_shape
from distir.ops.loss import CrossEntropy, CrossEntropyGradient
from distir.ops.norm import LayerNormalization, NormalizationGradient
from distir.ops.optimizer import AdamStep
from distir.simulation import Simulator
from distir.strategy import Strategy
from distir.workload import Workload

SECONDS_PER_OP = 0.25
"""How long an op is run again and again."""
LEAST_RUNS, MOST_RUNS = 5, 200
CACHE_BYTES, MOST_COPIES = 2**25, 50
"""An op runs on copies of its operands by turns, as many as do not fit in a cache of this size: in
a step, other ops run in between."""
STEPS, WARMUP = 20, 3

GPU_SCALE = 8
"""A GPU takes longer and wider operands than a core until a launch no longer counts."""
MESSAGE_BYTES = (2**10, 2**14, 2**17, 2**20, 2**22)
TENSORS_OF_BLOCK, COLUMNS = 8, 16
SERIES, TURNS = 8, 8
PRODUCT_SIZE, PRODUCTS_BETWEEN = 256, 4
"""Between two messages, both processes compute."""
LEAST_SECONDS = 1e-7
"""Of a message that is too short to be seen beside the products."""

TINY_GPT = {
    "model_type": "gpt2", "n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 32,
    "n_positions": 8,
}  # fmt: skip
TINY_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 32,
    "max_position_embeddings": 8,
}  # fmt: skip
TINY_MODELS: tuple[Any, ...] = (
    "mlp-2x32", "mlp-12x32", {**TINY_GPT, "n_layer": 1}, TINY_GPT, TINY_LLAMA,
)  # fmt: skip
"""Models whose steps are launches and hardly anything else, as names or as configurations. MLPs
have few views, that is, ops that only change how an array is looked at, and GPTs have many."""


@dataclass(frozen=True, slots=True)
class OpSample:
    """Seconds of an op, and its work in the types in which it ran; of a product, its sizes."""

    label: str
    work: Work
    seconds: float
    product: ProductShape | None = None


@dataclass(frozen=True, slots=True)
class StepSample:
    """Seconds of a tiny step, the kernels that it launches, and the views that it takes."""

    label: str
    kernels: float
    views: float
    seconds: float


@dataclass(frozen=True, slots=True)
class MessageSample:
    """Seconds of a collective between two processes, or of a message (`shift`), and its bytes."""

    kind: str
    size_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Samples:
    """All that was timed. `runs_ahead`: the host does not wait for the device."""

    dtype: str
    ops: Sequence[OpSample]
    steps: Sequence[StepSample]
    messages: Sequence[MessageSample]
    runs_ahead: bool = False


def take_samples(
    where: Where, dtype: DType, deadline_seconds: float, note: Callable[[str], None]
) -> Samples:
    """Times ops, steps and messages here. Raises `ProcessError` if processes fail."""
    load_torch()
    check_devices(where, 1)
    note("ops")
    processes = 1 if where == "cuda" else devices_here(where)
    every = run_together(
        processes,
        lambda member: _op_samples(where, dtype, member),
        deadline_seconds,
        one_core_each=where != "cuda",
    )
    ops = [_mean(samples) for samples in zip(*every, strict=True)]
    note("steps of tiny models")
    steps = [_step_sample(where, dtype, model, deadline_seconds) for model in TINY_MODELS]
    messages: list[MessageSample] = []
    if where != "cuda" or load_torch().cuda.device_count() > 1:
        note("messages between two processes")
        messages, _ = run_together(
            2,
            lambda member: _message_samples(where, member, deadline_seconds),
            deadline_seconds,
            one_core_each=where != "cuda",
        )
    return Samples(dtype.short_name, ops, steps, messages, where == "cuda")


# --- ops ------------------------------------------------------------------------------------------


def _op_cases(scale: int) -> Iterator[tuple[Op, list[tuple[int, ...]]]]:
    """Ops with the shapes of their operands, the larger ones `scale` times as long and wide as for
    one core: products over sizes, what is bound by memory, and what is bound by arithmetic."""
    for rows, inner, columns in _sizes(
        scale,
        (32, 64, 64), (32, 128, 128), (64, 128, 512), (128, 256, 256), (256, 128, 512),
        (128, 256, 1024), (512, 256, 256), (128, 512, 512), (256, 512, 512),
    ):  # fmt: skip
        yield MatMul(), [(rows, inner), (inner, columns)]
        yield Einsum("ab,cb->ac"), [(rows, columns), (inner, columns)]  # of the first operand
        yield Einsum("ab,ac->bc"), [(rows, inner), (rows, columns)]  # of the second
    for rows, inner, columns in _sizes(scale, (64, 64, 192), (64, 128, 512), (32, 256, 256)):
        yield MatMul(), [(8, rows, inner), (inner, columns)]
        yield Einsum("dac,bc->dab"), [(8, rows, columns), (inner, columns)]
        yield Einsum("dab,dac->bc"), [(8, rows, inner), (8, rows, columns)]
    for batch, heads, length, depth in (
        (2, 4, 32, 32),
        (2, 4, 64, 32),
        (4, 4, 64, 64),
        (2, 4, 128, 64),
    ):
        query = (batch, heads, length * scale, depth)
        yield FusedAttention(depth**-0.5, causal=True), [query] * 3
        yield FusedAttentionGradient(depth**-0.5, causal=True), [query] * 5
    for rows, columns in _sizes(scale, (32, 64), (64, 128), (128, 256), (256, 512), (512, 1024)):
        yield Add(), [(rows, columns)] * 2
        yield Relu(), [(rows, columns)]
        yield UnaryGradient(Relu()), [(rows, columns)] * 2
        yield Gelu(), [(rows, columns)]
        yield UnaryGradient(Gelu()), [(rows, columns)] * 2
        yield LayerNormalization(1), [(rows, columns), (columns,), (columns,)]
        yield NormalizationGradient(1, 1e-5, True), [(rows, columns), (columns,), (rows, columns)]
        yield AdamStep(step=2), [(rows, columns)] * 4
    for rows, columns in _sizes(scale, (64, 256), (128, 512), (256, 1024)):
        yield CrossEntropy(), [(rows, columns), (rows,)]
        yield CrossEntropyGradient(), [(rows, columns), (rows,), (rows,)]


def _sizes(scale: int, *sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (tuple(each * scale for each in size) for size in sizes)


def _op_samples(where: Where, dtype: DType, member: Member) -> list[OpSample]:
    load_torch().set_num_threads(1)
    computing, clock = computing_on(where), busy_clock_of(where)
    rng = np.random.default_rng(0)
    found: list[OpSample] = []
    for op, shapes in _op_cases(GPU_SCALE if where == "cuda" else 1):
        types = [TensorType(shape, dtype) for shape in shapes]
        if isinstance(op, (CrossEntropy, CrossEntropyGradient)):
            types[1] = TensorType(shapes[1], DType.INT64)
        label = f"{op.name} {', '.join(map(str, types))}"
        member.note(f"times {label}")
        arrays = [
            rng.normal(size=t.shape) ** 2 if t.dtype.is_float else rng.integers(0, 64, t.shape)
            for t in types
        ]
        copies = min(MOST_COPIES, 1 + CACHE_BYTES // sum(each.nbytes for each in arrays))
        sets = itertools.cycle(
            [computing.held(a, t.dtype) for a, t in zip(arrays, types, strict=True)]
            for _ in range(copies)
        )
        results = op.infer(*types)
        dtypes = [each.dtype for each in results]

        def run(op: Op = op, sets: Any = sets, dtypes: Any = dtypes) -> None:
            computing.evaluate(op, {}, next(sets), dtypes)

        work, shape = op.work(types, results), None
        if work.kind is OpClass.PRODUCT:
            shape = product_shape(op, types, dtype.short_name)
        found.append(OpSample(label, work, median_seconds(run, clock), shape))
    return found


def _mean(samples: Sequence[OpSample]) -> OpSample:
    return replace(samples[0], seconds=statistics.mean(each.seconds for each in samples))


def median_seconds(run: Callable[[], Any], clock: Any) -> float:
    """The median time of a run, of as many as there is time for."""
    run()
    taken: list[float] = []
    while len(taken) < LEAST_RUNS or (sum(taken) < SECONDS_PER_OP and len(taken) < MOST_RUNS):
        start = clock.begin_step()
        run()
        taken.append(clock.end_step() - start)
    return statistics.median(taken)


# --- steps ----------------------------------------------------------------------------------------


def _step_sample(where: Where, dtype: DType, model: Any, deadline_seconds: float) -> StepSample:
    with _model(model) as spec:
        loaded = distir.load_model(spec)
    workload = Workload(model=loaded, batch_size=2, precision=dtype.short_name, dropout=False)

    def seconds_of_step(launch: float, view: float) -> float:
        stack = replace(
            load_stack("ideal"),
            dispatch="blocking",
            eager_launch_seconds=launch,
            eager_view_seconds=view,
            kernel_ramp_seconds=0.0,
        )
        simulator = Simulator(workload, load_cluster("dgx-a100", 1), stack)
        return simulator.simulate(Strategy()).metrics["iteration_seconds"]

    computing = seconds_of_step(0.0, 0.0)
    kernels, views = (seconds_of_step(*one) - computing for one in ((1.0, 0.0), (0.0, 1.0)))
    plan = Simulator(workload, load_cluster("dgx-a100", 1), load_stack("ideal")).plan(Strategy())
    found = measure_locally(plan, STEPS, WARMUP, deadline_seconds, where).to_dict()
    seconds = found["minimum" if where == "cuda" else "processor_seconds"]
    return StepSample(loaded.name, kernels, views, seconds)


@contextmanager
def _model(model: Any) -> Generator[Any, None, None]:
    """What `load_model` takes."""
    if isinstance(model, str):
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(model))
        yield path


# --- messages -------------------------------------------------------------------------------------


def _message_samples(where: Where, member: Member, deadline_seconds: float) -> list[MessageSample]:
    torch = load_torch()
    messenger = Messenger(member.process, member.processes, member.note, carriers_on(where))
    messenger.clock = clock_of(where)
    messenger.join(member.store, deadline_seconds)
    messenger.make_groups([(0, 1)], [(0, 1), (1, 0)])
    computing = computing_on(where, member.process)
    side = PRODUCT_SIZE * (GPU_SCALE if where == "cuda" else 1)
    matrix = tensor_of(computing.held(np.ones((side, side)), DType.FLOAT32))

    def compute() -> None:
        for _ in range(PRODUCTS_BETWEEN):
            torch.matmul(matrix, matrix)

    alone = _in_turns(messenger, compute)
    found: list[MessageSample] = []
    for size in MESSAGE_BYTES:
        for kind, exchange in _exchanges(messenger, computing, size):
            taken = _in_turns(messenger, compute, exchange) - alone
            seconds = torch.tensor([max(taken, LEAST_SECONDS)])
            torch.distributed.all_reduce(seconds, op=torch.distributed.ReduceOp.MAX)
            found.append(MessageSample(kind, float(size), float(seconds)))
    messenger.leave()
    return found


def _exchanges(
    messenger: Messenger, computing: Any, size: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What two processes exchange, of a size in bytes: a tensor, and as many as a block of a model
    has, in the way in which plans do."""
    wire, other = ProcessWire(messenger, messenger.process, 0), 1 - messenger.process
    for tensors in (1, TENSORS_OF_BLOCK):
        rows = size // (COLUMNS * DType.FLOAT32.itemsize * tensors)
        whole, half = Cut(0, (rows,), 0), Cut(0, (rows // 2,), 0)
        yield "all_reduce", _exchange(wire, computing, AllReduce(("dp",), 2), rows, tensors)
        yield (
            "all_gather",
            _exchange(wire, computing, AllGather(("dp",), 2, half), rows // 2, tensors),
        )
        yield (
            "reduce_scatter",
            _exchange(wire, computing, ReduceScatter(("dp",), 2, whole), rows, tensors),
        )
        if tensors == 1:
            op = AllToAll(("dp",), 2, whole, half)
            yield "all_to_all", _exchange(wire, computing, op, rows, tensors)
    array = computing.held(np.zeros(size // 4), DType.FLOAT32)

    def swap() -> None:
        messenger.send([array], other, "pp", 0.0)
        messenger.receive([array], other, "a message")
        messenger.flush()

    yield "shift", swap


def _exchange(
    wire: ProcessWire, computing: Any, op: Collective, rows: int, tensors: int
) -> Callable[[], Any]:
    """Exchanges tensors of so many rows as one message."""
    value = Value(TensorType((rows, COLUMNS), DType.FLOAT32))
    shards = [computing.held(np.zeros((rows, COLUMNS)), DType.FLOAT32) for _ in range(tensors)]
    parts = [WirePart(op, shard, value) for shard in shards]
    return lambda: wire.exchange(parts, (0, 1))


def _in_turns(messenger: Messenger, *runs: Callable[[], Any]) -> float:
    """Seconds that the runs take, in both processes at once, where they take turns as in a step:
    the least of many series. Exchanges one after the other would find both processes awake."""
    least = float("inf")
    for _ in range(SERIES):
        messenger.meet()
        start = messenger.clock.begin_step()
        for _ in range(TURNS):
            for run in runs:
                run()
        least = min(least, (messenger.clock.end_step() - start) / TURNS)
    return least


def described(where: Where) -> str:
    """The machine and the software, for the record."""
    torch = load_torch()
    what = torch.cuda.get_device_name() if where == "cuda" else platform.machine()
    return f"{what} of {platform.node()}, {os.cpu_count()} cores, torch {torch.__version__}"


def devices_here(where: Where) -> int:
    """GPUs, or cores, of this machine."""
    return load_torch().cuda.device_count() if where == "cuda" else os.cpu_count() or 1


def memory_bytes(where: Where) -> float:
    """Memory of the GPU, or the host's share for one of as many processes as there are cores."""
    if where == "cuda":
        return float(load_torch().cuda.get_device_properties(0).total_memory)
    cores = os.cpu_count() or 1
    return host_bytes() / cores


__all__ = [
    "MessageSample",
    "OpSample",
    "Samples",
    "StepSample",
    "described",
    "devices_here",
    "memory_bytes",
    "take_samples",
]
