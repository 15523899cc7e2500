"""Folders of pretrained models: what config.json says, and files that are damaged, hostile or of another kind."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chatbot.attempts.settings import settings_over_config
from chatbot.config.form import Form
from chatbot.config.model import ModelSettings
from chatbot.errors import UserError
from chatbot.model.seq2seq import UNGENERATED_BIAS, UNGENERATED_IDS, Seq2Seq
from chatbot.pretrained.families import settings_of
from chatbot.pretrained.folder import CONFIG, INDEX, WEIGHTS, pretrained_model
from chatbot.pretrained.weights import read_weights
from tests.pretrained.tokenizer_files import MODELS, model_in

MISSING = object()
ROWS = np.array([1, 2, 2, 0, -1, *range(3, 41)])


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    """A copy of the small BART."""
    return Path(shutil.copytree(MODELS / "bart", tmp_path / "bart"))


def empty_model(folder: Path) -> Seq2Seq:
    """Return a model with the sizes of a pretrained one, without its weights."""
    return Seq2Seq(ModelSettings(**settings_of(model_in(folder).config, "config.json"), max_length=19), len(ROWS))


def test_settings_come_from_config_json(bart: Path) -> None:
    values = settings_of(model_in(bart).config, "config.json")
    assert {name: value for name, value in values.items() if name != "form"} == {
        "architecture": "transformer",
        "embedding_size": 12,
        "heads": 2,
        "feed_forward_size": 10,
        "num_layers": 2,
        "keep_prob": 0.8,
    }
    assert values["form"].decoder_layers == 1
    assert settings_of({**model_in(bart).config, "architectures": 3}, "config.json") == values  # as transformers
    assert values["form"].longest == 19
    t5 = settings_of(model_in(MODELS / "t5").config, "config.json")["form"]
    assert (t5.head_size, t5.buckets, t5.farthest, t5.scaled_output, t5.gated) == (5, 6, 8, True, False)
    gated = settings_of(model_in(MODELS / "t5-gated").config, "config.json")["form"]
    assert (gated.scaled_output, gated.gated, gated.activation) == (False, True, "gelu_tanh")
    old = {**model_in(MODELS / "t5-gated").config, "tie_word_embeddings": False, "num_decoder_layers": None}
    del old["scale_decoder_outputs"]  # as earlier versions of transformers write it
    form = settings_of(old, "config.json")["form"]
    assert not form.scaled_output
    assert form.decoder_layers == 2
    for name in ("feed_forward_proj", "relative_attention_max_distance", "layer_norm_epsilon", "tie_word_embeddings"):
        del old[name]
    form = settings_of(old, "config.json")["form"]  # what transformers take for granted
    assert (form.activation, form.gated, form.scaled_output) == ("relu", False, True)
    assert (form.farthest, form.epsilon) == (128, 1e-6)
    form = settings_of({**old, "model_type": "mt5"}, "config.json")["form"]
    assert (form.activation, form.gated, form.scaled_output) == ("gelu_tanh", True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; choose one of bart, mbart, t5, mt5"),
        ({"d_model": None}, "--embedding-size|d_model"),
        ({"d_model": -3}, "d_model -3: must be at least 1"),
        ({"encoder_layers": 1.5}, "encoder_layers 1.5: expected a whole number"),
        ({"decoder_layers": 10**9}, "decoder_layers 1000000000 is not allowed"),
        ({"max_position_embeddings": "many"}, "rows 'many' is not allowed"),
        ({"decoder_ffn_dim": 11}, "encoder_ffn_dim and decoder_ffn_dim differ, which is not supported; choose another"),
        ({"activation_function": "mish"}, "activation mish is not supported; choose one of relu, gelu, gelu_new, silu"),
        ({"activation_function": None}, "activation None is not supported"),
        ({"model_type": ["bart"]}, "is not supported; choose one of bart"),
        (
            {"architectures": ["CPTForConditionalGeneration"]},
            "architecture CPTForConditionalGeneration is not supported; choose one of bart, mbart, t5, mt5$",
        ),
        ({"dropout": 1}, "dropout 1 must be from 0 to below 1"),
        ({"scale_embedding": "yes"}, "scaled_embedding 'yes' is not allowed"),
        ({"encoder_layers": MISSING}, "no encoder_layers; restore the file"),
    ],
)
def test_unusable_settings_are_refused(bart: Path, changes: dict[str, Any], message: str) -> None:
    config = {name: value for name, value in {**model_in(bart).config, **changes}.items() if value is not MISSING}
    with pytest.raises(UserError, match=message) as raised:
        settings_of(config, "there/config.json")
    assert str(raised.value).startswith("there/config.json: ")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "values",
    [
        {"norm": "batch"},
        {"epsilon": "small"},
        {"buckets": 2, "positions": "relative", "farthest": 8},
        {"buckets": 32, "positions": "relative", "farthest": 16},
        {"positions": "table", "rows": 2},
        {"rows": -1},
        {"head_size": 2.0},
        {"gated": 1},
        {"more": 1},
        [],
    ],
    ids=str,
)
def test_invalid_forms_are_refused(values: Any) -> None:
    with pytest.raises(UserError, match=r"^form: "):
        Form.from_values(values)


def test_position_table_limits_max_length(bart: Path) -> None:
    values = settings_of(model_in(bart).config, "config.json")
    assert ModelSettings(**values, max_length=19).max_length == 19
    with pytest.raises(UserError, match=r"--max-length 20: the pretrained model has 19 positions; give at most 19$"):
        ModelSettings(**values, max_length=20)


def test_ambiguous_name_is_refused(bart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bart.parent)
    (bart / "vocab.txt").touch()
    other = Path("checkpoints/bart")
    other.mkdir(parents=True)
    shutil.copy(bart / CONFIG, other)
    flags = {"data": ("pairs.tsv",), "max_length": 12}
    message = r"--init-from bart: a pretrained model and an attempt have this name; give ./bart, or checkpoints/bart$"
    with pytest.raises(UserError, match=message):
        settings_over_config({**flags, "init_from": "bart"})
    assert settings_over_config({**flags, "init_from": "./bart"}).model.embedding_size == 12


def test_settings_of_a_run(bart: Path) -> None:
    """Includes settings of training and of the tokenizer."""
    (bart / "vocab.txt").touch()
    values = model_in(bart).settings()
    assert values["dictionary"] == str(bart / "vocab.txt")
    (bart / "tokenizer.json").touch()
    of_model = settings_of(model_in(bart).config, "config.json")
    assert model_in(bart).settings() == {
        **of_model,
        "tied_embeddings": True,
        "tokenizer": "pieces",
        "dictionary": str(bart / "tokenizer.json"),
        "both_directions": "off",
        "learning_rate": 5e-5,
    }
    assert model_in(MODELS / "t5-gated").has_projection()
    rewrite(lambda x: x.update({"lm_head.weight": x["model.shared.weight"][:9]}))(bart)
    assert model_in(bart).has_projection()
    values = {**of_model, "tied_embeddings": False, "max_length": 19}
    with pytest.raises(UserError, match=r"lm_head.weight is \[9, 12\], which does not fit the tokenizer"):
        read_weights(Seq2Seq(ModelSettings(**values), len(ROWS)), model_in(bart), ROWS)


def test_other_folders_are_not_pretrained_models(tmp_path: Path, bart: Path) -> None:
    for content in (None, "{", "[1]", '{"rnn_size": 8}'):  # the last one of an attempt
        if content is not None:
            (tmp_path / CONFIG).write_text(content)
        assert pretrained_model(str(tmp_path)) is None
    assert pretrained_model(None) is None
    for name in (WEIGHTS, INDEX, "tokenizer.json"):  # of a pretrained model
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / name).touch()
        with pytest.raises(UserError, match=r"damaged/config.json: missing or damaged; copy the folder again"):
            pretrained_model(str(tmp_path / "damaged"))
        (tmp_path / "damaged" / name).unlink()
    with pytest.raises(UserError, match=r"neither tokenizer.json nor vocab.txt; save its tokenizer with transformers"):
        model_in(bart).settings()


def test_model_id_is_downloaded(bart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Existing paths and other names are folders."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **options: Any) -> str:
        asked.append((name, options))
        if name != "fnlp/bart-base":
            raise OSError("404 Client Error. (Request ID: 1)\nRepository Not Found")
        return str(bart)

    monkeypatch.chdir(bart.parent)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    model = pretrained_model("fnlp/bart-base")
    assert model is not None
    assert model.folder == bart
    assert asked == [("fnlp/bart-base", {"allow_patterns": ["*.json", "vocab.txt", "*.safetensors"]})]
    for name in ("bart", str(bart)):
        assert model_in(Path(name)).folder == Path(name)
    for name in ("weibo", "./weibo", "../there", "/there/bart", "a/b/c", ""):
        assert pretrained_model(name) is None
    pretrained_model("fnlp/bart-base")
    assert len(asked) == 1  # a start asks several times
    message = r"--init-from a/b: no such folder, and the download failed \(404 Client Error. \(Request ID: 1\)\)$"
    with pytest.raises(UserError, match=message):
        pretrained_model("a/b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"--init-from a/b: no such folder; .* run `pip install huggingface_hub`$"):
        pretrained_model("a/b")


def rewrite(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the tensors of a folder."""

    def run(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return run


def shard(file: Any) -> Callable[[Path], None]:
    """Write an index that names one file for all tensors."""

    def run(folder: Path) -> None:
        names = [*load_file(folder / WEIGHTS)]
        (folder / WEIGHTS).rename(folder / "model-1.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}))

    return run


def truncate(folder: Path) -> None:
    """Truncate the file of the tensors."""
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-100])


