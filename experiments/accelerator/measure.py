"""Timings on the NVIDIA GPU at hand, with torch. The one file here that needs either."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from experiments.accelerator.fit import Sample

WARM_UP, REPEATS = 5, 20
PRODUCTS = tuple(
    (rows, inner, columns)
    for rows in (2048, 8192)
    for inner, columns in ((1024, 4096), (4096, 4096), (4096, 16384), (8192, 8192))
)
KERNELS = (200, 1000)


def why_not() -> str | None:
    """Why nothing can be measured here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "there is no NVIDIA GPU"


def described() -> str:
    """The GPU and the software, for the record."""
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def samples() -> Iterator[Sample]:
    """All timings, in turn."""
    import torch

    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        yield from _products(name, dtype)
    yield from _attention()
    yield from _memory()
    yield from _launches()
    yield from _collectives()


def _seconds(run: Callable[[], Any]) -> float:
    """The median time of one run on the device."""
    import torch

    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return sorted(times)[REPEATS // 2]


def _products(name: str, dtype: Any) -> Iterator[Sample]:
    import torch

    for m, k, n in PRODUCTS:
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        b = torch.randn(k, n, device="cuda", dtype=dtype)
        moved = a.element_size() * (m * k + k * n + m * n)
        seconds = _seconds(lambda a=a, b=b: a @ b)
        # Without TF32, which is torch's default, fp32 products run on the vector units.
        yield Sample("product", f"{name} {m}x{k}x{n}", seconds, 2.0 * m * k * n, moved, name)


def _attention() -> Iterator[Sample]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    for batch, heads, length, depth in ((8, 16, 1024, 64), (4, 32, 2048, 128), (1, 32, 8192, 128)):
        q, k, v = (
            torch.randn(batch, heads, length, depth, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        seconds = _seconds(lambda q=q, k=k, v=v: attention(q, k, v, is_causal=True))
        flops = 2.0 * batch * heads * length * length * depth  # half of the scores are masked
        moved = 4 * q.numel() * q.element_size()
        label = f"bf16 {batch}x{heads}x{length}x{depth}"
        yield Sample("attention", label, seconds, flops, moved)


def _memory() -> Iterator[Sample]:
    import torch

    for elements in (2**22, 2**25, 2**28):
        x = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
        y, out = torch.randn_like(x), torch.empty_like(x)
        seconds = _seconds(lambda x=x, y=y, out=out: torch.add(x, y, out=out))
        moved = 3 * elements * x.element_size()
        yield Sample("memory", f"bf16 add {elements}", seconds, 0.0, moved)


def _launches() -> Iterator[Sample]:
    import torch

    x = torch.zeros(32, device="cuda")
    for count in KERNELS:

        def kernels(count: int = count) -> None:
            for _ in range(count):
                x.add_(1.0)

        yield Sample("eager", f"{count} kernels", _seconds(kernels), count=count)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernels()
        yield Sample("graph", f"{count} kernels", _seconds(graph.replay), count=count)


def _collectives() -> Iterator[Sample]:
    """All-reduces over all GPUs of the node, where this process is one of several (torchrun)."""
    import torch
    from torch import distributed

    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2:
        return
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    try:
        for elements in (2**20, 2**24, 2**28):
            x = torch.zeros(elements, device="cuda", dtype=torch.bfloat16)
            seconds = _seconds(lambda x=x: distributed.all_reduce(x))
            sent = 2 * (world - 1) / world * elements * x.element_size()
            yield Sample("all_reduce", f"{elements} over {world}", seconds, 0.0, sent)
    finally:
        distributed.destroy_process_group()
