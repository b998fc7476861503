"""The fields of a Hugging Face `config.json`, and what reads those of a family of models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from distir.errors import ImportModelError, shown
from distir.limits import MOST_LAYERS
from distir.models.layers import Activation
from distir.models.transformer import TransformerConfig, windows_in_turns
from distir.registry import Registry

T = TypeVar("T", int, float, bool, str)

ACTIVATION_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's names of activation functions."""

LAYER_TYPES = ("full_attention", "sliding_attention")
"""Hugging Face's names of layers that have no window and of those that have one. Other layers, such
as `chunked_attention`, are of other models."""

MODEL_TYPES: Registry[Callable[[str, Fields], TransformerConfig]] = Registry("model_type")
"""Per `model_type`, a function from a name and the fields of the file to a configuration."""


class Fields:
    """Typed access to the fields of a file. A field without a default must be there; `null` counts
    as absent. Methods raise `ImportModelError` if a field is missing or has another type."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where
        """The file and, of a part of it, the field; for messages."""

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        return self._get(name, int, "a whole number", default)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1. The default may be 0, for what is decided elsewhere."""
        value = self.integer(name, default)
        if value < 1 and self._values.get(name) is not None:
            raise self.error(f"field {name!r} is {value}; expected a whole number of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        value = self._values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            return float(value)
        return self._get(name, float, "a number", default)

    def epsilon(self, name: str, default: float | None = None) -> float:
        """What a norm adds to a variance: a number of at least 0."""
        value = self.number(name, default)
        if value < 0:
            raise self.error(f"field {name!r} is {value}; expected a number of at least 0")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        return self._get(name, bool, "true or false", default)

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return self._get(name, str, "a string", default)

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of the known strings."""
        found = self.text(name, default)
        if found not in known:
            raise self.error(
                f"{name} is {shown(found)}; expected one of {', '.join(sorted(known))}"
            )
        return found

    def only(self, name: str, value: object) -> None:
        """Refuses another value than the one that is known; a field may be absent."""
        found = self._values.get(name)
        if found is not None and found != value:
            raise self.error(
                f"{name} is {shown(found)}, which is not supported (only {shown(value)} is); an "
                "ONNX export of the model works"
            )

    def texts(self, name: str) -> list[str]:
        """The strings of a list; none if it is absent."""
        return [each for each in self._list(name) if isinstance(each, str)]

    def integers(self, name: str) -> list[int]:
        """The whole numbers of a list; none if it is absent."""
        return [each for each in self._list(name) if isinstance(each, int)]

    def _list(self, name: str) -> list[object]:
        value = self._values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(f"field {name!r} is {shown(value)}; expected a list")
        return cast("list[object]", value or [])

    def activation(self, name: str, default: str) -> Activation:
        """One of the activations known here."""
        return ACTIVATION_NAMES[self.choice(name, ACTIVATION_NAMES, default)]

    def has(self, name: str) -> bool:
        """Whether a field is there and is not empty, zero or false."""
        return bool(self._values.get(name))

    def states(self, name: str) -> bool:
        """Whether a field is there and is not `null`."""
        return self._values.get(name) is not None

    def table(self, name: str) -> Fields:
        """The fields of an object inside the file; none if it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"field {name!r} is {shown(value)}; expected an object")
        return Fields(cast("Mapping[str, object]", value or {}), f"{self.where}, {name}")

    def names(self) -> list[str]:
        """The names of all fields."""
        return list(self._values)

    def holds(self, name: str) -> bool:
        """Whether a field is an object."""
        return isinstance(self._values.get(name), dict)

    def holds_text(self, name: str) -> bool:
        """Whether a field is a string."""
        return isinstance(self._values.get(name), str)

    def completed(self, usual: Mapping[str, object], first: Mapping[str, object]) -> Fields:
        """With what is `usual` where nothing is stated, and with some fields `first`."""
        return Fields({**usual, **self._values, **first}, self.where)

    def error(self, message: str) -> ImportModelError:
        """An error that names the file."""
        return ImportModelError(f"{self.where}: {message}")

    def _get(self, name: str, kind: type[T], expected: str, default: T | None) -> T:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(f"field {name!r} is missing; expected {expected}")
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.error(f"field {name!r} is {shown(value)}; expected {expected}")
        return value