FC1 = "model.encoder.layers.1.fc1.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"model.safetensors: cannot be read \(.*\); copy the folder again"),
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
            r"no model.safetensors; load the model with transformers, such as from pytorch_model.bin, and save it",
        ),
        (rewrite(lambda x: x.pop(FC1)), rf"no tensor {FC1}; copy"),
        (rewrite(lambda x: x.update(more=x[FC1])), r"model.safetensors: the model has an unknown tensor more; choose"),
        (rewrite(lambda x: x.update({FC1: x[FC1][:9]})), rf"{FC1} is \[9, 12\], which does not fit config.json; copy"),
        (rewrite(lambda x: x.update({FC1: x[FC1].ravel()})), rf"{FC1} is \[120\], which does not fit config.json"),
        (
            rewrite(lambda x: x.update(final_logits_bias=x["final_logits_bias"].ravel())),
            r"final_logits_bias is \[41\], which does not fit config.json",
        ),
        (rewrite(lambda x: x.update({FC1: x[FC1].astype(np.int32)})), rf"{FC1} is of type int32; copy"),
        (
            rewrite(lambda x: x.update({"model.shared.weight": x["model.shared.weight"][:40]})),
            r"model.shared.weight is \[40, 12\], which does not fit the tokenizer",
        ),
        (
            rewrite(lambda x: x.update({"lm_head.weight": x["model.shared.weight"] + 1})),
            r"lm_head.weight differs from the embedding to which it is tied",
        ),
        (shard("../model-1.safetensors"), r"is in '../model-1.safetensors', outside the folder; copy"),
        (shard("/etc/passwd"), r"is in '/etc/passwd', outside the folder"),
        (shard(".."), r"is in '..', outside the folder"),
        (shard(""), r"is in '', outside the folder"),
        (shard(3), r"is in 3, outside the folder"),
        (shard("a\nb"), r" in 'a\\nb' is not a valid name; copy"),
        (shard("\ud800"), r" in '\\ud800' is not a valid name; copy"),
        (shard("gone.safetensors"), r"gone.safetensors: .* cannot be read"),
        (lambda folder: (folder / INDEX).write_text("{}"), r"index.json: cannot be read \('weight_map'\); copy"),
    ],
)
def test_unusable_tensors_are_refused(bart: Path, damage: Callable[[Path], None], message: str) -> None:
    """The weights of the model do not change."""
    model = empty_model(bart)
    damage(bart)
    with pytest.raises(UserError, match=message) as raised:
        read_weights(model, model_in(bart), ROWS)
    assert "\n" not in str(raised.value)
    assert not any(variable.numpy().any() for variable in model.trainable_variables if "gain" not in variable.name)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_shards_half_precision_and_copies_of_the_embedding(bart: Path, dtype: Any) -> None:
    """Large models have shards of half precision; earlier versions of transformers wrote copies of the embedding."""
    model = empty_model(bart)
    read_weights(model, model_in(bart), ROWS)
    expected = [variable.numpy() for variable in model.trainable_variables]
    tensors = {name: x.astype(dtype) for name, x in load_file(bart / WEIGHTS).items()}
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"] = tensors["model.shared.weight"].copy()
    (bart / WEIGHTS).unlink()
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in {*places.values()}:
        save_file({name: x for name, x in tensors.items() if places[name] == file}, bart / file)
    (bart / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for variable in model.trainable_variables:
        variable.assign(variable * 0)
    assert not model_in(bart).has_projection()
    read_weights(model, model_in(bart), ROWS)
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=5e-3, atol=1e-6)


