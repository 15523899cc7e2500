"""Families of pretrained encoder-decoder models, by the names that transformers gives to their settings and tensors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from chatbot.config.form import GELU, GELU_TANH, RELATIVE, RELU, ROOT_MEAN_SQUARE, SILU, TABLE, Form
from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.errors import UserError
from chatbot.flags import flags_of

# By the names that transformers give them in `activation_function` and `feed_forward_proj`.
ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {
    "relu": {"activation": RELU},
    "gelu": {"activation": GELU},
    "gelu_new": {"activation": GELU_TANH},
    "silu": {"activation": SILU},
    "swish": {"activation": SILU},
    "gated-gelu": {"activation": GELU_TANH, "gated": True},
    "gated-silu": {"activation": SILU, "gated": True},
}
# What files may have beside the weights: copies of the embedding, and what transformers do not read either.
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
UNREAD = (
    "encoder.version",
    "decoder.version",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
# Precedes all names but those of the output, except in files of models without an output.
BASE = "model."


class Names(NamedTuple):
    """The names of a family's tensors: of a part of a layer, without its ending; the others whole.

    {side} is encoder or decoder, {layer} a number from 0, {part} that of the part in its layer. What several names
    have in one of our variables is joined. wide: where it is gated, its two products end in _0 and _1.
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
    """What a model_type of config.json stands for.

    sizes: the keys of settings of `ModelSettings` and `Form`. form: what all models of the family have. defaults: what
    a config.json does not say, by transformers. scales_output: whether the logits may be scaled, as those of T5 before
    version 1.1 are.
    """

    sizes: Mapping[str, str]
    form: Mapping[str, Any]
    names: Names
    defaults: Mapping[str, Any] = MappingProxyType({})
    scales_output: bool = False


_IN_LAYER = BASE + "{side}.layers.{layer}."
BART_NAMES = Names(
    embedding=BASE + "shared.weight",
    attention=tuple(f"{_IN_LAYER}self_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    cross_attention=tuple(f"{_IN_LAYER}encoder_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    wide=f"{_IN_LAYER}fc1",
    narrow=f"{_IN_LAYER}fc2",
    attention_norm=f"{_IN_LAYER}self_attn_layer_norm",
    cross_norm=f"{_IN_LAYER}encoder_attn_layer_norm",
    wide_norm=f"{_IN_LAYER}final_layer_norm",
    final_norm=BASE + "{side}.layer_norm",
    positions=BASE + "{side}.embed_positions.weight",
    embedding_norm=BASE + "{side}.layernorm_embedding",
    output_bias="final_logits_bias",
)
_IN_BLOCK = "{side}.block.{layer}.layer."
T5_NAMES = Names(
    embedding="shared.weight",
    attention=tuple(f"{_IN_BLOCK}0.SelfAttention.{x}" for x in "qkvo"),
    cross_attention=tuple(f"{_IN_BLOCK}1.EncDecAttention.{x}" for x in "qkvo"),
    wide=f"{_IN_BLOCK}{{part}}.DenseReluDense.wi",
    narrow=f"{_IN_BLOCK}{{part}}.DenseReluDense.wo",
    attention_norm=f"{_IN_BLOCK}0.layer_norm",
    cross_norm=f"{_IN_BLOCK}1.layer_norm",
    wide_norm=f"{_IN_BLOCK}{{part}}.layer_norm",
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
    """Return the family of a pretrained model. config: its config.json. Raises UserError for one that is not known."""
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise UserError(f"{where}: model_type {kind!r} is not known; known are {', '.join(FAMILIES)}")
    # Such as CPT, whose encoder is a BERT: transformers would read it as a BART with a random encoder.
    classes = config.get("architectures")
    for name in map(str, classes if isinstance(classes, list) else ()):
        if not name.lower().startswith(tuple(FAMILIES)):
            raise UserError(f"{where}: architecture {name} is not known; known are those of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def settings_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of `ModelSettings` of a pretrained model, by name.

    config: its config.json. where: what messages name. Raises UserError for values that are missing or not allowed.
    """
    family = family_of(config, where)
    config = {**family.defaults, **config}
    if config.get("num_decoder_layers") is None:
        config["num_decoder_layers"] = config.get("num_layers")  # as transformers do
    if missing := [key for key in family.sizes.values() if key not in config]:
        raise UserError(f"{where}: no {missing[0]}; restore the file from where the model was published")
    for key in ("attention_heads", "ffn_dim"):  # of which we have one for both
        if config.get(f"encoder_{key}") != config.get(f"decoder_{key}"):
            raise UserError(f"{where}: encoder_{key} and decoder_{key} differ, which is not supported; choose another")
    flags = flags_of(ModelSettings)
    values = {name: config[key] for name, key in family.sizes.items()}
    of_model = {name: values.pop(name) for name in [*values] if name in flags}
    for name, value in of_model.items():
        flags[name].check(value, f"{where}: {family.sizes[name]}")
    dropout = config.get("dropout", config.get("dropout_rate", 0.1))
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise UserError(f"{where}: dropout {dropout!r} is not from 0 to 1; restore the file")
    kind = str(config.get("feed_forward_proj", config.get("activation_function")))
    if kind not in ACTIVATIONS:
        raise UserError(f"{where}: activation {kind} is not known; known are {', '.join(ACTIVATIONS)}")
    # Of version 1.1 on, the output matrix of a T5 is another one; newer files say it by a key of its own.
    scales = family.scales_output and config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    try:
        form = Form(**{**family.form, **values, **ACTIVATIONS[kind]}, scaled_output=scales)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return {**of_model, "architecture": TRANSFORMER, "keep_prob": 1.0 - dropout, "form": form}
