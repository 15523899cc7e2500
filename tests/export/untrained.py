"""Attempts on disk that were never trained, whose replies depend on the question."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.attempts.checkpoint import write_checkpoint
from chatbot.attempts.files import BEST, CONFIG, LAST, NGRAMS, RETRIEVAL, VOCABULARY
from chatbot.attempts.settings import stored_values
from chatbot.attempts.trained import weights_of
from chatbot.config.training import Settings
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import BYTES, MARKS, Vocabulary
from chatbot.decoding.ngrams import count_ngrams
from chatbot.flags import compose
from chatbot.model.copying import spelling_table
from chatbot.retrieval.indexing import write_retrieval
from chatbot.training.new_model import build_model

WORDS = ["你好", "你", "好", "吗", "我", "他", "天", "今天", "\u2581", "a", "\u2581b"]
PAIRS = ["你好 我", "你 好 吗", "今天 天 好", "他 好 吗 你", "我 今天 好"]
QUESTIONS = ["你好", "你好吗", "今天 a b", "他們好", "我", "吗" * 20]
SMALL: dict[str, Any] = {
    "rnn_size": 8,
    "embedding_size": 6,
    "max_length": 7,
    "tokenizer": "char",
    "both_directions": "on",
    "validation": "none",
}


def write_attempt(directory: Path, validated: bool = True, retrieves: bool = False, **settings: Any) -> Path:
    """Write an attempt with these settings, and return its directory. retrieves: whether PAIRS can be looked up."""
    chosen = compose(Settings, **{**SMALL, **settings})
    vocabulary = Vocabulary([*WORDS, *(MARKS if chosen.encoding.history else ()), *BYTES])
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text(json.dumps(stored_values(chosen)))
    (directory / VOCABULARY).write_bytes(vocabulary.content())
    ngrams = None
    if order := chosen.model.ngrams:
        rows = Ragged.from_rows([vocabulary.ids(pair.split()) for pair in PAIRS])
        ngrams = count_ngrams([rows], len(vocabulary), order)
        (directory / NGRAMS).write_bytes(ngrams.content())
    spellings = spelling_table(vocabulary.spellings())
    model = build_model(chosen.model, len(vocabulary), seed=1, spellings=spellings, ngrams=ngrams)
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:  # larger than at the start of training, so that replies differ
            variable.assign(variable + generator.normal(size=variable.shape, scale=0.4))
    model.bias.assign(np.where(np.arange(len(vocabulary)) < vocabulary.first_byte, 3.0, -1.0))
    write_checkpoint(directory / "ckpt-2", {"weights": [weight.numpy() for weight in weights_of(model)]}, {})
    for name in (LAST, BEST) if validated else (LAST,):
        (directory / name).write_text(json.dumps({"checkpoint": "ckpt-2", "step": 2}))
    if retrieves:
        questions, replies = (
            Ragged.from_rows([vocabulary.ids(t.split()) for t in x]) for x in (PAIRS, reversed(PAIRS))
        )
        pairs = EncodedPairs.question_to_answer(questions, replies, np.ones(len(PAIRS), np.int64))
        write_retrieval(directory / RETRIEVAL, [pairs], vocabulary, "", len(PAIRS), directory.parent / "cache")
    return directory
