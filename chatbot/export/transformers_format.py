"""An export as a folder that transformers load: that of the pretrained model with which the attempt began."""

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
    """Write config.json, generation_config.json, tokenizer.json and the tensors of a model into a folder.

    What begins a reply has a row of its own in the embedding here. Where training has moved it from that of the token
    which it was there, the exported model has one token more. Raises UserError for an attempt that did not begin with a
    pretrained model, OSError.
    """
    vocabulary = trained.vocabulary
    dictionary = trained.settings.corpus.dictionary
    if not isinstance(vocabulary, PieceVocabulary) or dictionary is None:
        raise UserError("--format transformers: the attempt did not begin with a pretrained model (--init-from FOLDER)")
    if trained.model.ngrams is not None:
        raise UserError("--format transformers: such a folder has no n-grams (--ngrams); choose onnx, or train without")
    config: dict[str, Any] = dict(vocabulary.description["config"])
    _, rows = piece_vocabulary(Path(dictionary), config)
    same = next(i for i, row in enumerate(rows) if row == rows[BOS] and i != BOS)
    embeddings = trained.model.embedding.embeddings.numpy()
    if not np.array_equal(embeddings[BOS], embeddings[same]):
        rows[BOS] = config["decoder_start_token_id"] = config["vocab_size"]
        config["vocab_size"] += 1
    config = {name: x for name, x in config.items() if name != "torch_dtype" and not name.startswith("forced_")}
    write_json(folder / CONFIG, {**config, "dtype": "float32"})
    texts = vocabulary.bytes_of_tokens()
    said = {int(rows[i]) for i in range(len(rows)) if texts[i] or i in (EOS, *vocabulary.beginning)}
    never = {*range(config["vocab_size"])} - said
    generation = {name: config.get(name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    generation |= {"suppress_tokens": sorted(never), "begin_suppress_tokens": [config["eos_token_id"]]}
    write_json(folder / GENERATION, {**generation, "max_new_tokens": trained.settings.model.max_length})
    shutil.copyfile(dictionary, folder / TOKENIZER)
    write_tokenizer_config(folder, vocabulary)
    write_weights(trained.model, folder, family_of(config, CONFIG), rows)
