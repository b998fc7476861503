"""What is said of an op that cannot be imported: why, and what to do."""

from __future__ import annotations

import difflib
import re

from distir.importers.onnx_by_name import known_op_types

_REASONS = {
    "Loop|Scan|SequenceMap": "its iterations run one after another; export it unrolled",
    "(Random|Bernoulli|Multinomial).*": "it draws random numbers; make them an input of the model",
    "(Sequence|Optional).*": "its results are not tensors; export the model without it",
    "NonZero": "the shape of its result depends on data; a mixture of experts can be given by its "
    "config.json, or exported with experts as batched products",
    "Unique|Compress|NonMaxSuppression": "the shape of its result depends on data; export the "
    "model without it",
    r"com\.microsoft\.nchwc:.*": "its tensors are laid out for one kind of processor; save the "
    "model with ORT_ENABLE_EXTENDED, or export it again",
    ".*Quant.*|.*Integer|(.*:)?Q(Linear|Attention|Embed).*": "export the model before quantization",
}
"""By pattern of the op's type, behind its domain: why it is not supported, and what to do."""


def unknown_op(key: str) -> str:
    """An error message for an op of a type that is not known, as `NodeRecord.type_key` has it."""
    reason = next((said for types, said in _REASONS.items() if re.fullmatch(types, key)), None)
    if reason is not None:
        return f"{key} is not supported: {reason}"
    near = difflib.get_close_matches(key, known_op_types(), n=3, cutoff=0.6)
    hint = f" (similar names: {', '.join(near)})" if near else ""
    return (
        f"{key} is not supported{hint}; export with another opset or exporter, or register an op "
        "of this name with distir.ops.register_op, or a converter to known ops with "
        "distir.importers.onnx_call.converts"
    )


__all__ = ["unknown_op"]
