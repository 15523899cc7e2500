"""Exports for transformers: what they read again, and what training has changed."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from chatbot.attempts.trained import Trained
from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BOS, BYTES, EOS, PAD, PieceVocabulary, Vocabulary
from chatbot.errors import UserError
from chatbot.export.savedmodel_format import _to_ids
from chatbot.export.transformers_format import GENERATION, write_transformers
from chatbot.flags import compose
from chatbot.model.seq2seq import Seq2Seq
from chatbot.pretrained.folder import CONFIG, TOKENIZER, WEIGHTS
from chatbot.pretrained.tokens import piece_vocabulary
from chatbot.pretrained.weights import read_weights
from tests.pretrained.tokenizer_files import MODELS, NAMES, fitting_tokenizer, model_in


def trained(name: str, folder: Path) -> Trained:
    """The pretrained model of a name, as an attempt has it before any step."""
    shutil.copytree(MODELS / name, folder)
    there = model_in(folder)
    fitting_tokenizer(there.config, folder)
    vocabulary, rows = piece_vocabulary(there.tokenizer(), there.config)
    settings = compose(Settings, **there.settings(), max_length=19)
    model = Seq2Seq(settings.model, len(vocabulary))
    read_weights(model, there, rows)
    return Trained(settings, vocabulary, model, 1)


@pytest.mark.parametrize("name", NAMES)
def test_pretrained_model_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    """Before training all of it; afterwards what begins a reply is a token more, which is never said."""
    attempt = trained(name, tmp_path / "published")
    back = tmp_path / "back"
    back.mkdir()
    write_transformers(back, attempt)
    there, here = (load_file(folder / WEIGHTS) for folder in (tmp_path / "published", back))
    assert here.keys() == there.keys()
    for key, value in there.items():
        np.testing.assert_array_equal(here[key], value, err_msg=key)
    config = json.loads((back / CONFIG).read_text())
    before = json.loads((tmp_path / "published" / CONFIG).read_text())
    assert config == {name: value for name, value in before.items() if not name.startswith("forced_")}
    assert json.loads((back / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "pad_token": "[PAD]",
        "eos_token": "[SEP]",
    }
    assert (back / TOKENIZER).read_bytes() == (tmp_path / "published" / TOKENIZER).read_bytes()
    generation = json.loads((back / GENERATION).read_text())
    assert generation["max_new_tokens"] == 19
    assert generation["begin_suppress_tokens"] == [config["eos_token_id"]]  # a reply is not empty
    assert {config["pad_token_id"]} <= {*generation["suppress_tokens"]}
    assert config["eos_token_id"] not in generation["suppress_tokens"]

    assert isinstance(attempt.vocabulary, PieceVocabulary)
    attempt.vocabulary.description["config"] |= {"torch_dtype": "float16", "dtype": "float16"}  # of the published files
    embeddings = attempt.model.embedding.embeddings
    embeddings.assign(embeddings.numpy() + np.arange(len(attempt.vocabulary))[:, None])
    write_transformers(back, attempt)
    changed = json.loads((back / CONFIG).read_text())
    assert changed["vocab_size"] == changed["decoder_start_token_id"] + 1 == config["vocab_size"] + 1
    assert (changed["dtype"], "torch_dtype" in changed) == ("float32", False)
    generation = json.loads((back / GENERATION).read_text())
    assert changed["decoder_start_token_id"] in generation["suppress_tokens"]
    key = "shared.weight" if "t5" in name else "model.shared.weight"
    written = load_file(back / WEIGHTS)
    np.testing.assert_array_equal(written[key][-1], embeddings[BOS])
    np.testing.assert_array_equal(written[key][config["eos_token_id"]], embeddings[EOS])
    if "final_logits_bias" in written:
        assert written["final_logits_bias"].shape == (1, changed["vocab_size"])
        assert written["final_logits_bias"][0, -1] < -1e8


def test_models_that_transformers_cannot_represent_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = trained("bart", tmp_path / "published")
    own = dataclasses.replace(attempt, vocabulary=Vocabulary(BYTES))
    with pytest.raises(UserError, match="did not start from a pretrained model"):
        write_transformers(tmp_path, own)
    monkeypatch.setattr(attempt.model, "ngrams", object())  # for which such a folder has no place
    with pytest.raises(UserError, match=r"this format cannot store n-grams; choose onnx, or train without"):
        write_transformers(tmp_path, attempt)


def test_savedmodel_takes_the_pieces_of_the_tokenizer(tmp_path: Path) -> None:
    """Its texts come as tokens: those of tokenizer.json, with what ends a text."""
    vocabulary = trained("bart", tmp_path / "published").vocabulary
    module = tf.Module()
    signature = _to_ids(module, vocabulary, tmp_path / "none", 4)
    rows = [["丆", "[SEP]", "", ""], ["丈", "猫", "[UNK]", "三", "丅"]]
    tokens = tf.constant([row + [""] * (5 - len(row)) for row in rows])
    expected = [[vocabulary.id_of["丆"], EOS, PAD, PAD], vocabulary.ids(rows[1])[:4]]
    assert signature(tokens=tokens)["ids"].numpy().tolist() == expected
