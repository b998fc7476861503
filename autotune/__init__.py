"""Finds the best way to distribute a model over a cluster. Start with `tune`, or with `python
-m autotune --help`.

The public names are those of `autotune.api`. They are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.api import *  # noqa: F403 (`__all__` there is the list)
else:
    from distir.front_door import front_door
    from distir.registry import provide

    provide("distir.figures", "autotune.page.simulated")
    __getattr__, __dir__ = front_door(__name__)
