"""Families of published encoder-decoder models, by the names that transformers gives to their settings and tensors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from chatbot.config.form import GELU, GELU_TANH, RELATIVE, RELU, ROOT_MEAN_SQUARE, SILU, TABLE, Form
from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.errors import UserError
from chatbot.flags import check_value, fields_of

ACTIVATIONS = {"gelu": GELU, "gelu_new": GELU_TANH, "relu": RELU, "silu": SILU, "swish": SILU}


class Names(NamedTuple):
    """The names of a family's tensors: of a part of a layer, without its ending; the others whole.

    {side} is encoder or decoder, {layer} a number from 0, {part} that of the part in its layer. What several names
    have in one of our variables is joined.
    """

    embedding: str
    attention: tuple[str, ...]  # queries, keys, values, output
    cross_attention: tuple[str, ...]
    wide: tuple[str, ...]
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

    sizes: the keys of settings of `ModelSettings` and `Form`. same: keys that must have the same values, since we have
    one for both. form: what all models of the family have. defaults: what a config.json does not say, by transformers.
    scales_output: whether the logits may be scaled, as those of T5 before version 1.1 are.
    """

    sizes: Mapping[str, str]
    same: tuple[tuple[str, str], ...]
    form: Mapping[str, Any]
    names: Names
    defaults: Mapping[str, Any] = MappingProxyType({})
    scales_output: bool = False


_IN_LAYER = "model.{side}.layers.{layer}."
BART_NAMES = Names(
    embedding="model.shared.weight",
    attention=tuple(f"{_IN_LAYER}self_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    cross_attention=tuple(f"{_IN_LAYER}encoder_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    wide=(f"{_IN_LAYER}fc1",),
    narrow=f"{_IN_LAYER}fc2",
    attention_norm=f"{_IN_LAYER}self_attn_layer_norm",
    cross_norm=f"{_IN_LAYER}encoder_attn_layer_norm",
    wide_norm=f"{_IN_LAYER}final_layer_norm",
    final_norm="model.{side}.layer_norm",
    positions="model.{side}.embed_positions.weight",
    embedding_norm="model.{side}.layernorm_embedding",
    output_bias="final_logits_bias",
)
_IN_BLOCK = "{side}.block.{layer}.layer."
T5_NAMES = Names(
    embedding="shared.weight",
    attention=tuple(f"{_IN_BLOCK}0.SelfAttention.{x}" for x in "qkvo"),
    cross_attention=tuple(f"{_IN_BLOCK}1.EncDecAttention.{x}" for x in "qkvo"),
    wide=(f"{_IN_BLOCK}{{part}}.DenseReluDense.wi",),
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
    same=(
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
    form={
        "norm_first": False, "epsilon": 1e-5, "embedding_norm": True, "positions": TABLE, "offset": 2,
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
    same=(),
    form={
        "norm": ROOT_MEAN_SQUARE, "positions": RELATIVE, "biases": False, "output_bias": False, "scaled_scores": False,
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
    """Return the family of a published model. config: its config.json. Raises UserError for one that is not known."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"{where}: model_type {kind!r} is not known; known are {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    if _is_gated({**family.defaults, **config}):
        names = tuple(f"{family.names.wide[0]}_{i}" for i in range(2))
        return family._replace(names=family.names._replace(wide=names))
    return family


def settings_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of `ModelSettings` of a published model, by name.

    config: its config.json. where: what messages name. Raises UserError for values that are missing or not allowed.
    """
    family, values = family_of(config, where), dict[str, Any]()
    config = {**family.defaults, **config}
    for name, key in family.sizes.items():
        if key == "num_decoder_layers" and config.get(key) is None:
            values[name] = config.get("num_layers")  # as transformers do
        elif key not in config:
            raise UserError(f"{where}: no {key}; restore the file from where the model was published")
        else:
            values[name] = config[key]
    for key, other in family.same:
        if config.get(key) != config.get(other):
            raise UserError(f"{where}: {key} and {other} differ, which is not supported; choose another model")
    fields = fields_of(ModelSettings)
    of_model = {name: values.pop(name) for name in [*values] if name in fields}
    for name, value in of_model.items():
        check_value(fields[name], value, f"{where}: {family.sizes[name]}")
    if family.form.get("positions") == TABLE:
        values["rows"] = _whole(values["rows"], where) + family.form["offset"]
    kept = 1 - _number(config.get("dropout", config.get("dropout_rate", 0.1)), where)
    of_model |= {"architecture": TRANSFORMER, "keep_prob": kept, "tied_embeddings": True}
    # Of version 1.1 on, the output matrix is another one; newer files say it by a key of its own.
    scales = family.scales_output and config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    try:
        form = Form(**{**family.form, **values, **_activation(config, where)}, scaled_output=scales)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return {**of_model, "form": form}


def _is_gated(config: Mapping[str, Any]) -> bool:
    return str(config.get("feed_forward_proj", "")).startswith("gated-")


def _activation(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = config.get("feed_forward_proj", config.get("activation_function"))
    name = str(kind).removeprefix("gated-")
    name = "gelu_new" if kind == "gated-gelu" else name  # as transformers do
    if name not in ACTIVATIONS:
        raise UserError(f"{where}: activation {kind!r} is not known; known are {', '.join(ACTIVATIONS)}")
    return {"activation": ACTIVATIONS[name], "gated": _is_gated(config)}


def _whole(value: Any, where: str) -> int:
    if type(value) is not int:
        raise UserError(f"{where}: {value!r} where a whole number is expected; restore the file")
    return value


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{where}: dropout {value!r} is not from 0 to 1; restore the file")
    return float(value)
