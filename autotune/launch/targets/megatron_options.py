"""Options of Megatron-LM that are no row of its table: what they bear on."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOT_SIMULATED = "bears on time or memory, and is not simulated"

REASONS = {
    "--squared-relu": "the activation is taken as GELU, which reads and writes as much",
    "--quick-geglu": "the activation is taken as GELU without a gate",
    "--tp-comm-overlap": "how far tp communication is hidden is the software stack's: see --stack",
    "--cuda-graph-impl": "launches are those of the software stack: see --stack",
    "--enable-cuda-graph": "launches are those of the software stack: see --stack",
    "--deterministic-mode": "deterministic kernels are slower; the usual ones are simulated",
    "--no-gradient-accumulation-fusion": "gradients are taken as added up by the product's kernel",
    "--attention-softmax-in-fp32": "the precision inside attention is the kernel's own",
    "--attention-backend": "which kernels attention runs is the software stack's: see --stack",
    "--no-rope-fusion": "fused kernels are the software stack's: see --stack",
    "--no-masked-softmax-fusion": "fused kernels are the software stack's: see --stack",
    "--cross-entropy-loss-fusion": "how the loss runs is the software stack's: see --stack",
    "--cross-entropy-fusion-impl": "how the loss runs is the software stack's: see --stack",
    "--mtp-num-layers": "layers that predict further tokens are left out",
    "--window-size": "attention reads the whole sequence",
    "--experimental-attention-variant": "attention is simulated as the usual one",
}
"""Why some options are not simulated."""


@cache
def _listed() -> dict[str, frozenset[str]]:
    """The options of the file beside this one, by the list that they are in."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: frozenset(options.split()) for name, options in content.items()}


def is_neutral(option: str) -> bool:
    """Whether an option bears neither on time nor on memory."""
    return option in _listed()["neutral"]


def not_modelled(option: str) -> str | None:
    """Why an option is not simulated; None if it is none of Megatron-LM."""
    if option in _listed()["bearing"]:
        return REASONS.get(option, NOT_SIMULATED)
    return None
