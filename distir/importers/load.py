"""Loads a model from any description: a zoo name, a file, a Python function.

gpt3-13b                       the zoo
model.onnx                     an ONNX file, with or without its weights
config.json, or its directory  a Hugging Face configuration
package.module:function        a Python function that returns a `Function`, an ONNX model or a
FILE.py:function               configuration; it may take `batch_size` and `sequence_length`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from distir.errors import ImportModelError, checked_name, shown
from distir.files import is_file, is_folder
from distir.garbage import collection_paused
from distir.importers.probe import (
    build_at_possible_sizes,
    build_at_probe_sizes,
    dims_of_sequences,
    probe_sizes,
)
from distir.importers.python import is_onnx_model, size_arguments
from distir.ir import Function
from distir.limits import MOST_ELEMENTS
from distir.models.experts import with_imbalance
from distir.models.layers import AttentionKind
from distir.models.zoo import ModelConfig, find_model, has_model
from distir.user_code import find_object, run_user_code

Source = str | Path | Callable[..., object]
"""A description of a model: one of the texts above, a path, or the Python function itself."""

_FORMS = "a zoo name, FILE.onnx, config.json or its directory, module:function, FILE.py:function"
_OBJECTS = (
    "a Python function that makes a model, a loaded model, an ONNX ModelProto or a configuration"
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model's function, with what its source says about it."""

    name: str
    function: Function
    sequence_length: int | None = None
    """The usual sequence length, if the source states one."""
    longest: int | None = None
    """The longest sequence that the model can take, if there is a limit."""
    symbols: Mapping[str, tuple[str | None, ...]] = field(
        default_factory=dict[str, tuple[str | None, ...]]
    )
    """Per input of an ONNX file and per dim: the name of a symbolic size, or None if the file fixes
    the size. The sizes of other inputs are fixed, but for samples and sequences."""
    lengths: tuple[str, ...] = ()
    """The symbolic sizes of an ONNX file that are neither a batch nor the size of an image."""
    sequences: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]], repr=False
    )
    """Per input, the dims that are a sequence because a Python function says so, which took
    `sequence_length`."""
    config: ModelConfig | None = None
    """The sizes and choices that the model was built from, if it was built from such."""
    at_other_lengths: Function | None = field(default=None, repr=False, compare=False)
    """The function at other `lengths`, if the file can have others."""
    read_again: Callable[[Mapping[str, int]], LoadedModel] | None = field(
        default=None, repr=False, compare=False
    )
    """Reads the ONNX file again with these sizes of what it leaves open."""
    fixed_length: int | None = None
    """The sequence length at which alone the function is right, as the file was read for it."""

    def __post_init__(self) -> None:
        """Raises `ImportModelError` for sizes that nobody has."""
        checked_name(self.name, "the model", ImportModelError)
        for value in (*self.function.inputs, *self.function.parameters):
            if value.type.num_elements > MOST_ELEMENTS:
                raise ImportModelError(
                    f"{self.name}: {value.name} has the shape {shown(value.type.shape)}; expected "
                    f"at most {MOST_ELEMENTS:,} elements"
                )


def load_function(
    source: Source,
    *,
    attention: AttentionKind = "fused",
    onnx_options: Mapping[str, Any] | None = None,
) -> Function:
    """The function of the model that `source` describes, at the sizes of its file, or at probe
    sizes (see glossary).

    `attention` says whether models that are built here have fused or spelled-out attention.
    `onnx_options` are keyword arguments of `import_onnx`. Raises `ImportModelError` or
    `UnknownNameError` if there is no such model or it cannot be read.
    """
    return load_source(source, attention=attention, onnx_options=onnx_options).function


