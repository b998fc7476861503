"""Damaged files end in a model or in one typed error: never in a crash, a hang or gigabytes."""

from __future__ import annotations

import random
import resource
import sys
from typing import Any

import onnx
import pytest

from distir.errors import ImportModelError
from distir.importers.onnx import read_onnx
from tests.conftest import shared_path
from tests.counting import calls_of
from tests.importers.models import every_small_model
from tests.importers.mutation import mutate, mutated_bytes
from tests.slow import shares

FILES = 100  # in a share
MOST_BYTES = 1 << 30
LONGEST_MESSAGE = 4000
MOST_CALLS = 2_000_000  # importing the largest of these files takes 145,000


def _originals() -> list[bytes]:
    originals = [model.SerializeToString() for model in every_small_model().values()]
    for name in ("gpt2", "llama-8layer", "mlp16"):
        try:
            originals.append(shared_path(f"models/{name}.onnx").read_bytes())
        except pytest.skip.Exception:
            continue
    return originals


def _damaged(originals: list[bytes], rng: random.Random) -> Any:
    """A damaged model, or `None` if nothing can be parsed any more."""
    data = rng.choice(originals)
    if rng.random() < 0.3:
        model = onnx.ModelProto()
        try:
            model.ParseFromString(mutated_bytes(data, rng))
        except Exception:  # noqa: BLE001  (protobuf raises its own family)
            return None
        return model
    model = onnx.load_from_string(data)
    mutate(model, rng)
    return model


def _message(model: Any, seed: int) -> str:
    """The error that importing ends in; empty if there is none."""
    try:
        calls_of(lambda: read_onnx(model), most=MOST_CALLS)
    except ImportModelError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return ""


def _peak_bytes() -> int:
    """The most memory that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@shares(12, seconds=1)
def test_damaged_files_end_in_a_model_or_a_typed_error(share: int) -> None:
    originals = _originals()
    outcomes = {"model": 0, "error": 0}
    peak_before = _peak_bytes()
    for seed in range(share * FILES, (share + 1) * FILES):
        model = _damaged(originals, random.Random(seed))
        if model is None:
            continue
        message = _message(model, seed)
        outcomes["error" if message else "model"] += 1
        assert len(message) < LONGEST_MESSAGE, f"seed {seed}"
    assert min(outcomes.values()) > FILES // 20
    assert _peak_bytes() - peak_before < MOST_BYTES
