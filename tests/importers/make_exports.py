"""Exports of real models: a BERT, a T5, a ViT and a mixture of experts, as their users export them.

    pip install torch transformers onnxscript
    python tests/importers/make_exports.py FOLDER [bert t5 vit mixture]
    python -m experiments.axes FOLDER/*.onnx --samplers uct

Layers are those of the published models of the smallest size, with fewer of them, as they are all
alike; the mixture has the layers of Llama 4, narrower and without rotary positions, which need
complex numbers that ONNX does not have. Weights are random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = ("torch", "transformers", "onnxscript")
BATCH, LENGTH, LAYERS = 8, 128, 4

Export = tuple[Any, dict[str, Any], bool]
"""A model, its inputs by name, and whether PyTorch's newer exporter understands it."""


def bert() -> Export:
    """BERT-base's layers with the head that predicts words (Devlin et al. 2019)."""
    library = _library("transformers")
    inputs = {"input_ids": _tokens(), "attention_mask": _tokens()}
    return library.BertForMaskedLM(library.BertConfig(num_hidden_layers=LAYERS)), inputs, True


def t5() -> Export:
    """T5-small's layers (Raffel et al. 2020); the decoder reads half as many tokens."""
    library = _library("transformers")
    config = library.T5Config(num_layers=LAYERS, num_decoder_layers=LAYERS, use_cache=False)
    inputs = {
        "input_ids": _tokens(),
        "attention_mask": _tokens(),
        "decoder_input_ids": _tokens(LENGTH // 2),
    }
    return library.T5ForConditionalGeneration(config), inputs, False


def vit() -> Export:
    """ViT-base's layers on pictures of 224 by 224 (Dosovitskiy et al. 2021)."""
    library = _library("transformers")
    pixels = _library("torch").ones(BATCH, 3, 224, 224)
    model = library.ViTForImageClassification(library.ViTConfig(num_hidden_layers=LAYERS))
    return model, {"pixel_values": pixels}, True


def mixture() -> Export:
    """Llama 4's layers, one of 8 experts and a shared one, which compute all tokens of which those
    of others are weighted with 0."""
    library = _library("transformers")
    config = library.Llama4TextConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1024,
        intermediate_size_mlp=2048,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_local_experts=8,
        interleave_moe_layer_step=1,
        no_rope_layers=[0] * LAYERS,
        use_cache=False,
    )
    return library.Llama4ForCausalLM(config), {"input_ids": _tokens()}, True


MODELS: dict[str, Callable[[], Export]] = {each.__name__: each for each in (bert, t5, vit, mixture)}


def main(argv: Sequence[str]) -> int:
    """Writes the exports; the exit status is 1 if what that needs is not installed."""
    if not argv or not set(argv[1:]) <= set(MODELS):
        print(f"expected FOLDER and any of {', '.join(MODELS)}; got {' '.join(argv) or 'nothing'}")
        return 2
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"exports need {', '.join(NEEDED)}; not installed: {', '.join(missing)}")
        return 1
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in argv[1:] or MODELS:
        file = folder / f"{name}.onnx"
        _write(file, *MODELS[name]())
        print(file)
    return 0


def _write(file: Path, model: Any, inputs: dict[str, Any], newer: bool) -> None:
    export = _library("torch").onnx.export
    model.eval()
    names = {"input_names": list(inputs)}
    if newer:
        export(model, (), file, kwargs=inputs, external_data=False, **names)
    else:
        export(model, tuple(inputs.values()), file, dynamo=False, **names)


def _library(name: str) -> Any:
    return import_module(name)


def _tokens(length: int = LENGTH) -> Any:
    torch = _library("torch")
    return torch.ones(BATCH, length, dtype=torch.long)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
