"""A transformer's sizes and choices as options of Megatron-LM."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from autotune.launch.common import width_of_heads
from autotune.launch.errors import LaunchError
from autotune.launch.facts import MODEL, Facts
from autotune.launch.rows import (
    Options,
    Row,
    as_word,
    flag,
    missing,
    row,
    shown,
    truth,
    typed,
    value,
)
from distir.models.transformer import windows_in_turns


def _m(name: str) -> str:
    return MODEL + name


def _write_norm(facts: Facts) -> Options:
    rms = facts[_m("norm")] == "rms"
    return {"--normalization": "RMSNorm"} if rms else {"--normalization": "LayerNorm"}


def _read_norm(options: Options, facts: Facts) -> Facts:
    given = options.get("--normalization", "LayerNorm")
    if given not in ("LayerNorm", "RMSNorm"):
        raise LaunchError(f"--normalization is {shown(given)}; expected LayerNorm or RMSNorm")
    return {_m("norm"): "rms" if given == "RMSNorm" else "layer"}


def _write_activation(facts: Facts) -> Options:
    if facts[_m("gated")]:
        return {"--swiglu": True}
    return {}


def _read_activation(options: Options, facts: Facts) -> Facts:
    gated = truth("--swiglu", options.get("--swiglu", False))
    return {_m("gated"): gated, _m("activation"): "silu" if gated else "gelu_tanh"}


def _write_groups(facts: Facts) -> Options:
    groups = facts[_m("kv_heads")]
    if groups == facts[_m("heads")]:
        return {}
    return {"--group-query-attention": True, "--num-query-groups": groups}


def _read_groups(options: Options, facts: Facts) -> Facts:
    heads = facts[_m("heads")]
    grouped = truth("--group-query-attention", options.get("--group-query-attention", False))
    if not grouped:
        return {_m("kv_heads"): heads}
    groups = typed(int, "--num-query-groups", options.get("--num-query-groups", 1), 1)
    return {_m("kv_heads"): groups}


def _read_positions(options: Options, facts: Facts) -> Facts:
    kind = str(options.get("--position-embedding-type", "learned_absolute"))
    if "--use-rotary-position-embeddings" in options:
        kind = "rope"
    if kind not in ("learned_absolute", "rope", "none"):
        raise LaunchError(
            f"--position-embedding-type is {shown(kind)}; expected learned_absolute, rope or none"
        )
    fraction = typed(float, "--rotary-percent", options.get("--rotary-percent", 1.0))
    return {
        _m("learned_positions"): kind == "learned_absolute",
        _m("rotary_fraction"): fraction if kind == "rope" else 0.0,
        _m("rotary_base"): typed(float, "--rotary-base", options.get("--rotary-base", 10000.0)),
    }


def _write_positions(facts: Facts) -> Options:
    if facts[_m("learned_positions")]:
        return {"--position-embedding-type": "learned_absolute"}
    if not facts[_m("rotary_fraction")]:
        return {"--position-embedding-type": "none"}
    said: dict[str, Any] = {"--position-embedding-type": "rope"}
    if facts[_m("rotary_fraction")] != 1.0:
        said["--rotary-percent"] = facts[_m("rotary_fraction")]
    base = facts[_m("rotary_base")]
    return said | {"--rotary-base": int(base) if base == int(base) else base}


def _write_biases(facts: Facts) -> Options:
    if facts[_m("ffn_bias")]:
        return {}
    qkv = {"--add-qkv-bias": True} if facts[_m("qkv_bias")] else {}
    return {"--disable-bias-linear": True, **qkv}


def _read_biases(options: Options, facts: Facts) -> Facts:
    bias = not truth("--disable-bias-linear", options.get("--disable-bias-linear", False))
    qkv = bias or truth("--add-qkv-bias", options.get("--add-qkv-bias", False))
    return {_m("ffn_bias"): bias, _m("output_bias"): bias, _m("qkv_bias"): qkv}


DISPATCHER, EXCHANGING = "--moe-token-dispatcher-type", "alltoall"
DISPATCHERS = ("allgather", EXCHANGING, "flex")
"""How tokens get to experts, the first if nobody says; what is simulated is that they are
exchanged."""


WINDOW, WHOLE = "--window-size", "--window-attn-skip-freq"
"""How far attention looks to both sides, beside a token itself; and which layers look at the whole
sequence: the last layer of every N, or the layers with 0 in a list."""


def _write_windows(facts: Facts) -> Options:
    windows = facts[_m("windows")]
    if not windows:
        return {}
    said = {WINDOW: f"{max(windows) - 1},0"}
    if all(windows):
        return said
    if all(windows[:-1]):
        return said | {WHOLE: len(windows)}
    layers = range(facts[_m("layers")])
    listed = [int(windows[layer % len(windows)] > 0) for layer in layers]
    return said | {WHOLE: str(listed).replace(" ", "")}


def _read_windows(options: Options, facts: Facts) -> Facts:
    if WINDOW not in options:
        return {_m("windows"): ()}
    sides = re.findall(r"-?\d{1,9}", str(options[WINDOW]))
    if len(sides) != 2:
        raise LaunchError(
            f"{WINDOW} is {shown(options[WINDOW])}; expected two numbers, such as 4095,0"
        )
    window = max(0, int(sides[0]) + 1)  # -1: all
    looking = [1]
    if WHOLE in options:
        looking = _of_layers(
            WHOLE, options[WHOLE], facts[_m("layers")], lambda layer, every: (layer + 1) % every > 0
        )
    return {_m("windows"): windows_in_turns([window * each for each in looking])}


def _write_experts(facts: Facts) -> Options:
    said: dict[str, Any] = {
        "--num-experts": facts[_m("experts.count")],
        "--moe-router-topk": facts[_m("experts.top_k")],
        "--moe-ffn-hidden-size": facts[_m("experts.ffn")],
        DISPATCHER: EXCHANGING,
        "--moe-grouped-gemm": True,
    }
    which = _layers_with_experts(facts)
    if which is not None:
        said["--moe-layer-freq"] = which
    if facts[_m("experts.shared_ffn")]:
        said["--moe-shared-expert-intermediate-size"] = facts[_m("experts.shared_ffn")]
    if facts[_m("experts.shared_gate")]:
        said["--moe-shared-expert-gate"] = True
    if facts[_m("experts.scoring")] == "sigmoid":
        said["--moe-router-score-function"] = "sigmoid"
    elif not facts[_m("experts.normalized")]:
        said["--moe-router-pre-softmax"] = True
    if facts[_m("experts.corrected")]:
        said["--moe-router-enable-expert-bias"] = True
    if facts[_m("experts.scale")] != 1.0:
        said["--moe-router-topk-scaling-factor"] = facts[_m("experts.scale")]
    if facts[_m("experts.groups")] > 1:
        said["--moe-router-num-groups"] = facts[_m("experts.groups")]
        said["--moe-router-group-topk"] = facts[_m("experts.chosen_groups")]
    return said


def _read_experts(options: Options, facts: Facts) -> Facts:
    if "--num-experts" not in options:
        return {}

    def number(name: str, default: int) -> int:
        return typed(int, name, options.get(name, default))

    def there(name: str) -> bool:
        return truth(name, options.get(name, False))

    dispatcher = as_word(options.get(DISPATCHER, DISPATCHERS[0]))
    if dispatcher not in DISPATCHERS:
        known = ", ".join(DISPATCHERS)
        raise LaunchError(f"{DISPATCHER} is {shown(options[DISPATCHER])}; expected one of {known}")
    sigmoid = options.get("--moe-router-score-function", "softmax") == "sigmoid"
    corrected = there("--moe-router-enable-expert-bias")
    count, groups = number("--num-experts", 0), number("--moe-router-num-groups", 1)
    top_k = number("--moe-router-topk", 2)
    found = {
        "count": count,
        "top_k": top_k,
        "ffn": number("--moe-ffn-hidden-size", facts[_m("ffn")]),
        "scoring": "sigmoid" if sigmoid else "softmax",
        # Weights of a single expert would all be 1.
        "normalized": top_k > 1 if sigmoid else not there("--moe-router-pre-softmax"),
        "scale": typed(
            float,
            "--moe-router-topk-scaling-factor",
            options.get("--moe-router-topk-scaling-factor", 1.0),
        ),
        "corrected": corrected,
        "shared_ffn": number("--moe-shared-expert-intermediate-size", 0),
        "shared_gate": there("--moe-shared-expert-gate"),
        **_layers_of(options.get("--moe-layer-freq", 1), facts[_m("layers")]),
        "groups": groups,
        "chosen_groups": number("--moe-router-group-topk", groups),
        "group_best": 2 if corrected and groups > 1 else 1,
        "imbalance": 1.0,
    }
    return {_m(f"experts.{name}"): each for name, each in found.items()}


def _layers_with_experts(facts: Facts) -> str | None:
    """Which layers have experts, as a list of 0 and 1; None if all have."""
    dense, every = facts[_m("experts.dense_layers")], facts[_m("experts.every")]
    behind = facts[_m("layers")] - dense
    if every > 1:
        which = [0] * dense + [int(layer % every == 0) for layer in range(behind)]
        return str(which).replace(" ", "")
    return f"([0]*{dense}+[1]*{behind})" if dense else None


def _of_layers(
    option: str, given: Any, layers: int, marks: Callable[[int, int], bool]
) -> list[int]:
    """0 or 1 for each layer, from a list such as `([0]*3+[1]*58)`, or from a number: `marks` says
    whether a layer gets 1 with it."""
    text = str(given).strip().strip("\"'")
    every = int(text) if text.isdecimal() and len(text) < 10 else 0
    pattern = [int(marks(layer, every)) for layer in range(layers)] if every else _pattern(text)
    if pattern is None or len(pattern) != layers:
        raise LaunchError(
            f"{option} is {shown(given)}; expected a number above 0, or a list with 0 or 1 for "
            "each of the "
            f"{layers} layers, such as ([0]+[1]*{layers - 1})"
        )
    return pattern


def _layers_of(given: Any, layers: int) -> Facts:
    """Which layers have experts: with the number 2 every other layer, the first among them."""
    pattern = _of_layers("--moe-layer-freq", given, layers, lambda layer, every: layer % every == 0)
    experts = [layer for layer, there in enumerate(pattern) if there]
    first = experts[0] if experts else layers
    apart = experts[1] - first if len(experts) > 1 else max(1, layers - first)
    if experts != list(range(first, layers, apart)):
        raise LaunchError(
            f"--moe-layer-freq is {shown(given)}; expected layers with experts at equal distances, "
            "after dense layers (0)"
        )
    return {"dense_layers": first, "every": apart}


def _pattern(text: str) -> list[int] | None:
    """The numbers of a list of 0 and 1, of sums of lists and of repeated lists. Nothing is
    executed."""

    def numbers(node: ast.expr) -> list[int] | None:
        if isinstance(node, ast.List):
            values = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if len(values) != len(node.elts) or any(value not in (0, 1) for value in values):
                return None
            return [int(value == 1) for value in values]
        if not isinstance(node, ast.BinOp):
            return None
        left = numbers(node.left)
        if left is None:
            return None
        if isinstance(node.op, ast.Add):
            right = numbers(node.right)
            return None if right is None else left + right
        times = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(node.op, ast.Mult) and isinstance(times, int) and 0 <= times <= 10_000:
            return left * times if len(left) * times <= 10_000 else None
        return None

    try:
        return numbers(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _write_latent(facts: Facts) -> Options:
    rank = facts[_m("latent.query_rank")]
    return {
        "--multi-latent-attention": True,
        **({"--q-lora-rank": rank} if rank else {}),
        "--kv-lora-rank": facts[_m("latent.key_rank")],
        "--qk-head-dim": facts[_m("latent.plain_dim")],
        "--qk-pos-emb-head-dim": facts[_m("latent.rotary_dim")],
        "--v-head-dim": facts[_m("latent.value_dim")],
    }


def _read_latent(options: Options, facts: Facts) -> Facts:
    if not truth("--multi-latent-attention", options.get("--multi-latent-attention", False)):
        return {}
    # Defaults of MLATransformerConfig; queries have no latent if nobody says.
    sizes = {
        "query_rank": ("--q-lora-rank", 0),
        "key_rank": ("--kv-lora-rank", 32),
        "plain_dim": ("--qk-head-dim", 128),
        "rotary_dim": ("--qk-pos-emb-head-dim", 64),
        "value_dim": ("--v-head-dim", 128),
    }
    return {
        _m(f"latent.{name}"): typed(int, option, options.get(option, default))
        for name, (option, default) in sizes.items()
    }


TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokens of the tokenizers whose number is the same for everybody."""