def test_tensors_of_a_model_without_an_output(bart: Path) -> None:
    """Their names have no prefix. Tensors that transformers ignores are ignored."""
    model = empty_model(bart)
    read_weights(model, model_in(bart), ROWS)
    expected: dict[str, Any] = {variable.path: variable.numpy() for variable in model.trainable_variables}
    bare = {name.removeprefix("model."): tensor for name, tensor in load_file(bart / WEIGHTS).items()}
    del bare["final_logits_bias"]
    scores = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # of a T5
    unread = dict.fromkeys(("encoder.version", "decoder.version", scores), np.ones(1, np.float32))
    save_file({**bare, **unread}, bart / WEIGHTS)
    read_weights(model, model_in(bart), ROWS)
    bias = np.where([i in UNGENERATED_IDS for i in range(len(ROWS))], np.float32(UNGENERATED_BIAS), np.float32(0))
    expected[model.bias.path] = bias
    for variable in model.trainable_variables:
        np.testing.assert_array_equal(variable, expected[variable.path], err_msg=variable.path)
    save_file({name: x for name, x in bare.items() if name != "shared.weight"}, bart / WEIGHTS)
    with pytest.raises(UserError, match=r"the model has an unknown tensor decoder.embed_positions.weight"):
        read_weights(model, model_in(bart), ROWS)
