"""The plans that are measured: MLPs and small GPTs, on one to four processes.

They are listed here once and for all; `autotune profile` sees none of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distir.strategy import Strategy

STEPS = 25
"""Steps that are measured of a plan."""

GPTS = {"gpt-2x256": (2, 256, 8), "gpt-4x256": (4, 256, 8), "gpt-2x384": (2, 384, 12)}
"""Layers, width and heads of small GPTs."""
VOCABULARY, POSITIONS = 512, 64


@dataclass(frozen=True, slots=True)
class RealRun:
    """A model by name, its batch, and how it is distributed."""

    model: str
    batch_size: int
    strategy: Strategy

    @property
    def name(self) -> str:
        """What the run is called in tables."""
        return f"{self.model} batch {self.batch_size} {self.strategy.label}"


ALONE = (
    Strategy(),
    Strategy(microbatches=2),
    Strategy(microbatches=4),
    Strategy(microbatches=2, recompute="full"),
)
TWO = (
    Strategy(dp=2),
    Strategy(dp=2, microbatches=2, zero=1),
    Strategy(dp=2, zero=3),
    Strategy(tp=2),
    Strategy(tp=2, microbatches=2),
    Strategy(pp=2, microbatches=2, schedule="gpipe"),
    Strategy(pp=2, microbatches=4),
    Strategy(pp=2, microbatches=4, schedule="zb-h1"),
)
FOUR = (
    Strategy(dp=2, tp=2),
    Strategy(dp=2, pp=2, microbatches=2),
    Strategy(tp=2, pp=2, microbatches=2),
    Strategy(dp=4),
    Strategy(pp=4, microbatches=4),
)
MODELS = (
    ("mlp-4x512", 256),
    ("mlp-8x512", 256),
    ("gpt-2x256", 8),
    ("gpt-4x256", 8),
    ("gpt-2x384", 8),
)
"""So large that computing takes longer than what the executor itself does, in Python. Steps of 2 to
20 ms (widths of 64 to 256, batches of 8 and 64) were 20 % off in an earlier series of 45 plans."""
MODELS_ON_FOUR = (("mlp-8x512", 256), ("gpt-4x256", 8))


def all_runs() -> Iterator[RealRun]:
    """All runs, those on few processes first."""
    for strategies, models in ((ALONE, MODELS), (TWO, MODELS), (FOUR, MODELS_ON_FOUR)):
        for strategy in strategies:
            for model, batch_size in models:
                yield RealRun(model, batch_size, strategy)


def model_of(name: str, folder: Path) -> str:
    """What `load_model` takes for a model; small GPTs get a file in the folder."""
    if name not in GPTS:
        return name
    layers, width, heads = GPTS[name]
    config = {
        "model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads,
        "vocab_size": VOCABULARY, "n_positions": POSITIONS,
    }  # fmt: skip
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return str(path)
