"""Replies on a stand-in GPU, of two lengths, with the copies that each makes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BOS
from chatbot.flags import replace
from chatbot.inference.replier import Replier
from chatbot.inference.request import Question, Request
from chatbot.inference.row_batch import RowBatch
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.inference.text_responder import TextResponder
from chatbot.training.devices.towers import Tower
from tests.gpu import standin
from tests.gpu.comparisons import ADAM, QUESTIONS, REPLY_VOCABULARY, new_model
from tests.model.small_transformer import TRANSFORMER
from tests.tiny_models import sources_of

GPU = Tower("gpu_0", "/GPU:0", "stand-in", None)
LENGTHS = 10, 40  # of all replies, in tokens
MIXED = {"copy": True, "ngrams": 3}
PROCESSORS = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "anti_lm": 0.3,
    "no_repeat_ngram": 3,
}
TRUNCATIONS = {"temperature": 1.1, "top_k": 60, "top_p": 0.9, "min_p": 0.01}
# Settings of the model that are not ADAM's, and of the search.
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (MIXED, {"beam_size": 1, **PROCESSORS}),
    "sampling": ({"cell": "gru", "attention": "bahdanau"}, TRUNCATIONS),
    "candidates": (MIXED, {"candidates": 3, **TRUNCATIONS, **PROCESSORS}),
    "beam": (MIXED, {"beam_size": 4, **PROCESSORS}),
    "transformer": (TRANSFORMER, {"beam_size": 4}),
}


# (replier, length of its replies) -> what is counted
Use = Callable[[Replier, int], Callable[[], Any]]


def all_counts() -> tuple[dict[str, list[standin.Counts]], dict[str, list[standin.Counts]]]:
    """Return the counts of whole searches, and of what gives the host each token."""
    return whole_searches(), token_by_token()


def whole_searches() -> dict[str, list[standin.Counts]]:
    """Return the counts of replies to QUESTIONS, for each search and length."""
    return {
        name: _counts(lambda replier, length: lambda: replier.candidates(sources_of(QUESTIONS, length)), *settings)
        for name, settings in SEARCHES.items()
    }


def token_by_token() -> dict[str, list[standin.Counts]]:
    """Return the counts of what gives the host each token, or weights of each, for each length."""

    def stream(replier: Replier, length: int) -> Callable[[], Any]:
        settings = replace(ADAM, max_length=length)
        responder = TextResponder(replier.model, REPLY_VOCABULARY, settings, replier.decoding)

        def generate() -> None:
            batch = RowBatch(replier.model, length)
            request = Request(Question(""), lambda _: None)
            batch.change([responder.begin(request, QUESTIONS[1], replier.decoding)])
            while batch.unfinished:
                batch.advance()

        return generate

    def engine(replier: Replier, length: int) -> Callable[[], Any]:
        model = replier.model

        def generate() -> None:
            state, last = model.encode(QUESTIONS), np.full(len(QUESTIONS), BOS)
            for _ in range(length):
                logits, state = model.step(state, last)
                last = logits.argmax(axis=-1)

        return generate

    def attention(replier: Any, length: int) -> Callable[[], Any]:
        return lambda: replier.model.attention(QUESTIONS, [[5] * length] * len(QUESTIONS))

    return {use.__name__: _counts(use, *SEARCHES["greedy"]) for use in (stream, engine, attention)}


def _counts(use: Use, changes: dict[str, Any], decoding: dict[str, Any]) -> list[standin.Counts]:
    """Return the counts of a second call, after the first has traced its graphs, for each length of all replies."""
    found = []
    for length in LENGTHS:
        settings = replace(ADAM, max_length=length, **changes)
        model = new_model(settings, GPU, vocabulary=len(REPLY_VOCABULARY))
        whole = DecodingSettings(**decoding, min_reply_length=length)
        call = use(Replier(TensorFlowModel(model), REPLY_VOCABULARY, settings.model, whole), length)
        call()
        before = standin.counts()
        call()
        found.append(standin.counts().since(before))
    return found
