"""What a tower computes on a GPU and on the CPU, from the same weights: gradients, training, dropout masks, replies."""

import functools
import itertools
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, pad_batch
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.decoding.ngrams import count_ngrams
from chatbot.flags import replace
from chatbot.inference.replier import Replier
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.model.recurrent import uniform
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.memory import loss_size
from chatbot.training.selftest import CASES, STEPS, VOCABULARY, random_pairs
from chatbot.training.update import open_update
from tests.model.small_transformer import TRANSFORMER
from tests.tiny_models import sources_of
from tests.training.dense_gradients import dense_gradients

Case = Callable[[Tower], dict[str, Any]]

ADAM = replace(CASES["Adam with clipping"], rnn_size=32, embedding_size=24, num_layers=2, bidirectional=True)
REPLY_VOCABULARY = Vocabulary(["你好", "你", "好", "吗", *BYTES])
QUESTIONS = [[5], [6, 7, 8], [8] * 12, [7, 7], [5, 6, 5, 6, 5]]


def new_model(settings: Settings, tower: Tower, precision: str = "float32", vocabulary: int = VOCABULARY) -> Seq2Seq:
    """Return a model on a device, with weights drawn by NumPy: the same on all devices, to the bit."""
    rng = np.random.default_rng(1)
    scale = settings.model.rnn_size**-0.5
    spellings = np.stack([np.arange(vocabulary), np.roll(np.arange(vocabulary), 1)], 1)
    order = settings.model.ngrams
    ngrams = count_ngrams([random_pairs(67, 1).targets], vocabulary, order) if order else None
    smoothing = settings.learning.label_smoothing
    with tf.device(tower.device):
        size = loss_size(settings, [tower])
        model = Seq2Seq(settings.model, vocabulary, precision, size, spellings, ngrams, smoothing)
        for weight in model.trainable_variables:
            weight.assign(rng.normal(scale=scale, size=weight.shape).astype(np.float32))
    return model


def named(model: Seq2Seq, values: list[Any]) -> dict[str, Any]:
    """Return a value for each weight, by its place and name in the model."""
    return {
        f"{i} {variable.name}": np.asarray(value)
        for i, (variable, value) in enumerate(zip(model.trainable_variables, values, strict=True))
    }


def gradients(settings: Settings, precision: str, tower: Tower) -> dict[str, Any]:
    """Return the loss and the gradients of a batch."""
    model = new_model(settings, tower, precision)
    sums, values = dense_gradients(model, pad_batch(random_pairs(19, 1), np.arange(19), 9, 10), device=tower.device)
    return {"loss": sums.loss.numpy(), **named(model, values)}


def weights_after_training(settings: Settings, tower: Tower) -> dict[str, Any]:
    """Return the weights after ten steps."""
    model = new_model(settings, tower)
    update = open_update(model, settings, [tower])
    learning = settings.learning
    batches = Batches([random_pairs(67, 1)], learning.batch_size, learning.seed).from_step(0, 1)
    for number, batch in enumerate(itertools.islice(batches, STEPS)):
        update(update.prepare(batch, number), learning.learning_rate)
    update.gather_state()
    return named(model, [variable.numpy() for variable in model.trainable_variables])


def dropout_numbers(shape: list[int], key: int, number: int, tower: Tower) -> dict[str, Any]:
    """Return the numbers from which a dropout mask is made."""
    with tf.device(tower.device):
        return {"uniform": uniform(shape, tf.constant([key], tf.uint64), number).numpy()}


def best_replies(changes: dict[str, Any], decoding: DecodingSettings, tower: Tower) -> dict[str, Any]:
    """Return all candidates of each question: texts and scores. changes: settings of the model that are not ADAM's."""
    settings = replace(ADAM, max_length=20, **changes)
    model = new_model(settings, tower, vocabulary=len(REPLY_VOCABULARY))
    for weight in model.trainable_variables:
        weight.assign(4.0 * weight)  # so that replies differ
    replier = Replier(TensorFlowModel(model), REPLY_VOCABULARY, settings.model, decoding)
    candidates = [reply for replies in replier.candidates(sources_of(QUESTIONS, 20)) for reply in replies]
    return {"texts": [reply.text for reply in candidates], "scores": np.array([reply.score for reply in candidates])}


