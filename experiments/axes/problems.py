"""Problems of the experiments with axis lists: models of many kinds, and searches in a space with
and without generated lists."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from autotune.problem import Problem, load_problem
from autotune.prospects.prospects import ProblemProspects
from autotune.samplers import load_sampler
from autotune.study.study import Study
from autotune.study.trial import Trial
from distir.ir import Builder, Function, Value
from distir.models.experts import Experts
from distir.models.t5 import T5Config
from distir.models.transformer import TransformerConfig
from distir.ops.activations import Relu
from distir.ops.conv import Conv, ConvTranspose
from distir.ops.tensor import Concat

SAMPLER = "bounds"
UNET_IMAGE, UNET_WIDTH, UNET_DEPTH = 128, 64, 4


def unet(batch_size: int) -> Function:
    """A U-net (Ronneberger et al. 2015) on images of 128 by 128: convolutions halve the sides and
    double the channels four times, transposed ones lead back, beside what was there before."""
    builder = Builder("unet")
    x = builder.input("pixels", (batch_size, 3, UNET_IMAGE, UNET_IMAGE))
    kept: list[Value] = []
    widths = [UNET_WIDTH << depth for depth in range(UNET_DEPTH + 1)]
    for depth, width in enumerate(widths):
        x = _convolved(builder, x, f"down.{depth}", width, 1 if depth == 0 else 2)
        x = _convolved(builder, x, f"down.{depth}.same", width, 1)
        kept.append(x)
    for depth in reversed(range(UNET_DEPTH)):
        beside, width = kept[depth], widths[depth]
        weight = builder.parameter(f"up.{depth}.weight", (x.type.shape[1], width, 2, 2))
        up = ConvTranspose(beside.type.shape[2:], (2, 2), (0,) * 4, (1, 1))
        x = builder.add(Concat(1), beside, builder.add(up, x, weight))
        for name in ("first", "second"):
            x = _convolved(builder, x, f"up.{depth}.{name}", width, 1)
    weight = builder.parameter("head.weight", (1, widths[0], 1, 1))
    return builder.build([builder.add(Conv((1, 1), (0,) * 4, (1, 1)), x, weight)])


def _convolved(builder: Builder, x: Value, name: str, width: int, stride: int) -> Value:
    """A convolution of 3 by 3 and a ReLU."""
    weight = builder.parameter(f"{name}.weight", (width, x.type.shape[1], 3, 3))
    op = Conv((stride, stride), (1,) * 4, (1, 1))
    return builder.add(Relu(), builder.add(op, x, weight))


def _transformer(name: str, **sizes: Any) -> TransformerConfig:
    usual: dict[str, Any] = {"layers": 8, "hidden": 1024, "heads": 16, "vocabulary": 32000}
    every: dict[str, Any] = {**usual, "sequence_length": 1024, **sizes}
    return TransformerConfig(name=name, **every)


MODELS: Mapping[str, Any] = {
    "wide embedding": _transformer(
        "wide-embedding", layers=4, hidden=512, heads=8, vocabulary=500_000, sequence_length=128
    ),
    "long sequence": _transformer("long-sequence", sequence_length=16_384),
    "mixture": _transformer("mixture", experts=Experts(count=16, top_k=2, ffn=1024)),
    "small T5": T5Config(
        name="small-t5",
        layers=4,
        hidden=512,
        heads=8,
        head_dim=64,
        ffn=2048,
        vocabulary=32128,
        sequence_length=512,
    ),
    "U-net": unet,
}
"""Models that have no name in the zoo."""


def stated(model: str, **others: Any) -> dict[str, Any]:
    """What a problem is stated with, for a model of the zoo or of `MODELS`."""
    own: dict[str, Any] = {"loss": "mse"} if MODELS.get(model) is unet else {}
    return {"model": MODELS.get(model, model), **own, **others}


def searched(problem: Problem, seed: int, trials: int) -> Trial | None:
    """The best plan that a search finds in a problem's space."""
    objective = problem.objective("throughput")
    sampler = load_sampler(SAMPLER, problem.space, seed, ProblemProspects(problem, objective))
    study = Study(problem.space, objective, sampler, objective.measure, seed)
    study.run(trials)
    return study.best


def best_with_and_without_lists(
    space: Any, seed: int, trials: int, statement: Mapping[str, Any]
) -> tuple[tuple[Problem, Trial | None], tuple[Problem, Trial | None]]:
    """The best plan in a space, and in the space with generated lists, by as many trials."""

    def found(lists: str | None) -> tuple[Problem, Trial | None]:
        problem = load_problem(**statement, space=space, axis_lists=lists)
        return problem, searched(problem, seed, trials)

    return found(None), found("auto")


def gain(named: Trial, generated: Trial) -> float:
    """How much faster the second plan is, as a fraction."""
    assert named.cost is not None
    assert generated.cost is not None
    return generated.cost / named.cost - 1  # costs are negative rates


class OutOfTimeError(Exception):
    """Raised where a problem takes more of a core than it may."""


@contextmanager
def at_most(seconds: float) -> Generator[None, None, None]:
    """Ends what is done inside after so many seconds of a core, with `OutOfTimeError`."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


__all__ = [
    "MODELS",
    "OutOfTimeError",
    "at_most",
    "best_with_and_without_lists",
    "gain",
    "searched",
    "stated",
    "unet",
]