PADDED_VOCABULARY = "--padded-vocab-size"
"""The rows that the model has, whatever its tokenizer has and however these would be padded."""


def _read_vocabulary(options: Options, facts: Facts) -> Facts:
    for name in (PADDED_VOCABULARY, "--vocab-size"):
        if name in options:
            return {_m("vocabulary"): typed(int, name, options[name], 1)}
    kind = options.get("--tokenizer-type", "GPT2BPETokenizer" if "--merge-file" in options else "")
    if kind in TOKENIZERS:
        return {_m("vocabulary"): TOKENIZERS[kind]}
    raise missing("--vocab-size")


def _read_width(options: Options, facts: Facts) -> Facts:
    hidden = facts[_m("hidden")]
    gated = truth("--swiglu", options.get("--swiglu", False))
    # Megatron-LM's own default: 8/3 of the width, a multiple of 64, for gated activations.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    width = options.get("--ffn-hidden-size", usual)
    return {_m("ffn"): typed(int, "--ffn-hidden-size", width, 1)}


def _read_head(options: Options, facts: Facts) -> Facts:
    if "--kv-channels" in options:
        return {_m("head_dim"): typed(int, "--kv-channels", options["--kv-channels"], 1)}
    names = "--hidden-size", "--num-attention-heads", "--kv-channels"
    return {_m("head_dim"): width_of_heads(facts, *names)}


