"""The supported families of pretrained encoder-decoder models, with their settings and tensor names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from chatbot.config.form import GELU, GELU_TANH, RELATIVE, RELU, ROOT_MEAN_SQUARE, SILU, TABLE, Form
from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.errors import UserError
from chatbot.flags import flags_of

# The activations, by the values of `activation_function` and `feed_forward_proj` in config.json.
ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {
    "relu": {"activation": RELU},
    "gelu": {"activation": GELU},
    "gelu_new": {"activation": GELU_TANH},
    "silu": {"activation": SILU},
    "swish": {"activation": SILU},
    "gated-gelu": {"activation": GELU_TANH, "gated": True},
    "gated-silu": {"activation": SILU, "gated": True},
}
# Tensors that are not read: copies of the embedding, and tensors that transformers also ignores.
EMBEDDING_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
IGNORED = (
    "encoder.version",
    "decoder.version",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
# The prefix of all tensor names except the output projection's. Files without an output projection omit the prefix.
PREFIX = "model."


class Names(NamedTuple):
    """The tensor names of a family. A name without ".weight" or ".bias" stands for both tensors.

    The placeholder {side} is replaced by encoder or decoder, {layer} by the index of the layer, and {part} by the index
    of the sublayer in its layer. Several tensors are concatenated if they belong to one variable of our model. If the
    feed-forward sublayer is gated, `wide` stands for two tensors, whose names end in _0 and _1.
    """

    embedding: str
    attention: tuple[str, ...]  # queries, keys, values, output
    cross_attention: tuple[str, ...]
    wide: str
    narrow: str
    attention_norm: str
    cross_norm: str
    wide_norm: str
    final_norm: str
    positions: str
    embedding_norm: str = ""
    output_bias: str = ""
    projection: str = "lm_head.weight"


class Family(NamedTuple):
    """A family of models, which have the same model_type in config.json."""

    sizes: Mapping[str, str]  # maps fields of `ModelSettings` and `Form` to keys of config.json
    form: Mapping[str, Any]  # values of `Form` that are the same in all models of the family
    names: Names
    defaults: Mapping[str, Any] = MappingProxyType({})  # default values of keys of config.json
    scales_output: bool = False  # whether some models scale their logits, as in T5 before version 1.1


_LAYER = PREFIX + "{side}.layers.{layer}."
BART_NAMES = Names(
    embedding=PREFIX + "shared.weight",
    attention=tuple(f"{_LAYER}self_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    cross_attention=tuple(f"{_LAYER}encoder_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    wide=f"{_LAYER}fc1",
    narrow=f"{_LAYER}fc2",
    attention_norm=f"{_LAYER}self_attn_layer_norm",
    cross_norm=f"{_LAYER}encoder_attn_layer_norm",
    wide_norm=f"{_LAYER}final_layer_norm",
    final_norm=PREFIX + "{side}.layer_norm",
    positions=PREFIX + "{side}.embed_positions.weight",
    embedding_norm=PREFIX + "{side}.layernorm_embedding",
    output_bias="final_logits_bias",
)
_BLOCK = "{side}.block.{layer}.layer."
T5_NAMES = Names(
    embedding="shared.weight",
    attention=tuple(f"{_BLOCK}0.SelfAttention.{x}" for x in "qkvo"),
    cross_attention=tuple(f"{_BLOCK}1.EncDecAttention.{x}" for x in "qkvo"),
    wide=f"{_BLOCK}{{part}}.DenseReluDense.wi",
    narrow=f"{_BLOCK}{{part}}.DenseReluDense.wo",
    attention_norm=f"{_BLOCK}0.layer_norm",
    cross_norm=f"{_BLOCK}1.layer_norm",
    wide_norm=f"{_BLOCK}{{part}}.layer_norm",
    final_norm="{side}.final_layer_norm",
    positions="{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
)
_BART = Family(
    sizes={
        "embedding_size": "d_model",
        "heads": "encoder_attention_heads",
        "feed_forward_size": "encoder_ffn_dim",
        "num_layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "rows": "max_position_embeddings",
        "scaled_embedding": "scale_embedding",
    },
    form={
        "norm_first": False, "epsilon": 1e-5, "embedding_norm": True, "positions": TABLE,
        "attention_biases": True,
    },
    names=BART_NAMES,
)  # fmt: skip
_T5 = Family(
    sizes={
        "embedding_size": "d_model",
        "heads": "num_heads",
        "feed_forward_size": "d_ff",
        "num_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "head_size": "d_kv",
        "epsilon": "layer_norm_epsilon",
        "buckets": "relative_attention_num_buckets",
        "farthest": "relative_attention_max_distance",
    },
    form={
        "norm": ROOT_MEAN_SQUARE, "positions": RELATIVE, "biases": False, "scaled_scores": False,
        "scaled_embedding": False,
    },
    names=T5_NAMES,
    defaults={
        "feed_forward_proj": "relu", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
    },
    scales_output=True,
)  # fmt: skip
_MT5 = _T5._replace(defaults={**_T5.defaults, "feed_forward_proj": "gated-gelu"}, scales_output=False)
FAMILIES = {"bart": _BART, "mbart": _BART._replace(form={**_BART.form, "norm_first": True}), "t5": _T5, "mt5": _MT5}


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a pretrained model.

    Args:
        config: The content of the model's config.json.
        where: The path for error messages.

    Raises:
        UserError: The family is not supported.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise UserError(f"{where}: model_type {kind!r} is not supported; choose one of {', '.join(FAMILIES)}")
    # The model_type alone is not sufficient. For example, CPT has the model_type of BART but the encoder of BERT.
    classes = config.get("architectures")
    for name in map(str, classes if isinstance(classes, list) else ()):
        if not name.lower().startswith(tuple(FAMILIES)):
            raise UserError(f"{where}: architecture {name} is not supported; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def settings_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of `ModelSettings` for a pretrained model, by name.

    Args:
        config: The content of the model's config.json.
        where: The path for error messages.

    Raises:
        UserError: A value is missing or not supported.
    """
    family = family_of(config, where)
    config = {**family.defaults, **config}
    if config.get("num_decoder_layers") is None:
        config["num_decoder_layers"] = config.get("num_layers")  # as transformers does
    if missing := [key for key in family.sizes.values() if key not in config]:
        raise UserError(f"{where}: no {missing[0]}; restore the file from where the model was published")
    for key in ("attention_heads", "ffn_dim"):  # Our encoder and decoder have the same value.
        if config.get(f"encoder_{key}") != config.get(f"decoder_{key}"):
            raise UserError(f"{where}: encoder_{key} and decoder_{key} differ, which is not supported; choose another")
    flags = flags_of(ModelSettings)
    form_values = {name: config[key] for name, key in family.sizes.items()}
    values = {name: form_values.pop(name) for name in [*form_values] if name in flags}
    for name, value in values.items():
        flags[name].check(value, f"{where}: {family.sizes[name]}")
    dropout = config.get("dropout", config.get("dropout_rate", 0.1))
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise UserError(f"{where}: dropout {dropout!r} must be from 0 to below 1; restore the file")
    kind = str(config.get("feed_forward_proj", config.get("activation_function")))
    if kind not in ACTIVATIONS:
        raise UserError(f"{where}: activation {kind} is not supported; choose one of {', '.join(ACTIVATIONS)}")
    # T5 has a separate output projection since version 1.1. In newer files, a separate key indicates this.
    scales = family.scales_output and config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    try:
        form = Form(**{**family.form, **form_values, **ACTIVATIONS[kind]}, scaled_output=scales)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return {**values, "architecture": TRANSFORMER, "keep_prob": 1.0 - dropout, "form": form}
