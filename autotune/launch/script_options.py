"""Options of training scripts that bear on time or memory and are not simulated.

A script has whatever options its author gave it, so that their names are not known; but people call
the same things by the same words, which transformers' Trainer and TRL made common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.launch.known import NOT_SIMULATED


def _with_word(words: str) -> re.Pattern[str]:
    """Names of options that have one of some words."""
    return re.compile(rf"--(.*[-_.])?({words})([-_.].*)?")


@dataclass(frozen=True, slots=True)
class Subject:
    """What options are about, as their names tell, or their values: `--lora_r 8`, or
    `--finetuning_type lora`."""

    names: re.Pattern[str]
    reason: str
    values: re.Pattern[str] | None = None
    """Values that are about it whatever the option is called."""
    usual: re.Pattern[str] | None = None
    """Values that say what is simulated."""

    def is_of(self, option: str, given: Any) -> bool:
        """Whether an option is about this, and may say something else than what is simulated."""
        value = str(given).lower()
        if self.usual is not None and self.usual.fullmatch(value):
            return False
        by_value = self.values is not None and self.values.fullmatch(value) is not None
        return by_value or self.names.fullmatch(option.lower()) is not None


OPTIMIZER = Subject(
    re.compile("--optim(izer)?([-_](name|type))?"),
    "Adam is simulated instead",
    usual=re.compile("adamw?(_torch|_hf|_apex)?(_fused|_xla)?"),
)

SUBJECTS = (
    Subject(
        _with_word("q?lora|dora|peft|adapters?|(un)?freeze|frozen"),
        "the simulation trains all parameters",
        values=re.compile("q?lora|dora|freeze"),
    ),
    Subject(
        _with_word("[248]bit|bits|bnb|quantize|quantization"),
        "weights are simulated without quantization",
        usual=re.compile("16|32"),
    ),
    OPTIMIZER,
    Subject(
        _with_word("compile"), "the software stack decides whether layers are compiled: see --stack"
    ),
    Subject(_with_word("liger"), "the software stack decides which kernels are fused: see --stack"),
)

_ON, _OFF = ("true", "yes"), ("false", "no")
_SAYS_NOTHING = (*_OFF, "", "0", "none", "null")


def not_simulated(options: Mapping[str, Any], *elsewhere: Subject) -> dict[str, Any]:
    """Of every subject that options of a script are about, the first option that says something;
    none of a subject that is switched off, or that is said `elsewhere`."""
    found: dict[str, Any] = {}
    for subject in (each for each in SUBJECTS if each not in elsewhere):
        about = {n: given for n, given in options.items() if subject.is_of(n, given)}
        values = [str(given).lower() for given in about.values()]
        if any(value in _OFF for value in values) and not any(value in _ON for value in values):
            continue
        telling = (n for n, value in zip(about, values, strict=True) if _says(value))
        found |= {name: about[name] for name in list(telling)[:1]}
    return found


def _says(value: str) -> bool:
    """Whether a value says something of a run: what a path names may be anything."""
    return value not in _SAYS_NOTHING and "/" not in value


def reason_of(option: str) -> str | None:
    """Why an option of a script is not simulated; None for what is no such option."""
    if not option.startswith("--"):
        return None
    return next((each.reason for each in SUBJECTS if each.names.fullmatch(option)), NOT_SIMULATED)
