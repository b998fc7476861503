"""Reads a Hugging Face `config.json` into a model configuration; weights are not needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from distir.errors import ImportModelError, shown
from distir.files import is_file, is_folder, read_parsed
from distir.models.experts import Experts
from distir.models.latent import Latent
from distir.models.layers import Activation
from distir.models.transformer import TransformerConfig, bert_config, llama_config
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

MODEL_TYPES: Registry[Callable[[str, Fields], TransformerConfig]] = Registry("model_type")
"""Per `model_type`, a function from a name and the fields of the file to a configuration."""

_WAYS_TO_CHOOSE = ("greedy", "group_limited_greedy", "noaux_tc")
"""How DeepSeek's routers choose experts: among all, among those of the best groups, or so with
scores that are corrected by how much experts were chosen."""

_ONLY: Mapping[str, object] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "layer_norm_elementwise_affine": True,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "_remove_final_layer_norm": False,
}
"""Options that change the layers of a model, and the value that models here are built for."""

_LEFT_OUT: Mapping[str, str] = {
    "chunk_size_feed_forward": "feed-forward parts take all positions at once",
    "layerdrop": "every layer is run in every step",
    "reorder_and_upcast_attn": "attention is computed in the type of its operands",
}
"""Options that only change how layers are run, and what is done where they are set."""


def read_config(path: str | Path) -> TransformerConfig:
    """The configuration that a `config.json`, or a directory with one, describes.

    Raises `ImportModelError` if the file cannot be read, has an unknown `model_type`, or lacks a
    field.
    """
    file = Path(path)
    if is_folder(file):
        file = file / "config.json"
    fields = Fields(_read_object(file), str(file))
    model_type = fields.text("model_type")
    if model_type not in MODEL_TYPES:
        raise ImportModelError(
            f"{file}: unknown model_type {shown(model_type)}; known are "
            f"{', '.join(sorted(MODEL_TYPES.names()))}; an ONNX export of the model works too"
        )
    for option, value in _ONLY.items():
        fields.only(option, value)
    name = file.absolute().parent.name if file.name == "config.json" else file.stem
    config = MODEL_TYPES.get(model_type)(name or model_type, fields)
    left_out = (
        f"{done}; the model's {option} is not applied"
        for option, done in _LEFT_OUT.items()
        if fields.has(option)
    )
    return replace(config, notes=(*config.notes, *left_out))


def _read_object(file: Path) -> Mapping[str, object]:
    if not is_file(file):
        raise ImportModelError(f"{file}: there is no such file")
    content: object = read_parsed(file, json.loads, "JSON", ImportModelError)
    if not isinstance(content, dict):
        raise ImportModelError(f"{file}: expected a JSON object with the fields of a model")
    return cast("Mapping[str, object]", content)


class Fields:
    """Typed access to the fields of a file. A field without a default must be there; `null` counts
    as absent. Methods raise `ImportModelError` if a field is missing or has another type."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self._where = where

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
            raise self.error(f"{name} is {shown(found)}; known are {', '.join(sorted(known))}")
        return found

    def only(self, name: str, value: object) -> None:
        """Refuses another value than the one that is known; a field may be absent."""
        found = self._values.get(name)
        if found is not None and found != value:
            raise self.error(
                f"{name} is {shown(found)}, which is not supported (only {shown(value)} is); an "
                "ONNX export of the model works"
            )

    def activation(self, name: str, default: str) -> Activation:
        """One of the activations known here."""
        return ACTIVATION_NAMES[self.choice(name, ACTIVATION_NAMES, default)]

    def has(self, name: str) -> bool:
        """Whether a field is there and is not empty, zero or false."""
        return bool(self._values.get(name))

    def table(self, name: str) -> Fields:
        """The fields of an object inside the file; none if it is absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"field {name!r} is {shown(value)}; expected an object")
        return Fields(cast("Mapping[str, object]", value or {}), f"{self._where}, {name}")

    def error(self, message: str) -> ImportModelError:
        """An error that names the file."""
        return ImportModelError(f"{self._where}: {message}")

    def _get(self, name: str, kind: type[T], expected: str, default: T | None) -> T:
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(f"field {name!r} is missing; expected {expected}")
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.error(f"field {name!r} is {shown(value)}; expected {expected}")
        return value


@MODEL_TYPES.register("gpt2")
def _gpt2(name: str, fields: Fields) -> TransformerConfig:
    config = TransformerConfig(
        name=name,
        layers=fields.count("n_layer"),
        hidden=fields.count("n_embd"),
        heads=fields.count("n_head"),
        ffn=fields.count("n_inner", 0),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("n_positions"),
        norm_epsilon=fields.epsilon("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation_function", "gelu_new"),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    config = _dropping(config, fields, ("resid_pdrop", 0.1), ("attn_pdrop", 0.1))
    of_embedding = fields.number("embd_pdrop", config.dropout)
    if of_embedding == config.dropout:
        return config
    note = f"the embedding drops {config.dropout:g}, as layers do; the model's embd_pdrop is not"
    return replace(config, notes=(f"{note} applied",))


@MODEL_TYPES.register("llama")
@MODEL_TYPES.register("mistral")
def _llama(name: str, fields: Fields) -> TransformerConfig:
    heads = fields.count("num_attention_heads")
    base = llama_config(
        name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", 0),
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
    )
    bias = fields.flag("attention_bias", False)
    return replace(
        base,
        norm_epsilon=fields.epsilon("rms_norm_eps", 1e-6),
        rotary_base=_rotary_base(fields, "rope_theta"),
        activation=fields.activation("hidden_act", "silu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias", False),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_dropout=fields.number("attention_dropout", 0.0) or None,
        notes=_window_notes(fields),
    )


@MODEL_TYPES.register("qwen2")
def _qwen2(name: str, fields: Fields) -> TransformerConfig:
    return replace(_llama(name, fields), qkv_bias=True)


@MODEL_TYPES.register("qwen3")
def _qwen3(name: str, fields: Fields) -> TransformerConfig:
    return replace(_llama(name, fields), qk_norm=True)


@MODEL_TYPES.register("mixtral")
def _mixtral(name: str, fields: Fields) -> TransformerConfig:
    return replace(
        _llama(name, fields),
        experts=Experts(
            count=fields.count("num_local_experts"),
            top_k=fields.count("num_experts_per_tok"),
            ffn=fields.count("intermediate_size"),
        ),
    )


@MODEL_TYPES.register("qwen2_moe")
def _qwen2_moe(name: str, fields: Fields) -> TransformerConfig:
    experts = replace(
        _qwen_experts(fields),
        shared_ffn=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    bias = fields.flag("qkv_bias", True)
    return replace(_llama(name, fields), qkv_bias=bias, experts=experts)


@MODEL_TYPES.register("qwen3_moe")
def _qwen3_moe(name: str, fields: Fields) -> TransformerConfig:
    return replace(_qwen3(name, fields), experts=_qwen_experts(fields))


def _qwen_experts(fields: Fields) -> Experts:
    if fields.integer("decoder_sparse_step", 1) != 1 or fields.has("mlp_only_layers"):
        raise fields.error(
            "a mix of layers with and without experts (decoder_sparse_step, mlp_only_layers) is "
            "not supported; an ONNX export of the model works"
        )
    # Files of transformers 5 have another name for it.
    count = fields.count("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    return Experts(
        count=count,
        top_k=fields.count("num_experts_per_tok"),
        ffn=fields.count("moe_intermediate_size"),
        normalized=fields.flag("norm_topk_prob", False),
    )


@MODEL_TYPES.register("deepseek_v2")
def _deepseek_v2(name: str, fields: Fields) -> TransformerConfig:
    return _deepseek(name, fields, scoring="softmax", choosing="greedy")


@MODEL_TYPES.register("deepseek_v3")
def _deepseek_v3(name: str, fields: Fields) -> TransformerConfig:
    return _deepseek(name, fields, scoring="sigmoid", choosing="noaux_tc")


def _deepseek(name: str, fields: Fields, *, scoring: str, choosing: str) -> TransformerConfig:
    """The configuration; files of transformers leave out how scores are made and experts chosen."""
    if fields.integer("moe_layer_freq", 1) != 1:
        raise fields.error("moe_layer_freq other than 1 is not supported; an ONNX export works")
    fields.only("mlp_bias", False)
    base = _llama(name, fields)
    choosing = fields.choice("topk_method", _WAYS_TO_CHOOSE, choosing)
    scoring = fields.choice("scoring_func", ("sigmoid", "softmax"), scoring)
    corrected, grouped = choosing == "noaux_tc", choosing != "greedy"
    width = fields.count("moe_intermediate_size")
    experts = Experts(
        count=fields.count("n_routed_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn=width,
        scoring="sigmoid" if scoring == "sigmoid" else "softmax",
        normalized=fields.flag("norm_topk_prob", False),
        scale=fields.number("routed_scaling_factor", 1.0),
        corrected=corrected,
        shared_ffn=width * fields.integer("n_shared_experts", 0),
        dense_layers=fields.integer("first_k_dense_replace", 0),
        groups=fields.count("n_group", 1) if grouped else 1,
        chosen_groups=fields.count("topk_group", 1) if grouped else 1,
        group_best=2 if corrected else 1,
    )
    latent = Latent(
        query_rank=fields.integer("q_lora_rank", 0),
        key_rank=fields.count("kv_lora_rank"),
        plain_dim=fields.count("qk_nope_head_dim"),
        rotary_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )
    notes: list[str] = []
    if fields.integer("num_nextn_predict_layers", 0):
        notes.append("layers that predict further tokens (num_nextn_predict_layers) are left out")
    return replace(base, experts=experts, latent=latent, notes=(*base.notes, *notes))


@MODEL_TYPES.register("gpt_neox")
def _gpt_neox(name: str, fields: Fields) -> TransformerConfig:
    bias = fields.flag("attention_bias", True)
    config = TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        ffn=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-5),
        parallel=fields.flag("use_parallel_residual", True),
        learned_positions=False,
        rotary_fraction=fields.number(
            "rotary_pct", fields.table("rope_parameters").number("partial_rotary_factor", 0.25)
        ),
        rotary_base=_rotary_base(fields, "rotary_emb_base"),
        activation=fields.activation("hidden_act", "gelu"),
        qkv_bias=bias,
        output_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
    )
    return _dropping(config, fields, ("hidden_dropout", 0.0), ("attention_dropout", 0.0))


@MODEL_TYPES.register("opt")
def _opt(name: str, fields: Fields) -> TransformerConfig:
    hidden = fields.count("hidden_size")
    embedded = fields.count("word_embed_proj_dim", hidden)
    if embedded != hidden:
        raise fields.error(
            f"word_embed_proj_dim ({embedded}) differs from hidden_size ({hidden}), which is not "
            "supported; an ONNX export of the model works"
        )
    bias = fields.flag("enable_bias", True)
    config = TransformerConfig(
        name=name,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=fields.count("num_attention_heads"),
        ffn=fields.count("ffn_dim"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
        position_offset=2,
        norm_first=fields.flag("do_layer_norm_before", True),
        activation=fields.activation("activation_function", "relu"),
        fused_qkv=False,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return _dropping(config, fields, ("dropout", 0.1), ("attention_dropout", 0.0))


@MODEL_TYPES.register("bert")
def _bert(name: str, fields: Fields) -> TransformerConfig:
    base = bert_config(
        name,
        layers=fields.count("num_hidden_layers"),
        hidden=fields.count("hidden_size"),
        heads=fields.count("num_attention_heads"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
    )
    config = replace(
        base,
        ffn=fields.count("intermediate_size"),
        segments=fields.integer("type_vocab_size", 2),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-12),
        activation=fields.activation("hidden_act", "gelu"),
        causal=fields.flag("is_decoder", False),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return _dropping(
        config, fields, ("hidden_dropout_prob", 0.1), ("attention_probs_dropout_prob", 0.1)
    )


def _dropping(
    config: TransformerConfig,
    fields: Fields,
    hidden: tuple[str, float],
    attention: tuple[str, float],
) -> TransformerConfig:
    """The configuration with dropout as two fields of the file say, each given as (name, default):
    after layers (`hidden`), and of attention weights."""
    dropout, of_weights = fields.number(*hidden), fields.number(*attention)
    same = dropout == of_weights
    return replace(config, dropout=dropout, attention_dropout=None if same else of_weights)


def _rotary_base(fields: Fields, name: str) -> float:
    """The base of rotary embedding, which newer files have in `rope_parameters`."""
    return fields.number(name, fields.table("rope_parameters").number("rope_theta", 10000.0))


def _window_notes(fields: Fields) -> tuple[str, ...]:
    window = fields.integer("sliding_window", 0)
    if not window or not fields.flag("use_sliding_window", True):
        return ()
    return (f"attention reads the whole sequence; the model's window of {window:,} is not applied",)
