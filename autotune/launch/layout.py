"""Pipeline layouts as Megatron-Core writes them: `Et*7|t*8|t*8|t*9L`.

`E` is the embedding, `t` a transformer layer, `L` the loss, `m` a layer that predicts further
tokens; stages are in the order of their numbers, with `|` between. `(tt|)*30` repeats a group,
`t*8` a letter (megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re

from autotune.launch.errors import LaunchError
from autotune.launch.facts import Cuts

MOST_LAYERS = 100_000
"""Letters beyond which a layout is taken for a typing error."""

_REPEATED = re.compile(r"(\([EtmL|,]*\)|[EtmL|])\*(\d{1,6})")


def format_layout(cuts: Cuts) -> str:
    """The layout of some cuts."""
    stages = ["t" if n == 1 else f"t*{n}" if n else "" for n in cuts.layers]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def parse_layout(text: str) -> Cuts:
    """The cuts of a layout. Raises `LaunchError` if it is none, or has what cannot be simulated."""
    stages = _expanded(text).replace(",", "").split("|")
    letters = "".join(stages)
    if "m" in letters:
        raise LaunchError(
            f"the layout {text} has layers that predict further tokens (m), which are not simulated"
        )
    if not re.fullmatch(r"Et+L", letters) or not all(stages):
        raise LaunchError(
            f"the layout {text} cannot be read; expected an embedding E, layers t and a loss L, "
            "with | between stages, none of them empty"
        )
    return Cuts(tuple(stage.count("t") for stage in stages))


def _expanded(text: str) -> str:
    """The layout with repetitions written out, the innermost first."""
    found = text.strip().strip("\"'").replace(" ", "")
    while (match := _REPEATED.search(found)) is not None:
        unit, times = match[1].strip("()"), int(match[2])
        if len(unit) * times > MOST_LAYERS:
            raise LaunchError(f"the layout {text[:60]} has more than {MOST_LAYERS:,} layers")
        found = found[: match.start()] + unit * times + found[match.end() :]
        if len(found) > MOST_LAYERS:
            raise LaunchError(f"the layout {text[:60]} has more than {MOST_LAYERS:,} layers")
    return found.replace("(", "").replace(")", "")
