"""`config.json` of BERT and of encoders like it."""

from __future__ import annotations

from dataclasses import replace

from distir.importers.config_fields import MODEL_TYPES, Fields, dropping
from distir.models.transformer import TransformerConfig, bert_config


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
    fields.only("position_embedding_type", "absolute")
    config = replace(
        base,
        ffn=fields.count("intermediate_size"),
        segments=fields.integer("type_vocab_size", 2),
        norm_epsilon=fields.epsilon("layer_norm_eps", 1e-12),
        activation=fields.activation("hidden_act", "gelu"),
        causal=fields.flag("is_decoder", False),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    return dropping(
        config, fields, ("hidden_dropout_prob", 0.1), ("attention_probs_dropout_prob", 0.1)
    )


@MODEL_TYPES.register("roberta")
@MODEL_TYPES.register("xlm-roberta")
@MODEL_TYPES.register("camembert")
def _roberta(name: str, fields: Fields) -> TransformerConfig:
    """RoBERTa counts positions from behind the number of its padding token."""
    offset = fields.integer("pad_token_id", 1) + 1
    rows = fields.count("max_position_embeddings")
    if rows <= offset:
        raise fields.error(
            f"max_position_embeddings is {rows}; expected more than pad_token_id + 1 ({offset})"
        )
    return replace(_bert(name, fields), sequence_length=rows - offset, position_offset=offset)


@MODEL_TYPES.register("distilbert")
def _distilbert(name: str, fields: Fields) -> TransformerConfig:
    base = bert_config(
        name,
        layers=fields.count("n_layers"),
        hidden=fields.count("dim"),
        heads=fields.count("n_heads"),
        vocabulary=fields.count("vocab_size"),
        sequence_length=fields.count("max_position_embeddings"),
    )
    config = replace(
        base,
        ffn=fields.count("hidden_dim"),
        segments=0,
        activation=fields.activation("activation", "gelu"),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )
    config = dropping(config, fields, ("dropout", 0.1), ("attention_dropout", 0.1))
    if not config.dropout:
        return config
    return replace(config, notes=("what attention gives is dropped, too, unlike in the model",))