def dropping(
    config: TransformerConfig,
    fields: Fields,
    hidden: tuple[str, float],
    attention: tuple[str, float],
    embedding: tuple[str, float] | None = None,
) -> TransformerConfig:
    """The configuration with dropout as fields of the file say, each given as (name, default):
    after layers (`hidden`), and of attention weights. The embedding drops as layers do, which is
    told where the file says otherwise."""
    dropout, of_weights = fields.number(*hidden), fields.number(*attention)
    same = dropout == of_weights
    config = replace(config, dropout=dropout, attention_dropout=None if same else of_weights)
    if embedding is None or fields.number(*embedding) == dropout:
        return config
    note = f"the embedding drops {dropout:g}, as layers do; the model's {embedding[0]} is not"
    return replace(config, notes=(*config.notes, f"{note} applied"))


def rotary_base(fields: Fields, name: str) -> float:
    """The base of rotary embedding, which newer files have in `rope_parameters`: where layers
    differ, that of layers which read the whole sequence."""
    newer = fields.table("rope_parameters")
    if newer.holds("full_attention"):
        newer = newer.table("full_attention")
    return fields.number(name, newer.number("rope_theta", 10000.0))


def rotary_fraction(fields: Fields, name: str, default: float) -> float:
    """The fraction of heads that is rotated, which newer files have in `rope_parameters`."""
    newer = fields.table("rope_parameters").number("partial_rotary_factor", default)
    return fields.number(name, newer)


def attention_windows(
    fields: Fields,
    has_window: Callable[[int], bool] = lambda layer: True,
    *,
    used: bool = True,
    usual: int = 4096,
    listed: bool = True,
) -> tuple[int, ...]:
    """The windows of attention (`TransformerConfig.windows`) of a family in which layers may have
    one: those that `has_window` names, unless they are `listed` in the file.

    What a file means that does not say so: `used`, whether a window counts; `usual`, how wide it
    is. A window that is `null` is none.
    """
    is_null = "sliding_window" in fields.names() and not fields.states("sliding_window")
    window = 0 if is_null else fields.count("sliding_window", usual)
    if not window or not fields.flag("use_sliding_window", used):
        return ()
    count, kinds = fields.count("num_hidden_layers"), fields.texts("layer_types") if listed else []
    if kinds and len(kinds) != count:
        raise fields.error(f"layer_types has {len(kinds)} entries; expected {count}")
    if unknown := [kind for kind in kinds if kind not in LAYER_TYPES]:
        raise fields.error(
            f"layer_types has {shown(unknown[0])}; expected {' or '.join(LAYER_TYPES)}"
        )
    if kinds:
        there = [kind == "sliding_attention" for kind in kinds]
    else:
        there = [has_window(layer) for layer in range(min(count, MOST_LAYERS))]
    return windows_in_turns([window if each else 0 for each in there])


def but_every(fields: Fields, usual: int) -> Callable[[int], bool]:
    """All layers but every n-th, as `sliding_window_pattern` has it: n, or letters for layers in
    turns, of which L has a window. The field is read where it is asked for a layer: files of models
    without windows have 0 there."""
    name = "sliding_window_pattern"

    def has_window(layer: int) -> bool:
        if not fields.holds_text(name):
            return (layer + 1) % fields.count(name, usual) > 0
        letters = fields.text(name)
        if not letters or set(letters) - {"L", "G"}:
            raise fields.error(f"{name} is {shown(letters)}; expected a number, or letters L and G")
        return letters[layer % len(letters)] == "L"

    return has_window


def unrotated_notes(fields: Fields) -> tuple[str, ...]:
    """What is told of a family in which some layers rotate nothing: every fourth, or those with 0
    in a list."""
    listed = fields.integers("no_rope_layers")
    if listed and all(listed):
        return ()
    return ("every layer rotates queries and keys; the model's no_rope_layers are not applied",)


def rotation_notes(windows: Sequence[int]) -> tuple[str, ...]:
    """What is told of a family in which layers either have a window or rotate nothing."""
    if not windows or all(windows):
        return ()
    return ("every layer rotates queries and keys; of the model those without a window do not",)


__all__ = [
    "ACTIVATION_NAMES",
    "MODEL_TYPES",
    "Fields",
    "attention_windows",
    "but_every",
    "dropping",
    "rotary_base",
    "rotary_fraction",
    "rotation_notes",
    "unrotated_notes",
]