KINDS = {
    f"{cell} {attention} {directions}": replace(
        ADAM, cell=cell, attention=attention, bidirectional=directions == "both"
    )
    for cell in ("lstm", "gru")
    for attention in ("luong", "bahdanau")
    for directions in ("forward", "both")
}
OPTIONS = {
    "copy": replace(ADAM, copy=True),
    "copy, gru bahdanau": replace(ADAM, copy=True, cell="gru", attention="bahdanau"),
    "label smoothing": replace(ADAM, label_smoothing=0.1),
    "residual": replace(ADAM, residual=True),
    "untied": replace(ADAM, tied_embeddings=False),
    "plain paths": replace(ADAM, plain_layers=True),
    "n-grams": replace(ADAM, ngrams=3),
    "no attention": replace(ADAM, attention="none"),
    "transformer, copy": replace(ADAM, copy=True, **TRANSFORMER),
}
GRADIENTS: dict[str, Case] = {
    name: functools.partial(gradients, settings, "float32") for name, settings in {**KINDS, **OPTIONS}.items()
}
# The keys are those of GRADIENTS, followed by the precision.
LOWER_PRECISION: dict[str, Case] = {
    f"{name} {precision}": functools.partial(gradients, KINDS[name], precision)
    for name in ("lstm luong both", "lstm bahdanau both", "gru bahdanau both")
    for precision in ("float16", "bfloat16")
}
# With dropout, where the CPU has the layout of the GPU, and so draws the same masks.
TRAINING: dict[str, Case] = {
    name: functools.partial(weights_after_training, settings)
    for name, settings in {
        "lstm": ADAM,
        "gru": replace(ADAM, cell="gru"),
        "bahdanau": replace(ADAM, attention="bahdanau"),
        "dropout, gru": replace(ADAM, cell="gru", keep_prob=0.5),
        "dropout, lstm of Keras": replace(ADAM, plain_layers=True, keep_prob=0.5),
        "copy": replace(ADAM, copy=True),
        "transformer": replace(ADAM, **TRANSFORMER),
        "average of the weights": replace(ADAM, average=0.9),
    }.items()
}
MASKS: dict[str, Case] = {
    f"{shape} {key} {number}": functools.partial(dropout_numbers, shape, key, number)
    for shape in ([1], [7], [5, 13], [19, 9, 24], [3000, 257])
    for key, number in ((1, 100), (2**64 - 1, 400))
}
REPLIES: dict[str, Case] = {
    "greedy": functools.partial(best_replies, {}, DecodingSettings(beam_size=1)),
    "beam": functools.partial(best_replies, {}, DecodingSettings(beam_size=4)),
    "beam, copy and n-grams": functools.partial(
        best_replies, {"copy": True, "ngrams": 3}, DecodingSettings(beam_size=4)
    ),
    "sampling": functools.partial(best_replies, {}, DecodingSettings(top_p=0.9, candidates=4)),
    "penalties": functools.partial(
        best_replies, {}, DecodingSettings(beam_size=4, repetition_penalty=1.3, no_repeat_ngram=2, min_reply_length=3)
    ),
}


def results(cases: Mapping[str, Case], tower: Tower) -> dict[str, Any]:
    """Return the result of each case; of one that fails, its traceback."""
    found: dict[str, Any] = {}
    for name, case in cases.items():
        try:
            found[name] = case(tower)
        except Exception:  # so that one run on a GPU says which cases fail
            found[name] = traceback.format_exc()
    return found


def all_gradients(tower: Tower) -> dict[str, Any]:
    """Return the results of GRADIENTS and LOWER_PRECISION."""
    return results({**GRADIENTS, **LOWER_PRECISION}, tower)


def all_others(tower: Tower) -> dict[str, Any]:
    """Return the results of TRAINING, MASKS and REPLIES."""
    return results({**TRAINING, **MASKS, **REPLIES}, tower)