def _write_head(facts: Facts) -> Options:
    usual = facts[_m("heads")] * facts[_m("head_dim")] == facts[_m("hidden")]
    return {} if usual else {"--kv-channels": facts[_m("head_dim")]}


MODEL_ROWS: tuple[Row, ...] = (
    value(_m("layers"), "--num-layers", least=1),
    value(_m("hidden"), "--hidden-size", least=1),
    value(_m("heads"), "--num-attention-heads", least=1),
    row(
        (_m("ffn"),),
        ("--ffn-hidden-size",),
        lambda facts: {"--ffn-hidden-size": facts[_m("ffn")]},
        _read_width,
    ),
    row((_m("head_dim"),), ("--kv-channels",), _write_head, _read_head),
    row(
        (_m("kv_heads"),),
        ("--num-query-groups", "--group-query-attention"),
        _write_groups,
        _read_groups,
    ),
    value(_m("positions"), "--max-position-embeddings", least=1),
    row((_m("norm"),), ("--normalization",), _write_norm, _read_norm),
    row((_m("windows"),), (WINDOW, WHOLE), _write_windows, _read_windows),
    value(
        _m("norm_epsilon"),
        "--norm-epsilon",
        1e-5,
        kind=float,
        aliases=("--layernorm-epsilon",),
    ),
    row((_m("gated"), _m("activation")), ("--swiglu",), _write_activation, _read_activation),
    row(
        (_m("ffn_bias"), _m("output_bias"), _m("qkv_bias")),
        ("--disable-bias-linear", "--add-qkv-bias"),
        _write_biases,
        _read_biases,
    ),
    row(
        (_m("learned_positions"), _m("rotary_fraction"), _m("rotary_base")),
        (
            "--position-embedding-type",
            "--use-rotary-position-embeddings",
            "--rotary-percent",
            "--rotary-base",
        ),
        _write_positions,
        _read_positions,
    ),
    flag(
        _m("tied_embeddings"),
        "--untie-embeddings-and-output-weights",
        when=False,
        otherwise=True,
    ),
    flag(_m("qk_norm"), "--qk-layernorm"),
    value(_m("dropout"), "--hidden-dropout", 0.1, kind=float, always=True),
    value(_m("attention_dropout"), "--attention-dropout", 0.1, kind=float, always=True),
    row(
        (_m("vocabulary"),),
        ("--vocab-size", PADDED_VOCABULARY, "--tokenizer-type", "--merge-file", "--vocab-file"),
        lambda facts: {"--vocab-size": facts[_m("vocabulary")]},
        _read_vocabulary,
    ),
    row(
        tuple(
            _m(f"experts.{name}")
            for name in (
                "count", "top_k", "ffn", "scoring", "normalized", "scale", "corrected",
                "shared_ffn", "shared_gate", "dense_layers", "every", "groups", "chosen_groups",
            )
        ),
        (
            "--num-experts",
            "--moe-router-topk",
            "--moe-ffn-hidden-size",
            DISPATCHER,
            "--moe-grouped-gemm",
            "--moe-layer-freq",
            "--moe-shared-expert-intermediate-size",
            "--moe-shared-expert-gate",
            "--moe-router-score-function",
            "--moe-router-pre-softmax",
            "--moe-router-enable-expert-bias",
            "--moe-router-topk-scaling-factor",
            "--moe-router-num-groups",
            "--moe-router-group-topk",
        ),
        _write_experts,
        _read_experts,
    ),
    row(
        tuple(
            _m(f"latent.{name}")
            for name in ("query_rank", "key_rank", "plain_dim", "rotary_dim", "value_dim")
        ),
        (
            "--multi-latent-attention",
            "--q-lora-rank",
            "--kv-lora-rank",
            "--qk-head-dim",
            "--qk-pos-emb-head-dim",
            "--v-head-dim",
        ),
        _write_latent,
        _read_latent,
    ),
)  # fmt: skip
"""A decoder. What Megatron-LM cannot say of a model is in `unstated`."""


