"""Exports a fine-tuned pretrained model to its original format, so transformers can load it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.attempts.trained import Trained
from chatbot.corpus.pieces import TOKENIZER
from chatbot.corpus.vocabulary import BOS, EOS, PieceVocabulary
from chatbot.durable import write_json
from chatbot.errors import UserError
from chatbot.pretrained.families import family_of
from chatbot.pretrained.folder import CONFIG
from chatbot.pretrained.tokens import piece_vocabulary, write_tokenizer_config
from chatbot.pretrained.weights import write_weights

GENERATION = "generation_config.json"


def write_transformers(folder: Path, trained: Trained) -> None:
    """Write config.json, generation_config.json, tokenizer.json and the weights to a folder.

    During training, BOS has its own embedding. If training changed it, the exported vocabulary gets an extra token.

    Raises:
        UserError: The attempt did not start from a pretrained model.
        OSError: A file cannot be written.
    """
    vocabulary = trained.vocabulary
    dictionary = trained.settings.corpus.dictionary
    if not isinstance(vocabulary, PieceVocabulary) or dictionary is None:
        raise UserError(
            "--format transformers: the attempt did not start from a pretrained model; choose onnx or savedmodel"
        )
    if trained.model.ngrams is not None:
        raise UserError(
            "--format transformers: this format cannot store n-grams; choose onnx, or train without --ngrams"
        )
    config: dict[str, Any] = dict(vocabulary.description["config"])
    _, rows = piece_vocabulary(Path(dictionary), config)
    same = next(i for i, row in enumerate(rows) if row == rows[BOS] and i != BOS)
    embeddings = trained.model.embedding.embeddings.numpy()
    if not np.array_equal(embeddings[BOS], embeddings[same]):
        rows[BOS] = config["decoder_start_token_id"] = config["vocab_size"]
        config["vocab_size"] += 1
    config = {name: x for name, x in config.items() if name != "torch_dtype" and not name.startswith("forced_")}
    write_json(folder / CONFIG, {**config, "dtype": "float32"})
    texts = vocabulary.texts
    allowed = {int(rows[i]) for i in range(len(rows)) if texts[i] or i in (EOS, *vocabulary.beginning)}
    suppressed = {*range(config["vocab_size"])} - allowed
    generation = {name: config.get(name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    generation |= {"suppress_tokens": sorted(suppressed), "begin_suppress_tokens": [config["eos_token_id"]]}
    write_json(folder / GENERATION, {**generation, "max_new_tokens": trained.settings.model.max_length})
    shutil.copyfile(dictionary, folder / TOKENIZER)
    write_tokenizer_config(folder, vocabulary)
    write_weights(trained.model, folder, family_of(config, CONFIG), rows)
