"""distir: an intermediate representation of distributed programs, made to be simulated.

    import distir

    model = distir.load_model("gpt2")
    cluster = distir.load_cluster("dgx-a100", devices=16)
    result = distir.simulate(model, distir.Strategy(dp=4, tp=4), cluster, batch_size=64)

The public names are those of `distir.api`. They are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distir.registry import provide

if TYPE_CHECKING:
    from distir.api import *  # noqa: F403 (`__all__` there is the list)
else:
    from distir.front_door import front_door

    __getattr__, __dir__ = front_door(__name__)

__version__ = "0.2.0"
"""Also the version of `search_spaces`, `autotune` and `experiments`, which come along."""

provide("distir.ops", "distir.ops")