def unstated(facts: Facts) -> list[str]:
    """What of a model these options cannot say."""
    usual: dict[str, tuple[Any, ...]] = {
        "causal": (True,),
        "norm_bias": (True,),
        "norm_first": (True,),
        "part_norms": (False,),
        "parallel": (False,),
        "shared_norm": (False,),
        "qk_norm_joint": (False,),
        "embedding_scale": (1.0,),
        "embedding_norm": (False,),
        "segments": (0,),
        "head_transform": (False,),
        "head_bias": (False,),
        "inner_dropout": (0.0,),
        "position_offset": (0,),
    }
    found: list[str] = []
    if len({*facts[_m("windows")]} - {0}) > 1:
        found.append("windows of several sizes")
    if facts[_m("output_bias")] != facts[_m("ffn_bias")]:
        found.append("biases of the product after attention alone")
    for name, known in usual.items():
        if facts[_m(name)] not in known:
            found.append(f"{name} = {facts[_m(name)]}")
    if facts.get(_m("experts.biases")):
        found.append("biases of experts and their router")
    if facts.get(_m("experts.corrected")) and facts[_m("experts.scoring")] != "sigmoid":
        found.append("corrections of scores that are not sigmoids")
    if facts.get(_m("experts.scoring")) == "sigmoid" and facts[_m("experts.top_k")] > 1:
        if not facts[_m("experts.normalized")]:
            found.append("weights of several experts by sigmoids that do not add up to 1")
    gated, activation = facts[_m("gated")], facts[_m("activation")]
    if (gated and activation != "silu") or (not gated and activation not in ("gelu", "gelu_tanh")):
        found.append(f"activation = {activation} that is {'gated' if gated else 'not gated'}")
    return found