@collection_paused()
def load_source(
    source: Source,
    *,
    attention: AttentionKind = "fused",
    imbalance: float = 1.0,
    onnx_options: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Like `load_function`; also returns the model's name and its usual sequence length.

    `imbalance` is the number of tokens of the fullest expert of a mixture over the mean. Raises
    `ImportModelError` for ONNX options and another source, too.
    """
    options = _Options(attention, imbalance, onnx_options or {})
    if not isinstance(source, (str, Path)):
        _check_describes(source)
        label = getattr(source, "__name__", type(source).__name__)
        return _from_object(source, label, label, options)
    if not str(source).strip():
        raise ImportModelError(f"the model is {str(source)!r}; expected {_FORMS}")
    path = Path(source)
    if names_onnx_file(source):
        return _from_onnx_file(path, options)
    if path.suffix.lower() == ".json" or (is_folder(path) and not has_model(str(source))):
        from distir.importers.config import read_config

        return _from_config(read_config(path), options)
    place, colon, attribute = str(source).rpartition(":")
    if colon and place and attribute:
        found = find_object(place, attribute, error=ImportModelError)
        return _from_object(found, attribute, str(source), options)
    return _from_name(str(source), options)


def _check_describes(source: object) -> None:
    """Raises `ImportModelError` if an object that is no text describes no model."""
    if callable(source) or is_onnx_model(source) or isinstance(source, (Function, ModelConfig)):
        return
    advice = 'try "gpt2"; autotune models lists all names'
    if isinstance(source, LoadedModel):
        advice = "it is loaded already; use it as it is"
    elif isinstance(getattr(source, "model", None), LoadedModel):
        advice = "it has a model, which would do"
    raise ImportModelError(f"the model is {shown(source)}; expected {_FORMS}, {_OBJECTS}; {advice}")


def names_onnx_file(source: object) -> bool:
    """Whether a source of a model is the path of an ONNX file."""
    return isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".onnx"


@dataclass(frozen=True, slots=True)
class _Options:
    attention: AttentionKind
    imbalance: float
    onnx: Mapping[str, Any]


def _from_config(config: ModelConfig, options: _Options) -> LoadedModel:
    if options.onnx:
        raise ImportModelError(
            f"{', '.join(options.onnx)}: these options are only for ONNX files, and {config.name} "
            "is not one"
        )
    if options.imbalance != 1.0:
        config = with_imbalance(config, options.imbalance)

    def build(batch_size: int, sequence_length: int) -> Function:
        return config.build(batch_size, sequence_length, options.attention)

    function = build_at_probe_sizes(build, config.longest)
    return LoadedModel(config.name, function, config.sequence_length, config.longest, config=config)


def _from_onnx_file(path: Path, options: _Options) -> LoadedModel:
    if not is_file(path):
        if is_folder(path):
            raise ImportModelError(f"{path} is a folder; expected an ONNX file")
        place = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ImportModelError(f"{path}: there is no such file{place}")
    return _import_onnx(path.stem, path, options)


def _import_onnx(name: str, model: object, options: _Options) -> LoadedModel:
    from distir.importers.onnx import read_onnx

    imported = read_onnx(model, **options.onnx)
    return LoadedModel(
        name,
        imported.function,
        symbols=imported.input_dims,
        lengths=imported.lengths,
        at_other_lengths=imported.at_other_lengths,
        read_again=partial(_import_with_sizes, name, model, options),
    )


def _import_with_sizes(
    name: str, model: object, options: _Options, sizes: Mapping[str, int]
) -> LoadedModel:
    before: Mapping[str, int] = options.onnx.get("sizes") or {}
    stated: dict[str, Any] = {**options.onnx, "sizes": {**before, **sizes}}
    return _import_onnx(name, model, replace(options, onnx=stated))


def _from_object(found: object, name: str, label: str, options: _Options) -> LoadedModel:
    """Loads a Python object: a model, its configuration, or a function that makes either."""
    if not callable(found):
        return _from_result(found, name, label, options)
    taken = size_arguments(found, label)

    def make(*sizes: int) -> object:
        given = dict(zip(("batch_size", "sequence_length"), sizes, strict=False))
        arguments = {key: value for key, value in given.items() if key in taken}
        call = ", ".join(f"{name}={size}" for name, size in arguments.items())
        where = f"{label}({call})" if call else label
        return run_user_code(where, lambda: found(**arguments), ImportModelError)

    if not taken:
        return _from_result(make(), name, label, options)

    def build(batch_size: int, sequence_length: int) -> Function:
        made = make(batch_size, sequence_length)
        return _from_result(made, name, label, options).function

    batch, usual = (
        size if isinstance(size, int) and size > 0 else None
        for size in map(taken.get, ("batch_size", "sequence_length"))
    )
    function, length = build_at_possible_sizes(build, batch, usual)
    sequences: Mapping[str, tuple[int, ...]] = {}
    if "sequence_length" in taken:
        samples, _ = probe_sizes()
        sequences = dims_of_sequences(function, length, lambda other: build(samples, other))
    return LoadedModel(name, function, usual, sequences=sequences)


def _from_result(made: object, name: str, label: str, options: _Options) -> LoadedModel:
    if isinstance(made, Function):
        return LoadedModel(name, made)
    if is_onnx_model(made):
        return _import_onnx(name, made, options)
    if isinstance(made, ModelConfig):
        return _from_config(made, options)
    raise ImportModelError(
        f"{label} returns {type(made).__module__}.{type(made).__qualname__}; expected a "
        "distir Function, an ONNX ModelProto or a configuration such as TransformerConfig"
    )


def _from_name(text: str, options: _Options) -> LoadedModel:
    """Loads a model of the zoo; raises an error that says why `text` describes no model."""
    path = Path(text)
    if path.suffix.lower() == ".py":
        raise ImportModelError(
            f"{text}: the function in the file is not named; expected {text}:build, for example"
        )
    if (is_file(path) or is_folder(path)) and not has_model(text):
        raise ImportModelError(f"{text} is not a known kind of file; expected {_FORMS}")
    if len(path.parts) > 1:
        raise ImportModelError(f"{text}: there is no such file or directory; expected {_FORMS}")
    return _from_config(find_model(text), options)
